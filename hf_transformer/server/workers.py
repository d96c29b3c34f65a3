"""Worker processes that share one port: a supervisor starts them, replaces dead ones and ends them together.

Unlike uvicorn's supervisor, this one forwards a signal at once, exits with an error code if the workers can't start,
and its workers end when it is killed. It has no signals to restart workers or change their number: a new worker would
read the same configuration.
"""

from __future__ import annotations

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
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType

from uvicorn.config import STARTUP_FAILURE

from hf_transformer.errors import TransformerError
from hf_transformer.server.run import SAME_WISH, SIGNALLED, Server, ServerConfig

logger = logging.getLogger(__name__)

SPAWN = multiprocessing.get_context("spawn")
"""Each worker is a fresh interpreter: gRPC and threads do not survive a fork."""
TICK = 0.5  # seconds between two checks of the workers
HUNG = 30.0
"""Seconds without an answer after which a worker is killed. On a busy machine startup alone takes several."""
LATE = 10.0  # seconds beyond the grace after which a worker that has not ended is killed
FAILED = 1  # exit code if the workers can't start
STEADY = 60.0  # seconds after which a worker that dies is replaced at once
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds before a worker that died soon after its start is replaced. Each pause in a row is twice the previous one."""


class Supervisor:
    """Keeps ``config.workers`` workers running until a signal; a second signal kills them. Replaces workers that die or
    whose event loop hangs for HUNG seconds.

    Signal handlers only write to a pipe that the supervisor waits on, so a signal never interrupts the start of a
    worker or a change of the list.

    All workers listen on ``sockets``; the supervisor closes them at the end. ``prepare`` sets up a worker's
    interpreter.
    """

    def __init__(self, config: ServerConfig, sockets: list[socket.socket], prepare: Callable[[], None]) -> None:
        self._config = config
        self._sockets = sockets
        self._workers = [Worker(config, sockets, prepare) for _ in range(config.workers)]
        self._signals, self._signalled = SPAWN.Pipe(duplex=False)

    def run(self) -> int:
        """Run until a signal; returns the exit code: 0, or FAILED if the workers can't start. A second signal ends this
        process with 128 plus the signal's number."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        code = 0
        try:
            while not code and not self._signals.poll():
                code = self._replace_the_dead()
                wait([self._signals, *(process.sentinel for process in self._processes())], timeout=TICK)
        finally:
            self._end()
        return code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled.send((time.monotonic(), number))

    def _processes(self) -> list[SpawnProcess]:
        return [worker.process for worker in self._workers if worker.process is not None]

    def _replace_the_dead(self) -> int:
        """Start missing workers. Returns FAILED if a worker could not start and none has ever started, else 0."""
        for worker in self._workers:
            process = worker.process
            if process is not None and not worker.lives():
                if self._signals.poll():  # a signal to the whole process group
                    return 0
                process.kill()  # it may be hung rather than dead
                process.join()
                pause = worker.leave()
                self._config.clean_up()
                if process.exitcode and process.exitcode > 0 and not any(one.has_served for one in self._workers):
                    logger.error(
                        "worker %s could not start (exit code %s); the service ends", process.pid, process.exitcode
                    )
                    return FAILED
                _log_death(process, pause)
            if worker.is_due() and not self._signals.poll():
                worker.start()
        return 0

    def _end(self) -> None:
        """End the workers; kill those that take too long, or all of them at a second signal."""
        for listening in self._sockets:
            listening.close()  # else it would take connections that no worker accepts
        code, first_signal, began = 0, math.inf, time.monotonic()
        for process in self._processes():
            process.terminate()
        while running := [process for process in self._processes() if process.exitcode is None]:
            wait([self._signals, *(process.sentinel for process in running)], timeout=TICK)
            while self._signals.poll():
                at, number = self._signals.recv()
                first_signal = min(at, first_signal)
                if at - first_signal > SAME_WISH:
                    code = SIGNALLED + number
            if code or time.monotonic() - began > self._config.grace + LATE:
                for process in running:
                    process.kill()
        self._config.clean_up()
        if code:
            os._exit(code)  # another signal during Python's exit would change the exit code


def _log_death(process: SpawnProcess, pause: float) -> None:
    if not pause:
        logger.error("worker %s has died (exit code %s) and is replaced", process.pid, process.exitcode)
    elif pause == FIRST_PAUSE:
        logger.error(
            "worker %s has died (exit code %s) soon after its start, as the one before it did: the next ones are "
            "started after pauses of up to %g s, without a line for each, until one has lived for %g s",
            *(process.pid, process.exitcode, LONGEST_PAUSE, STEADY),
        )


class Worker:
    """One slot of the supervisor: a process that runs a server, and its replacements. Arguments as for Supervisor."""

    def __init__(self, config: ServerConfig, sockets: list[socket.socket], prepare: Callable[[], None]) -> None:
        self._setup = config, sockets, prepare
        self._pipe: Connection[None, bool]
        self._started_at = self._heard_at = self._due_at = 0.0
        self._next_pause = 0.0
        self.process: SpawnProcess | None = None
        """None while no process runs: before the first start, and between a death and the next start."""
        self.has_served = False  # whether any of the processes has

    def start(self) -> None:
        """Starts the process."""
        self._pipe, theirs = SPAWN.Pipe()
        self._started_at = self._heard_at = time.monotonic()
        process = SPAWN.Process(target=work, args=(*self._setup, theirs))
        process.start()
        self.process = process
        theirs.close()

    def is_due(self) -> bool:
        """Whether no process runs and the pause before the next start is over."""
        return self.process is None and time.monotonic() >= self._due_at

    def lives(self) -> bool:
        """Whether the process runs and has answered within HUNG seconds. Asks for the next answer without waiting for
        it."""
        try:
            while self._pipe.poll():
                self.has_served = self._pipe.recv() or self.has_served
                self._heard_at = time.monotonic()
            self._pipe.send(None)
        except (EOFError, OSError):  # it is shutting down
            return False
        return time.monotonic() - self._heard_at < HUNG

    def leave(self) -> float:
        """Clean up after a dead process. Returns the seconds until the next start."""
        self._pipe.close()
        self.process = None
        return self.pause_after(time.monotonic() - self._started_at)

    def pause_after(self, lived: float) -> float:
        """Seconds until the next start after a process that lived this long: 0, or a growing pause after processes that
        died soon, whose starts would take CPU from the workers that serve."""
        pause = self._next_pause if lived < STEADY else 0.0
        self._next_pause = min(LONGEST_PAUSE, 2 * pause or FIRST_PAUSE)
        self._due_at = time.monotonic() + pause
        return pause


def work(
    config: ServerConfig, sockets: list[socket.socket], prepare: Callable[[], None], supervisor: Connection[bool, None]
) -> None:
    """Run one server in the worker's process. Raises SystemExit if it can't start."""
    prepare()
    server = Server(config, impatient=False)
    threading.Thread(target=_answer, args=(server, supervisor), daemon=True).start()
    try:
        server.run(sockets)
    except TransformerError as error:
        logger.error("a worker can't start: %s", error)
        raise SystemExit(STARTUP_FAILURE) from None


def _answer(server: Server, supervisor: Connection[bool, None]) -> None:
    """Answer the supervisor's liveness checks; end this process when the supervisor is gone."""
    with suppress(EOFError, OSError):
        while True:
            supervisor.recv()
            supervisor.send(serves(server))
    os.kill(os.getpid(), signal.SIGTERM)


def serves(server: Server) -> bool:
    """Whether the server has started. After that it waits for a turn of the event loop, so a worker whose loop hangs
    gives no answer. Loading has no time limit."""
    if server.loop is None:
        return False
    turned = threading.Event()
    with suppress(RuntimeError):  # the loop is closed: the process is about to end
        server.loop.call_soon_threadsafe(turned.set)
    turned.wait()
    return True
