"""A client for one HTTP/1.1 server, made for many small calls and for large answers.

It does what a predictor needs and no more: no redirects, cookies, proxies, compression or pipelining.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from errno import ECONNRESET
from math import inf
from typing import Final

from hf_transformer.predictor.address import Address
from hf_transformer.predictor.http1_connection import Connection, Hold
from hf_transformer.predictor.http1_errors import ConnectDeadline, ConnectTimeout, Disconnected, NoAnswer
from hf_transformer.predictor.http1_parser import Answer, AnswerReader, Heads, Room

CONNECT_SECONDS: Final = 10.0
"""How long a connection may take to open; a host that drops packets would cost the whole timeout."""

_SPARE = 4
"""Idle connections that are kept for long. What is above them served a peak."""

_SPARE_SECONDS = 240.0
"""What is on the way to a server may forget an idle connection, without a word."""

_IDLE_SECONDS = 15.0

_CLOSING_SECONDS = 1.0


class Http1Client:
    """Connections to one server, as many as there are calls under way, each kept for the calls that follow.

    Of the idle ones the last used is taken first, so that the others age and are closed. One that the server has closed
    (after a restart, or because it was idle) is dropped as soon as that is seen. If the news crosses a request, so that
    no byte of an answer comes, or only the word that the server has waited too long for a request (408, RFC 9110,
    15.5.9), the request is sent once more on a new connection. So it is after a 400 that ends the connection: some
    proxies say that to an idle one, and what is really wrong gets it again. Any other status counts as the answer: a
    503, say, of a proxy that ends is one that retries and clients know what to do with.
    """

    def __init__(
        self, address: Address, tls: ssl.SSLContext | None, seconds: float, room: Room, largest_body: int = 2**36
    ) -> None:
        """Must be called where an event loop runs.

        tls: for TLS, None for plain TCP.
        seconds: what one call may take, connecting and sending twice included.
        room: makes the place for each answer's body.
        largest_body: bytes; a larger answer is an error.
        """
        self._address = address
        self._tls = tls
        self._seconds = seconds
        self._room = room
        self._largest_body = largest_body
        self._loop = asyncio.get_running_loop()
        self._heads = Heads()
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self.closed = False

    @property
    def idle(self) -> int:
        """How many connections are open and wait for a request."""
        return len(self._idle)

    async def request(
        self,
        head: bytes,
        *body: bytes | memoryview,
        resend: bool = True,
        fresh: bool = False,
        deadline: float = inf,
        hold: Hold | None = None,
    ) -> Answer:
        """The answer to a request, whatever its status.

        head: request line and header fields, the empty line at the end included. It says Content-Length if there is a
        body, is of HTTP/1.1, has a Host and does not ask for the connection to be closed. A small body stands behind.
        body: the rest, in pieces that are sent as they are: one after the other and not copied where the event loop
        can do without. Nobody may change them before the answer is there.
        resend: whether the request may be sent twice, because doing it twice does no harm.
        fresh: whether only a new connection will do.
        deadline: on the loop's clock, where it is earlier than the client's own.
        hold: keeps a request that was sent from being cancelled; see there.

        Raises:
            Http1Error: see http1_errors.
            OSError: there is no connection, and nothing was sent; ssl.SSLError is one.
        """
        latest = self._loop.time() + self._seconds
        if latest < deadline:
            deadline = latest
        if self.closed:
            raise Disconnected("the client is closed")
        if self._idle and not fresh:
            connection = self._idle.pop()
            try:
                # As ``answered`` does it, without a coroutine more to go through.
                waiter = connection.send(head, body, deadline, hold)
                try:
                    answer = await waiter
                except (asyncio.CancelledError, GeneratorExit) as error:
                    answer = await connection.gone_on(waiter, error, hold)
                if connection.open or (answer.status != 408 and (answer.status != 400 or not resend)):
                    return answer
                raise NoAnswer(f"it was closing the idle connection ({answer.status})")
            except NoAnswer as exc:
                exc.kept = True
                if self.closed or not resend or (hold is not None and hold.cancelled is not None):
                    raise
        return await self._on_new(head, body, deadline, hold)

    async def close(self) -> None:
        """Closes every connection; calls under way fail."""
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self._connections):
            connection.abort()
        if self._connections:
            self._ended.clear()
            try:
                async with asyncio.timeout(_CLOSING_SECONDS):
                    await self._ended.wait()
            except TimeoutError:
                pass  # the sockets are shut; what is missing is only the loop's word on it

    async def _on_new(
        self, head: bytes, body: Sequence[bytes | memoryview], deadline: float, hold: Hold | None
    ) -> Answer:
        """The answer to a request on a new connection."""
        seconds = min(CONNECT_SECONDS, deadline - self._loop.time())
        connection = Connection(self._loop, AnswerReader(self._room, self._largest_body, self._heads), self)
        opening = self._loop.create_task(self._open(connection, head, body, deadline, hold))
        if hold is not None:
            hold.waits_for = opening
        try:
            # Not asyncio.timeout, which works only for callers that are tasks.
            await asyncio.wait((opening,), timeout=max(0.0, seconds))
        except (asyncio.CancelledError, GeneratorExit) as error:
            if not _has_sent(opening):
                raise
            waiter = opening.result()
            waiter.cancel()  # as if it were what was waited for
            return await connection.gone_on(waiter, error, hold)
        finally:
            if not opening.done():
                opening.cancel()
                opening.add_done_callback(_has_sent)  # whose error nobody hears of else would be logged
        if opening.done():
            return await connection.answered(opening.result(), hold)
        if seconds < CONNECT_SECONDS:
            raise ConnectDeadline("the time for the whole call is over, and there is no connection")
        raise ConnectTimeout(f"no connection within {seconds:g} s")

    async def _open(
        self,
        connection: Connection,
        head: bytes,
        body: Sequence[bytes | memoryview],
        deadline: float,
        hold: Hold | None,
    ) -> asyncio.Future[Answer]:
        """Opens a connection and sends a request at once: a server may close it, or say something, in the next turn of
        the event loop, and that is then its answer."""
        host = self._address.host
        try:
            await self._loop.create_connection(
                lambda: connection,
                host,
                self._address.port,
                ssl=self._tls,
                server_hostname=host.rstrip(".") if self._tls is not None else None,
            )
        except asyncio.CancelledError:
            # If it was made in this very turn, uvloop closes it without a word to it.
            connection.abort()
            self.ended(connection)
            raise
        if self.closed:
            connection.abort()
            raise Disconnected("the client is closed")
        if not connection.open:
            raise ConnectionResetError(ECONNRESET, "the connection was closed as soon as it was open")
        return connection.send(head, body, deadline, hold)

    def made(self, connection: Connection) -> None:
        """For connections: this one is open."""
        self._connections.add(connection)

    def free(self, connection: Connection) -> None:
        """For connections: this one may be used again."""
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_IDLE_SECONDS, self._sweep)

    def lost(self, connection: Connection) -> None:
        """For connections: this one may not be used again."""
        if connection in self._idle:
            self._idle.remove(connection)

    def ended(self, connection: Connection) -> None:
        """For connections: this one is closed."""
        self._connections.discard(connection)
        if not self._connections:
            self._ended.set()

    def _sweep(self) -> None:
        """Closes connections that were idle for long. They stand in the order in which they became idle."""
        now = self._loop.time()
        above = len(self._idle) - _SPARE
        for place, connection in enumerate(list(self._idle)):
            if now - connection.idle_since >= (_IDLE_SECONDS if place < above else _SPARE_SECONDS):
                connection.abort()
        self._sweeper = self._loop.call_later(_IDLE_SECONDS, self._sweep) if self._idle else None


def _has_sent(opening: asyncio.Task[asyncio.Future[Answer]]) -> bool:
    """Whether there is a connection, and the request on its way."""
    return opening.done() and not opening.cancelled() and opening.exception() is None
