"""Requests to one HTTP/1.1 server whose answers are read while they come, and the connections kept for them."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from hf_transformer.predictor.address import Address
from hf_transformer.predictor.http1 import CONNECT_SECONDS
from hf_transformer.predictor.http1_errors import ConnectDeadline, ConnectTimeout, Disconnected, NoAnswer
from hf_transformer.predictor.http1_parser import Heads
from hf_transformer.predictor.http1_stream import StreamedAnswer
from hf_transformer.predictor.http1_stream_connection import StreamConnection

_IDLE_SECONDS: Final = 15.0
"""After which a connection that nobody uses is closed."""

_STALE: Final = frozenset({400, 408})
"""What servers and proxies say to an idle connection when they close it; see Http1Client."""


class StreamedCalls:
    """As many connections as there are calls under way; each is kept for a while after an answer that was read whole.

    A new one is a round trip more to the first token, and at Triton more than that. One that the server closes at the
    moment in which it is used costs nothing but the time: the request is sent once more, on a new one.
    """

    def __init__(self, address: Address, tls: ssl.SSLContext | None, limit: int) -> None:
        """limit: the most bytes that may come at once."""
        self._address = address
        self._tls = tls
        self._limit = limit
        self._heads = Heads()
        self._connections: set[StreamConnection] = set()
        self._idle: list[StreamConnection] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self.closed = False

    async def begin(self, request: bytes, deadline: float) -> StreamedAnswer:
        """The answer to a request, once it has begun (see StreamedAnswer.begin). Whoever has it closes it.

        Args:
            request: head and body; doing it twice does no harm.
            deadline: on the loop's clock, of the whole answer.

        Raises:
            Http1Error: see http1_errors.
            OSError: there is no connection.
        """
        if self._idle:  # of several the last used, so that the others age
            answer = StreamedAnswer(self._idle.pop(), self._heads, self._limit)
            try:
                await answer.begin(request, deadline)
            except NoAnswer:
                answer.close()
            except BaseException:
                answer.close()
                raise
            else:
                if answer.head.keep_alive or answer.head.status not in _STALE:
                    return answer
                answer.close()
        answer = StreamedAnswer(await self._connected(deadline), self._heads, self._limit)
        try:
            await answer.begin(request, deadline)
        except BaseException:
            answer.close()
            raise
        return answer

    def close(self) -> None:
        """Closes all connections; calls under way fail."""
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in tuple(self._connections):
            connection.abort()

    def free(self, connection: StreamConnection) -> None:
        """For connections: this one may be used again."""
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(_IDLE_SECONDS, self._sweep, loop)

    def gone(self, connection: StreamConnection) -> None:
        """For connections: this one may not be used again."""
        self._connections.discard(connection)
        if connection.idle and connection in self._idle:
            self._idle.remove(connection)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Closes connections that were idle for long; they stand in the order in which they became idle."""
        now = loop.time()
        while self._idle and now - self._idle[0].idle_since >= _IDLE_SECONDS:
            self._idle[0].abort()
        self._sweeper = loop.call_later(_IDLE_SECONDS, self._sweep, loop) if self._idle else None

    async def _connected(self, deadline: float) -> StreamConnection:
        """A new connection. Raises ConnectTimeout, ConnectDeadline, OSError, and Disconnected after ``close``."""
        loop = asyncio.get_running_loop()
        seconds = min(CONNECT_SECONDS, deadline - loop.time())
        host = self._address.host
        connection = StreamConnection(loop, self)
        try:
            async with asyncio.timeout(seconds):
                await loop.create_connection(
                    lambda: connection,
                    host,
                    self._address.port,
                    ssl=self._tls,
                    server_hostname=host.rstrip(".") if self._tls is not None else None,
                )
        except TimeoutError as exc:
            connection.abort()
            if seconds < CONNECT_SECONDS:
                raise ConnectDeadline("the time for the whole call is over, and there is no connection") from exc
            raise ConnectTimeout(f"no connection within {seconds:g} s") from exc
        except asyncio.CancelledError:
            connection.abort()  # it may have been made in this very turn
            raise
        if self.closed:
            connection.abort()
            raise Disconnected("the connection was closed here")
        if connection.open:
            self._connections.add(connection)
        return connection
