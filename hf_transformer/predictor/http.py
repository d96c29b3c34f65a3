"""An HTTP/1.1 client for one server, for many small calls, large bodies and streamed responses.

It has no redirects, cookies, proxies, compression, pipelining or timeouts of calls. Cancelling a call closes its
connection.

    HttpError
    ├── NotHttp             the first bytes are not HTTP/1
    ├── MalformedAnswer     invalid HTTP/1.1, or over a limit on its framing
    ├── AnswerTooLarge      the body exceeds the limit
    ├── ConnectTimeout      no connection could be opened in time
    └── Disconnected        the connection ended, or was closed here, before the end of the answer
        ├── NoAnswer            and before the first byte of the answer
        └── ClientClosed        the client was closed before anything was sent

Calls also raise OSError (such as ssl.SSLError) if no connection can be opened; nothing was sent then.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from errno import ECONNRESET
from typing import Final, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from hf_transformer.predictor.base import Address

CONNECT_SECONDS: Final = 10.0
"""The time limit for opening a connection. A host that drops packets would use up the whole timeout of a call."""

MAX_FRAMING_BYTES: Final = 2**16
"""The most consecutive bytes outside the body: the head, interim answers (1xx), chunk sizes, trailers."""

_SWEEP_SECONDS = 15.0
_SWEEPS = 4
"""Idle connections are closed at their fourth sweep, after 45 to 60 seconds. Proxies and load balancers drop them after
60 seconds or more, some of them silently."""

_CLOSE_SECONDS = 1.0
_BUFFER_BYTES = 2**14
"""The size of the read buffer for heads and small bodies. ``AllocateBody`` provides the memory of larger bodies."""

_MAX_UNREAD_BYTES: Final = 2**17
"""The most received, unread bytes of a streamed body. Beyond it, the connection pauses reading."""

_STALE_STATUSES: Final = frozenset({400, 408})
"""Statuses with which servers and proxies close an idle connection: 408 by RFC 9110 (15.5.9), 400 in practice."""

AllocateBody = Callable[[int, Mapping[bytes, bytes]], memoryview]
"""Allocates memory for a body, from its size in bytes and the answer's headers. Its errors reach the caller of the
request."""


class HttpError(Exception):
    """Base of all errors here."""


class NotHttp(HttpError):
    """The server does not speak HTTP/1."""


class MalformedAnswer(HttpError):
    """The answer is invalid HTTP/1.1, or its framing is over a limit."""


class AnswerTooLarge(HttpError):
    """The body exceeds the limit."""


class ConnectTimeout(HttpError):
    """No connection could be opened within CONNECT_SECONDS."""


class Disconnected(HttpError):
    """The connection ended, or was closed here, before the end of the answer."""


class NoAnswer(Disconnected):
    """The connection ended before the first byte of the answer."""


class ClientClosed(Disconnected):
    """The client was closed before anything was sent."""


@dataclass(slots=True)
class Answer:
    """A complete answer. Header names are lower-case; commas join the values of a repeated header."""

    status: int
    headers: Mapping[bytes, bytes]
    body: memoryview


class Client:
    """A pool of connections to one server, with one connection per concurrent call.

    The most recently used idle connection is reused first, so that the others age and are closed. If a reused
    connection ends before an answer, the client sends the request again on a new connection. It does the same after a
    status of ``_STALE_STATUSES`` that ends the connection; a bad request gets the same answer again.

    Without ``tls`` connections are plain TCP. An answer of more than ``max_body`` bytes raises AnswerTooLarge; streamed
    bodies have no such limit.
    """

    def __init__(self, address: Address, tls: ssl.SSLContext | None, allocate: AllocateBody, max_body: int) -> None:
        self.allocate = allocate
        self.max_body = max_body
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.idle: list[Connection] = []
        self.closed = False
        self._address = address
        self._tls = tls
        self._sweeper: asyncio.TimerHandle | None = None

    async def request(self, *data: bytes | memoryview, max_body: int = 0) -> Answer:
        """Sends an idempotent request and returns its answer of any status, of at most ``max_body`` bytes if given.

        ``data`` is the head and the body, in any number of pieces, which must not change before the answer is complete.
        """
        return (await self.begin(data, whole=True, max_body=max_body)).answer()

    async def begin(self, data: Sequence[bytes | memoryview], whole: bool = False, max_body: int = 0) -> Connection:
        """Sends an idempotent request, and waits for the head of its answer, or with ``whole`` for the whole answer.

        ``max_body`` is the limit of a whole answer, the client's by default. The caller then calls ``answer``, or reads
        the body and calls ``leave``.
        """
        if self.idle:
            connection = self.idle.pop()
            try:
                await connection.begin(data, whole, max_body)
                if connection.keep_alive or connection.status not in _STALE_STATUSES:
                    return connection
                connection.leave()
            except NoAnswer:
                pass
        connection = await self.connect()
        await connection.begin(data, whole, max_body)
        return connection

    async def connect(self) -> Connection:
        """Opens a new connection, for one call."""
        if self.closed:
            raise ClientClosed("the client is closed")
        connection = Connection(self)
        host, port, tls = self._address.host, self._address.port, self._tls
        name = None if tls is None else host.rstrip(".")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self.loop.create_connection(lambda: connection, host, port, ssl=tls, server_hostname=name)
        except BaseException as exc:
            connection.abort()  # it is open if the cancellation came in the same turn of the event loop
            if isinstance(exc, TimeoutError):
                raise ConnectTimeout(f"no connection within {CONNECT_SECONDS:g} s") from exc
            raise
        if self.closed:
            connection.abort()
            raise ClientClosed("the client is closed")
        if not connection.open:
            raise ConnectionResetError(ECONNRESET, "the connection was closed as soon as it was open")
        self.connections.add(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self.sweep)
        return connection

    async def close(self) -> None:
        """Closes every connection. Calls in flight raise Disconnected."""
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        connections = list(self.connections)
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.lost for connection in connections], timeout=_CLOSE_SECONDS)

    def sweep(self) -> None:
        """Closes connections that have been idle for several sweeps, and plans the next one."""
        for connection in tuple(self.idle):
            connection.sweeps += 1
            if connection.sweeps >= _SWEEPS:
                connection.abort()
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self.sweep) if self.connections else None


class Connection(asyncio.BufferedProtocol):
    """A connection for one call at a time, from ``begin`` to ``answer`` or ``leave``.

    The parser reads heads, chunked bodies, and the bytes that arrive with a head. The rest of a body of known length is
    received directly into its final memory.

    Attributes:
        open: whether the connection can send and receive.
        sweeps: the number of sweeps since its last call.
        lost: a future, done when the socket is closed.
        status, headers: those of the present answer; the status is 0 before its head.
        keep_alive: whether the answer allows another request on this connection.
    """

    def __init__(self, client: Client) -> None:
        self.open = False
        self.sweeps = 0
        self.lost: asyncio.Future[None] = client.loop.create_future()
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.keep_alive = False
        self._client = client
        self._transport: asyncio.Transport
        self._parser: HttpResponseParser
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._waiter: asyncio.Future[None] = client.loop.create_future()
        self._whole = True
        self._max_body = client.max_body
        self._complete = True  # whether the answer has ended, or no call is in flight
        self._fault: Exception | None = None
        self._framing = 0  # bytes since the last byte of the body
        self._fields: dict[bytes, bytes] = {}  # of the present head or trailer
        self._body: bytes | bytearray | memoryview = b""  # the received, unread part
        self._unfilled: memoryview | None = None  # the rest of a body of known length
        self._paused = False

    async def begin(self, data: Sequence[bytes | memoryview], whole: bool = False, max_body: int = 0) -> None:
        """Sends a request and waits for the head of its answer, or with ``whole`` for the whole answer."""
        self._whole, self._complete = whole, False
        self._max_body = max_body or self._client.max_body
        self._framing = self.status = 0
        try:
            self._transport.writelines(data)
            while not (self._complete if whole else self.status):
                await self._progress()
        except BaseException:
            self.leave()
            raise

    def answer(self) -> Answer:
        """Ends the call after ``begin`` with ``whole``, and returns its answer."""
        body = self._body
        self.leave()
        return Answer(self.status, self.headers, memoryview(body))

    async def read(self) -> bytes:
        """The next bytes of a streamed body, empty at its end."""
        while not self._body:
            if self._complete:
                return b""
            await self._progress()
        data, self._body = bytes(self._body), b""
        if self._paused and self.open:
            self._paused = False
            self._transport.resume_reading()
        return data

    def leave(self) -> None:
        """Ends the call. The connection becomes idle if the request and the answer are complete, and is closed
        otherwise."""
        self._body = b""
        reusable = self._complete and self.keep_alive and self.open and not self._paused
        if reusable and not self._transport.get_write_buffer_size():
            self.keep_alive = False
            self.sweeps = 0
            self._client.idle.append(self)
        else:
            self._complete = True
            self._fault = self._unfilled = None  # breaks the cycle through the traceback of a raised fault
            self.abort()

    def abort(self) -> None:
        """Closes the connection at once. A call in flight fails."""
        self._fail(Disconnected("the connection was closed here"))

    def _progress(self) -> asyncio.Future[None]:
        """A future, done when data has arrived. Raises the fault that ended the connection, if any."""
        if self._fault is not None:
            raise self._fault
        self._waiter = self._client.loop.create_future()
        return self._waiter

    def _wake(self) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, fault: Exception) -> None:
        if not self._complete and self._fault is None:
            self._fault = fault
        if self.open:
            self.open = False
            if self in self._client.idle:
                self._client.idle.remove(self)
            self._transport.abort()
        self._wake()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = HttpResponseParser(self)
        self.open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer if self._unfilled is None else self._unfilled

    def buffer_updated(self, nbytes: int) -> None:
        if self._complete or not self.open:  # unsolicited data
            self.abort()
            return
        if self._unfilled is not None:
            self._unfilled = self._unfilled[nbytes:]
            if not self._unfilled:
                self._unfilled = None
                self._parser = HttpResponseParser(self)  # the old one still expects this body
                self._complete = True
                self._wake()
            return
        self._framing += nbytes
        try:
            self._parser.feed_data(self._buffer[:nbytes])
            if not self._complete:
                self._check_progress()
        except (HttpParserError, HttpParserUpgrade) as exc:
            if self._complete:  # data followed the answer
                self.keep_alive = False
            else:
                self._fail(self._parse_error(exc, nbytes))
        except Exception as exc:  # the event loop would only log it
            self._fail(exc)
        if self._complete or not self._whole:
            self._wake()

    def eof_received(self) -> None:
        """The server has closed its side. Returning None makes the transport close the other side."""
        until_end = self.status and not self.headers.keys() & {b"content-length", b"transfer-encoding"}
        if until_end and self.open and not self._complete:
            self._complete = True
            self._wake()
        else:
            self._fail(self._ended(None))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(self._ended(exc))
        self._client.connections.discard(self)
        del self._parser  # it refers back to this connection
        if not self.lost.done():
            self.lost.set_result(None)

    # Callbacks of the parser. An error that they raise ends the parsing.

    def on_message_begin(self) -> None:
        if self._complete:
            raise MalformedAnswer("a second answer follows")
        self._fields = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        name, fields = name.lower(), self._fields
        fields[name] = fields[name] + b", " + value if name in fields else value

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self._fields
        status, version = parser.get_status_code(), parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise NotHttp(f"it answers in version {version}")
        if status < 200:
            if status == 101 or status < 100:
                raise MalformedAnswer(f"it has the status {status}, which was not asked for")
            return
        coding = headers.get(b"transfer-encoding")
        if coding is not None and (coding.strip().lower() != b"chunked" or version == "1.0"):
            # Parsers disagree about the end of such an answer, which allows smuggling.
            raise MalformedAnswer(f"the Transfer-Encoding is {coding[:80].decode('latin-1')!r}, in HTTP/{version}")
        self.headers, self._fields = headers, {}
        self.keep_alive = parser.should_keep_alive()
        self.status = status

    def on_body(self, piece: bytes) -> None:
        self._framing = 0
        # A list of pieces would take 40 times the memory for a body in chunks of one byte.
        if isinstance(self._body, bytearray):
            self._body += piece
        else:
            self._body = bytearray(b"".join((self._body, piece))) if self._body else piece
        size = len(self._body)
        if self._whole:
            if size > self._max_body:
                raise AnswerTooLarge(f"it has {size} bytes or more, the limit is {self._max_body}")
        elif size > _MAX_UNREAD_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        self._complete = self.status != 0  # else it was an interim answer

    def _check_progress(self) -> None:
        """Checks the limits of framing and body, and allocates a body of known length. Raises MalformedAnswer and
        AnswerTooLarge."""
        if self._framing > MAX_FRAMING_BYTES:
            raise MalformedAnswer(f"its head has more than {MAX_FRAMING_BYTES} bytes")
        if self.status and self._whole and b"content-length" in self.headers:
            size, limit = int(self.headers[b"content-length"]), self._max_body
            if size > limit:
                raise AnswerTooLarge(f"it has {size} bytes, the limit is {limit}")
            body, received = self._client.allocate(size, self.headers), len(self._body)
            body[:received] = self._body
            self._body, self._unfilled = body, body[received:]

    def _parse_error(self, exc: Exception, nbytes: int) -> HttpError:
        if isinstance(exc.__context__, HttpError):  # raised by a callback of this class
            return exc.__context__
        first = bytes(self._buffer[: min(nbytes, 40)])
        if self._framing == nbytes and not self.status and not first.startswith(b"HTTP/1."[: len(first)]):
            return NotHttp(f"it begins with {first!r}")
        return MalformedAnswer(str(exc))

    def _ended(self, cause: Exception | None) -> Disconnected:
        """The error for a lost connection; ``cause`` is None if the server has closed it."""
        begun = self.status or self._framing
        kind, stage = (Disconnected, "in the middle of its answer") if begun else (NoAnswer, "without an answer")
        if cause is None:
            return kind(f"it closed the connection {stage}")
        error = kind(f"{getattr(cause, 'strerror', None) or cause or type(cause).__name__} ({stage})")
        error.__cause__ = cause
        return error
