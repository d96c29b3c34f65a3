"""Several texts of one prompt: the model reads it once, and each text is what it would be alone."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace

import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.generation.logits_model import LogitsGenerator
from hf_transformer.generation.types import Prompt, Sampling
from hf_transformer.types import Context
from tests.generation.logits_bench import FORMS, PROMPTS, SIXTEEN, generator, write
from tests.generation.tiny_model import TinyPredictor

SEEDED = [Sampling(seed=seed, temperature=1.5, max_tokens=12) for seed in range(8)]


async def read(made: LogitsGenerator, prompt: Prompt, how: Sampling) -> list[int]:
    return [one async for step in made.generate(prompt, how, Context("id", {})) for one in step.ids]


def begin(
    made: LogitsGenerator, ids: Sequence[int], hows: Sequence[Sampling] = SEEDED
) -> list[asyncio.Task[list[int]]]:
    prompt = Prompt("", tuple(ids), texts=len(hows))
    return [asyncio.create_task(read(made, prompt, how)) for how in hows]


def prompts_read(predictor: TinyPredictor, ids: Sequence[int]) -> int:
    return sum(row[: len(ids)] == [*ids] for call in predictor.calls for row in call["input_ids"].tolist())


@pytest.mark.parametrize("name", ["plain", "cache", "cache, equal lengths", "cache, merged", "encoder-decoder, cache"])
async def test_a_prompt_is_read_once_and_texts_are_the_same(name: str) -> None:
    async with generator(FORMS[name]) as (made, predictor):
        alone = [(await write(made, PROMPTS[0], how))[0] for how in SEEDED]
        calls = len(predictor.calls)
        assert await asyncio.gather(*begin(made, PROMPTS[0])) == alone
        assert len({*map(tuple, alone)}) > 4
        assert predictor.rows[calls] == 1 and predictor.rows[calls + 1] == 8
        assert made._budget.held == 0 and not made._starts


async def test_each_request_reads_its_own() -> None:
    async with generator(FORMS["cache"]) as (made, predictor):
        ids = PROMPTS[0]
        one, two = begin(made, ids), begin(made, ids)
        assert await asyncio.gather(*one) == await asyncio.gather(*two)
        assert prompts_read(predictor, ids) == 2


async def test_texts_that_come_later_begin_anew() -> None:
    async with generator(FORMS["cache"]) as (made, predictor):
        prompt = Prompt("", PROMPTS[0], texts=2)
        found = [await read(made, prompt, SEEDED[0]) for _ in range(2)]
        assert found == [(await write(made, PROMPTS[0], SEEDED[0]))[0]] * 2
        assert prompts_read(predictor, prompt.ids) == 3 and not made._starts


async def test_one_that_leaves_costs_the_others_nothing() -> None:
    async with generator(FORMS["cache"]) as (made, predictor):
        alone = [(await write(made, PROMPTS[0], how))[0] for how in SEEDED]
        predictor.held = True
        before, between = begin(made, PROMPTS[0]), begin(made, PROMPTS[0])
        await asyncio.sleep(0)
        before[0].cancel()
        await predictor.turn()
        between[0].cancel()
        await predictor.turn()
        predictor.held = False
        await predictor.release()
        for tasks in (before, between):
            assert (await asyncio.gather(*tasks, return_exceptions=True))[1:] == alone[1:]
        assert made._budget.held == 0


async def test_when_all_leave_the_call_is_not_wanted_any_more() -> None:
    async with generator(FORMS["cache"]) as (made, predictor):
        predictor.held = True
        tasks = begin(made, PROMPTS[0])
        await predictor.turn()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        [wanted] = predictor.wanted
        assert not wanted() and made._budget.held == 0
        await predictor.release()


async def test_nothing_is_sent_for_texts_that_left_at_once() -> None:
    async with generator(FORMS["cache"]) as (made, predictor):
        tasks = begin(made, PROMPTS[0])
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await predictor.turn()
        assert not predictor.calls and not made._starts


async def test_an_error_is_everybodys() -> None:
    async with generator(SIXTEEN) as (made, predictor):
        predictor.faults[0] = PredictorError("bad")
        found = await asyncio.gather(*begin(made, PROMPTS[0]), return_exceptions=True)
        assert [str(one) for one in found] == ["bad"] * 8
        assert len({id(one) for one in found}) == 8


async def test_a_text_of_no_tokens_begins_nothing() -> None:
    async with generator(FORMS["cache"]) as (made, predictor):
        none = [replace(how, max_tokens=0) for how in SEEDED]
        assert await asyncio.gather(*begin(made, PROMPTS[0], none)) == [[]] * 8
        assert not predictor.calls and not made._starts


async def test_what_has_ended_is_let_go_of_without_the_collector() -> None:
    async with generator(FORMS["cache"]) as (made, predictor):
        caches: list[weakref.ref[object]] = []
        make = made._begin

        def watched(*arguments: object) -> object:
            text = make(*arguments)  # type: ignore[arg-type] # as they come
            caches.append(weakref.ref(text.cache))
            return text

        made._begin = watched  # type: ignore[assignment, method-assign] # watches what is made
        gc.collect()
        gc.disable()
        try:
            await asyncio.gather(*begin(made, PROMPTS[0]))
            predictor.faults[len(predictor.calls)] = PredictorError("bad")
            await asyncio.gather(*begin(made, PROMPTS[0]), return_exceptions=True)
            predictor.held = True
            tasks = begin(made, PROMPTS[0])
            await predictor.turn()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            del tasks, task
            await predictor.release(50)
            assert len(caches) == 24 and [cache() for cache in caches] == [None] * 24
        finally:
            gc.enable()
