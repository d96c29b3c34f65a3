"""Timeouts of many calls with one timer."""

from __future__ import annotations

import asyncio

import pytest

from hf_transformer.predictor.timeouts import SharedTimeouts


async def wait(timeouts: SharedTimeouts, seconds: float, then: float = 60.0) -> str:
    loop = asyncio.get_running_loop()
    try:
        with timeouts.limit(loop.time() + seconds):
            await asyncio.sleep(then)
    except TimeoutError:
        return "late"
    return "in time"


async def test_each_task_has_its_own_deadline() -> None:
    timeouts = SharedTimeouts()
    calls = [wait(timeouts, 0.02), wait(timeouts, 0.03), wait(timeouts, 2.0, 0.0), wait(timeouts, 2.0, 0.1)]
    assert await asyncio.gather(*calls) == ["late", "late", "in time", "in time"]
    assert not timeouts.scopes
    assert await wait(timeouts, 0.02) == "late", "after the others have ended"


async def test_a_deadline_in_the_past_ends_the_next_wait() -> None:
    assert await wait(SharedTimeouts(), -1.0) == "late"


async def test_a_cancellation_from_elsewhere_is_passed_on() -> None:
    timeouts = SharedTimeouts()
    task = asyncio.create_task(wait(timeouts, 0.02))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not timeouts.scopes
    await asyncio.sleep(0.04)


async def test_a_cancellation_at_the_deadline_wins() -> None:
    """As with asyncio.timeout: the task of a caller that gave up must end."""
    timeouts = SharedTimeouts()
    task = asyncio.create_task(wait(timeouts, 30.0))
    await asyncio.sleep(0)
    [scope] = timeouts.scopes
    scope.expire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_outer_timeout_is_not_taken_for_the_inner_one() -> None:
    timeouts = SharedTimeouts()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await wait(timeouts, 30.0)
    assert not timeouts.scopes
