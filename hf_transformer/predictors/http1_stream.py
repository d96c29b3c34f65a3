"""An answer of an HTTP/1.1 server that is read while it comes, on a connection of its own.

Leaving it early is closing the connection; one whose answer was read to its end is there for the next. Who reads slowly
slows down the server: no more is received than the reader's buffer holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

from hf_transformer.predictors.http1_bodies import ChunkedBody, UntilClose
from hf_transformer.predictors.http1_errors import (
    DeadlineExceeded,
    Disconnected,
    Http1Error,
    MalformedAnswer,
    NoAnswer,
    NotHttp,
)
from hf_transformer.predictors.http1_parser import HEAD_LIMIT, Head, parse_head

_AT_ONCE: Final = 2**16
"""Bytes received at once, and half of what is received ahead of the reader."""


class Reader(asyncio.StreamReader):
    """What a connection receives. Whatever comes while ``idle`` is set, the end included, makes it useless; that is
    called then.

    Attributes: ``unread``, bytes that have come and were not taken; who reads counts what he takes.
    """

    idle: Callable[[], object] | None = None
    follower: Callable[[], object] | None = None
    """Called once, in the moment in which anything comes, the end included."""
    is_spoiled = False
    unread = 0
    _at_hand = b""

    def feed_data(self, data: Any) -> None:
        if self.follower is not None and not self.unread and 0 < len(data) <= _AT_ONCE:
            self._hand(bytes(data))
            return
        self.unread += len(data)
        if self.idle is not None:
            self._spoil(self.idle)
        super().feed_data(data)
        self._tell()

    def feed_eof(self) -> None:
        if self.idle is not None:
            self._spoil(self.idle)
        super().feed_eof()
        self._tell()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self._tell()

    def take(self, most: int) -> bytes:
        """What has come, without waiting; nothing where ``read`` would wait or raise."""
        if self._at_hand:
            data, self._at_hand, self.unread = self._at_hand, b"", 0
            return data
        if not self.unread or self.exception() is not None:
            return b""
        reading = self.read(most)
        try:
            reading.send(None)
        except StopIteration as done:
            read: bytes = done.value
            self.unread -= len(read)
            return read
        reading.close()
        return b""

    def _hand(self, data: bytes) -> None:
        """Gives what has come to the follower, past the buffer; what it does not take goes there."""
        self.unread, self._at_hand = len(data), data
        self._tell()
        if self._at_hand:
            self._at_hand = b""
            super().feed_data(data)

    def _tell(self) -> None:
        follower, self.follower = self.follower, None
        if follower is not None:
            follower()

    def _spoil(self, tell: Callable[[], object]) -> None:
        self.is_spoiled = True
        tell()


class StreamConnection:
    """An open connection. ``idle_since`` is on the loop's clock."""

    __slots__ = ("idle_since", "reader", "writer")

    def __init__(self, reader: Reader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.idle_since = 0.0

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent, as far as is known. What is there already would pass for its answer."""
        reader = self.reader
        return not (self.writer.transport.is_closing() or reader.is_spoiled or reader.unread or reader.at_eof())

    def abort(self) -> None:
        """Closes it, without a further word."""
        self.writer.transport.abort()


class StreamedAnswer:
    """The answer to one request. Its methods raise Http1Error, apart from ``close``."""

    def __init__(self, connection: StreamConnection, limit: int, free: Callable[[StreamConnection], object]) -> None:
        """
        Args:
            limit: the most bytes that may come at once.
            free: called with the connection, once it may be used again.
        """
        self._connection = connection
        self._reader = connection.reader
        self._limit = limit
        self._free = free
        self._head: Head
        self._body: ChunkedBody | UntilClose | None = None
        self._left = 0
        self._timer: asyncio.TimerHandle | None = None
        self._fault: Http1Error | None = None  # that ``take`` has found, for ``read``
        self._late = False
        self._closed = False
        self._is_over = False

    @property
    def status(self) -> int:
        return self._head.status

    @property
    def headers(self) -> Mapping[str, str]:
        """Names are lower-case."""
        return self._head.headers

    @property
    def keeps_alive(self) -> bool:
        """Whether the server leaves the connection open."""
        return self._head.keep_alive

    async def begin(self, request: bytes, deadline: float) -> Self:
        """Sends the request and awaits the head. ``deadline``, of the loop's clock, bounds the whole answer."""
        self._timer = asyncio.get_running_loop().call_at(deadline, self._time_is_up)
        self._connection.writer.write(request)
        self._head = await self._next_head("without an answer")
        while self._head.status < 200:
            if self._head.status == 101:
                raise MalformedAnswer("it changes to another protocol, which was not asked for")
            self._head = await self._next_head("in the middle of its answer")
        if self._head.length is None:
            self._body = ChunkedBody(self._limit) if self._head.chunked else UntilClose(self._limit)
        else:
            self._left = self._head.length
            self._is_over = not self._left
        return self

    async def read(self) -> bytes:
        """The next bytes of the body; none at its end."""
        body = self._body
        if body is None:
            return await self._rest()
        if self._fault is not None:
            raise self._fault
        while not body.complete:
            data = await self._received(_AT_ONCE)
            if not data:
                if isinstance(body, UntilClose) and not (self._late or self._closed):
                    return b""  # the server has closed it, and nobody here
                raise self._ended("in the middle of its answer")
            if found := self._fed(body, data):
                return found
        return b""

    def take(self) -> bytes:
        """What has come of a body in chunks, without waiting; none where there is none yet, or ``read`` knows more."""
        body = self._body
        if not isinstance(body, ChunkedBody) or body.complete or self._fault is not None:
            return b""
        try:
            return self._fed(body, self._reader.take(_AT_ONCE))
        except Http1Error as fault:
            self._fault = fault
            return b""

    def follow(self, wake: Callable[[], object]) -> bool:
        """Has it called, once, in the moment in which anything comes; False where ``read`` has to be asked."""
        body, reader = self._body, self._reader
        if not isinstance(body, ChunkedBody) or body.complete or self._fault is not None or self._closed:
            return False
        if reader.unread or reader.at_eof() or reader.exception() is not None:
            return False
        reader.follower = wake
        return True

    def unfollow(self) -> None:
        """Nobody is called any more."""
        self._reader.follower = None

    def close(self) -> None:
        """No more is read of it."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        # After a refusal it is not: what a server does then with a connection is less certain.
        if self._is_over and self._head.status == 200 and self.keeps_alive and self._connection.is_usable:
            self._free(self._connection)
        else:
            self._connection.abort()

    def abort(self) -> None:
        """Ends it in the middle: a read that is under way fails."""
        self._is_over = False
        self.close()

    def _fed(self, body: ChunkedBody | UntilClose, data: bytes) -> bytes:
        """What the body has with these bytes."""
        taken = body.feed(data)
        if body.complete:
            self._is_over = taken == len(data)  # what follows was not asked for
        return body.take() if body.data else b""

    async def _rest(self) -> bytes:
        """The next bytes of a body of known length."""
        if self._left == 0:
            return b""
        data = await self._received(min(self._left, _AT_ONCE))
        if not data:
            raise self._ended("in the middle of its answer")
        self._left -= len(data)
        self._is_over = not self._left
        return data

    async def _next_head(self, where: str) -> Head:
        """``where`` says at which place the connection ends if nothing more comes."""
        try:
            raw = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as exc:
            if exc.partial and not b"HTTP/1.".startswith(exc.partial[:7]):
                raise NotHttp(f"it begins with {exc.partial[:40]!r}") from exc
            raise self._ended("in the middle of its answer" if exc.partial else where) from exc
        except asyncio.LimitOverrunError as exc:
            raise MalformedAnswer(f"its head has more than {HEAD_LIMIT} bytes") from exc
        except OSError as exc:
            raise self._ended("in the middle of its answer" if self._reader.unread else where, exc) from exc
        self._reader.unread -= len(raw)
        return parse_head(raw[:-4])

    async def _received(self, most: int) -> bytes:
        try:
            data = await self._reader.read(most)
        except OSError as exc:
            raise self._ended("in the middle of its answer", exc) from exc
        self._reader.unread -= len(data)
        return data

    def _ended(self, where: str, cause: OSError | None = None) -> Disconnected | DeadlineExceeded:
        """The error for a connection that ends here."""
        if self._late:
            return DeadlineExceeded("the time for the whole call is over")
        if self._closed:
            return Disconnected("the connection was closed here")
        kind = NoAnswer if where == "without an answer" else Disconnected
        return kind(f"{cause.strerror or cause} ({where})" if cause else f"it closed the connection {where}")

    def _time_is_up(self) -> None:
        self._late = True
        self._connection.abort()
