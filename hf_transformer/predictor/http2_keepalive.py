"""When a connection is asked whether it still stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

PING_SECONDS: Final = 10.0
"""Of silence during a call, after which the server is asked."""

ANSWER_SECONDS: Final = 10.0
"""For its answer."""

_QUICK, _SLOW_SECONDS = 2, 330.0
"""So many pings are sent while no part of an answer comes, then one in so many seconds. gRPC's servers take more than
one in five minutes for an attack: at the third that is too early they end the connection."""


class Keepalive:
    """Finds out that a server hangs, or is not there any longer, while calls wait for it.

    Their calls then end within 20 seconds instead of after their whole timeout. A long inference is not disturbed,
    since the server answers pings meanwhile; a connection without calls is left alone, unless they were given up before
    the server has sent anything: the next ones would else wait for one that is gone, each for its whole timeout.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ping: Callable[[], None],
        give_up: Callable[[], None],
        progress: Callable[[], int | None],
    ) -> None:
        """ping: asks the server.
        give_up: it has not answered.
        progress: how many parts of answers have come so far; None where none is awaited.
        """
        self._loop = loop
        self._ping = ping
        self._give_up = give_up
        self._progress = progress
        self._timer: asyncio.TimerHandle | None = None
        self._asked = self._began = 0.0
        self._seen = self._pings = 0
        self.heard = 0.0
        """When the server last sent anything, on the loop's clock; kept by the connection."""

    def watch(self) -> None:
        """A call begins."""
        if self._timer is None:
            self._began = self._loop.time()
            self._timer = self._loop.call_at(self._began + PING_SECONDS, self._look)

    def stop(self) -> None:
        """The connection ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        progress, now = self._progress(), self._loop.time()
        if progress is not None and progress != self._seen:
            self._seen, self._pings = progress, 0
        silent_since = max(self.heard, self._began)
        if self.heard < self._asked:
            if now >= self._asked + ANSWER_SECONDS:
                self._give_up()
                return
            next_look = self._asked + ANSWER_SECONDS
        elif progress is None and self.heard >= self._began:
            return
        elif now < silent_since + PING_SECONDS:
            next_look = silent_since + PING_SECONDS
        elif self._pings >= _QUICK and now < self._asked + _SLOW_SECONDS:
            next_look = min(self._asked + _SLOW_SECONDS, now + PING_SECONDS)
        else:
            self._asked = now
            self._pings += 1
            self._ping()
            next_look = now + ANSWER_SECONDS
        self._timer = self._loop.call_at(next_look, self._look)
