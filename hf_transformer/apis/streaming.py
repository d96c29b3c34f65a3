"""Answers that are sent as they come, over HTTP and gRPC, and how the end of the service ends those that still run.

The status of an HTTP answer waits for its first piece, so that what goes wrong before is told as ever. What goes wrong
after stands in the stream, in the API's own form.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from starlette.types import Send

from hf_transformer.apis.server_timing import NAME, server_timing
from hf_transformer.errors import RequestError, Unavailable
from hf_transformer.following import Source
from hf_transformer.short_way import Response
from hf_transformer.types import Context
from hf_transformer.whole_response import SendPart

logger = logging.getLogger(__name__)

EVENTS = b"text/event-stream"
"""Server-sent events. Source: https://html.spec.whatwg.org/multipage/server-sent-events.html"""
LINES = b"application/jsonl"
"""A JSON value per line. Source: https://jsonlines.org"""
LAST_WORDS = 1.0
"""Seconds of the grace period that are kept to tell clients that their streams end, a fifth of it at most."""
UNBUFFERED = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
"""Keeps proxies from collecting pieces (the second one is nginx's)."""


@dataclass(slots=True)
class Stream:
    """What a call is answered with, piece by piece, under status 200.

    ``pieces`` is closed early when nobody wants them any more, and ends the work then. ``render_error`` gives the piece
    that tells of an error, from its message and status. ``source`` is what the pieces may be followed by, once the
    first one is there.
    """

    pieces: AsyncGenerator[bytes, None]
    content_type: bytes
    render_error: Callable[[str, int], bytes]
    source: Source[bytes] | None = None


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


class Pushing:
    """Sends the pieces of a source as they come. (A closure in its place would refer to itself, and all that a stream
    holds wait for the garbage collector.)

    Attributes: ``over`` is done when the generator has to be asked; it gives a piece that could not be sent, if any.
    """

    __slots__ = ("_send_part", "_source", "over")

    def __init__(self, source: Source[bytes], send_part: SendPart) -> None:
        self._source = source
        self._send_part = send_part
        self.over: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def push(self) -> None:
        """Sends what there is, and comes again when there is more."""
        source, over = self._source, self.over
        if over.done():
            return
        try:
            while (piece := source.take()) is not None:
                if not self._send_part(piece):
                    over.set_result(piece)
                    return
            if not source.follow(self.push):
                over.set_result(b"")
        except Exception as error:
            over.set_exception(error)


class Sink(Protocol):
    """Where the parts of a response go. ``send_part`` is a way past ``send``, where there is one."""

    send_part: SendPart | None

    async def begin(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Sends the head, with status 200."""

    async def send(self, piece: bytes) -> None:
        """Sends a part as soon as the client reads."""

    async def end(self, piece: bytes) -> None:
        """Sends the last part, which may be empty."""


class AsgiSink(Sink):
    """The messages of ASGI."""

    def __init__(self, send: Send, send_part: SendPart | None) -> None:
        self._send = send
        self.send_part = send_part

    async def begin(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def send(self, piece: bytes) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self, piece: bytes) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": False})


class ShortSink(Sink):
    """A response that goes the short way."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self.send_part = response.part

    async def begin(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._response.begin(200, b"".join([b"%b: %b\r\n" % pair for pair in headers]))

    async def send(self, piece: bytes) -> None:
        await self._response.send(piece)

    async def end(self, piece: bytes) -> None:
        await self._response.send(piece)
        self._response.end()


class Sender:
    """Sends one stream as an HTTP response.

    Args:
        timing: whether the answer tells how long it took until the first piece.
    """

    def __init__(self, sink: Sink, stream: Stream, context: Context, *, timing: bool) -> None:
        self._sink = sink
        self._stream = stream
        self._context = context
        self._timing = timing
        self._begun = False

    async def run(self, streams: OpenStreams) -> int:
        """Sends it to its end; waits while the client does not read. Gives the status that the request counts under:
        that of the error that ended it, else 200.

        Raises:
            RequestError: what went wrong before the first piece; nothing was sent.
        """
        failure: tuple[str, int] | None = None
        source, sink = self._stream.source, self._sink
        async with aclosing(self._stream.pieces) as pieces:
            with streams.one() as end:
                try:
                    async for piece in pieces:
                        if not self._begun:
                            await self._begin()
                        await sink.send(piece)
                        if source is not None and sink.send_part is not None:
                            await self._follow(source, sink.send_part)
                except asyncio.CancelledError:
                    if not end.has_cancelled():
                        raise
                    failure = self._failure(shutting_down())
                except RequestError as error:
                    failure = self._failure(error)
                except Exception:
                    if not self._begun:
                        raise
                    failure = self._our_fault()
        if not self._begun:
            await self._begin()
        last = b"" if failure is None else self._stream.render_error(*failure)
        await sink.end(last)
        return 200 if failure is None else failure[1]

    async def _follow(self, source: Source[bytes], send_part: SendPart) -> None:
        """Sends pieces in the moment in which they come, until one has to be asked for, or the client does not read."""
        pushing = Pushing(source, send_part)
        try:
            pushing.push()
            unsent = await pushing.over
        finally:
            source.unfollow()
        if unsent:
            await self._sink.send(unsent)

    def _failure(self, error: RequestError) -> tuple[str, int]:
        if not self._begun:
            raise error
        return str(error), error.status

    def _our_fault(self) -> tuple[str, int]:
        """The last resort for a fault of our own, as in Endpoint."""
        request_id = self._context.request_id
        logger.exception("request %s failed by a fault of the service", request_id, extra={"request_id": request_id})
        return f"internal error; the log has it under {request_id}", 500

    async def _begin(self) -> None:
        self._begun = True
        await self._sink.begin(self._headers())

    def _headers(self) -> list[tuple[bytes, bytes]]:
        headers = [
            (b"content-type", self._stream.content_type),
            (b"x-request-id", self._context.request_id.encode("latin-1")),
            *UNBUFFERED,
        ]
        if self._timing and self._context.timings.predict:
            headers.append((NAME.encode(), server_timing(self._context.timings)))
        return headers


def event(data: bytes) -> bytes:
    """A server-sent event; ``data`` is JSON, which has no line breaks."""
    return b"data: " + data + b"\n\n"
