"""The forms that a predictor's model can take, the errors of those that do not fit, and batches of different texts,
in which no answer depends on its neighbours or on padding."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_transformer.commands.child_process import poll
from tests.integration.conftest import MODEL_FOLDER, Serve, refused
from tests.integration.generating import AT_ONCE, GREEDY, TOKENS, cases_of, client_of, complete, side_by_side
from tests.support.service import START_SECONDS, Service

COUNTRIES = ["france", "italy", "germany", "japan", "spain"]
SIMPLE = ["The capital of france is [MASK].", "[MASK] is the capital of italy.", "The capital of japan is [MASK]."]
ANSWERS = ["paris", "rome", "tokyo"]
SENTENCES = [
    "The capital of {} is [MASK].",
    "[MASK] is the capital of {}.",
    "The capital of {} is [MASK]. " * 3,
    "[MASK]",
    "{} and again {} with [MASK] " * 7,
    "It is said, and often, that the capital of {}, a land of many rivers, is the old town of [MASK].",
]
TEXTS = [form.format(*[country] * form.count("{}")) for form in SENTENCES for country in COUNTRIES]
PARAMETERS = {"output_format": "pipeline", "top_k": 3}
MULTIPLE = 16


def alone(service: Service, texts: list[str]) -> dict[str, Any]:
    """Every text's answer, each from a request of its own."""
    return {text: service.predict([text], PARAMETERS)[0] for text in texts}


def assert_same(found: Any, expected: Any) -> None:
    flat = [found] if isinstance(found[0], dict) else found
    other = [expected] if isinstance(expected[0], dict) else expected
    for row, wanted in zip(flat, other, strict=True):
        assert [one["token"] for one in row] == [one["token"] for one in wanted]
        assert [one["score"] for one in row] == pytest.approx([one["score"] for one in wanted], abs=1e-5)


FORMS = [
    ("bert", ""),
    ("bert_masked", ""),
    ("bert_int32", ""),
    ("bert_unbatched", ""),
    ("bert_batch0", ""),
    ("bert_fixed", ""),
    ("bert_fp16", ""),
    ("bert_two_outputs", ""),
    ("bert_optional_mask", ""),
    ("bert_optional_mask", "input_ids"),
    ("bert_optional_mask", "input_ids,attention_mask"),
    ("bert_torchscript", "input_ids,attention_mask"),  # positional names of Triton's PyTorch backend
]
MIXED = {"bert", "bert_masked", "bert_fixed", "bert_unbatched", "bert_batch0"}
"""Those that pad, cut and split in different ways."""


@pytest.mark.parametrize(("model", "names"), FORMS)
def test_every_form_of_model_answers(serve: Serve, model: str, names: str) -> None:
    """Over gRPC to Triton, mixed requests as single ones; the tests of fill_mask ask over REST, too."""
    service = serve(model, "grpc-v2", *([f"--tensor_input_names={names}"] if names else []))
    assert service.predict(SIMPLE * 5) == ANSWERS * 5
    if model not in MIXED:
        return
    # The model of a fixed length takes 32 tokens, and the masks of the last two forms lie beyond them.
    texts = TEXTS[: 4 * len(COUNTRIES)] if model == "bert_fixed" else TEXTS
    expected = alone(service, texts)

    @settings(max_examples=15)
    @given(st.lists(st.sampled_from(texts), min_size=1, max_size=30))
    def check(mix: list[str]) -> None:
        for found, text in zip(service.predict(mix, PARAMETERS), mix, strict=True):
            assert_same(found, expected[text])

    check()


@pytest.mark.parametrize(("model", "protocol"), [("bert", "grpc-v2"), ("bert_masked", "v2")])
async def test_requests_side_by_side_give_the_answers_of_single_ones(serve: Serve, protocol: str, model: str) -> None:
    service = serve(model, protocol)
    expected = alone(service, TEXTS)
    source = random.Random(7)

    async def ask(client: httpx.AsyncClient, texts: list[str]) -> None:
        body = {"instances": texts, "parameters": PARAMETERS}
        response = await client.post(f"{service.url}/v1/models/{model}:predict", json=body)
        for found, text in zip(response.json()["predictions"], texts, strict=True):
            assert_same(found, expected[text])

    async with httpx.AsyncClient(timeout=60.0, trust_env=False, verify=False) as client:
        requests = [source.choices(TEXTS, k=source.randint(1, 12)) for _ in range(60)]
        await asyncio.gather(*(ask(client, texts) for texts in requests))


def batch_tokens(service: Service) -> tuple[float, ...]:
    """Tokens of texts that were sent, and of padding."""
    kinds = ("real", "padding")
    return tuple(service.metric(f'hf_transformer_batch_tokens_total{{kind="{kind}"}}') for kind in kinds)


def test_a_multiple_of_tokens_changes_no_answer(serve: Serve) -> None:
    expected = serve("bert_masked").predict(TEXTS, PARAMETERS)
    service = serve("bert_masked", "v2", f"--pad_to_multiple_of={MULTIPLE}")
    before = batch_tokens(service)
    found = [service.predict([text], PARAMETERS)[0] for text in TEXTS] + service.predict(TEXTS, PARAMETERS)
    for mine, wanted in zip(found, [*expected, *expected], strict=True):
        assert_same(mine, wanted)
    real, padding = (now - then for now, then in zip(batch_tokens(service), before, strict=True))
    assert padding > 0
    assert (real + padding) % MULTIPLE == 0


@pytest.mark.parametrize("model", ["gpt2_past", "t5_logits"])
async def test_texts_that_are_written_with_padding_are_those_of_transformers(serve: Serve, model: str) -> None:
    service = serve(model, "grpc-v2", f"--pad_to_multiple_of={MULTIPLE}")

    async def ask(case: Any) -> None:
        found = await complete(client, service, case["prompt"], max_tokens=TOKENS, **GREEDY)
        assert found["choices"][0]["text"] == case["text"], case["id"]

    async with client_of(service, kept=AT_ONCE) as client:
        await side_by_side(ask, cases_of(model))
        await asyncio.gather(*(ask(case) for case in cases_of(model)[:3]))


@pytest.mark.parametrize("model", ["bert_masked", "bert_fixed"])
def test_a_tokenizer_that_pads_left_gives_the_same_answers(serve: Serve, model: str, tmp_path: Path) -> None:
    """Padding on the left would shift the positions of a BERT: behind a mask it goes to the right all the same."""
    shutil.copytree(MODEL_FOLDER, tmp_path, dirs_exist_ok=True)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"padding_side": "left"}))
    texts = [*SIMPLE, "It is said, and often, that the capital of spain is [MASK]."]
    parameters = {"output_format": "pipeline", "top_k": 1}
    expected = [serve(model, "grpc-v2").predict([text], parameters)[0][0] for text in texts]
    found = serve(model, "v2", f"--model_dir={tmp_path}").predict(texts, parameters)
    assert [one[0]["token_str"] for one in found] == [*ANSWERS, "madrid"]
    assert [one[0]["score"] for one in found] == pytest.approx([one["score"] for one in expected], abs=1e-5)


@pytest.mark.parametrize(
    ("model", "task", "says"),
    [
        ("bert_wrong_rank", "fill_mask", "is it exported for another task"),
        ("minibert_pooled", "feature_extraction", "reads [tokens, hidden]"),
    ],
)
def test_a_misfit_is_reported_once_and_keeps_the_service_unready(
    serve: Serve, model: str, task: str, says: str
) -> None:
    """tests/core/test_contract.py and the doctor's mismatches have all that can be said."""
    service = serve(model, "v2", f"--task={task}", "--log_level=debug", ready=False)
    assert poll(lambda: "does not fit" in service.client.get(f"/v1/models/{model}").text, START_SECONDS)
    refused(service, SIMPLE, {}, says, 503)
    assert service.client.get(f"/v1/models/{model}").status_code == 503
    assert poll(lambda: service.log.count("is still not ready") >= 3, START_SECONDS)
    assert service.log.count(f"WARNING hf_transformer.core.model: model {model!r} is not ready") == 1
    assert service.client.get("/").status_code == 200
