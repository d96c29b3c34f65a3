"""An HTTP/1.1 client for one server: many small calls, large bodies, and answers that are read while they come.

It knows no redirects, cookies, proxies, compression, pipelining or deadlines. Cancelling a call closes its connection.

    HttpError
    ├── NotHttp             the first bytes are not HTTP/1
    ├── MalformedAnswer     HTTP/1, but against its rules, or over a limit on its framing
    ├── AnswerTooLarge      the body is larger than allowed
    ├── ConnectTimeout      no connection could be opened in time
    └── Disconnected        the connection ended, or was closed here, before the answer was whole
        ├── NoAnswer            and before the first byte of the answer
        └── ClientClosed        the client was closed before anything was sent

Calls also raise OSError (such as ssl.SSLError) where there is no connection and nothing was sent.
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
"""How long a connection may take to open: a host that drops packets would cost the whole timeout."""

FRAMING_LIMIT: Final = 2**16
"""Bytes that may come without a byte of the body: the head, interim answers, sizes of chunks, trailers."""

_SWEEP_SECONDS = 15.0
_SWEEPS = 4
"""An idle connection is closed at its fourth sweep, after 45 to 60 seconds. Proxies and load balancers forget one after
60 seconds or more, and some of them silently."""

_CLOSING_SECONDS = 1.0
_BUFFER = 2**14
"""Bytes that are read with a head. A larger body goes where ``Room`` says, so that its tensors are aligned."""

_MOST_UNREAD: Final = 2**17
"""Bytes of a streamed body that wait for their reader. With more, the connection is not read from."""

_STALE: Final = frozenset({400, 408})
"""Statuses with which servers and proxies close an idle connection: 408 by RFC 9110 (15.5.9), 400 by habit."""

Room = Callable[[int, Mapping[bytes, bytes]], memoryview]
"""Allocates the memory for a body of so many bytes, whose answer has these header fields. Its errors reach the caller
of the request."""


class HttpError(Exception):
    """Base of all errors here."""


class NotHttp(HttpError):
    """The server does not speak HTTP/1."""


class MalformedAnswer(HttpError):
    """The answer breaks the rules of HTTP/1.1, or its framing is over a limit."""


class AnswerTooLarge(HttpError):
    """The body has more bytes than allowed."""


class ConnectTimeout(HttpError):
    """No connection could be opened within CONNECT_SECONDS."""


class Disconnected(HttpError):
    """The connection ended, or was closed here, before the answer was whole."""


class NoAnswer(Disconnected):
    """The connection ended before the first byte of the answer."""


class ClientClosed(Disconnected):
    """The client was closed before anything was sent."""


@dataclass(slots=True)
class Answer:
    """A whole answer. Field names are lower-case; the values of a repeated field are joined by commas."""

    status: int
    headers: Mapping[bytes, bytes]
    body: memoryview


class Client:
    """Connections to one server, as many as there are calls under way, each kept for the calls that follow.

    The idle connection that was used last is taken first, so that the others age and are closed. If a kept connection
    ends before an answer, the request is sent once more, on a new connection. The same holds for an answer that has a
    status of ``_STALE`` and ends the connection: if the request itself is wrong, the second answer says so again.

    Without ``tls`` it is plain TCP. ``room`` allocates the memory for bodies. An answer of more than ``largest_body``
    bytes raises AnswerTooLarge; streamed bodies have no such limit.
    """

    def __init__(self, address: Address, tls: ssl.SSLContext | None, room: Room, largest_body: int) -> None:
        self.room = room
        self.largest_body = largest_body
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.idle: list[Connection] = []
        self.closed = False
        self._address = address
        self._tls = tls
        self._sweeper: asyncio.TimerHandle | None = None

    async def request(self, *data: bytes | memoryview) -> Answer:
        """Sends a request whose repetition does no harm, and gives its answer, whatever its status.

        ``data`` is the whole head and the body, in any number of pieces. Nobody may change them before the answer is
        there.
        """
        return (await self.begin(data, whole=True)).answer()

    async def begin(self, data: Sequence[bytes | memoryview], whole: bool = False) -> Connection:
        """As ``request``, but gives the connection, once the head of the answer has come, or with ``whole`` all of it.
        The caller then calls ``answer``, or reads the body and calls ``leave``."""
        if self.idle:
            connection = self.idle.pop()
            try:
                await connection.begin(data, whole)
                if connection.keep_alive or connection.status not in _STALE:
                    return connection
                connection.leave()
            except NoAnswer:
                pass
        connection = await self.connect()
        await connection.begin(data, whole)
        return connection

    async def connect(self) -> Connection:
        """A new connection, for one call."""
        if self.closed:
            raise ClientClosed("the client is closed")
        connection = Connection(self)
        host, port, tls = self._address.host, self._address.port, self._tls
        name = None if tls is None else host.rstrip(".")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self.loop.create_connection(lambda: connection, host, port, ssl=tls, server_hostname=name)
        except BaseException as exc:
            connection.abort()  # it may be open, if this was cancelled in the same turn of the event loop
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
            self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep)
        return connection

    async def close(self) -> None:
        """Closes every connection. Calls under way raise Disconnected."""
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        connections = list(self.connections)
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.lost for connection in connections], timeout=_CLOSING_SECONDS)

    def _sweep(self) -> None:
        for connection in tuple(self.idle):
            connection.sweeps += 1
            if connection.sweeps >= _SWEEPS:
                connection.abort()
        self._sweeper = self.loop.call_later(_SWEEP_SECONDS, self._sweep) if self.connections else None


class Connection(asyncio.BufferedProtocol):
    """One connection: one call at a time, from ``begin`` to ``answer`` or ``leave``.

    The parser reads heads, chunked bodies and what comes in the same read as the head. The rest of a body of known
    length is received where it stays.

    Attributes:
        open: whether it can still send and receive.
        sweeps: how many have found it idle since its last call.
        lost: done when the socket is closed.
        status, headers: of the answer to the present call; the status is 0 until its head has come.
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
        self._buffer = memoryview(bytearray(_BUFFER))
        self._waiter: asyncio.Future[None] = client.loop.create_future()
        self._whole = True
        self._complete = True  # nothing more of an answer is to come
        self._fault: Exception | None = None
        self._framing = 0  # bytes since the last byte of the body
        self._fields: dict[bytes, bytes] = {}  # of the head or the trailer that is being read
        self._body: bytes | bytearray | memoryview = b""  # what has come of it, and is not read yet
        self._unfilled: memoryview | None = None  # the rest of a body of known length, once it has to be waited for
        self._paused = False

    async def begin(self, data: Sequence[bytes | memoryview], whole: bool = False) -> None:
        """Sends a request and waits for the head of its answer, or with ``whole`` for all of it."""
        self._whole, self._complete = whole, False
        self._framing = self.status = 0
        try:
            self._transport.writelines(data)
            while not (self._complete if whole else self.status):
                await self._progress()
        except BaseException:
            self.leave()
            raise

    def answer(self) -> Answer:
        """The answer after ``begin`` with ``whole``; the call is then over."""
        body = self._body
        self.leave()
        return Answer(self.status, self.headers, memoryview(body))

    async def read(self) -> bytes:
        """The next bytes of a body that is read while it comes; none at its end."""
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
        """Ends the call. The connection is closed unless it can serve another one: the answer was whole, the request
        was all sent, and nothing else has come."""
        self._body = b""
        whole = self._complete and self.keep_alive and self.open and not self._paused
        if whole and not self._transport.get_write_buffer_size():
            self.keep_alive = False
            self.sweeps = 0
            self._client.idle.append(self)
        else:
            self._complete = True
            self._fault = self._unfilled = None  # a raised fault's traceback leads to this connection
            self.abort()

    def abort(self) -> None:
        """Closes the connection at once. A call under way fails."""
        self._fail(Disconnected("the connection was closed here"))

    def _progress(self) -> asyncio.Future[None]:
        """Done when something has come. Raises the fault that ended the connection, if one has."""
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

    # The event loop calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = HttpResponseParser(self)
        self.open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer if self._unfilled is None else self._unfilled

    def buffer_updated(self, nbytes: int) -> None:
        if self._complete or not self.open:  # nobody has asked for this
            self.abort()
            return
        if self._unfilled is not None:
            self._unfilled = self._unfilled[nbytes:]
            if not self._unfilled:
                self._unfilled = None
                self._parser = HttpResponseParser(self)  # the old one still waits for this body
                self._complete = True
                self._wake()
            return
        self._framing += nbytes
        try:
            self._parser.feed_data(self._buffer[:nbytes])
            if not self._complete:
                self._check_progress()
        except (HttpParserError, HttpParserUpgrade) as exc:
            if self._complete:  # something came behind the answer
                self.keep_alive = False
            else:
                self._fail(self._described(exc, nbytes))
        except Exception as exc:  # the event loop would only log it
            self._fail(exc)
        if self._complete or not self._whole:
            self._wake()

    def eof_received(self) -> None:
        """The server has closed its side. The transport closes the other one, since None is returned."""
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

    # The parser calls these. What they raise ends the parsing.

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
            # Two readers of such an answer may see two ends of it, which is how answers are smuggled.
            shown = coding[:80].decode("latin-1")
            raise MalformedAnswer(f"the Transfer-Encoding is {shown!r}, in HTTP/{version}")
        self.headers, self._fields = headers, {}
        self.keep_alive = parser.should_keep_alive()
        self.status = status

    def on_body(self, piece: bytes) -> None:
        self._framing = 0
        # A list of pieces would take 40 times the bytes of a body whose chunks have one byte each.
        if isinstance(self._body, bytearray):
            self._body += piece
        else:
            self._body = bytearray(b"".join((self._body, piece))) if self._body else piece
        size = len(self._body)
        if self._whole:
            if size > self._client.largest_body:
                raise AnswerTooLarge(f"it has {size} bytes or more, the limit is {self._client.largest_body}")
        elif size > _MOST_UNREAD and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        self._complete = self.status != 0  # else it was an interim answer

    def _check_progress(self) -> None:
        """After a read: makes room for a body of known length, or raises if nothing of a body comes."""
        if self._framing > FRAMING_LIMIT:
            raise MalformedAnswer(f"its head has more than {FRAMING_LIMIT} bytes")
        if self.status and self._whole and b"content-length" in self.headers:
            size, most = int(self.headers[b"content-length"]), self._client.largest_body
            if size > most:
                raise AnswerTooLarge(f"it has {size} bytes, the limit is {most}")
            body, received = self._client.room(size, self.headers), len(self._body)
            body[:received] = self._body
            self._body, self._unfilled = body, body[received:]

    def _described(self, exc: Exception, nbytes: int) -> HttpError:
        if isinstance(exc.__context__, HttpError):  # a callback of this class has raised it
            return exc.__context__
        first = bytes(self._buffer[: min(nbytes, 40)])
        if self._framing == nbytes and not self.status and not first.startswith(b"HTTP/1."[: len(first)]):
            return NotHttp(f"it begins with {first!r}")
        return MalformedAnswer(str(exc))

    def _ended(self, cause: Exception | None) -> Disconnected:
        """The error for a connection that ends here: the server has closed it, or it has broken off."""
        begun = self.status or self._framing
        kind, where = (Disconnected, "in the middle of its answer") if begun else (NoAnswer, "without an answer")
        if cause is None:
            return kind(f"it closed the connection {where}")
        error = kind(f"{getattr(cause, 'strerror', None) or cause or type(cause).__name__} ({where})")
        error.__cause__ = cause
        return error
