"""No answer depends on its neighbours or on padding: mixes of texts against each text's own answer."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.conftest import Serve
from tests.integration.generating import AT_ONCE, GREEDY, TOKENS, cases_of, client_of, complete, side_by_side
from tests.service import Service

COUNTRIES = ["france", "italy", "germany", "japan", "spain"]
FORMS = [
    "The capital of {} is [MASK].",
    "[MASK] is the capital of {}.",
    "The capital of {} is [MASK]. " * 3,
    "[MASK]",
    "{} and again {} with [MASK] " * 7,
    "It is said, and often, that the capital of {}, a land of many rivers, is the old town of [MASK].",
]
TEXTS = [form.format(*[country] * form.count("{}")) for form in FORMS for country in COUNTRIES]
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


@pytest.mark.parametrize("model", ["bert", "bert_masked", "bert_fixed", "bert_unbatched", "bert_batch0"])
def test_a_mixed_request_gives_the_answers_of_single_ones(serve: Serve, model: str) -> None:
    service = serve(model, "grpc-v2")
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

    async with httpx.AsyncClient(timeout=60.0, trust_env=False) as client:
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
