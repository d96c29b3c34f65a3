"""Whether the clients of requests that take long are still there."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

WATCH_AFTER = 0.2
"""Seconds after which a request that is still worked on is watched; at most twice as long for one that came just after
a look. Most requests are over by then."""


class Departure:
    """Breaks off what a task does once the client of its request has closed the connection.

    Attributes: ``task`` is told, once it is known; ``gone`` is true from then on.
    """

    __slots__ = ("gone", "task")

    def __init__(self, task: asyncio.Task[object] | None = None) -> None:
        self.task = task
        self.gone = False

    def happens(self) -> None:
        """The client has left; only the first call counts, since a task counts its cancellations."""
        if not self.gone:
            self.gone = True
            if self.task is not None:
                self.task.cancel()

    def has_cancelled(self) -> bool:
        """Whether a cancellation that has arrived is this one's, and no other."""
        return self.gone and self.task is not None and self.task.uncancel() == 0


class Watch(Departure):
    """Finds out by asking the server."""

    __slots__ = ("_looking", "_receive", "seen")

    def __init__(self, receive: Receive, task: asyncio.Task[object] | None) -> None:
        super().__init__(task)
        self._receive = receive
        self._looking: asyncio.Task[None] | None = None
        self.seen = False

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Looks from now on."""
        if self._looking is None:
            self._looking = loop.create_task(self._look())

    async def _look(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.happens()

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
