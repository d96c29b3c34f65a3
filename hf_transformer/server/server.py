"""One HTTP server: uvicorn's, with a sweeper of slow clients, renewed certificates, and an end in two steps."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from hf_transformer.credentials import KeyPair, keep_renewing
from hf_transformer.server.connection import Sweeper
from hf_transformer.server.settings import ServerConfig

logger = logging.getLogger(__name__)

SAME_WISH = 1.0
"""Seconds within which signals count as one: a terminal and whoever started the service may both send one."""
COLLECTED_AFTER = 20_000
"""Objects that may be new before the collector looks at the young ones; Python's own 700 are passed by the requests of
one batch. Requests leave it nothing to find, and a short one of 32 takes a fifteenth fewer instructions so."""
SIGNALLED = 128
"""Exit code of a process that ended at once, less the signal's number; the shell's convention."""


class Server(uvicorn.Server):
    """Serves until a signal; a second one ends the process at once.

    Args:
        config: what to serve, and how.
        impatient: whether a second signal counts; it does not in a worker, which its supervisor would kill.
    """

    config: ServerConfig

    def __init__(self, config: ServerConfig, *, impatient: bool = True) -> None:
        super().__init__(config)
        self._impatient = impatient
        self._told_at = 0.0
        self._captures = False
        self._tasks: list[asyncio.Task[None]] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        """The one that serves, once it does."""

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, with signals handled from before the coroutine is made until the event loop is closed: what is
        in place outside raises SystemExit, which would break off either."""
        with self.capture_signals():
            super().run(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, which calls it within the coroutine."""
        if self._captures:
            yield
            return
        self._captures = True
        with super().capture_signals():
            yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to serve."""
        # What is loaded by now lives as long as the process: the collector need not look at it again.
        gc.freeze()
        gc.set_threshold(COLLECTED_AFTER, *gc.get_threshold()[1:])
        if sockets and self.config.ssl is not None:
            await super().startup([])
            self.servers = [await self._listen_with_tls(one, self.config.ssl) for one in sockets]
        else:
            await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self._tasks.append(asyncio.create_task(self._sweep()))
        if self.config.certificate is not None:
            self._tasks.append(asyncio.create_task(keep_renewing(self.config.certificate, self._use)))

    async def _listen_with_tls(self, listening: socket.socket, context: ssl.SSLContext) -> asyncio.Server:
        """As uvicorn does it, which knows no limit for handshakes."""
        make: Any = self.config.http_protocol_class
        return await asyncio.get_running_loop().create_server(
            lambda: make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state),
            sock=listening,
            ssl=context,
            ssl_handshake_timeout=self.config.client_limits.seconds,
            backlog=self.config.backlog,
        )

    def _use(self, pair: KeyPair) -> None:
        """New connections get a renewed certificate; no other is disturbed."""
        if self.config.ssl is not None:
            pair.load_into(self.config.ssl)

    async def _sweep(self) -> None:
        limits = self.config.client_limits
        sweeper = Sweeper(self.server_state.connections, limits.seconds, limits.idle_seconds)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(sweeper.period)
            try:
                for _ in sweeper.sweep(loop.time()):
                    await asyncio.sleep(0)
            except Exception:  # a fault of our own: without this, one connection would end all sweeps
                logger.exception("the connections could not be swept")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for the requests in flight, and breaks off what is left of them after the grace."""
        self.config.ending = True
        # For what comes on a connection that is kept for a request in flight: it is answered, and is the last one.
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        timer = asyncio.get_running_loop().call_later(self.config.grace, self._break_off)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            for task in self._tasks:
                task.cancel()

    def _break_off(self) -> None:
        for connection in list(self.server_state.connections):
            connection.break_off()  # type: ignore[union-attr]  # all are ours

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Is the handler of SIGTERM and SIGINT."""
        now = time.monotonic()
        if not self.should_exit:
            self._told_at = now
            super().handle_exit(sig, frame)
        elif self._impatient and now - self._told_at > SAME_WISH:
            self.config.clean_up()
            os._exit(SIGNALLED + sig)
