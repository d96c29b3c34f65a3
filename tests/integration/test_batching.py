"""No answer depends on its neighbours: random mixes against one-by-one answers, with and without a mask input."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.conftest import Serve
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

several = settings(max_examples=15)


def alone(service: Service, texts: list[str]) -> dict[str, Any]:
    """Every text's answer, each from a request of its own."""
    return {text: service.predict([text], PARAMETERS)[0] for text in texts}


def assert_same(found: Any, expected: Any) -> None:
    flat = [found] if isinstance(found[0], dict) else found
    other = [expected] if isinstance(expected[0], dict) else expected
    for row, wanted in zip(flat, other, strict=True):
        assert [one["token"] for one in row] == [one["token"] for one in wanted]
        assert [one["score"] for one in row] == pytest.approx([one["score"] for one in wanted], abs=1e-5)


@pytest.mark.parametrize(
    ("model", "protocol"),
    [
        ("bert", "v2"),
        ("bert_masked", "grpc-v2"),
        ("bert_fixed", "v2"),
        ("bert_unbatched", "grpc-v2"),
        ("bert_batch0", "v2"),
    ],
)
def test_a_mixed_request_gives_the_answers_of_single_ones(serve: Serve, model: str, protocol: str) -> None:
    service = serve(model, protocol)
    # The model of a fixed length takes 32 tokens, and the masks of the last two forms lie beyond them.
    texts = TEXTS[: 4 * len(COUNTRIES)] if model == "bert_fixed" else TEXTS
    expected = alone(service, texts)

    @several
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
