"""Coroutines that run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from hf_transformer.eager import Eager


class Ended:
    """What is told of the end of a coroutine, each time."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, BaseException | None]] = []
        self.once = asyncio.Event()

    def __call__(self, result: Any, error: BaseException | None) -> None:
        self.told.append((result, error))
        self.once.set()


def eager(coroutine: Coroutine[Any, Any, Any]) -> tuple[Eager[Any], Ended]:
    ended = Ended()
    return Eager(coroutine, ended), ended


async def test_what_waits_for_nothing_is_over_at_once() -> None:
    async def work() -> str:
        return "done"

    running, ended = eager(work())
    assert ended.told == [("done", None)]
    running.cancel()
    assert ended.told == [("done", None)]


async def test_it_runs_up_to_where_it_waits_and_then_on() -> None:
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    seen = []

    async def work() -> int:
        seen.append("begun")
        total: int = await first
        seen.append("first")
        await asyncio.sleep(0)
        return total + int(await second)

    _, ended = eager(work())
    assert seen == ["begun"]
    second.set_result(2)
    first.set_result(40)
    assert seen == ["begun"]  # as for a task: the end of a future calls nobody from within
    await ended.once.wait()
    assert ended.told == [(42, None)]


@pytest.mark.parametrize("at_once", [True, False])
async def test_what_is_raised_is_told(at_once: bool) -> None:
    async def work() -> None:
        if not at_once:
            await asyncio.sleep(0.001)
        raise ValueError("wrong")

    _, ended = eager(work())
    await ended.once.wait()
    [(result, error)] = ended.told
    assert result is None and isinstance(error, ValueError)


async def test_what_a_future_fails_with_is_raised_inside() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            await future
        except OSError as error:
            return str(error)
        return "nothing was raised"

    _, ended = eager(work())
    future.set_exception(OSError("lost"))
    await ended.once.wait()
    assert ended.told == [("lost", None)]


async def test_cancelling_ends_it_where_it_waits_and_lets_it_clean_up() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cleaned = []

    async def work() -> None:
        try:
            await future
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    running, ended = eager(work())
    running.cancel()
    await ended.once.wait()
    assert future.cancelled() and cleaned == [True]
    [(result, error)] = ended.told
    assert result is None and isinstance(error, asyncio.CancelledError)


async def test_a_future_that_is_done_already_is_not_cancelled_any_more() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        return await future

    running, ended = eager(work())
    future.set_result("in time")
    running.cancel()
    await ended.once.wait()
    assert ended.told == [("in time", None)]


async def test_threads_and_tasks_can_be_waited_for() -> None:
    async def other() -> int:
        await asyncio.sleep(0.001)
        return 1

    async def work() -> int:
        loop = asyncio.get_running_loop()
        return await asyncio.create_task(other()) + await loop.run_in_executor(None, lambda: 2)

    _, ended = eager(work())
    await ended.once.wait()
    assert ended.told == [(3, None)]
