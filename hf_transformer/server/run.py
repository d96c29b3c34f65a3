"""uvicorn with our protocol class: settings, signals, slow clients, certificates, free memory, and the end."""

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

SWEEPS = 10  # looks at a connection within the time that its client has
LONGEST_PAUSE, SHORTEST_PAUSE = 5.0, 0.05  # seconds between two sweeps at most and at least
AT_ONCE = 500  # connections that are looked at without a pause, about a millisecond

SHORTEST_TRIM_PAUSE, LONGEST_TRIM_PAUSE = 2.0, 60.0  # seconds between two looks at the memory
GROWN = 32 << 20  # bytes that are worth a trim
IDLE = 0.2  # the share of one core that an idle process uses at most

SAME_WISH = 1.0
"""Seconds within which signals count as one: a terminal and whoever started the service may both send one."""
COLLECTED_AFTER = 20_000
"""Objects that may be new before the collector looks at the young ones; Python's own 700 are passed by the requests of
one batch. Requests leave it nothing to find, and a short one of 32 takes a fifteenth fewer instructions so."""
SIGNALLED = 128
"""Exit code of a process that ended at once, less the signal's number; the shell's convention."""


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration and our own, in a form that goes to worker processes too.

    Args:
        make: makes the application.
        limits: what a client may take.
        grace: seconds that requests in flight have to finish when the server ends.
        certificate: the PEM files of the certificate and its key, None without TLS.
        clean_up: removes what a process leaves behind that ends without a word, this one or a worker that did.
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
        self.ending = False  # set by the server; connections look at it
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
            # The server itself breaks connections off after the grace. This is for tasks that ignore even that.
            timeout_graceful_shutdown=int(grace) + 3,
            **options,
        )

    @property
    def application(self) -> Application:
        """What answers requests, once ``load`` has made it."""
        application: Application = self.loaded_app.application
        return application

    def load(self) -> None:
        """Makes the application, and the context with the certificate as it is now. Raises ConfigError where that
        can't be used."""
        super().load()
        if self.certificate_files is None:
            return
        chain, key = self.certificate_files
        self.certificate = ReloadableFile("the certificate for HTTPS", (chain, key), lambda: read_key_pair(chain, key))
        self.ssl = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.certificate.value.load_into(self.ssl)


class Server(uvicorn.Server):
    """Serves until a signal. If it is ``impatient``, a second one ends the process at once; in a worker it does not,
    since the supervisor would kill the worker."""

    config: ServerConfig

    def __init__(self, config: ServerConfig, *, impatient: bool = True) -> None:
        super().__init__(config)
        self._impatient = impatient
        self._told_at = 0.0
        self._captures = False
        self._has_begun_end = False
        self._are_used_up = False  # the descriptors, at the last look
        self._tasks: list[asyncio.Task[None]] = []
        self.loop: asyncio.AbstractEventLoop | None = None  # the one that serves, once it does

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
        # What is loaded by now lives as long as the process: the collector need not look at it again.
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
            # New connections get a renewed certificate; no other is disturbed.
            use = partial(KeyPair.load_into, context=cast(ssl.SSLContext, self.config.ssl))
            self._tasks.append(asyncio.create_task(keep_renewing(self.config.certificate, use)))

    async def _listen_with_tls(self, listening: socket.socket, context: ssl.SSLContext) -> asyncio.Server:
        """As uvicorn does it, which knows no limit for handshakes."""
        return await asyncio.get_running_loop().create_server(
            lambda: HttpConnection(self.config, self.server_state, self.lifespan.state),
            sock=listening,
            ssl=context,
            ssl_handshake_timeout=self.config.client_limits.seconds,
            backlog=self.config.backlog,
        )

    async def _sweep(self) -> None:
        """Looks for clients that take too long, for ever."""
        limits, loop = self.config.client_limits, asyncio.get_running_loop()
        shortest = min(limits.seconds, limits.idle_seconds or limits.seconds)
        pause = max(SHORTEST_PAUSE, min(LONGEST_PAUSE, shortest / SWEEPS))
        while True:
            await asyncio.sleep(pause)
            for number, connection in enumerate(list(self.server_state.connections), 1):
                try:
                    connection.sweep(loop.time())  # type: ignore[union-attr]  # all are ours
                except Exception:  # a fault of our own: without this, one connection would end all sweeps
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
        """Waits for the requests in flight, and breaks off what is left of them after the grace."""
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
        """Tells the application, once, so that whatever else it serves ends in the same time."""
        if not self._has_begun_end and self.config.loaded:
            self._has_begun_end = True
            self.config.loaded_app.start_shutdown()

    def _break_off(self) -> None:
        for connection in list(self.server_state.connections):
            connection.break_off()  # type: ignore[union-attr]  # all are ours

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Is the handler of SIGTERM and SIGINT."""
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
    """Bytes of memory that this process alone holds: resident, without files and shared memory (proc_pid_statm(5)).
    Raises OSError where the system has no such file."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_bytes().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


async def keep_trimmed() -> None:
    """Gives free memory back to the system, for ever, when it has grown and the process is idle; ends at once where the
    C library can't.

    glibc keeps the memory of a burst of requests: a freed block returns to the system only from the end of a heap, and
    one small block that is still in use there keeps all of it. ``malloc_trim`` returns whole free pages wherever they
    lie. It takes some 100 ms for 400 MB, in which no thread can allocate, so it runs only in an idle process. Blocks in
    use at a trim may be freed soon after it, so another one follows, and later ones more and more seldom while they
    give little back.
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
