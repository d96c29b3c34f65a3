"""Requests to one HTTP/1.1 server whose answers are read while they come, and the connections kept for them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from hf_transformer.predictors.address import Address
from hf_transformer.predictors.http1 import CONNECT_SECONDS
from hf_transformer.predictors.http1_errors import ConnectDeadline, ConnectTimeout, Disconnected, NoAnswer
from hf_transformer.predictors.http1_parser import HEAD_LIMIT
from hf_transformer.predictors.http1_stream import Reader, StreamConnection, StreamedAnswer

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
        self._idle: list[StreamConnection] = []
        self._under_way: set[StreamedAnswer] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    @asynccontextmanager
    async def call(self, request: bytes, deadline: float) -> AsyncIterator[StreamedAnswer]:
        """The answer to a request, once its head has come; leaving it early ends it.

        Args:
            request: head and body; doing it twice does no harm.
            deadline: on the loop's clock, of the whole answer.

        Raises:
            Http1Error: see http1_errors.
            OSError: there is no connection.
        """
        answer = await self._begun(request, deadline)
        try:
            yield answer
        finally:
            self._end(answer)

    def close(self) -> None:
        """Closes all connections; calls under way fail."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for answer in tuple(self._under_way):
            answer.abort()
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def _begun(self, request: bytes, deadline: float) -> StreamedAnswer:
        kept = self._kept()
        if kept is not None:
            try:
                answer = await self._begin(kept, request, deadline)
                if answer.keeps_alive or answer.status not in _STALE:
                    return answer
                self._end(answer)
            except NoAnswer as exc:
                exc.kept = True
                if self._closed:
                    raise
        return await self._begin(await self._connected(deadline), request, deadline)

    async def _begin(self, connection: StreamConnection, request: bytes, deadline: float) -> StreamedAnswer:
        answer = StreamedAnswer(connection, self._limit, self._free)
        self._under_way.add(answer)
        try:
            return await answer.begin(request, deadline)
        except BaseException:
            self._end(answer)
            raise

    def _end(self, answer: StreamedAnswer) -> None:
        self._under_way.discard(answer)
        answer.close()

    def _kept(self) -> StreamConnection | None:
        """A connection that is there; of several the last used, so that the others age."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                connection.reader.idle = None
                return connection
            connection.abort()
        return None

    def _free(self, connection: StreamConnection) -> None:
        if self._closed:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        connection.reader.idle = connection.abort
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(_IDLE_SECONDS, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Closes connections that were idle for long; they stand in the order in which they became idle."""
        now = loop.time()
        while self._idle and (now - self._idle[0].idle_since >= _IDLE_SECONDS or not self._idle[0].is_usable):
            self._idle.pop(0).abort()
        self._sweeper = loop.call_later(_IDLE_SECONDS, self._sweep, loop) if self._idle else None

    async def _connected(self, deadline: float) -> StreamConnection:
        """A new connection. Raises ConnectTimeout, ConnectDeadline, OSError, and Disconnected after ``close``."""
        loop = asyncio.get_running_loop()
        seconds = min(CONNECT_SECONDS, deadline - loop.time())
        host = self._address.host
        reader = Reader(limit=HEAD_LIMIT, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            async with asyncio.timeout(seconds):
                transport, _ = await loop.create_connection(
                    lambda: protocol,
                    host,
                    self._address.port,
                    ssl=self._tls,
                    server_hostname=host.rstrip(".") if self._tls is not None else None,
                )
        except TimeoutError as exc:
            if seconds < CONNECT_SECONDS:
                raise ConnectDeadline("the time for the whole call is over, and there is no connection") from exc
            raise ConnectTimeout(f"no connection within {seconds:g} s") from exc
        connection = StreamConnection(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        if self._closed:
            connection.abort()
            raise Disconnected("the connection was closed here")
        return connection
