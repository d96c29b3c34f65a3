"""Worker processes that share one port. A supervisor starts them, replaces dead workers and ends all workers together.

Unlike uvicorn's supervisor, it forwards a signal immediately, and exits with an error code if the workers can't start.
Its workers end if it is killed. It has no signals for restarting workers or changing their number, since workers have
no configuration to reload.
"""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Protocol, cast

from uvicorn.config import STARTUP_FAILURE

from hf_transformer.errors import TransformerError
from hf_transformer.server.asgi import AsgiApplication
from hf_transformer.server.run import SAME_SIGNAL_SECONDS, SIGNAL_EXIT_CODE, Server, ServerConfig

logger = logging.getLogger(__name__)

SPAWN = multiprocessing.get_context("spawn")
"""Multiprocessing context. Each worker is a new interpreter, because gRPC and threads do not survive a fork."""
CHECK_SECONDS = 0.5  # between two checks of the workers
HUNG_SECONDS = 30.0
"""Seconds without an answer before the supervisor kills a worker. Startup takes several seconds on a busy machine."""
KILL_SECONDS = 10.0  # after the grace period, before remaining workers are killed
START_FAILURE = 1  # exit code if the workers can't start
STABLE_SECONDS = 60.0  # minimum lifetime of a worker for an immediate replacement
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 8.0
"""Minimum and maximum pause before replacing a worker that died early. Consecutive pauses double."""


class Supervisor:
    """Runs ``config.workers`` workers until a signal. A second signal kills them.

    Replaces a worker if it dies, or if its event loop hangs for HUNG_SECONDS. Signal handlers only write to a pipe, so
    a signal never interrupts the start of a worker.

    Args:
        config: the server's configuration.
        sockets: the sockets that all workers listen on; closed at shutdown.
        prepare: initializes a worker's interpreter.
        batcher: makes the server of a further process that all workers have a connection to; None without one.
    """

    def __init__(
        self,
        config: ServerConfig,
        sockets: list[socket.socket],
        prepare: Callable[[], None],
        batcher: Callable[[socket.socket], ChildServer] | None = None,
    ) -> None:
        self._config = config
        self._sockets = sockets
        run = None if batcher is None else partial(serve_workers, batcher, prepare)
        self._batcher = None if run is None else Worker(config, sockets, prepare, run=run)
        self._workers = [Worker(config, sockets, prepare, linked=run is not None) for _ in range(config.workers)]
        self._slots = self._workers if self._batcher is None else [self._batcher, *self._workers]
        self._signals, self._signalled = SPAWN.Pipe(duplex=False)

    def run(self) -> int:
        """Runs until a signal. Returns the exit code: 0, or START_FAILURE if the workers can't start.

        A second signal ends this process with the exit code 128 plus the signal's number.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        code = 0
        try:
            while not code and not self._signals.poll():
                code = self._replace_dead()
                wait([self._signals, *(process.sentinel for process in self._processes())], timeout=CHECK_SECONDS)
        finally:
            self._shut_down()
        return code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled.send((time.monotonic(), number))

    def _processes(self) -> list[SpawnProcess]:
        return [slot.process for slot in self._slots if slot.process is not None]

    def _replace_dead(self) -> int:
        """Starts missing workers. Returns START_FAILURE if a worker could not start and no worker has ever served, else
        0."""
        for worker in self._slots:
            process = worker.process
            if process is not None and not worker.is_alive():
                if self._signals.poll():  # a signal to the whole process group
                    return 0
                process.kill()  # a hung process still runs
                process.join()
                pause = worker.release()  # its successor removes its shared memory, here and at the predictor
                if process.exitcode and process.exitcode > 0 and not any(worker.has_served for worker in self._workers):
                    logger.error(
                        "%s %s could not start (exit code %s); the service ends",
                        *(worker.title, process.pid, process.exitcode),
                    )
                    return START_FAILURE
                _log_death(worker.title, process, pause)
            if worker.is_due() and not self._signals.poll():
                worker.start()
                self._introduce(worker)
        return 0

    def _introduce(self, started: Worker) -> None:
        """Connects a new worker with the batcher, or a new batcher with all workers."""
        if self._batcher is None or self._batcher.process is None:
            return
        for worker in self._workers if started is self._batcher else [started]:
            if worker.process is not None:
                ends = socket.socketpair()
                self._batcher.hand_over(ends[0])
                worker.hand_over(ends[1])

    def _shut_down(self) -> None:
        """Ends the workers. Kills all remaining workers after the time limit, or at a second signal."""
        for listening in self._sockets:
            listening.close()  # an open socket would queue connections that no worker accepts
        code, first_signal, began = 0, math.inf, time.monotonic()
        for worker in self._workers:
            if worker.process is not None:
                worker.process.terminate()
        if self._batcher is not None:
            self._batcher.unlink()  # it ends after the last worker
        while running := [process for process in self._processes() if process.exitcode is None]:
            wait([self._signals, *(process.sentinel for process in running)], timeout=CHECK_SECONDS)
            while self._signals.poll():
                at, number = self._signals.recv()
                first_signal = min(at, first_signal)
                if at - first_signal > SAME_SIGNAL_SECONDS:
                    code = SIGNAL_EXIT_CODE + number
            if code or time.monotonic() - began > self._config.grace + KILL_SECONDS:
                for process in running:
                    process.kill()
        self._config.clean_up()
        if code:
            os._exit(code)  # during a normal exit, another signal would change the exit code


def _log_death(title: str, process: SpawnProcess, pause: float) -> None:
    if not pause:
        logger.error("%s %s has died (exit code %s) and is replaced", title, process.pid, process.exitcode)
    elif pause == MIN_PAUSE_SECONDS:
        logger.error(
            "%s %s has died (exit code %s) soon after its start, like its predecessor: replacements start after "
            "pauses of up to %g s, without further log lines, until one has lived for %g s",
            *(title, process.pid, process.exitcode, MAX_PAUSE_SECONDS, STABLE_SECONDS),
        )


class Worker:
    """Slot of the supervisor for a worker process, or the batcher, and its replacements.

    Arguments are as in Supervisor. ``run`` is the function of the batcher's process; ``linked`` workers have one.
    ``title`` is the name in the log.
    """

    def __init__(
        self,
        config: ServerConfig,
        sockets: list[socket.socket],
        prepare: Callable[[], None],
        *,
        run: Callable[[Connection[bool, None], socket.socket], None] | None = None,
        linked: bool = False,
    ) -> None:
        self.title = "worker" if run is None else "batcher"
        self._run = run or partial(work, config, sockets, prepare, linked=linked)
        self._pipe: Connection[None, bool]
        self._link: socket.socket
        self._started_at = self._answered_at = self._due_at = 0.0
        self._next_pause = 0.0
        self.process: SpawnProcess | None = None
        """Current process. None before the first start, and between a death and the next start."""
        self.has_served = False  # whether one of the processes has served

    def start(self) -> None:
        """Starts the process."""
        self._pipe, workers_end = SPAWN.Pipe()
        self._started_at = self._answered_at = time.monotonic()
        self._link, link = socket.socketpair()
        self._link.setblocking(False)
        process = SPAWN.Process(target=self._run, args=(workers_end, link))
        process.start()
        self.process = process
        workers_end.close()
        link.close()

    def hand_over(self, end: socket.socket) -> None:
        """Gives the process an open socket. A process that is ending, or reads none, does not get it."""
        with end, suppress(OSError):
            socket.send_fds(self._link, [b"\0"], [end.fileno()])

    def unlink(self) -> None:
        """Tells the process that no more sockets follow."""
        if self.process is not None:
            self._link.close()

    def is_due(self) -> bool:
        """Whether to start a process: none is running, and the pause is over."""
        return self.process is None and time.monotonic() >= self._due_at

    def is_alive(self) -> bool:
        """Whether the process is running and has answered within HUNG_SECONDS. Requests the next answer without
        waiting."""
        try:
            while self._pipe.poll():
                self.has_served = self._pipe.recv() or self.has_served
                self._answered_at = time.monotonic()
            self._pipe.send(None)
        except (EOFError, OSError):  # it is ending
            return False
        return time.monotonic() - self._answered_at < HUNG_SECONDS

    def release(self) -> float:
        """Releases the resources of a dead process. Returns the seconds until the next start."""
        self._pipe.close()
        self._link.close()
        self.process = None
        return self.pause_after(time.monotonic() - self._started_at)

    def pause_after(self, lived: float) -> float:
        """Sets and returns the pause in seconds before the next start, after a process with the lifetime ``lived``.

        The pause is 0 after a long lifetime. It doubles with each short lifetime, so that restarts don't take CPU time
        from serving workers.
        """
        pause = self._next_pause if lived < STABLE_SECONDS else 0.0
        self._next_pause = min(MAX_PAUSE_SECONDS, 2 * pause or MIN_PAUSE_SECONDS)
        self._due_at = time.monotonic() + pause
        return pause


class ChildServer(Protocol):
    """A server in a child process. ``loop`` is the event loop, once it serves."""

    loop: asyncio.AbstractEventLoop | None

    def run(self) -> None: ...


def serve_workers(
    make: Callable[[socket.socket], ChildServer],
    prepare: Callable[[], None],
    supervisor: Connection[bool, None],
    link: socket.socket,
) -> None:
    """Runs the batcher in its process. It ends by itself after its supervisor and all workers."""
    prepare()
    server = make(link)
    threading.Thread(target=_answer, args=(server, supervisor), daemon=True).start()
    server.run()


def work(
    config: ServerConfig,
    sockets: list[socket.socket],
    prepare: Callable[[], None],
    supervisor: Connection[bool, None],
    link: socket.socket,
    *,
    linked: bool = False,
) -> None:
    """Runs a server in a worker process. Its application gets ``link`` if ``linked``. Raises SystemExit if it can't
    start."""
    prepare()
    if linked:
        config.app = partial(cast(Callable[..., AsgiApplication], config.app), introductions=link)
    server = Server(config, impatient=False)
    threading.Thread(target=_answer, args=(server, supervisor), daemon=True).start()
    try:
        server.run(sockets)
    except TransformerError as error:
        logger.error("a worker can't start: %s", error)
        raise SystemExit(STARTUP_FAILURE) from None


def _answer(server: Server | ChildServer, supervisor: Connection[bool, None]) -> None:
    """Answers the supervisor's liveness checks. Ends this process if the supervisor dies."""
    with suppress(EOFError, OSError):
        while True:
            supervisor.recv()
            supervisor.send(is_serving(server))
    os.kill(os.getpid(), signal.SIGTERM)


def is_serving(server: Server | ChildServer) -> bool:
    """Whether the server has started. Blocks until the event loop runs a callback, so a hung worker does not answer.

    During loading it returns False immediately, so loading has no time limit.
    """
    if server.loop is None:
        return False
    turned = threading.Event()
    with suppress(RuntimeError):  # the loop is closed, so the process ends soon
        server.loop.call_soon_threadsafe(turned.set)
    turned.wait()
    return True
