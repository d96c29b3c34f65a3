"""Answers that are sent piece by piece, over HTTP and gRPC, and how the end of the service ends those that still run.

Over HTTP a stream is an async iterator of bytes, which the server writes as fast as the client reads. The status waits
for the first piece, so an error before that has its usual status and body. An error after it stands in the stream, in
the API's own form.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import ClassVar, Protocol, Self

from hf_transformer.errors import RequestError, Unavailable
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.types import Piece
from hf_transformer.types import Context, HeaderLines

logger = logging.getLogger(__name__)

EVENTS = b"text/event-stream"
"""Server-sent events. Source: https://html.spec.whatwg.org/multipage/server-sent-events.html"""
LINES = b"application/jsonl"
"""A JSON value per line. Source: https://jsonlines.org"""
LAST_WORDS = 1.0
"""Seconds of the grace period that are kept to tell clients that their streams end, a fifth of it at most."""


UNBUFFERED: HeaderLines = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
"""Keeps proxies from collecting pieces (the second one is nginx's)."""


class StreamForm(Protocol):
    """An answer that is sent piece by piece, under status 200: texts while they are written, and their form in an API.

    Attributes: ``texts`` is how many there are.
    """

    __slots__ = ("texts",)

    content_type: ClassVar[bytes]
    texts: int

    @abstractmethod
    def start(self) -> Awaitable[Generation]:
        """Begins to write them. Raises RequestError."""

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
    """Breaks off one stream because the service ends. Entered while the stream runs.

    A piece that is being sent is sent whole: the task is only cancelled while it waits for the next one.
    """

    __slots__ = ("_broken", "_open", "_sends", "_task")

    def __init__(self, open_ones: set[StreamEnd]) -> None:
        self._task: asyncio.Task[object] | None = asyncio.current_task()
        self._open = open_ones
        self._broken = False
        self._sends = False

    def __enter__(self) -> Self:
        self._open.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.discard(self)

    def break_off(self) -> None:
        self._broken = True
        if self._task is not None and not self._sends:
            self._task.cancel()

    def begin_piece(self) -> None:
        """A piece goes to whoever sends it."""
        self._sends = True

    def end_piece(self) -> None:
        """The piece was sent. Raises Unavailable where the service has ended meanwhile."""
        self._sends = False
        if self._broken:
            raise shutting_down()

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


async def pieces(
    form: StreamForm, streams: OpenStreams, context: Context, failed: Callable[[int], None]
) -> AsyncGenerator[bytes, None]:
    """The bytes of a stream; none are empty but the first, if it has no others.

    Args:
        failed: is told the status of an error that ends the stream behind its first piece.

    Raises:
        RequestError: what went wrong before the first piece.
    """
    has_begun, last = False, b""
    failure: tuple[str, int] | None = None
    with streams.one() as end:
        try:
            async with await form.start() as running:
                left = form.texts
                async for piece in running:
                    written = form.piece(piece)
                    if piece.finish is not None:
                        left -= 1
                        if not left:
                            last = written  # what follows it goes with it
                            continue
                    if written:
                        has_begun = True
                        end.begin_piece()
                        yield written
                        end.end_piece()
                last += form.end(running)
        except asyncio.CancelledError:
            if not end.has_cancelled():
                raise
            if not has_begun:
                raise shutting_down() from None
            failure = str(shutting_down()), shutting_down().status
        except RequestError as error:
            if not has_begun:
                raise form.named(error) from error
            failure = str(form.named(error)), error.status
        except Exception:
            if not has_begun:
                raise
            # The last resort for a fault of our own, as in Endpoint.
            named = {"request_id": context.request_id}
            logger.exception("request %s failed by a fault of the service", context.request_id, extra=named)
            failure = f"internal error; the log has it under {context.request_id}", 500
    if failure is not None:
        failed(failure[1])
        last = form.error(*failure)
    if last or not has_begun:
        yield last


def event(data: bytes) -> bytes:
    """A server-sent event; ``data`` is JSON, which has no line breaks."""
    return b"data: " + data + b"\n\n"
