"""An answer of an HTTP/1.1 server that is read while it comes, on a connection of its own.

Leaving it early is closing the connection; one whose answer was read to its end is there for the next. Who reads slowly
slows down the server: no more is received than the connection keeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from hf_transformer.predictor.http1_bodies import ChunkedBody, OfLength, UntilClose
from hf_transformer.predictor.http1_errors import (
    DeadlineExceeded,
    Disconnected,
    Http1Error,
    MalformedAnswer,
    NoAnswer,
    NotHttp,
)
from hf_transformer.predictor.http1_parser import HEAD_LIMIT, Head, Heads
from hf_transformer.predictor.http1_stream_connection import StreamConnection

_BEGINNING: Final = b"HTTP/1."


class StreamedAnswer:
    """The answer to one request. Its methods raise Http1Error, apart from ``close``, ``take`` and ``follow``."""

    head: Head
    """Once it has begun."""
    is_over = False
    """Whether all of it was read, and nothing has come behind it."""

    _begun: asyncio.Future[None]
    _body: ChunkedBody | OfLength | UntilClose | None = None  # once there is one, until it is closed
    _fault: Http1Error | None = None  # that ``take`` has found, for ``read``
    _some = False  # whether an interim answer has come
    _closed = False

    def __init__(self, connection: StreamConnection, heads: Heads, limit: int) -> None:
        """
        Args:
            connection: of which nobody else reads.
            heads: those of the same server.
            limit: the most bytes that may come at once.
        """
        self.connection = connection
        self._heads = heads
        self._limit = limit

    def begin(self, request: bytes, deadline: float) -> asyncio.Future[None]:
        """Sends the request. Done when the answer has begun: the head has come, and under status 200 some of its body
        or the end. ``deadline``, of the loop's clock, bounds the whole answer."""
        begun = self._begun = asyncio.get_running_loop().create_future()
        self.connection.send(request, deadline, self._came)
        return begun

    async def read(self) -> bytes:
        """The next bytes of the body; none at its end."""
        while not (data := self.take()):
            if not await self.more():
                break
        return data

    async def more(self) -> bool:
        """Waits until ``take`` may have something, where it has nothing; False at the end of the body."""
        connection, body = self.connection, self._body
        if self._fault is not None:
            try:
                raise self._fault
            finally:
                self._fault = None  # its traceback leads here
        if body is None:
            raise Disconnected("the connection was closed here")
        if body.complete:
            return False
        if connection.ended:
            if type(body) is UntilClose and connection.error is None and not connection.aborted:
                return False  # the server has closed it, and nobody here
            raise self._ended("in the middle of its answer")
        more = asyncio.get_running_loop().create_future()
        connection.wake = partial(_wake, more)
        try:
            await more
        finally:
            self.unfollow()
        return True

    def take(self) -> bytes:
        """What has come of the body, without waiting; none where there is none yet, or ``read`` knows more."""
        connection, body = self.connection, self._body
        if not connection.unread or body is None or body.complete or self._fault is not None:
            return b""
        if connection.paused:
            connection.resume()
        data, connection.unread = connection.unread, b""
        if type(body) is ChunkedBody and (chunk := body.usual(data)):
            return chunk
        try:
            taken = body.feed(data)
            if body.complete:
                self.is_over = taken == len(data)  # what follows was not asked for
        except Http1Error as fault:
            self._fault = fault.with_traceback(None)
        return body.take() if body.data else b""

    def follow(self, wake: Callable[[], object]) -> bool:
        """Has it called, once, in the moment in which anything comes; False where ``read`` has to be asked."""
        connection, body = self.connection, self._body
        if connection.unread or connection.ended or body is None or body.complete or self._fault is not None:
            return False
        connection.wake = wake
        return True

    def unfollow(self) -> None:
        """Nobody is called any more."""
        if not self._closed:
            self.connection.wake = None

    def close(self) -> None:
        """No more is read of it."""
        if not self._closed:
            self._closed = True
            if self._body is not None:
                self._body = None
            else:
                begun = self._begun
                del self._begun  # the traceback of its error leads here
                if begun.done() and not begun.cancelled():
                    begun.exception()  # of which a caller who was cancelled has not heard
            # After a refusal it is not used again: what a server does then with a connection is less certain.
            self.connection.leave(self.is_over and self.head.status == 200 and self.head.keep_alive)

    def _came(self) -> None:
        """Something has come of the beginning."""
        begun = self._begun
        if begun.done():  # nobody waits any more
            return
        try:
            if self._begins():
                begun.set_result(None)
            else:
                self.connection.wake = self._came
        except Http1Error as error:
            begun.set_exception(error.with_traceback(None))  # whose frames lead to it

    def _begins(self) -> bool:
        """Whether there is enough of the answer to begin with."""
        connection, body = self.connection, self._body
        while body is None:
            raw, end, rest = connection.unread.partition(b"\r\n\r\n")
            if not end or len(raw) > HEAD_LIMIT - 4:
                self._check_beginning(connection.unread)
                return False
            head = self.head = self._heads.parsed(raw)
            connection.unread = rest
            if head.chunked:
                body = self._body = ChunkedBody(self._limit)
            elif head.status < 200:
                self._some = True
                if head.status == 101:
                    raise MalformedAnswer("it changes to another protocol, which was not asked for")
            elif head.length is None:
                body = self._body = UntilClose(self._limit)
            else:
                body = self._body = OfLength(head.length)
                self.is_over = not head.length
        return connection.unread != b"" or connection.ended or body.complete or self.head.status != 200

    def _check_beginning(self, data: bytes) -> None:
        """Raises what keeps a head that is not whole from becoming one."""
        if not data.startswith(_BEGINNING[: len(data)]):
            raise NotHttp(f"it begins with {data[:40]!r}")
        if self.connection.ended:
            raise self._ended("in the middle of its answer" if data or self._some else "without an answer")
        if len(data) >= HEAD_LIMIT:
            raise MalformedAnswer(f"its head has more than {HEAD_LIMIT} bytes")

    def _ended(self, where: str) -> Disconnected | DeadlineExceeded:
        """The error for a connection that ends here."""
        connection = self.connection
        if connection.late:
            return DeadlineExceeded("the time for the whole call is over")
        if connection.aborted:
            return Disconnected("the connection was closed here")
        kind, cause = (NoAnswer if where == "without an answer" else Disconnected), connection.error
        if cause is None:
            return kind(f"it closed the connection {where}")
        error = kind(f"{getattr(cause, 'strerror', None) or cause or type(cause).__name__} ({where})")
        error.__cause__ = cause
        return error


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
