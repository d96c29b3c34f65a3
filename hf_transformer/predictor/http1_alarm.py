"""One timer for the deadlines of a connection's requests, which come one after the other."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from math import inf


class Alarm(ABC):
    """Part of a connection, which sets ``_deadline`` for each request and calls ``_watch`` if it is before ``_alarm``.

    The timer is set anew only when it goes off, since the next deadline is nearly always later.
    """

    __slots__ = ("_alarm", "_deadline", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._alarm = inf
        """When the timer goes off; infinite without one."""

    @abstractmethod
    def _is_waiting(self) -> bool:
        """Whether there is a request that has a deadline."""

    @abstractmethod
    def _expire(self) -> None:
        """Its time is over."""

    def _watch(self, deadline: float) -> None:
        self._stop_timer()
        if deadline < inf:
            self._alarm = deadline
            self._timer = self._loop.call_at(deadline, self._time_is_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._alarm = inf

    def _time_is_up(self) -> None:
        self._timer = None
        self._alarm = inf
        if not self._is_waiting():
            return
        if self._loop.time() < self._deadline:
            self._watch(self._deadline)
        else:
            self._expire()
