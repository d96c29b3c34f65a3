"""When requests are given up, on an event loop whose clock the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from hf_transformer.core.batch import Request
from hf_transformer.core.deadlines import Deadlines
from hf_transformer.errors import CallersDeadline, PredictorTimeout
from hf_transformer.types import Context


@dataclass
class Timer:
    when: float
    call: Callable[..., None]
    args: tuple[Any, ...]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Clock:
    """The part of an event loop that deadlines need."""

    now: float = 100.0
    timers: list[Timer] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[..., None], *args: Any) -> Timer:
        self.timers.append(Timer(when, call, args))
        return self.timers[-1]

    def call_later(self, delay: float, call: Callable[..., None], *args: Any) -> Timer:
        return self.call_at(self.now + delay, call, *args)

    def go_to(self, now: float) -> None:
        self.now = now
        due, self.timers = self.timers, []
        for timer in due:
            if timer.when > now:
                self.timers.append(timer)
            elif not timer.cancelled:
                timer.call(*timer.args)


class Bench:
    def __init__(self, timeout: float) -> None:
        self.clock = Clock()
        self.deadlines = Deadlines(timeout, self.clock.time)

    def add(self, deadline: float | None = None) -> Request:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        request = Request(1, lambda index, rows: None, Context("id", {}, deadline=deadline), future)
        request.since = self.clock.now
        self.deadlines.add(request, cast(asyncio.AbstractEventLoop, self.clock))
        return request


async def test_one_timer_serves_all_and_each_expires_in_its_time() -> None:
    bench = Bench(10.0)
    first = bench.add()
    bench.clock.go_to(104.0)
    second, third = bench.add(), bench.add()
    assert len(bench.clock.timers) == 1
    bench.clock.go_to(110.0)
    assert isinstance(first.future.exception(), PredictorTimeout)
    assert not second.future.done()
    bench.deadlines.remove(second)
    bench.clock.go_to(114.0)
    assert not second.future.done()
    assert isinstance(third.future.exception(), PredictorTimeout)
    bench.deadlines.remove(third)
    assert not bench.clock.timers


async def test_answered_requests_leave_and_later_ones_are_watched_again() -> None:
    bench = Bench(10.0)
    bench.deadlines.remove(bench.add())
    bench.clock.go_to(111.0)
    assert not bench.clock.timers
    late = bench.add()
    bench.clock.go_to(121.0)
    with pytest.raises(PredictorTimeout, match="no answer from the predictor in 10 s"):
        await late.future


async def test_an_earlier_deadline_of_the_caller_counts() -> None:
    bench = Bench(10.0)
    usual, hurried, patient = bench.add(), bench.add(103.0), bench.add(500.0)
    bench.clock.go_to(103.0)
    assert isinstance(hurried.future.exception(), CallersDeadline)
    assert not usual.future.done()
    bench.clock.go_to(110.0)
    assert isinstance(patient.future.exception(), PredictorTimeout)
    assert isinstance(usual.future.exception(), PredictorTimeout)


async def test_a_request_that_was_answered_is_not_failed_at_its_callers_deadline() -> None:
    bench = Bench(10.0)
    request = bench.add(103.0)
    bench.deadlines.remove(request)
    bench.clock.go_to(104.0)
    assert not request.future.done()


async def test_a_timer_that_comes_early_fails_nobody() -> None:
    bench = Bench(10.0)
    request = bench.add()
    [timer] = bench.clock.timers
    timer.when = 109.5
    bench.clock.go_to(109.5)
    assert not request.future.done()
    bench.clock.go_to(110.0)
    assert isinstance(request.future.exception(), PredictorTimeout)
