"""Acceptance of new connections, the same on every event loop.

libuv accepts one connection for each turn of the event loop, so new clients of a busy service wait for as many turns as
there are clients before them. Without free file descriptors it closes new connections, and asyncio tries as often as
the backlog is long, each time with a traceback in the log. Here a turn accepts several, and connections beyond the
descriptors wait in the kernel's queue.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

logger = logging.getLogger(__name__)

ACCEPTED_AT_ONCE: Final = 16
"""The most new connections in one turn of the event loop."""
RETRY_SECONDS: Final = 0.1
"""The pause after a failure to accept, such as a lack of descriptors. The socket stays readable meanwhile."""
QUIET_SECONDS: Final = 60.0
"""The time without such a failure after which the next one is logged again."""


class Listener:
    """Accepts the connections of a listening socket, with the methods of an asyncio.Server that uvicorn calls.

    Args:
        listening: the socket. Its owner closes it, after ``close``.
        make: creates the protocol of a connection.
        tls: the TLS context, None for plain TCP.
        handshake_seconds: the time limit of a TLS handshake.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        handshake_seconds: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = listening
        self._make = make
        self._tls = tls
        self._handshake_seconds = handshake_seconds if tls is not None else None
        self._opening: set[asyncio.Task[None]] = set()
        self._failed_at = -math.inf
        self._is_open = True
        listening.setblocking(False)
        self._resume()

    def _resume(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            accepted.setblocking(False)
            task = self._loop.create_task(self._open(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _pause(self, error: OSError) -> None:
        """Leaves new connections to the kernel's queue for a moment, after EMFILE and the like."""
        self._loop.remove_reader(self._socket)
        self._loop.call_later(RETRY_SECONDS, self._resume)
        now = self._loop.time()
        if now - self._failed_at > QUIET_SECONDS:
            logger.error("no connection can be taken: %s (ulimit -n, --max_connections)", error.strerror)
        self._failed_at = now

    async def _open(self, accepted: socket.socket) -> None:
        with suppress(OSError):  # the client has left, or the TLS handshake has failed
            await self._loop.connect_accepted_socket(
                self._make, accepted, ssl=self._tls, ssl_handshake_timeout=self._handshake_seconds
            )

    def close(self) -> None:
        """Accepts no further connections."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._socket)

    async def wait_closed(self) -> None:
        """Returns at once, because ``close`` leaves nothing open. uvicorn itself waits for the connections."""
