"""Streamed gRPC calls: the connections to one server, and their replacement.

grpc_stream_connection.py has a connection with its calls, grpc_status.py the failures of calls.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from grpc import StatusCode

from hf_transformer.predictor.base import Address
from hf_transformer.predictor.grpc_status import CallFailed, ClosedHere
from hf_transformer.predictor.grpc_stream_connection import StreamCall, StreamConnection, StreamSettings

logger = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 10.0
"""The time limit for opening a connection, TLS and the server's settings included."""
CLOSE_SECONDS: Final = 1.0
"""The time limit for closing all connections."""


class StreamConnections:
    """The connections for streams to one server. One at a time takes new calls; those before it finish theirs.

    ``tls`` returns the TLS context for a new connection, None for plain TCP.
    """

    def __init__(self, address: Address, tls: Callable[[], ssl.SSLContext | None], settings: StreamSettings) -> None:
        self._address = address
        self._tls = tls
        self._settings = settings
        self._current: StreamConnection | None = None
        self._all: set[StreamConnection] = set()
        self._opening: asyncio.Task[None] | None = None

    async def start(self, path: str, metadata: Sequence[tuple[str, str]], message: bytes) -> StreamCall:
        """Sends a request on an open connection, or on a new one. Raises CallFailed."""
        limit = self._settings.max_send
        if len(message) > limit >= 0:
            details = f"CLIENT: Sent message larger than max ({len(message)} vs. {limit})"
            raise CallFailed(StatusCode.RESOURCE_EXHAUSTED, details)
        connection = await self._usable()
        connection.check_silence(lambda: self._replace_silent(connection))
        scheme = "https" if self._address.use_ssl else "http"
        head = [(":method", "POST"), (":scheme", scheme), (":path", path), (":authority", self._settings.authority)]
        return connection.start([*head, ("te", "trailers"), ("content-type", "application/grpc"), *metadata], message)

    async def _usable(self) -> StreamConnection:
        while (connection := self._current) is None or not connection.has_room:
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._replace())
                self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
            try:
                await asyncio.shield(self._opening)
            except CallFailed as error:  # a copy for each caller, because a traceback grows
                raise type(error)(*((error.code(), str(error)) if type(error) is CallFailed else ())) from None
        return connection

    async def _replace(self) -> None:
        """Opens a connection for new calls. Raises CallFailed."""
        try:
            connection = await self._open()
        finally:
            self._opening = None
        before, self._current = self._current, connection
        if before is not None:
            before.retire()

    async def _open(self) -> StreamConnection:
        """Opens a connection. Raises CallFailed."""
        connection, tls = StreamConnection(self._settings, self._retired, self._all.discard), self._tls()
        self._all.add(connection)
        host, port = self._address.host, self._address.port
        name = None if tls is None else host.rstrip(".")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection, host, port, ssl=tls, server_hostname=name
                )
                await connection.ready
        except BaseException as exc:
            connection.close(ClosedHere())
            self._all.discard(connection)
            if isinstance(exc, TimeoutError) and not isinstance(exc, ssl.SSLError):
                reason = f"failed to connect: no connection within {CONNECT_SECONDS:g} s"
                raise CallFailed(StatusCode.UNAVAILABLE, reason) from exc
            if isinstance(exc, OSError):
                handshake = tls is not None and (isinstance(exc, ssl.SSLError) or not exc.args)
                reason = exc.strerror or str(exc) or type(exc).__name__
                details = f"failed to connect: {'TLS handshake: ' if handshake else ''}{reason}"
                raise CallFailed(StatusCode.UNAVAILABLE, details) from exc
            raise
        if not connection.has_room:
            connection.close(ClosedHere())
            raise CallFailed(StatusCode.UNAVAILABLE, "failed to connect: the server allows no streams")
        return connection

    def _retired(self, connection: StreamConnection) -> None:
        if connection is self._current:
            self._current = None

    def _replace_silent(self, connection: StreamConnection) -> None:
        if connection is self._current:
            logger.warning(
                "the predictor at %s does not answer on an open connection; new calls get another one", self._address
            )
            connection.retire()

    def replace(self) -> None:
        """Uses another connection for new calls."""
        if self._current is not None:
            self._current.retire()

    async def close(self) -> None:
        """Closes all connections. Their calls raise ClosedHere."""
        if self._opening is not None:
            self._opening.cancel()
        connections = list(self._all)
        for connection in connections:
            connection.close(ClosedHere())
        lost = [connection.lost for connection in connections if connection.lost is not None]
        if lost:
            await asyncio.wait(lost, timeout=CLOSE_SECONDS)
