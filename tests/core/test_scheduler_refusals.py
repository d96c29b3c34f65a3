"""What a batch that the model refuses, or whose answer is of no use, means for its requests and for later ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hf_transformer.core import refusals
from hf_transformer.core.queue import MOST_GONE
from hf_transformer.core.refusals import MOST_REFUSED
from hf_transformer.errors import PredictorError
from hf_transformer.types import Array
from tests.core.test_scheduler import BINDING, Bench, bench

pytestmark = pytest.mark.asyncio

BAD = 666
"""The first token of instances that the model refuses."""


async def refused(b: Bench, *first: int, ahead: int = 0) -> list[Any]:
    """A request for each number, sharing one batch while the one ``ahead`` is asked for; every call with a BAD one
    fails, others are answered. Gives the answers, an error in place of one."""
    tasks = [await b.send(one) for one in (ahead, *first)]
    while not all(task.done() for task in tasks):
        for number, call in enumerate(b.predictor.calls):
            if BAD in b.sent[number] and not call.end.done():
                b.predictor.fail(number, PredictorError("bad instance"))
        await b.answer()
    return [task.exception() or task.result()[0] for task in tasks[1:]]


async def lone_bad_ones(b: Bench, count: int) -> None:
    for _ in range(count):
        task = await b.send(BAD)
        b.predictor.fail(len(b.sent) - 1, PredictorError("bad instance"))
        with pytest.raises(PredictorError):
            await task


async def test_a_client_whose_instances_are_all_bad_switches_nothing_off_for_others() -> None:
    async with bench() as b:
        await lone_bad_ones(b, 5 * MOST_REFUSED)
        one, two = await refused(b, 1, BAD, ahead=BAD)
        assert one == 1 and isinstance(two, PredictorError)


async def sick(b: Bench) -> int:
    """Two requests in one batch of a model that refuses everything; how many calls they cost."""
    before = len(b.sent)
    ahead, one, two = await b.send(1), await b.send(2), await b.send(3)
    calls = 0
    while not (ahead.done() and one.done() and two.done()):
        b.predictor.fail(before + calls, PredictorError("sick"))
        calls += 1
        await b.turn()
    for task in (ahead, one, two):
        with pytest.raises(PredictorError, match="sick"):
            await task
    return calls


async def test_time_and_good_answers_bring_asking_alone_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "ALONE_AGAIN_SECONDS", 1000.0)
    async with bench() as b:
        assert [await sick(b) for _ in range(MOST_REFUSED + 2)] == [4] * MOST_REFUSED + [2, 2]
        good = await b.send(4)
        await b.answer()
        assert await good == [4]
        assert [await sick(b) for _ in range(MOST_REFUSED + 1)] == [4] * MOST_REFUSED + [2]
        b.scheduler._refusals._alone_again = 0.0  # the time is over
        assert [await sick(b) for _ in range(3)] == [4, 2, 2]


async def test_a_good_neighbour_is_answered_while_every_batch_has_a_bad_one() -> None:
    async with bench() as b:
        for _ in range(2 * MOST_REFUSED):
            one, two, three = await refused(b, BAD, 1, BAD)
            assert two == 1 and isinstance(one, PredictorError) and isinstance(three, PredictorError)


async def test_those_who_left_after_they_had_queued_again_leave_nothing_behind() -> None:
    async with bench(replace(BINDING, max_rows=4 * MOST_GONE)) as b:
        blocker = await b.send(1)
        tasks = [await b.send(*[one] * 2 * MOST_GONE) for one in (2, 3)]
        other = await b.send(4, length=9)
        await b.answer(0)
        b.predictor.fail(1, PredictorError("bad"))
        await b.turn()
        assert b.sent[2:] == [[4]] and await blocker == [1]
        assert len(b.scheduler._waiting._arrived) >= 4 * MOST_GONE
        for task in tasks:
            task.cancel()
        await b.turn()
        assert len(b.scheduler._waiting._arrived) == 0
        await b.answer(2)
        assert await other == [4]


async def test_an_answer_that_can_not_be_decoded_is_an_error_of_the_predictor() -> None:
    def refuse(index: int, rows: Mapping[str, Array]) -> Any:
        raise PredictorError("NaN")

    def fault(index: int, rows: Mapping[str, Array]) -> Any:
        raise ValueError("a fault of ours")

    async with bench() as b:
        blocker, *tasks = [await b.send(1), *[await b.send(one, decode=refuse) for one in (2, 3)]]
        await b.answer(0)
        tasks.append(await b.send(4, decode=fault))
        await b.answer(1)
        await b.answer(2)
        assert await blocker == [1]
        for task, error in zip(tasks, (PredictorError, PredictorError, ValueError), strict=True):
            with pytest.raises(error):
                await task
        # Once for the call that both shared.
        assert 'hf_transformer_predictor_errors_total{kind="error"} 1.0' in b.metrics.render().decode()
