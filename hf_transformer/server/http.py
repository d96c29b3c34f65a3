"""HTTP/1.1 for all routes: a protocol class based on httptools' parser.

    bytes -> HttpRequest -> one task: application.handle -> Response | Stream -> bytes

The task of a request starts when its head has arrived. The task reads the body, so it can reject a request before the
upload. Pipelined requests are answered one at a time, in order. Reading pauses while a further request waits. When a
client disconnects, the task of its request is cancelled.

Requests that are too long, too slow or malformed get an error response (``_refuse``) after the responses to earlier
requests. Then the connection is closed. Connections have no timers: ``keep_sweeping`` periodically checks all
connections for slow clients.

Sources: RFC 9112 (HTTP/1.1), https://llhttp.org (the parser, in its strict mode).
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections import deque
from collections.abc import Collection
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Protocol, cast
from urllib.parse import unquote

import httptools

from hf_transformer.types.http import Application, ClientGone, HeaderLines, Request, Response, Stream

logger = logging.getLogger(__name__)

LINGER = 1.0
"""Seconds for which a rejected client may continue to send. Immediate closing would reset the connection, and the
client could lose the response."""

SWEEPS_PER_LIMIT: Final = 10
"""Number of sweeps of a connection within the time limit of its client."""
MIN_SWEEP_SECONDS, MAX_SWEEP_SECONDS = 0.05, 5.0
"""Minimum and maximum pause between two sweeps."""
SWEPT_AT_ONCE: Final = 500  # connections, which take about a millisecond

MOST_REFUSED: Final = 256
"""Maximum number of connections over the limit that get an error response. Further connections are closed without one.
"""

UNREAD: Final = 2**16  # unread bytes of a body above which the connection stops reading

JOINED: Final = 2**16  # maximum bytes of a body to send in one write with the head

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}".encode() for status in HTTPStatus} | {
    499: b"HTTP/1.1 499 Client Closed Request"
}
_JOIN_FIELD: Final = b": ".join
_HOST: Final = re.compile(rb"(?:[\w.~!$&'()*+,;=%-]*|\[[\w.:~!$&'()*+,;=%-]+\])(?::[0-9]*)?")
"""Pattern of a Host header: an optional host and an optional port.

A host is a name, an IPv4 address, or an IPv6 address in brackets, with an optional zone after %. Source: RFC 3986,
3.2.2 and 3.2.3.
"""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits for clients.

    With ``idle_seconds`` 0, each connection closes after one response, and a new connection has ``seconds`` for its
    request.
    """

    connections: int  # maximum number of open connections
    header_bytes: int  # maximum size of the head of a request
    seconds: float  # time to send a request from its first byte, and to read a part of a response
    idle_seconds: float  # time until the next request starts


class HttpSettings(Protocol):
    """Settings of a connection. While ``ending`` is true, each connection closes after its response."""

    client_limits: ClientLimits
    ending: bool

    @property
    def application(self) -> Application: ...


class _Refused(Exception):
    """Exception that stops the parser after a request was rejected."""


class HttpRequest(Request):
    """A request on a connection.

    Attributes:
        keep_alive: whether the connection stays open after the response.
        pieces: unread pieces of the body.
        size: total bytes of ``pieces``.
        waiter: future that is resolved when body data arrives; None if no reader waits.
        complete: whether the whole body has arrived.
        expects: whether the client waits for 100 Continue.
        begun: whether the task has started.
        answered: whether the response has started.
        refusal: status and message of an error response that replaces the application's response.
        sent: number of bytes written of the response's body.
    """

    __slots__ = (
        "_connection",
        "answered",
        "begun",
        "complete",
        "expects",
        "keep_alive",
        "pieces",
        "refusal",
        "sent",
        "size",
        "waiter",
    )

    def __init__(
        self,
        connection: HttpConnection,
        keep_alive: bool,
        method: str,
        path: str,
        raw_path: bytes,
        query: bytes,
        fields: HeaderLines,
        version: str,
    ) -> None:
        super().__init__(method, path, raw_path, query, fields, version, connection.scheme)
        self._connection = connection
        self.pieces: list[bytes] = []
        self.size = self.sent = 0
        self.waiter: asyncio.Future[None] | None = None
        self.keep_alive = keep_alive
        self.complete = self.expects = self.begun = self.answered = False
        self.refusal: tuple[int, str] | None = None
        if b"expect" in self.headers and version == "1.1":  # HTTP/1.0 clients would treat 100 as the response
            self.expects = self.headers[b"expect"].lower() == b"100-continue"

    async def read(self) -> bytes:
        connection = self._connection
        while not self.pieces and not self.complete:
            if connection.lost:
                raise ClientGone
            if self.expects:
                self.expects = False
                connection.transport.write(CONTINUE)
            self.waiter = connection.loop.create_future()
            await self.waiter
        pieces = self.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.pieces, self.size, self.at_end = [], 0, self.complete
        if connection.is_paused:
            connection.resume_reading()
        return body

    def wake(self) -> None:
        """Wakes the task that reads the body."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    @property
    def client(self) -> tuple[str, int] | None:
        return _address(self._connection.transport.get_extra_info("peername"))

    @property
    def server(self) -> tuple[str, int] | None:
        return _address(self._connection.transport.get_extra_info("sockname"))


class HttpConnection(asyncio.Protocol):
    """One connection. uvicorn creates it, and calls ``shutdown`` when the server stops.

    ``config`` is uvicorn's configuration, extended by HttpSettings. ``server_state`` contains uvicorn's open
    connections, and header lines for every response (Date). ``app_state`` is not used.
    """

    def __init__(
        self,
        config: HttpSettings,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.loop = _loop or asyncio.get_running_loop()
        self.transport: asyncio.Transport
        self.lost = False
        self._settings = config
        self._application = config.application
        self._limits = config.client_limits
        self._state = server_state
        self.scheme = "http"
        self._parser = httptools.HttpRequestParser(self)
        self._requests: deque[HttpRequest] = deque()
        """Unanswered requests. Only the first request has a task."""
        self._incoming: HttpRequest | None = None  # the request whose body is being received
        self._task: asyncio.Task[None] | None = None
        self._url = b""
        self._fields: HeaderLines | None = None  # the head that is being received, if any
        self._since_progress = 0
        """Bytes read since the end of a request, or since the last piece of a body."""
        self._behind = False
        """Whether ``_since_progress`` may miss the start of the current head, because it arrived with the previous
        request."""
        self._trailer = 0
        self._deaf = False
        """Whether to ignore further input, after a rejection or the client's last request."""
        self.is_paused = False
        self._writable: asyncio.Future[None] | None = None
        self._deadline = math.inf
        self._unsent = 0
        self._unsent_since = 0.0

    # Called by the event loop and by uvicorn.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.scheme = "http" if transport.get_extra_info("ssl_object") is None else "https"
        connections = self._state.connections
        connections.add(self)
        if self._settings.ending:
            # The server began to stop during the TLS handshake. No request was sent, so none needs a response.
            self.transport.close()
            return
        limits = self._limits
        self._deadline = self.loop.time() + (limits.idle_seconds or limits.seconds)
        over = len(connections) - limits.connections
        if over > MOST_REFUSED:
            self.transport.abort()
        elif over > 0:
            most = limits.connections
            self._refuse(503, f"{most} connections are open, as many as --max_connections allows; try again")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = self._deaf = True
        self._state.connections.discard(self)
        self.resume_writing()
        for request in self._requests:
            request.wake()
        self._cancel()
        # Break reference cycles:
        self._requests.clear()
        self._incoming = None
        del self._parser

    def data_received(self, data: bytes) -> None:
        if self._fields is None:
            self._behind = False
        rest: bytes | memoryview = data
        while rest and not self._deaf:
            self._since_progress += len(rest)
            try:
                self._parser.feed_data(rest)
                rest = b""
            except httptools.HttpParserUpgrade as upgrade:
                rest = memoryview(rest)[upgrade.args[0] :]
                self._decline_upgrade()
            except httptools.HttpParserError as error:
                rest = b""
                if not self._deaf:
                    self._refuse(400, f"the request can't be read: {str(error)[:200]}")
        if self._since_progress > self._limits.header_bytes and not self._deaf:
            self._refuse_head()

    def _decline_upgrade(self) -> None:
        """Parses the head again without Upgrade. With it, the parser would treat the body as another protocol."""
        before, fields = self._parser, self._fields
        if fields is None:  # CONNECT
            return
        lines = b"".join([b"%b: %b\r\n" % line for line in fields if line[0] != b"upgrade"])
        start = b"%b %b HTTP/%b\r\n" % (before.get_method(), self._url, before.get_http_version().encode())
        self._parser = httptools.HttpRequestParser(self)
        self.data_received(b"%b%b\r\n" % (start, lines))

    def eof_received(self) -> None:
        """Handles the client's EOF. Returns None, so that the transport closes the connection."""

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = self.loop.create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def shutdown(self) -> None:
        """Closes the connection if it is idle. A request that has started may still complete."""
        if not self._requests and self._fields is None:
            self.transport.close()

    def break_off(self) -> None:
        """Ends the connection after the grace period."""
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            while len(self._requests) > 1:
                self._requests.pop()
            self._refuse(503, "the service is shutting down")

    def sweep(self, now: float) -> None:
        """Ends the connection if its client is too slow; ``now`` is the event loop's time.

        No limit applies to the next request while a response is outstanding.
        """
        seconds = self._limits.seconds
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        if unsent:
            if now - self._unsent_since > seconds:
                self.transport.abort()
        elif now > self._deadline and not self.is_paused:
            incoming = self._incoming
            if self._fields is None and (incoming is None or incoming.answered):
                self.transport.close()
            else:
                self._refuse(408, f"the request was not sent whole within {seconds:g} s (--client_timeout_seconds)")

    # Callbacks of the parser. An exception stops the parser.

    def on_message_begin(self) -> None:
        if self._deaf:
            raise _Refused
        self._url, self._fields = b"", []
        if not self._requests:
            self._deadline = self.loop.time() + self._limits.seconds

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._fields is not None:
            self._fields.append((name.lower(), value))
            return
        self._trailer += len(name) + len(value)  # fields after a chunked body are not used
        if self._trailer > self._limits.header_bytes:
            self._refuse_head()
            raise _Refused

    def on_headers_complete(self) -> None:
        parser, fields, method = self._parser, self._fields or [], self._parser.get_method().decode("latin-1")
        if parser.should_upgrade() and method != "CONNECT":
            return  # _decline_upgrade follows
        self._fields = None
        if self._behind or self._since_progress > self._limits.header_bytes:
            length = len(self._url) + sum([len(name) + len(value) + 4 for name, value in fields])
            if length > self._limits.header_bytes:
                self._refuse_head()
                raise _Refused
        self._since_progress = self._trailer = 0
        version = parser.get_http_version()
        raw_path, _, query = self._url.partition(b"?")
        if raw_path[:1] != b"/":
            raw_path, query = self._absolute()
        path = raw_path.decode("latin-1")
        if "%" in path:
            path = unquote(path)
        # Bytes after CONNECT belong to a tunnel, which is not supported. They are not a request (RFC 9110, 9.3.6).
        keep_alive = parser.should_keep_alive() and version == "1.1" and method != "CONNECT"
        request = self._incoming = HttpRequest(self, keep_alive, method, path, raw_path, query, fields, version)
        self._requests.append(request)
        if len(self._requests) == 1:
            self._task = self.loop.create_task(self._serve(request))
        else:
            self._pause_reading()
        if (problem := _problem_of_host(fields, version)) is not None:
            self._refuse(400, problem)
            raise _Refused
        if b"transfer-encoding" in request.headers:
            codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
            if codings != [b"chunked"]:
                shown = b", ".join(codings).decode("latin-1")[:80]
                self._refuse(501, f"Transfer-Encoding: {shown!r} is not understood; send chunked or a Content-Length")
                raise _Refused

    def on_body(self, piece: bytes) -> None:
        self._since_progress = 0
        request = self._incoming
        if request is None or request.answered:
            return
        request.pieces.append(piece)
        request.size += len(piece)
        if request.waiter is not None:
            request.wake()
        if request.size >= UNREAD:
            self._pause_reading()

    def on_message_complete(self) -> None:
        if self._fields is not None:  # _decline_upgrade follows
            return
        self._since_progress, self._behind = 0, True
        request, self._incoming = self._incoming, None
        if request is None:
            return
        request.complete = True
        if request.waiter is not None:
            request.wake()
        if self._requests:
            self._deadline = math.inf
        else:  # the response was sent before the end of the body
            self._await_next()
        if not request.keep_alive:
            self._deaf = True  # the client announced that nothing follows

    def _absolute(self) -> tuple[bytes, bytes]:
        """Path and query of a request target in absolute form (a URL) or asterisk form (``*``)."""
        if self._url == b"*":
            return b"*", b""
        try:
            parsed = httptools.parse_url(self._url)
        except httptools.HttpParserInvalidURLError:  # CONNECT's target, for example
            self._refuse(400, "the target is neither a path nor an address with one")
            raise _Refused from None
        return parsed.path or b"/", parsed.query or b""

    def _cancel(self) -> None:
        """Cancels the task of the first request if it has started. Before its start, cancellation would prevent a
        response."""
        if self._task is not None and self._requests[0].begun:
            self._task.cancel()

    # Responses, in the order of the requests.

    async def _serve(self, request: HttpRequest) -> None:
        """Answers the first request in the queue."""
        request.begun = True
        answer = None
        try:
            try:
                if self.lost:
                    return
                if request.refusal is None:
                    answer = await self._application.handle(request)
                else:
                    answer = self._application.refuse(request, *request.refusal)
            except asyncio.CancelledError:
                if request.refusal is None or self.lost:
                    raise
                answer = self._application.refuse(request, *request.refusal)
            except ClientGone:
                return
            except Exception:
                logger.exception("request %s failed by a fault of the service", request.id)
                answer = self._application.refuse(request, 500, f"internal error; the log has it under {request.id}")
                request.keep_alive = False
            if isinstance(answer, Stream):
                await self._send_stream(request, answer)
            elif not self.lost:
                self._send(request, answer)
            if self._writable is not None:
                await self._writable  # the next request waits until the client has read this response
        except asyncio.CancelledError:
            if not self.lost:
                self.transport.abort()
                raise
        except Exception:
            logger.exception("request %s could not be answered by a fault of the service", request.id)
            self.transport.abort()
        finally:
            if isinstance(answer, Response) and answer.sent is not None:
                answer.sent()
            if request.log is not None:
                self._application.finished(request, answer if request.answered else None, request.sent)
        self._answered(request)

    def _send(self, request: HttpRequest, response: Response) -> None:
        """Writes a whole response."""
        body = response.body
        if response.status in (204, 304):  # which have no body
            data, body = self._head(request, response.status, response.headers), b""
        else:
            length = (b"content-length", b"%d" % len(body))
            data = self._head(request, response.status, [*response.headers, length])
            if request.method == "HEAD":
                body = b""
        request.sent = len(body)
        if len(body) <= JOINED:
            self.transport.write(data + body)
        else:
            self.transport.writelines((data, body))

    async def _send_stream(self, request: HttpRequest, stream: Stream) -> None:
        """Writes a response part by part, at the client's reading pace."""
        async with aclosing(stream.parts):
            if self.lost:
                return
            is_chunked, has_body = request.version == "1.1", request.method != "HEAD"
            headers, part = stream.headers, stream.first
            if is_chunked:
                headers = [*headers, (b"transfer-encoding", b"chunked")]
            else:  # the body ends with the connection (RFC 9112, 6.3)
                request.keep_alive = False
            data = self._head(request, stream.status, headers)
            try:
                while True:
                    if part and has_body:
                        request.sent += len(part)
                        data += b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part
                    if data:
                        self.transport.write(data)
                        data = b""
                    if self._writable is not None:
                        await self._writable
                    part = await anext(stream.parts)
            except StopAsyncIteration:
                pass
            except Exception:
                # Omit the final chunk, so that the client detects an incomplete body.
                logger.exception("the stream of request %s failed by a fault of the service", request.id)
                self.transport.abort()
                return
        if is_chunked and has_body:
            self.transport.write(b"0\r\n\r\n")

    def _head(self, request: HttpRequest, status: int, headers: HeaderLines) -> bytes:
        """Builds the head of a response, and marks the request as answered."""
        request.answered = True
        is_last = len(self._requests) == 1 and (self._settings.ending or not self._limits.idle_seconds)
        if is_last or (request.expects and not request.complete):
            request.keep_alive = False
        lines = [STATUS_LINES[status], *map(_JOIN_FIELD, self._state.default_headers), *map(_JOIN_FIELD, headers)]
        if not request.keep_alive:
            lines.append(b"connection: close")
        lines += (b"", b"")
        return b"\r\n".join(lines)

    def _answered(self, request: HttpRequest) -> None:
        """Starts the task of the next request, or waits for a request."""
        self._task = None
        if self.lost or self.transport.is_closing():
            return
        requests = self._requests
        requests.popleft()
        if not request.keep_alive:
            self._close(linger=not request.complete or request.refusal is not None)
            return
        if requests:
            self._task = self.loop.create_task(self._serve(requests[0]))
        if self.is_paused:
            self.resume_reading()  # there may be more of a body
        if not requests and request.complete:
            self._await_next()

    def _await_next(self) -> None:
        """Sets the deadline for the next request, or for the remaining head of a request that has started."""
        seconds = self._limits.seconds
        if self._fields is None:
            seconds = self._limits.idle_seconds
            if self._settings.ending:
                self.transport.close()
        self._deadline = self.loop.time() + seconds

    def _close(self, *, linger: bool) -> None:
        """Closes the connection. With ``linger`` it closes after LINGER seconds, and ignores further input."""
        self._deaf = True
        if not linger:
            self.transport.close()
            return
        if self.transport.can_write_eof():  # not with TLS
            with suppress(OSError):  # the client has reset it
                self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.close)

    def _refuse_head(self) -> None:
        most = self._limits.header_bytes
        self._refuse(431, f"the first line and the headers have more than {most} bytes (--max_header_bytes)")

    def _refuse(self, status: int, message: str) -> None:
        """Sends an error response after the responses to earlier requests, and closes the connection."""
        if self.transport.is_closing():
            return
        self._deaf = True
        self._deadline = math.inf
        first = self._requests[0] if self._requests else None
        culprit = first if status == 503 else self._incoming
        if culprit is None:
            path = self._url.partition(b"?")[0]
            culprit = HttpRequest(self, False, "-", path.decode("latin-1"), b"", b"", [], "1.1")
            self._requests.append(culprit)
            if first is None:
                self._task = self.loop.create_task(self._serve(culprit))
        elif culprit.answered:
            self.transport.abort()  # its response has begun
            return
        culprit.refusal, culprit.keep_alive = (status, message), False
        if culprit is first:
            self._cancel()
        self._fields = None
        self.resume_reading()

    def _pause_reading(self) -> None:
        if not self.is_paused and not self._deaf:
            self.is_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Resumes reading if no further request waits and the buffer of the current body is not full."""
        incoming = self._incoming  # after its response, the rest of its body is dropped
        has_room = incoming is None or incoming.size < UNREAD or incoming.answered
        if self.is_paused and (self._deaf or (has_room and len(self._requests) <= 1)):
            self.is_paused = False
            self._deadline = math.inf if incoming is None else self.loop.time() + self._limits.seconds
            if not self.transport.is_closing():
                self.transport.resume_reading()


async def keep_sweeping(connections: Collection[HttpConnection], limits: ClientLimits) -> None:
    """Calls ``sweep`` on all connections periodically, until cancelled."""
    loop = asyncio.get_running_loop()
    shortest = min(limits.seconds, limits.idle_seconds or limits.seconds)
    pause = max(MIN_SWEEP_SECONDS, min(MAX_SWEEP_SECONDS, shortest / SWEEPS_PER_LIMIT))
    while True:
        await asyncio.sleep(pause)
        for number, connection in enumerate(list(connections), 1):
            try:
                connection.sweep(loop.time())
            except Exception:  # a bug in one connection must not end the sweeps of other connections
                logger.exception("a connection could not be swept")
            if not number % SWEPT_AT_ONCE:
                await asyncio.sleep(0)


def _problem_of_host(fields: HeaderLines, version: str) -> str | None:
    """Describes the problem of a request's Host headers; None if they are valid. Source: RFC 9112, 3.2."""
    host = None
    for name, value in fields:
        if name == b"host":
            if host is not None:
                return "the request has several Host headers, expected one"
            host = value
    if host is None:
        return None if version < "1.1" else "the request has no Host header, which HTTP/1.1 requires"
    host = host.strip(b" \t")  # the parser does not strip white space after a value
    if _HOST.fullmatch(host):
        return None
    return f"Host: expected a host name or an address, perhaps with a port, got {host.decode('latin-1')[:80]!r}"


def _address(address: Any) -> tuple[str, int] | None:
    """Host and port in a socket's address; None for a Unix socket."""
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) and len(address) > 1 else None
