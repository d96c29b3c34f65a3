"""Whether the clients of requests that take long are still there."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

WATCH_AFTER = 0.2
"""Seconds after which a request that is still worked on is watched; at most twice as long for one that came just after
a look. Most requests are over by then."""


class Watch:
    """Breaks off what a task does once the client of its request has closed the connection."""

    __slots__ = ("_gone", "_looking", "_receive", "_task", "seen")

    def __init__(self, receive: Receive, task: asyncio.Task[object] | None) -> None:
        self._receive = receive
        self._task = task
        self._looking: asyncio.Task[None] | None = None
        self._gone = False
        self.seen = False

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Looks from now on."""
        if self._looking is None:
            self._looking = loop.create_task(self._look())

    async def _look(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if self._task is not None:
            self._task.cancel()

    def has_cancelled(self) -> bool:
        """Whether a cancellation that has arrived is this one's, and no other."""
        return self._gone and self._task is not None and self._task.uncancel() == 0

    def end(self) -> None:
        """Looks no more."""
        looking, self._looking = self._looking, None  # what it ends with knows this watch
        if looking is not None:
            looking.cancel()


class Watches:
    """All requests that are worked on, with one timer: one for each would cost every request a microsecond."""

    def __init__(self) -> None:
        self._all: dict[Watch, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        # Asked for once: each get_running_loop asks the kernel for the process's id.
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, receive: Receive) -> Watch:
        """Watches the client of the current task's request, until ``end``."""
        loop = self._loop = self._loop or asyncio.get_running_loop()
        watch = Watch(receive, asyncio.current_task(loop))
        self._all[watch] = None
        if self._timer is None:
            self._timer = loop.call_later(WATCH_AFTER, self._look, loop)
        return watch

    def end(self, watch: Watch) -> None:
        """Watches it no more."""
        del self._all[watch]
        watch.end()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Those that were here the last time too are looked after from now on."""
        for watch in self._all:
            if watch.seen:
                watch.begin(loop)
            watch.seen = True
        self._timer = loop.call_later(WATCH_AFTER, self._look, loop) if self._all else None
