"""Answers that are sent piece by piece, over HTTP and gRPC, and how the end of the service ends those that still run.

The status of an HTTP answer waits for the first piece, so an error before that has its usual status and body. An error
after it stands in the stream, in the API's own form.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable
from types import TracebackType
from typing import ClassVar, Protocol, Self

from hf_transformer.errors import RequestError, Unavailable
from hf_transformer.generation.types import Piece
from hf_transformer.generation.writing import Generation

EVENTS = b"text/event-stream"
"""Server-sent events. Source: https://html.spec.whatwg.org/multipage/server-sent-events.html"""
LINES = b"application/jsonl"
"""A JSON value per line. Source: https://jsonlines.org"""
LAST_WORDS = 1.0
"""Seconds of the grace period that are kept to tell clients that their streams end, a fifth of it at most."""


class Stream(Protocol):
    """An answer that is sent piece by piece, under status 200: texts while they are written, and their form in an API.

    Attributes: ``texts`` is how many there are.
    """

    __slots__ = ("texts",)

    content_type: ClassVar[bytes]
    texts: int

    @abstractmethod
    def start(self) -> Awaitable[Generation]:
        """Begins to write them. Raises RequestError."""

    def prepare(self) -> None:
        """Does what is needed only once there is a piece. It is called once, while the model works if it can be."""
        return

    @abstractmethod
    def piece(self, piece: Piece) -> bytes:
        """A piece in the API's form; nothing is sent where it is empty."""

    def end(self, running: Generation) -> bytes:
        """What follows the last piece; may be empty."""
        return b""

    @abstractmethod
    def error(self, message: str, status: int) -> bytes:
        """An error in the middle, in the API's form; it ends the stream."""

    def named(self, error: RequestError) -> RequestError:
        """The same error with the names that this API's clients know."""
        return error


class StreamEnd:
    """Breaks off one stream because the service ends. Entered while the stream runs."""

    __slots__ = ("_broken", "_open", "_task")

    def __init__(self, open_ones: set[StreamEnd]) -> None:
        self._task: asyncio.Task[object] | None = asyncio.current_task()
        self._open = open_ones
        self._broken = False

    def __enter__(self) -> Self:
        self._open.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.discard(self)

    def break_off(self) -> None:
        self._broken = True
        if self._task is not None:
            self._task.cancel()

    def has_cancelled(self) -> bool:
        """Whether a cancellation that has arrived is this one's, and no other."""
        return self._broken and self._task is not None and self._task.uncancel() == 0


def shutting_down() -> Unavailable:
    """What a stream ends with."""
    return Unavailable("the service is shutting down")


class OpenStreams:
    """The streams that run. When the service ends they have the grace period, less what it takes to tell clients."""

    def __init__(self) -> None:
        self._open: set[StreamEnd] = set()
        self._over = False
        self._timer: asyncio.TimerHandle | None = None

    def end_within(self, grace: float) -> None:
        """Ends them shortly before ``grace`` seconds are over; called on the event loop."""
        if self._timer is None:
            wait = grace - min(LAST_WORDS, grace / 5)
            self._timer = asyncio.get_running_loop().call_later(wait, self._end)

    def _end(self) -> None:
        self._over = True
        for one in tuple(self._open):
            one.break_off()

    def close(self) -> None:
        """Forgets the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def one(self) -> StreamEnd:
        """For a stream of the current task. Raises Unavailable where the service is about to end."""
        if self._over:
            raise shutting_down()
        return StreamEnd(self._open)


def event(data: bytes) -> bytes:
    """A server-sent event; ``data`` is JSON, which has no line breaks."""
    return b"data: " + data + b"\n\n"
