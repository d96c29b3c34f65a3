"""How a stream is sent as an HTTP response: each piece when it comes, and no faster than the client reads.

The time to the first piece counts most, so whatever the request to the model does not need is done while the model
works. On the short way head and first piece are one write, and so are the last piece and the end.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from starlette.types import Send

from hf_transformer.api.server_timing import NAME, server_timing
from hf_transformer.api.streaming import OpenStreams, Stream, shutting_down
from hf_transformer.errors import RequestError
from hf_transformer.generation.writing import Generation
from hf_transformer.short_way import Response
from hf_transformer.types import Context

logger = logging.getLogger(__name__)

SERVER_TIMING = NAME.encode()
UNBUFFERED = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
"""Keeps proxies from collecting pieces (the second one is nginx's)."""
UNBUFFERED_LINES = b"".join([b"%b: %b\r\n" % pair for pair in UNBUFFERED])


class Sink(Protocol):
    """Where the parts of a response go.

    Attributes: ``begun`` says whether the head was sent.
    """

    begun: bool

    def prepare(self, content_type: bytes, request_id: bytes) -> None:
        """Sets the headers, apart from the timing; called once, before ``begin``."""

    async def begin(self, timing: bytes, piece: bytes) -> None:
        """Sends the head, with status 200, and the first part, which may be empty, as soon as the client reads.
        ``timing`` is the value of server-timing; empty for no such header."""

    async def send(self, piece: bytes) -> None:
        """Sends a part as soon as the client reads."""

    async def end(self, *pieces: bytes) -> None:
        """Sends the last parts, each of which may be empty, as soon as the client reads."""


class AsgiSink(Sink):
    """The messages of ASGI."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._headers: list[tuple[bytes, bytes]] = []
        self.begun = False

    def prepare(self, content_type: bytes, request_id: bytes) -> None:
        self._headers = [(b"content-type", content_type), (b"x-request-id", request_id), *UNBUFFERED]

    async def begin(self, timing: bytes, piece: bytes) -> None:
        if timing:
            self._headers.append((SERVER_TIMING, timing))
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        self.begun = True  # not before: it waits where the client has not read what came before
        if piece:
            await self.send(piece)

    async def send(self, piece: bytes) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self, *pieces: bytes) -> None:
        *before, last = [piece for piece in pieces if piece] or [b""]
        for piece in before:
            await self.send(piece)
        await self._send({"type": "http.response.body", "body": last, "more_body": False})


class ShortSink(Sink):
    """A response that goes the short way."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self._lines = b""
        self.begun = False

    def prepare(self, content_type: bytes, request_id: bytes) -> None:
        self._lines = b"content-type: %b\r\nx-request-id: %b\r\n%b" % (content_type, request_id, UNBUFFERED_LINES)

    async def begin(self, timing: bytes, piece: bytes) -> None:
        self.begun = True
        lines = b"%bserver-timing: %b\r\n" % (self._lines, timing) if timing else self._lines
        if not self._response.begin(200, lines, piece):
            await self._response.send(piece)

    async def send(self, piece: bytes) -> None:
        if not self._response.part(piece):
            await self._response.send(piece)

    async def end(self, *pieces: bytes) -> None:
        await self._response.send(b"")
        self._response.end(*pieces)


class Sender:
    """Sends one stream as an HTTP response.

    Args:
        timing: whether the head has a server-timing, for the time until the first piece.
    """

    __slots__ = ("_context", "_held", "_loop", "_prepared", "_sink", "_stream", "_timing")

    def __init__(self, sink: Sink, stream: Stream, context: Context, *, timing: bool) -> None:
        self._sink = sink
        self._stream = stream
        self._context = context
        self._timing = timing
        self._prepared = False
        self._held = b""
        """The last piece: what follows it goes with it."""
        self._loop = asyncio.get_running_loop()

    async def run(self, streams: OpenStreams) -> int:
        """Sends it to its end; waits while the client does not read.

        Returns:
            The status that the request counts under: that of the error that ended it, else 200.

        Raises:
            RequestError: what went wrong before the first piece; nothing was sent.
        """
        stream, last = self._stream, b""
        failure: tuple[str, int] | None = None
        with streams.one() as end:
            try:
                async with await stream.start() as running:
                    self._loop.call_soon(self._prepare)  # the model was asked by then, as a rule
                    await self._pass_on(running)
                    last = stream.end(running)
            except asyncio.CancelledError:
                if not end.has_cancelled():
                    raise
                failure = self._failure(shutting_down())
            except RequestError as error:
                failure = self._failure(stream.named(error))
            except Exception:
                if not self._sink.begun:
                    raise
                failure = self._our_fault()
        if failure is not None:
            last = stream.error(*failure)
        if not self._sink.begun:
            await self._begin(self._held)
            self._held = b""
        await self._sink.end(self._held, last)
        return 200 if failure is None else failure[1]

    async def _pass_on(self, running: Generation) -> None:
        """Sends the pieces as they come."""
        stream, sink, left = self._stream, self._sink, self._stream.texts
        async for piece in running:
            if not self._prepared:
                self._prepare()
            written = stream.piece(piece)
            if piece.finish is not None:
                left -= 1
                if not left:
                    self._held = written
                    continue
            if not written:
                continue
            if sink.begun:
                await sink.send(written)
            else:
                await self._begin(written)

    def _failure(self, error: RequestError) -> tuple[str, int]:
        try:
            if not self._sink.begun:
                raise error
            return str(error), error.status
        finally:
            del error  # it refers to this frame: only the garbage collector would free what the callers hold

    def _our_fault(self) -> tuple[str, int]:
        """The last resort for a fault of our own, as in Endpoint."""
        request_id = self._context.request_id
        logger.exception("request %s failed by a fault of the service", request_id, extra={"request_id": request_id})
        return f"internal error; the log has it under {request_id}", 500

    def _prepare(self) -> None:
        """What is not needed before the first piece."""
        if self._prepared:
            return
        self._stream.prepare()
        self._sink.prepare(self._stream.content_type, self._context.request_id.encode("latin-1"))
        self._prepared = True

    async def _begin(self, piece: bytes) -> None:
        """Sends the head with the first piece, which may be empty."""
        if not self._prepared:
            self._prepare()
        timings = self._context.timings
        await self._sink.begin(server_timing(timings) if self._timing and timings.predict else b"", piece)
