"""uvicorn server with the protocol class HttpConnection: settings, signal handling and graceful shutdown."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn

from hf_transformer.credentials import KeyPair, ReloadableFile, keep_renewing, read_key_pair
from hf_transformer.server.accepting import Listener
from hf_transformer.server.asgi import AsgiApplication
from hf_transformer.server.http import ClientLimits, HttpConnection, keep_sweeping
from hf_transformer.server.memory import freeze_garbage_collector, keep_freed_blocks, keep_trimmed
from hf_transformer.types.http import Application

SWITCH_SECONDS = 0.0005
"""Time after which a thread gives the GIL to the event loop, which waits for it several times per request.

With Python's default of 0.005, requests of many texts delay each step of all other requests by 5 ms.
"""
SAME_SIGNAL_SECONDS = 1.0
"""Seconds within which two signals count as one, since a terminal and a parent process may both send a signal."""
SIGNAL_EXIT_CODE = 128
"""Base of the exit code after a signal, as in shells. The exit code adds the signal's number."""


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration with the settings of this server. It can be pickled for worker processes.

    Args:
        make: application factory.
        limits: limits for clients.
        grace: seconds for requests in flight to finish at shutdown.
        certificate: the PEM files of the certificate and its key, None without TLS.
        clean_up: removes resources of a killed process, such as shared memory.
        options: uvicorn's own options.
    """

    def __init__(
        self,
        make: Callable[[], AsgiApplication],
        *,
        limits: ClientLimits,
        grace: float,
        certificate: tuple[str, str] | None,
        clean_up: Callable[[], object],
        **options: Any,
    ) -> None:
        self.client_limits = limits
        self.grace = grace
        self.certificate_files = certificate
        self.clean_up = clean_up
        self.certificate: ReloadableFile[KeyPair] | None = None
        self.ending = False  # set by the server at shutdown, read by connections
        super().__init__(
            make,
            factory=True,
            http=HttpConnection,
            lifespan="on",
            ws="none",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # The server closes connections after the grace period. This limit applies to tasks that ignore it.
            timeout_graceful_shutdown=int(grace) + 3,
            **options,
        )

    @property
    def application(self) -> Application:
        """Application that answers requests. Available after ``load``."""
        application: Application = self.loaded_app.application
        return application

    def load(self) -> None:
        """Creates the application and the TLS context with the current certificate.

        Raises ConfigError for an invalid certificate.
        """
        super().load()
        if self.certificate_files is None:
            return
        chain, key = self.certificate_files
        self.certificate = ReloadableFile("the certificate for HTTPS", (chain, key), lambda: read_key_pair(chain, key))
        self.ssl = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.certificate.value.load_into(self.ssl)


class Server(uvicorn.Server):
    """Serves until a signal. With ``impatient``, a second signal ends the process immediately.

    Workers are not impatient, because their supervisor handles a second signal.
    """

    config: ServerConfig

    def __init__(self, config: ServerConfig, *, impatient: bool = True) -> None:
        super().__init__(config)
        self._impatient = impatient
        self._signalled_at = 0.0
        self._captures_signals = False
        self._is_shutting_down = False
        self._tasks: list[asyncio.Task[None]] = []
        self.loop: asyncio.AbstractEventLoop | None = None  # the event loop, once the server has started

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Runs uvicorn. Captures signals until the event loop is closed.

        The default handlers (signals.py) raise SystemExit, which would interrupt the start or the end of the loop.
        """
        with self.capture_signals():
            super().run(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Installs the signal handlers in ``run``. A nested call, from uvicorn's ``serve``, has no effect."""
        if self._captures_signals:
            yield
            return
        self._captures_signals = True
        with super().capture_signals():
            yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        freeze_garbage_collector()
        keep_freed_blocks()
        sys.setswitchinterval(SWITCH_SECONDS)
        if sockets is None:
            await super().startup()
        else:
            await super().startup([])
            self.servers = [self._listen(listening) for listening in sockets]  # type: ignore[misc]  # in their place
        self.loop = asyncio.get_running_loop()
        sweeping = keep_sweeping(self.server_state.connections, self.config.client_limits)  # type: ignore[arg-type]
        self._tasks += [asyncio.create_task(sweeping), asyncio.create_task(keep_trimmed())]
        if self.config.certificate is not None:
            # A renewed certificate applies only to new connections.
            use = partial(KeyPair.load_into, context=cast(ssl.SSLContext, self.config.ssl))
            self._tasks.append(asyncio.create_task(keep_renewing(self.config.certificate, use)))

    def _listen(self, listening: socket.socket) -> Listener:
        tls, seconds = self.config.ssl, self.config.client_limits.seconds
        return Listener(
            listening, lambda: HttpConnection(self.config, self.server_state, self.lifespan.state), tls, seconds
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for the requests in flight, and closes the remaining connections after the grace period."""
        self._start_shutdown()
        self.config.ending = True
        timer = asyncio.get_running_loop().call_later(self.config.grace, self._break_off)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            for task in self._tasks:
                task.cancel()

    def _start_shutdown(self) -> None:
        """Starts the application's shutdown once, so that gRPC and streams end within the same grace period."""
        if not self._is_shutting_down and self.config.loaded:
            self._is_shutting_down = True
            self.config.loaded_app.start_shutdown()

    def _break_off(self) -> None:
        for connection in list(self.server_state.connections):
            connection.break_off()  # type: ignore[union-attr]  # all are ours

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles SIGTERM and SIGINT."""
        now = time.monotonic()
        if not self.should_exit:
            self._signalled_at = now
            super().handle_exit(sig, frame)
            if self.loop is not None:
                self.loop.call_soon_threadsafe(self._start_shutdown)
        elif self._impatient and now - self._signalled_at > SAME_SIGNAL_SECONDS:
            self.config.clean_up()
            os._exit(SIGNAL_EXIT_CODE + sig)
