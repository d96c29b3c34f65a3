"""The streams that are open, and their end with the service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hf_transformer.errors import Unavailable

LAST_WORDS: Final = 1.0
"""Seconds of the grace period in which clients learn that their streams end; at most a fifth of it."""


class StreamEnd:
    """Breaks off one stream, that of the current task, at the end of the service.

    A piece that is being sent is sent whole: the task is only cancelled while it waits for the next piece.
    """

    __slots__ = ("_is_broken", "_task", "is_sending")

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = asyncio.current_task()
        self._is_broken = self.is_sending = False

    def break_off(self) -> None:
        """Ends the stream."""
        self._is_broken = True
        if self._task is not None and not self.is_sending:
            self._task.cancel()

    def sent(self) -> None:
        """Notes that a piece was sent. Raises Unavailable if the service has ended meanwhile."""
        self.is_sending = False
        if self._is_broken:
            raise shutting_down()

    def has_cancelled(self) -> bool:
        """Whether a cancellation came from ``break_off`` and from nowhere else."""
        return self._is_broken and self._task is not None and self._task.uncancel() == 0


class OpenStreams:
    """The streams that run. At the end of the service they have the grace period, less the time to tell clients."""

    def __init__(self) -> None:
        self._open: set[StreamEnd] = set()
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None

    def end_within(self, grace: float) -> None:
        """Ends all streams shortly before ``grace`` seconds are over; called on the event loop."""
        if self._timer is None:
            wait = grace - min(LAST_WORDS, grace / 5)
            self._timer = asyncio.get_running_loop().call_later(wait, self._end)

    def _end(self) -> None:
        self._is_over = True
        for one in tuple(self._open):
            one.break_off()

    def close(self) -> None:
        """Forgets the timer."""
        if self._timer is not None:
            self._timer.cancel()

    @contextmanager
    def one(self) -> Iterator[StreamEnd]:
        """Around a stream of the current task. Raises Unavailable once streams have ended."""
        if self._is_over:
            raise shutting_down()
        end = StreamEnd()
        self._open.add(end)
        try:
            yield end
        finally:
            self._open.discard(end)


def shutting_down() -> Unavailable:
    """The error of requests and streams at the end of the service."""
    return Unavailable("the service is shutting down")
