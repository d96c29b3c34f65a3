"""Ends open streams on shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hf_transformer.errors import Unavailable

LAST_EVENT_SECONDS: Final = 1.0
"""Seconds of the grace period for the last events of streams. The maximum is a fifth of the period."""


class StreamEnd:
    """Ends the stream of the current task on shutdown. Cancels the task only while the task waits for a piece."""

    __slots__ = ("_is_broken", "_task", "is_sending")

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = asyncio.current_task()
        self._is_broken = self.is_sending = False

    def break_off(self) -> None:
        """Cancels a waiting task. During a send, it leaves the end to ``sent``, which raises Unavailable."""
        self._is_broken = True
        if self._task is not None and not self.is_sending:
            self._task.cancel()

    def sent(self) -> None:
        """Marks the piece as sent. Raises Unavailable after ``break_off``."""
        self.is_sending = False
        if self._is_broken:
            raise shutting_down()

    def has_cancelled(self) -> bool:
        """Whether ``break_off`` was the only cancellation of the task."""
        return self._is_broken and self._task is not None and self._task.uncancel() == 0


class OpenStreams:
    """The open streams. On shutdown, they may run for the grace period minus LAST_EVENT_SECONDS."""

    def __init__(self) -> None:
        self._open: set[StreamEnd] = set()
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None

    def end_within(self, grace: float) -> None:
        """Schedules the end of all streams shortly before ``grace`` seconds pass. Requires a running event loop."""
        if self._timer is None:
            wait = grace - min(LAST_EVENT_SECONDS, grace / 5)
            self._timer = asyncio.get_running_loop().call_later(wait, self._end)

    def _end(self) -> None:
        self._is_over = True
        for end in tuple(self._open):
            end.break_off()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @contextmanager
    def track(self) -> Iterator[StreamEnd]:
        """Tracks the stream of the current task. Raises Unavailable after the timer has ended all streams."""
        if self._is_over:
            raise shutting_down()
        end = StreamEnd()
        self._open.add(end)
        try:
            yield end
        finally:
            self._open.discard(end)


def shutting_down() -> Unavailable:
    """The error of requests and streams during shutdown."""
    return Unavailable("the service is shutting down")
