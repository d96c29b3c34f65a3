"""When requests are given up: one timer for all that have the usual time, as they expire in the order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

from hf_transformer.core.batch import Request
from hf_transformer.errors import CallersDeadline, PredictorTimeout


class Deadlines:
    """Fails each request when its time is over: ``timeout`` seconds, or the caller's deadline where that is earlier.

    A timer per request would cost a microsecond, which is a fiftieth of what a short one takes in all. ``clock`` is
    that of ``Request.since``, in seconds.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = perf_counter) -> None:
        self._timeout = timeout
        self._clock = clock
        self._usual: dict[Request, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        """Watches a request until ``remove``."""
        deadline = request.context.deadline
        if deadline is not None and deadline < loop.time() + self._timeout:
            error = CallersDeadline("no answer before the caller's deadline")
            request.timer = loop.call_at(deadline, request.fail, error)
            return
        self._usual[request] = None
        if self._timer is None:
            self._timer = loop.call_later(self._timeout, self._expire, loop)

    def remove(self, request: Request) -> None:
        """Watches it no more."""
        if request.timer is not None:
            request.timer.cancel()
        else:
            self._usual.pop(request, None)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fails those whose time is over; the timer is then the oldest one's of the rest."""
        self._timer = None
        now = self._clock()
        over = []
        for request in self._usual:
            left = request.since + self._timeout - now
            if left > 0:
                self._timer = loop.call_later(left, self._expire, loop)
                break
            over.append(request)
        for request in over:
            del self._usual[request]
            limit = f"{self._timeout:g} s (--predictor_request_timeout_seconds)"
            request.fail(PredictorTimeout(f"no answer from the predictor in {limit}, waiting for its turn included"))
