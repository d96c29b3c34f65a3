"""What GET /v1/models/{m}/info and GET /info say of a model; tests/integration/test_openapi.py has their schemas."""

from __future__ import annotations

from typing import Any

import pytest

import hf_transformer
from tests.integration.conftest import Serve


def info(serve: Serve, model: str, *flags: str) -> dict[str, Any]:
    """Its examples, which are those of /openapi.json, are requests."""
    service = serve(model, "v2", *flags)
    found: dict[str, Any] = service.client.get(f"/v1/models/{model}/info").json()
    assert service.post(found["examples"][0]["value"]).status_code == 200
    return found


def test_a_model_for_entities(serve: Serve) -> None:
    found = info(serve, "ner", "--aggregation_strategy=first", "--output_format=pipeline", "--max_instances=7")
    forms = ("aggregation_strategy", "output_format", "on_overflow")
    assert found["name"] == "ner" and found["version"] == "1"
    assert found["task"] == "token_classification"
    assert found["server"] == {"name": "hf_transformer", "version": hf_transformer.__version__}
    assert found["max_length"] == 128
    assert found["labels"] == ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG"]
    assert [found[form] for form in forms] == ["first", "pipeline", "truncate"]
    assert found["limits"]["max_instances"] == 7
    assert found["protocols"]["v1"] == "/v1/models/ner:predict"
    assert found["protocols"]["openai"] == []


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
    less = info(serve, "gpt2_tutorial")["generation"]
    assert less["interface"] == "text"
    assert less["parameters"] == ["max_length", "max_tokens", "n", "stop"]


LABELS = {"id2label": {"0": "not_paraphrase", "1": "paraphrase"}, "label2id": {"not_paraphrase": 0, "paraphrase": 1}}


@pytest.mark.parametrize(
    ("model", "model_type"),
    [
        ("minibert_mean", {"embedding": {"pooling": "mean"}}),
        ("minibert_max", {"embedding": {}}),
        ("cross", {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}),
        ("paraphrase", {"classifier": LABELS}),
        ("ner", None),
    ],
)
def test_the_names_of_text_embeddings_inference(serve: Serve, model: str, model_type: Any) -> None:
    flags = ("--max_asyncio_workers=3", "--on_overflow=error") if model == "minibert_mean" else ()
    found = serve(model, "v2", *flags).client.get("/info").json()
    workers = found.pop("tokenization_workers")
    assert workers == 3 if flags else workers > 0
    assert found == {
        "model_id": model,
        "model_sha": None,
        **({} if model_type is None else {"model_type": model_type}),
        "max_concurrent_requests": 1024,
        "max_input_length": 128,
        "max_batch_tokens": 16384,
        "max_client_batch_size": 1024,
        "auto_truncate": not flags,
        "version": hf_transformer.__version__,
    }
