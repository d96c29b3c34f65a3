"""Texts in the making side by side: who leaves with whom, who waits for whom, and who goes."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from hf_transformer.errors import CallersDeadline, PredictorError, PredictorUnavailable
from hf_transformer.generation.logits_model import LogitsGenerator
from hf_transformer.generation.stepping import AHEAD
from hf_transformer.generation.types import Prompt, Sampling, Step
from hf_transformer.types import Context
from tests.generation.logits_bench import FORMS, GREEDY, PROMPTS, SCHEDULING, SIXTEEN, generator, write
from tests.generation.tiny_model import TinyPredictor

ENDLESS = Sampling(greedy=True, ignore_eos=True, max_tokens=40)


def steps(made: LogitsGenerator, *ids: int, headers: dict[str, str] | None = None) -> AsyncGenerator[Step, None]:
    return made.generate(Prompt("", ids), ENDLESS, Context("id", headers or {}))


def first_tokens(predictor: TinyPredictor) -> list[list[int]]:
    """The first token of each text in each call; the texts of these tests begin with different ones."""
    return [call["input_ids"][:, 0].tolist() for call in predictor.calls]


async def test_newcomers_join_those_on_their_way() -> None:
    async with generator(SIXTEEN) as (made, predictor):
        predictor.held = True
        tasks = [asyncio.create_task(write(made, (3,), ENDLESS))]
        await predictor.turn()
        tasks += [asyncio.create_task(write(made, (one,), ENDLESS)) for one in (4, 5)]
        await predictor.turn()
        await predictor.release()
        tasks.append(asyncio.create_task(write(made, (6,), ENDLESS)))
        await predictor.turn()
        await predictor.release()
        await predictor.release()
        assert first_tokens(predictor) == [[3], [4, 5, 3], [6, 4, 5, 3], [6, 4, 5, 3]]
        assert [call["attention_mask"].sum(axis=1).tolist() for call in predictor.calls[2:]] == [
            [1, 2, 2, 3],
            [2, 3, 3, 4],
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_slow_reader_holds_up_nobody_and_is_not_run_ahead_of() -> None:
    async with generator(SIXTEEN) as (made, predictor):
        slow = steps(made, 7)
        first = await anext(slow)
        assert len((await write(made, (3,), ENDLESS))[0]) == 40
        sent = [tokens for tokens in first_tokens(predictor) if 7 in tokens]
        assert len(sent) == 1 + len(first.ids) + AHEAD
        found = list(first.ids)
        async for step in slow:
            found += step.ids
        assert found == (await write(made, (7,), ENDLESS))[0]


async def test_what_was_made_while_nobody_read_comes_at_once() -> None:
    async with generator(SIXTEEN) as (made, predictor):
        text = steps(made, 3)
        await anext(text)
        await predictor.turn(50)
        assert len((await anext(text)).ids) == AHEAD + 1
        await text.aclose()


async def test_a_text_that_is_closed_leaves_the_queue() -> None:
    async with generator(SIXTEEN) as (made, predictor):
        predictor.held = True
        blocker = asyncio.create_task(write(made, (3,), ENDLESS))
        await predictor.turn()
        waiting, other = (asyncio.create_task(anext(steps(made, one))) for one in (4, 5))
        await predictor.turn()
        waiting.cancel()
        await predictor.turn()
        await predictor.release()
        assert first_tokens(predictor) == [[3], [5, 3]]
        blocker.cancel()
        other.cancel()
        await asyncio.gather(blocker, waiting, other, return_exceptions=True)


async def test_a_call_is_wanted_as_long_as_one_of_its_texts_is() -> None:
    async with generator(SIXTEEN) as (made, predictor):
        predictor.held = True
        one, two = (asyncio.create_task(anext(steps(made, first))) for first in (3, 4))
        await predictor.turn()
        one.cancel()
        await predictor.turn()
        [wanted] = predictor.wanted
        assert predictor.rows == [2] and wanted()
        two.cancel()
        await asyncio.gather(one, two, return_exceptions=True)
        assert not wanted()
        predictor.held = False
        await predictor.release()
        assert len((await write(made, (5,), ENDLESS))[0]) == 40


async def test_after_closing_between_two_tokens_no_step_is_wanted() -> None:
    async with generator(SIXTEEN) as (made, predictor):
        text = steps(made, 3)
        await anext(text)
        predictor.held = True
        await predictor.turn(50)
        await text.aclose()
        assert not predictor.wanted[-1]()
        calls = len(predictor.calls)
        await predictor.release()
        assert len(predictor.calls) == calls


@pytest.mark.parametrize("error", [PredictorUnavailable("down"), PredictorError("bad")], ids=["outage", "refusal"])
async def test_a_failed_step_ends_the_text_after_what_it_had(error: Exception) -> None:
    async with generator(SIXTEEN) as (made, predictor):
        predictor.faults[2] = error
        text = steps(made, 3)
        found = [*(await anext(text)).ids]
        await predictor.turn(50)
        found += (await anext(text)).ids
        assert len(found) == 2
        with pytest.raises(type(error), match=str(error)):
            await anext(text)


async def test_a_text_that_breaks_the_model_breaks_it_for_itself_alone() -> None:
    class Picky(TinyPredictor):
        def _verify(self, inputs: object) -> None:
            if 9 in self.calls[-1]["input_ids"][:, 0]:
                self.faults[len(self.calls) - 1] = PredictorError("nine")

    async with generator(SIXTEEN) as (made, predictor):
        predictor.__class__ = Picky
        found = await asyncio.gather(*[write(made, (one, 4)) for one in (8, 9, 10)], return_exceptions=True)
        assert isinstance(found[1], PredictorError)
        assert [found[0], found[2]] == [await write(made, (8, 4)), await write(made, (10, 4))]


async def test_texts_with_different_credentials_never_share_a_batch() -> None:
    async with generator(SIXTEEN) as (made, predictor):
        headers = [{"authorization": one} for one in "aab"]
        runs = [write(made, (3 + number,), ENDLESS, one) for number, one in enumerate(headers)]
        await asyncio.gather(*runs)
        assert {tuple(sorted(tokens)) for tokens in first_tokens(predictor)} == {(3, 4), (5,)}
        for tokens, sent in zip(first_tokens(predictor), predictor.headers, strict=True):
            assert sent["authorization"] == ("b" if 5 in tokens else "a")


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({}, 16),
        ({"max_batch_tokens": 100}, 5),
        ({"max_batch_output_bytes": 3 * 20 * 50 * 4}, 3),
    ],
    ids=["the model's rows", "tokens", "bytes of the outputs"],
)
async def test_the_limits_of_a_batch(limits: dict[str, int], most: int) -> None:
    async with generator(SIXTEEN, replace(SCHEDULING, **limits)) as (made, predictor):
        prompts = [(number % 40 + 3, *[5] * 19) for number in range(24)]
        how = replace(ENDLESS, max_tokens=3)
        await asyncio.gather(*[write(made, prompt, how) for prompt in prompts])
        if limits:
            for call in predictor.calls:
                rows, width = call["input_ids"].shape
                assert rows * width <= limits.get("max_batch_tokens", 10**9)
                assert rows * width * 50 * 4 <= limits.get("max_batch_output_bytes", 10**9)
        assert max(predictor.rows) == most


async def test_a_cached_step_counts_what_comes_back_with_it() -> None:
    token = 2 * 2 * 8 * 4  # key and value, two heads, FP32
    limit = 50 * 4 * 3 + token * 3 * 12
    async with generator(FORMS["cache"], replace(SCHEDULING, max_batch_output_bytes=limit)) as (made, predictor):
        await asyncio.gather(*[write(made, (one, *[5] * 7), replace(ENDLESS, max_tokens=6)) for one in range(3, 11)])
        for call, sizes in zip(predictor.calls, predictor.sizes, strict=True):
            assert sum(sizes.values()) <= limit or len(call["input_ids"]) == 1
        assert max(predictor.rows) == 3


async def test_texts_of_any_lengths_may_share_a_batch() -> None:
    async with generator(FORMS["cache"]) as (made, predictor):
        await asyncio.gather(*[write(made, (3,) * length, ENDLESS) for length in (1, 20)])
        assert predictor.rows[-20:] == [2] * 20
    async with generator(FORMS["cache, equal lengths"]) as (made, predictor):
        await asyncio.gather(*[write(made, (3,) * length, ENDLESS) for length in (1, 20)])
        # Nobody tells this model where a new token is; before there is a cache, padding behind a text does no harm.
        assert predictor.rows == [2] + [1] * (2 * 39)


async def test_the_callers_deadline() -> None:
    async with generator(SIXTEEN) as (made, predictor):
        predictor.held = True
        context = Context("id", {}, deadline=asyncio.get_running_loop().time())
        with pytest.raises(CallersDeadline):
            await anext(made.generate(Prompt("", (3,)), ENDLESS, context))


async def test_what_has_ended_is_let_go_of_without_the_collector() -> None:
    async with generator(FORMS["cache"]) as (made, predictor):
        caches: list[weakref.ref[object]] = []
        begin = made._begin

        def watched(*arguments: object) -> object:
            text = begin(*arguments)  # type: ignore[arg-type] # as they come
            assert text.cache is not None
            caches.append(weakref.ref(text.cache))
            return text

        made._begin = watched  # type: ignore[assignment, method-assign] # watches what is made
        gc.collect()
        gc.disable()
        try:
            await write(made, PROMPTS[0], GREEDY)
            text = steps(made, 3)
            await anext(text)
            await text.aclose()
            predictor.faults[len(predictor.calls) + 1] = PredictorError("bad")
            with pytest.raises(PredictorError):
                await write(made, PROMPTS[1], ENDLESS)
            await predictor.turn(50)
            assert len(caches) == 3 and [cache() for cache in caches] == [None] * 3
        finally:
            gc.enable()
