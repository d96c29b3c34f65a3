"""When a batch leaves: requests that the event loop delivers one after another, and eager task factories."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any

import pytest

from hf_transformer.core.scheduler import MAX_ITERATIONS, QUIET_ITERATIONS
from hf_transformer.types.request import Context
from tests.core.scheduling import MASKED, SIGNATURE, SchedulerHarness, run, scheduling, text


async def iterate(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def start(b: SchedulerHarness, number: int, *, over_grpc: bool = True) -> asyncio.Task[list[Any]]:
    return asyncio.create_task(run(b.scheduler, [text(3, number)], context=Context("id", {}, over_grpc=over_grpc)))


async def test_a_lone_request_leaves_in_the_next_iteration_of_the_event_loop() -> None:
    async with scheduling() as b:
        task = start(b, 1)
        await iterate(2)  # the request's task, and the batch's
        assert b.sent == [[1]]
        assert await b.answer_all(task) == [[1]]


@pytest.mark.parametrize("between", [1, 4, QUIET_ITERATIONS - 1])
async def test_requests_of_several_iterations_share_a_batch(between: int) -> None:
    async with scheduling(max_batches_in_flight=2) as b:
        tasks = [await b.send(1)]
        for number in (2, 3, 4):
            tasks.append(start(b, number))
            await iterate(between)
        assert b.sent == [[1]], "a batch is in flight, and requests still arrive"
        await b.predictor.turn()
        assert b.sent == [[1], [2, 3, 4]]
        assert await b.answer_all(*tasks) == [[1], [2], [3], [4]]


async def test_a_batch_leaves_once_nothing_arrives() -> None:
    async with scheduling(max_batches_in_flight=3) as b:
        tasks = [await b.send(1), start(b, 2)]
        await iterate(QUIET_ITERATIONS + 3)
        assert b.sent == [[1], [2]]
        tasks.append(start(b, 3))
        await b.predictor.turn()
        assert b.sent == [[1], [2], [3]]
        assert await b.answer_all(*tasks) == [[1], [2], [3]]


async def test_a_batch_waits_for_a_bounded_time_while_requests_arrive() -> None:
    async with scheduling(MASKED, max_batches_in_flight=2) as b:
        tasks = [await b.send(0)]
        for number in range(1, 2 + MAX_ITERATIONS // 5):
            assert len(b.sent) == 1
            tasks.append(start(b, number))
            await iterate(5)
        await iterate(3)
        assert b.sent[1] == [1, 2, 3, 4, 5], "not eight, the maximum"
        await b.answer_all(*tasks)


@pytest.mark.parametrize("first", [False, True])
async def test_a_request_over_http_waits_for_no_others(first: bool) -> None:
    async with scheduling(max_batches_in_flight=2) as b:
        tasks = [await b.send(0), start(b, 1, over_grpc=not first)]
        await iterate(1 if first else 3)
        assert len(b.sent) == 1
        tasks.append(start(b, 2, over_grpc=first))
        await iterate(3)
        assert b.sent[1] == ([1] if first else [1, 2])
        await b.answer_all(*tasks)


@pytest.mark.parametrize("leaving", [False, True])
async def test_a_batch_of_maximum_size_leaves_while_requests_still_arrive(leaving: bool) -> None:
    """Even if the clients of all but the first request leave at once."""
    async with scheduling(max_batches_in_flight=2) as b:
        tasks = [await b.send(0), start(b, 1)]
        for number in range(2, 3 * SIGNATURE.max_rows):
            later = start(b, number)
            await iterate(1)
            if leaving:
                later.cancel()
            else:
                tasks.append(later)
        assert b.sent[1] == ([1] if leaving else [1, 2, 3, 4])
        await b.answer_all(*tasks)


class _Resumed:
    """A coroutine whose first step has run, and which waits for what that step yielded."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    @types.coroutine
    def resume(self) -> Generator[Any, Any, Any]:
        waits_for = self._waits_for
        while True:
            try:
                yield waits_for
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, None)
            try:
                waits_for = step()
            except StopIteration as end:
                return end.value


def eager_task_factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Future[Any]:
    """Runs a task's first step before it returns the task, as asyncio.eager_task_factory of Python 3.12 does."""
    try:
        waits_for = coroutine.send(None)
    except StopIteration as end:
        done = loop.create_future()
        done.set_result(end.value)
        return done

    async def rest() -> Any:
        return await _Resumed(coroutine, waits_for).resume()

    return asyncio.Task(rest(), loop=loop)


FACTORIES = [eager_task_factory, *filter(None, [getattr(asyncio, "eager_task_factory", None)])]


@pytest.mark.parametrize("factory", FACTORIES)
async def test_an_eager_task_factory_changes_no_batch(factory: Any) -> None:
    async with scheduling() as b:
        asyncio.get_running_loop().set_task_factory(factory)
        try:
            tasks = [start(b, number) for number in (1, 2, 3)]
            assert b.sent == [], "a batch forms in the next iteration"
            await b.predictor.turn()
            assert b.sent == [[1, 2, 3]]
            later = [start(b, number) for number in (4, 5)]
            assert await b.answer_all(*tasks, *later) == [[1], [2], [3], [4], [5]]
            assert b.sent == [[1, 2, 3], [4, 5]]
        finally:
            asyncio.get_running_loop().set_task_factory(None)
