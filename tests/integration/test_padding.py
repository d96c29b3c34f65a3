"""Widths in multiples of --pad_to_multiple_of in front of the real predictor: no answer is another one for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hf_transformer.commands.local_triton import poll
from tests.integration.conftest import Serve
from tests.integration.generating import AT_ONCE, GREEDY, TOKENS, cases_of, client_of, complete, side_by_side, start
from tests.integration.test_batching import PARAMETERS, TEXTS, assert_same
from tests.service import START_SECONDS, Service
from tests.triton_repository import task_model_folder

MULTIPLE = 16
FLAG = f"--pad_to_multiple_of={MULTIPLE}"
LONGEST = 128
"""Tokens that the test models take; one more fails."""


def test_answers_are_those_of_texts_that_are_not_padded(serve: Serve, protocol: str) -> None:
    expected = serve("bert_masked", protocol).predict(TEXTS, PARAMETERS)
    service = serve("bert_masked", protocol, FLAG)
    before = batch_tokens(service)
    found = [service.predict([text], PARAMETERS)[0] for text in TEXTS] + service.predict(TEXTS, PARAMETERS)
    for mine, wanted in zip(found, [*expected, *expected], strict=True):
        assert_same(mine, wanted)
    real, padding = (now - then for now, then in zip(batch_tokens(service), before, strict=True))
    assert padding > 0
    assert (real + padding) % MULTIPLE == 0


def batch_tokens(service: Service) -> tuple[float, ...]:
    """Tokens of texts that were sent, and of padding."""
    kinds = ("real", "padding")
    return tuple(service.metric(f'hf_transformer_batch_tokens_total{{kind="{kind}"}}') for kind in kinds)


@pytest.mark.parametrize("multiple", [96, 1000])
def test_the_longest_text_is_not_padded_beyond_the_models_positions(serve: Serve, multiple: int) -> None:
    texts = [" ".join(["good"] * count) for count in (1, 100, 126, 500)]
    folder = f"--model_dir={task_model_folder('sentiment')}"
    expected = serve("sentiment", "v2", folder).predict(texts)
    service = serve("sentiment", "v2", folder, f"--pad_to_multiple_of={multiple}")
    before = sum(batch_tokens(service))
    assert [service.predict([text])[0] for text in texts] == expected
    assert sum(batch_tokens(service)) - before == min(multiple, LONGEST) + 3 * LONGEST


def test_a_model_that_would_read_the_padding_does_not_get_ready_and_says_why(serve: Serve) -> None:
    service = serve("bert", "v2", FLAG, ready=False)
    service.wait_until("/v1/models/bert", 503)

    def said() -> str:
        return service.client.get("/v1/models/bert").text

    assert poll(lambda: "does not fit" in said(), START_SECONDS), said()
    assert "--pad_to_multiple_of=16: the model gets no attention_mask, so it would read the padding" in said()
    assert "expected 1, or a model that gets one" in said()


def test_a_fixed_length_is_what_counts(serve: Serve) -> None:
    texts = TEXTS[:8]
    for found, wanted in zip(
        serve("bert_fixed", "v2", FLAG).predict(texts, PARAMETERS),
        serve("bert_fixed").predict(texts, PARAMETERS),
        strict=True,
    ):
        assert_same(found, wanted)


@pytest.mark.parametrize("model", ["gpt2_past", "t5_logits"])
async def test_texts_that_are_written_are_those_of_transformers(serve: Serve, model: str) -> None:
    service = start(serve, model, "grpc-v2", FLAG)

    async def ask(case: Any) -> None:
        found = await complete(client, service, case["prompt"], max_tokens=TOKENS, **GREEDY)
        assert found["choices"][0]["text"] == case["text"], case["id"]

    async with client_of(service, kept=AT_ONCE) as client:
        await side_by_side(ask, cases_of(model))
        await asyncio.gather(*(ask(case) for case in cases_of(model)[:3]))
