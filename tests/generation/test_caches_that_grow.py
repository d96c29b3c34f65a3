"""Texts whose caches grow within a limit: who waits, and that every text is what it would be alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from hf_transformer.errors import CallersDeadline, TooLarge, TooManyRequests
from hf_transformer.generation import cache
from hf_transformer.generation.cache_budget import CacheBudget
from hf_transformer.generation.logits_model import LogitsGenerator
from hf_transformer.generation.types import Prompt, Sampling
from hf_transformer.types import Context
from tests.generation.logits_bench import FORMS, PROMPTS, generator, write
from tests.generation.tiny_model import LONGEST, TinyPredictor

TOKEN = 2 * 2 * 8 * 4  # key and value, two heads, FP32
LONG = Sampling(greedy=True, ignore_eos=True, max_tokens=40)
"""With one token before it a text of 40 tokens in the cache."""
LARGE = (Prompt("", (3,) * 20), replace(LONG, max_tokens=20))
"""One of 24 at once, and 39 at its end."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "BLOCK", 4)


@pytest.fixture
async def sixty_tokens() -> AsyncIterator[tuple[LogitsGenerator, TinyPredictor]]:
    async with generator(FORMS["cache"], caches=CacheBudget(60 * TOKEN)) as (made, predictor):
        yield made, predictor


async def test_texts_wait_for_room_and_all_come_to_their_ends(
    sixty_tokens: tuple[LogitsGenerator, TinyPredictor],
) -> None:
    made, predictor = sixty_tokens
    alone = [await write(made, (one,), LONG) for one in (3, 4, 5)]
    calls = len(predictor.calls)
    together = await asyncio.gather(*[write(made, (one,), LONG) for one in (3, 4, 5)])
    assert together == alone, "three times 40 tokens do not fit at the same time"
    assert max(predictor.rows[calls:]) == 3 and predictor.rows[-1] < 3
    for call in predictor.calls[calls:]:
        assert call["past_key_values.0.key"].nbytes * 2 <= 60 * TOKEN
    assert made._budget.held == 0


async def test_many_texts_under_pressure(sixty_tokens: tuple[LogitsGenerator, TinyPredictor]) -> None:
    made, _ = sixty_tokens
    hows = [Sampling(seed=seed, temperature=1.5, max_tokens=LONGEST // 2) for seed in range(24)]
    alone = [await write(made, prompt, how) for prompt, how in zip(PROMPTS, hows, strict=True)]

    async def patient(prompt: tuple[int, ...], how: Sampling) -> object:
        while True:
            try:
                return await write(made, prompt, how)
            except TooManyRequests:
                assert made._budget.held
                await asyncio.sleep(0.001)

    assert await asyncio.gather(*[patient(*one) for one in zip(PROMPTS, hows, strict=True)]) == alone
    assert made._budget.held == 0


async def test_a_text_that_waits_can_be_left(sixty_tokens: tuple[LogitsGenerator, TinyPredictor]) -> None:
    made, predictor = sixty_tokens
    first = made.generate(*LARGE, Context("id", {}))
    await anext(first)  # and reads no further
    second = asyncio.create_task(write(made, (4,), LONG))
    while not made._budget._waiting:
        await predictor.turn()
    with pytest.raises(TooManyRequests, match="--max_cache_bytes"):
        await write(made, (5,), replace(LONG, max_tokens=2))
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert not made._budget._waiting
    assert len((await write(made, (5,), replace(LONG, max_tokens=2)))[0]) == 2
    await first.aclose()
    assert made._budget.held == 0


async def test_a_text_that_waits_goes_on_when_another_is_left(
    sixty_tokens: tuple[LogitsGenerator, TinyPredictor],
) -> None:
    made, predictor = sixty_tokens
    expected = await write(made, (4,), LONG)
    first = made.generate(*LARGE, Context("id", {}))
    await anext(first)
    second = asyncio.create_task(write(made, (4,), LONG))
    while not made._budget._waiting:
        await predictor.turn()
    await first.aclose()
    assert await second == expected and made._budget.held == 0


async def test_a_step_that_fails_gives_the_room_back(sixty_tokens: tuple[LogitsGenerator, TinyPredictor]) -> None:
    made, _ = sixty_tokens
    late = Context("id", {}, deadline=asyncio.get_running_loop().time())
    with pytest.raises(CallersDeadline):
        await anext(made.generate(Prompt("", (3,)), LONG, late))
    assert made._budget.held == 0


@pytest.mark.parametrize(("count", "fits"), [(5, True), (6, False)], ids=["together", "never"])
async def test_texts_of_one_request_that_never_fit(
    sixty_tokens: tuple[LogitsGenerator, TinyPredictor], count: int, fits: bool
) -> None:
    made, _ = sixty_tokens
    texts = [(Prompt("", (3,)), LONG)] * count  # each begins with 5, one of them comes to 40
    if fits:
        made.check(texts)
        return
    with pytest.raises(TooLarge, match=rf"need {(5 * 5 + 40) * TOKEN} bytes, --max_cache_bytes allows {60 * TOKEN}"):
        made.check(texts)
    made.check([(prompt, replace(how, max_tokens=0)) for prompt, how in texts])


async def test_models_without_a_cache_have_no_such_limit() -> None:
    async with generator(FORMS["plain"], caches=CacheBudget(1)) as (made, _):
        made.check([(Prompt("", (3,)), LONG)] * 100)
        assert len((await write(made, (3,), LONG))[0]) == 40
