"""uvicorn with our protocol class: settings, signals, slow clients, certificate renewal, memory trimming, shutdown."""

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

SWEEPS = 10  # sweeps of a connection within the time limit of its client
LONGEST_PAUSE, SHORTEST_PAUSE = 5.0, 0.05  # seconds between two sweeps at most and at least
AT_ONCE = 500  # connections per sweep without yielding, about a millisecond

SHORTEST_TRIM_PAUSE, LONGEST_TRIM_PAUSE = 2.0, 60.0  # seconds between two checks of the memory
GROWN = 32 << 20  # bytes that are worth a trim
IDLE = 0.2  # the share of one core that an idle process uses at most

SAME_WISH = 1.0
"""Seconds within which signals count as one: a terminal and a parent process may both send one."""
COLLECTED_AFTER = 20_000
"""Threshold of the garbage collector's youngest generation. The requests of one batch exceed Python's default of 700,
and leave no cycles; a short request at 32 connections needs a fifteenth fewer instructions with this value."""
SIGNALLED = 128
"""Exit code after a signal, minus the signal's number, as in shells."""


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration with our settings. It can be pickled for worker processes.

    Args:
        make: makes the application.
        limits: limits for clients.
        grace: seconds that requests in flight have to finish when the server ends.
        certificate: the PEM files of the certificate and its key, None without TLS.
        clean_up: removes leftovers of processes that were killed, such as shared memory.
        options: uvicorn's own.
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
        self.ending = False  # set by the server, read by connections
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
            # The server closes connections after the grace period. This limit is for tasks that ignore their
            # cancellation.
            timeout_graceful_shutdown=int(grace) + 3,
            **options,
        )

    @property
    def application(self) -> Application:
        """The application that answers requests. Available after ``load``."""
        application: Application = self.loaded_app.application
        return application

    def load(self) -> None:
        """Create the application and the TLS context with the current certificate. Raises ConfigError for an unusable
        certificate."""
        super().load()
        if self.certificate_files is None:
            return
        chain, key = self.certificate_files
        self.certificate = ReloadableFile("the certificate for HTTPS", (chain, key), lambda: read_key_pair(chain, key))
        self.ssl = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.certificate.value.load_into(self.ssl)


class Server(uvicorn.Server):
    """Serves until a signal. With ``impatient``, a second signal ends the process at once; workers leave that to their
    supervisor."""

    config: ServerConfig

    def __init__(self, config: ServerConfig, *, impatient: bool = True) -> None:
        super().__init__(config)
        self._impatient = impatient
        self._told_at = 0.0
        self._captures = False
        self._has_begun_end = False
        self._are_used_up = False  # the number of descriptors at the last check
        self._tasks: list[asyncio.Task[None]] = []
        self.loop: asyncio.AbstractEventLoop | None = None  # the event loop that serves, once it runs

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Run uvicorn, with signals handled from before the coroutine exists until the event loop is closed. The
        process's default handlers raise SystemExit, which would interrupt startup or shutdown."""
        with self.capture_signals():
            super().run(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: ``run`` has installed the handlers. uvicorn calls this within the coroutine."""
        if self._captures:
            yield
            return
        self._captures = True
        with super().capture_signals():
            yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Objects loaded by now live as long as the process: exclude them from garbage collection.
        gc.freeze()
        gc.set_threshold(COLLECTED_AFTER, *gc.get_threshold()[1:])
        if sockets and self.config.ssl is not None:
            await super().startup([])
            self.servers = [await self._listen_with_tls(one, self.config.ssl) for one in sockets]
        else:
            await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self._tasks += [asyncio.create_task(self._sweep()), asyncio.create_task(keep_trimmed())]
        if self.config.certificate is not None:
            # New connections get a renewed certificate; open ones keep theirs.
            use = partial(KeyPair.load_into, context=cast(ssl.SSLContext, self.config.ssl))
            self._tasks.append(asyncio.create_task(keep_renewing(self.config.certificate, use)))

    async def _listen_with_tls(self, listening: socket.socket, context: ssl.SSLContext) -> asyncio.Server:
        """Listen as uvicorn does, with a time limit for TLS handshakes."""
        return await asyncio.get_running_loop().create_server(
            lambda: HttpConnection(self.config, self.server_state, self.lifespan.state),
            sock=listening,
            ssl=context,
            ssl_handshake_timeout=self.config.client_limits.seconds,
            backlog=self.config.backlog,
        )

    async def _sweep(self) -> None:
        """Sweep all connections for slow clients until cancelled."""
        limits, loop = self.config.client_limits, asyncio.get_running_loop()
        shortest = min(limits.seconds, limits.idle_seconds or limits.seconds)
        pause = max(SHORTEST_PAUSE, min(LONGEST_PAUSE, shortest / SWEEPS))
        while True:
            await asyncio.sleep(pause)
            for number, connection in enumerate(list(self.server_state.connections), 1):
                try:
                    connection.sweep(loop.time())  # type: ignore[union-attr]  # all are ours
                except Exception:  # a bug of ours in one connection must not end all sweeps
                    logger.exception("a connection could not be looked at")
                if not number % AT_ONCE:
                    await asyncio.sleep(0)
            self._look_at_descriptors()

    def _look_at_descriptors(self) -> None:
        """Log once when file descriptors run out: libuv then closes new connections without a log line."""
        try:
            os.close(os.dup(0))
            self._are_used_up = False
        except OSError as error:
            if not self._are_used_up:
                logger.error("no connection can be taken: %s (ulimit -n, --max_connections)", error.strerror)
            self._are_used_up = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the requests in flight, and close the remaining connections after the grace period."""
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
        """Start the application's shutdown, once, so that gRPC and streams end within the same grace period."""
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
    """Return free memory to the system whenever it has grown and the process is idle. Ends at once if the C library
    lacks ``malloc_trim``.

    glibc keeps the memory of a burst of requests: a freed block returns to the system only from the end of a heap, and
    one small block that is still in use there keeps all of it. ``malloc_trim`` returns whole free pages wherever they
    lie. It takes some 100 ms for 400 MB, in which no thread can allocate, so it runs only in an idle process. Blocks in
    use during a trim may be freed soon after it, so another one follows; the interval doubles while trims return
    little.
    """
    try:
        trim, least = ctypes.CDLL(None).malloc_trim, held_memory()
    except (AttributeError, OSError):  # another C library, or another system
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
