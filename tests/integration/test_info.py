"""What GET /v1/models/{m}/info and GET /info say of a model; tests/integration/test_openapi.py has their schemas."""

from __future__ import annotations

from typing import Any

import pytest

import hf_transformer
from tests.integration.conftest import Serve
from tests.service import Service
from tests.triton_repository import task_model_folder


def served(serve: Serve, model: str, *flags: str) -> Service:
    service: Service = serve(model, "v2", f"--model_dir={task_model_folder(model)}", *flags)
    return service


def info(serve: Serve, model: str, *flags: str) -> dict[str, Any]:
    found: dict[str, Any] = served(serve, model, *flags).client.get(f"/v1/models/{model}/info").json()
    return found


def test_a_model_for_entities(serve: Serve) -> None:
    found = info(serve, "ner", "--aggregation_strategy=first", "--output_format=pipeline", "--max_instances=7")
    assert found["name"] == "ner" and found["version"] == "1"
    assert found["task"] == "token_classification"
    assert found["server"] == {"name": "hf_transformer", "version": hf_transformer.__version__}
    assert found["max_length"] == 128
    assert found["labels"] == ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG"]
    assert (found["aggregation_strategy"], found["output_format"], found["on_overflow"]) == (
        "first",
        "pipeline",
        "truncate",
    )
    assert found["limits"]["max_instances"] == 7
    assert found["protocols"]["v1"] == "/v1/models/ner:predict"
    assert found["protocols"]["openai"] == []


@pytest.mark.parametrize("model", ["bert", "sentiment", "squad", "cross", "minibert_mean"])
def test_every_example_is_a_request(serve: Serve, model: str) -> None:
    service = served(serve, model, *(["--task=rerank"] if model == "cross" else []))
    for example in service.client.get(f"/v1/models/{model}/info").json()["examples"]:
        assert service.post(example["value"]).status_code == 200, example


def test_the_fields_of_some_tasks(serve: Serve) -> None:
    assert info(serve, "bert")["mask_token"] == "[MASK]"
    assert info(serve, "stars")["problem_type"] == "regression"
    found = info(serve, "minibert_mean")
    assert found["prompts"] == {"query": "query: ", "passage": "passage: "}
    assert (found["pooling"], found["default_prompt_name"]) == (["mean"], None)
    assert found["protocols"]["openai"] == ["/openai/v1/embeddings"]


def test_what_a_model_can_honour(serve: Serve) -> None:
    whole = info(serve, "gpt2_past", "--max_new_tokens=50", "--openai_route_prefix=")
    assert whole["generation"].items() >= {"interface": "logits", "chat": True, "max_new_tokens": 50}.items()
    assert {"temperature", "logprobs", "seed", "stop"} <= set(whole["generation"]["parameters"])
    assert whole["protocols"]["openai"] == ["/v1/completions", "/v1/chat/completions"]
    assert whole["protocols"]["generate"] == "/v2/models/gpt2_past/generate"
    less = info(serve, "gpt2_tutorial", "--task=text_generation")["generation"]
    assert less["interface"] == "text"
    assert less["parameters"] == ["max_length", "max_tokens", "n", "stop"]


@pytest.mark.parametrize(
    ("model", "flags", "model_type"),
    [
        ("minibert_mean", [], {"embedding": {"pooling": "mean"}}),
        ("minibert_max", [], {"embedding": {}}),
        ("cross", ["--task=rerank"], {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}),
        (
            "paraphrase",
            [],
            {
                "classifier": {
                    "id2label": {"0": "not_paraphrase", "1": "paraphrase"},
                    "label2id": {"not_paraphrase": 0, "paraphrase": 1},
                }
            },
        ),
        ("ner", [], None),
    ],
)
def test_the_names_of_text_embeddings_inference(
    serve: Serve, model: str, flags: list[str], model_type: dict[str, Any] | None
) -> None:
    service = served(serve, model, *flags, "--max_asyncio_workers=3", "--on_overflow=error")
    assert service.client.get("/info").json() == {
        "model_id": model,
        "model_sha": None,
        **({} if model_type is None else {"model_type": model_type}),
        "max_concurrent_requests": 1024,
        "max_input_length": 128,
        "max_batch_tokens": 16384,
        "max_client_batch_size": 1024,
        "auto_truncate": False,
        "tokenization_workers": 3,
        "version": hf_transformer.__version__,
    }


def test_errors(serve: Serve) -> None:
    service = served(serve, "bert")
    assert service.client.get("/v1/models/other/info").status_code == 404
    assert service.client.post("/info", json={}).status_code == 405
    lost: Service = serve("bert", "v2", "--predictor_host=127.0.0.1:9", ready=False)
    for path in ("/info", "/v1/models/bert/info"):
        refused = lost.client.get(path)
        assert refused.status_code == 503 and "not ready" in refused.json()["error"]
        assert refused.headers["retry-after"]
