"""uvicorn server with the protocol class HttpConnection.

Adds settings, signal handling, timeouts for slow clients, certificate renewal, memory trimming and shutdown.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

import uvicorn

from hf_transformer.credentials import KeyPair, ReloadableFile, keep_renewing, read_key_pair
from hf_transformer.server.asgi import AsgiApplication
from hf_transformer.server.http import ClientLimits, HttpConnection
from hf_transformer.types.http import Application

logger = logging.getLogger(__name__)

SWEEPS = 10  # number of sweeps of a connection within the time limit of its client
LONGEST_PAUSE, SHORTEST_PAUSE = 5.0, 0.05  # maximum and minimum seconds between two sweeps
AT_ONCE = 500  # connections to sweep without yielding, which takes about a millisecond

SHORTEST_TRIM_PAUSE, LONGEST_TRIM_PAUSE = 2.0, 60.0  # minimum and maximum seconds between two memory checks
GROWN = 32 << 20  # minimum growth in bytes for a trim
IDLE = 0.2  # maximum share of one CPU core used by an idle process

SAME_WISH = 1.0
"""Seconds within which two signals count as one, since a terminal and a parent process may both send a signal."""
COLLECTED_AFTER = 20_000
"""Threshold of the garbage collector's youngest generation.

The requests of one batch exceed Python's default of 700, but create no reference cycles. With this value, a short
request takes 7 % fewer CPU instructions at 32 connections.
"""
SIGNALLED = 128
"""Base of the exit code after a signal, as in shells. The exit code adds the signal's number."""


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration with the settings of this server. It can be pickled for worker processes.

    Args:
        make: application factory.
        limits: limits for clients.
        grace: grace period for requests in flight at shutdown, in seconds.
        certificate: paths of the PEM files of the certificate and its key; None without TLS.
        clean_up: removes resources of killed processes, such as shared memory.
        options: further options of uvicorn.
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
            # The server closes connections after the grace period. This limit applies to tasks that ignore
            # cancellation.
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
        self._told_at = 0.0
        self._captures = False
        self._has_begun_end = False
        self._are_used_up = False  # whether no file descriptor was free at the last check
        self._tasks: list[asyncio.Task[None]] = []
        self.loop: asyncio.AbstractEventLoop | None = None  # the event loop that serves, once it runs

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Runs uvicorn. Signal handlers are active until the event loop is closed.

        They replace the process's default handlers, whose SystemExit would interrupt startup or shutdown.
        """
        with self.capture_signals():
            super().run(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Installs the signal handlers in ``run``. A nested call, from uvicorn's ``serve``, has no effect."""
        if self._captures:
            yield
            return
        self._captures = True
        with super().capture_signals():
            yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Exclude existing objects from garbage collection, since they live as long as the process.
        gc.freeze()
        gc.set_threshold(COLLECTED_AFTER, *gc.get_threshold()[1:])
        if sockets and self.config.ssl is not None:
            await super().startup([])
            self.servers = [await self._listen_with_tls(listening, self.config.ssl) for listening in sockets]
        else:
            await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self._tasks += [asyncio.create_task(self._sweep()), asyncio.create_task(keep_trimmed())]
        if self.config.certificate is not None:
            # New connections use a renewed certificate; open connections keep the old certificate.
            use = partial(KeyPair.load_into, context=cast(ssl.SSLContext, self.config.ssl))
            self._tasks.append(asyncio.create_task(keep_renewing(self.config.certificate, use)))

    async def _listen_with_tls(self, listening: socket.socket, context: ssl.SSLContext) -> asyncio.Server:
        """Listens on a socket as uvicorn does, with a time limit for TLS handshakes."""
        return await asyncio.get_running_loop().create_server(
            lambda: HttpConnection(self.config, self.server_state, self.lifespan.state),
            sock=listening,
            ssl=context,
            ssl_handshake_timeout=self.config.client_limits.seconds,
            backlog=self.config.backlog,
        )

    async def _sweep(self) -> None:
        """Closes the connections of slow clients periodically, until cancelled."""
        limits, loop = self.config.client_limits, asyncio.get_running_loop()
        shortest = min(limits.seconds, limits.idle_seconds or limits.seconds)
        pause = max(SHORTEST_PAUSE, min(LONGEST_PAUSE, shortest / SWEEPS))
        while True:
            await asyncio.sleep(pause)
            for number, connection in enumerate(list(self.server_state.connections), 1):
                try:
                    connection.sweep(loop.time())  # type: ignore[union-attr]  # all are ours
                except Exception:  # a bug in one connection must not end all sweeps
                    logger.exception("a connection could not be looked at")
                if not number % AT_ONCE:
                    await asyncio.sleep(0)
            self._check_descriptors()

    def _check_descriptors(self) -> None:
        """Logs once when file descriptors run out. libuv then closes new connections without a log line."""
        try:
            os.close(os.dup(0))
            self._are_used_up = False
        except OSError as error:
            if not self._are_used_up:
                logger.error("no connection can be taken: %s (ulimit -n, --max_connections)", error.strerror)
            self._are_used_up = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for the requests in flight, and closes the remaining connections after the grace period."""
        self._begin_end()
        self.config.ending = True
        timer = asyncio.get_running_loop().call_later(self.config.grace, self._break_off)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            for task in self._tasks:
                task.cancel()

    def _begin_end(self) -> None:
        """Starts the application's shutdown once, so that gRPC and streams end within the same grace period."""
        if not self._has_begun_end and self.config.loaded:
            self._has_begun_end = True
            self.config.loaded_app.start_shutdown()

    def _break_off(self) -> None:
        for connection in list(self.server_state.connections):
            connection.break_off()  # type: ignore[union-attr]  # all are ours

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handler of SIGTERM and SIGINT."""
        now = time.monotonic()
        if not self.should_exit:
            self._told_at = now
            super().handle_exit(sig, frame)
            if self.loop is not None:
                self.loop.call_soon_threadsafe(self._begin_end)
        elif self._impatient and now - self._told_at > SAME_WISH:
            self.config.clean_up()
            os._exit(SIGNALLED + sig)


def held_memory() -> int:
    """Private resident memory of this process in bytes, without files and shared memory (proc_pid_statm(5)).

    Raises OSError on systems without this file."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_bytes().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


async def keep_trimmed() -> None:
    """Periodically returns free memory to the system if memory use has grown and the process is idle.

    Ends immediately if the C library lacks ``malloc_trim``.

    After a burst of requests, glibc keeps freed memory. It returns memory only from the end of a heap, and a small
    block in use there prevents that. ``malloc_trim`` returns all free pages of a heap. It blocks all allocations for
    some 100 ms per 400 MB, so it runs only in an idle process. Blocks in use during a trim may be freed soon
    afterwards, so trims repeat. The interval doubles while trims return little memory.
    """
    try:
        trim, least = ctypes.CDLL(None).malloc_trim, held_memory()
    except (AttributeError, OSError):  # a different C library or operating system
        return
    pause, used = SHORTEST_TRIM_PAUSE, time.process_time()
    while True:
        await asyncio.sleep(pause)
        before, used = used, time.process_time()
        held = held_memory()
        least = min(least, held)
        if held - least < GROWN or used - before > IDLE * pause:
            pause = SHORTEST_TRIM_PAUSE
            continue
        await asyncio.to_thread(trim, 0)
        given_back = held - held_memory()
        logger.debug("gave %d MB of memory back", given_back >> 20)
        pause = SHORTEST_TRIM_PAUSE if given_back >= GROWN else min(2 * pause, LONGEST_TRIM_PAUSE)
