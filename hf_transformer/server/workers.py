"""Several processes that share one port: started, replaced when they die, and ended together.

uvicorn has a supervisor too. This one passes a signal on at once, tells by its exit code that the workers can't start,
and takes its workers along when it is killed. It has no signals that restart workers or change their number: a new
worker would read nothing that an old one has not read.
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
TICK = 0.5  # seconds between two looks at the workers
HUNG = 30.0
"""Seconds without an answer after which a worker is killed. On a busy machine a start alone may take several."""
LATE = 10.0  # seconds beyond the grace after which a worker that has not ended is killed
FAILED = 1  # exit code if the workers can't start
STEADY = 60.0  # seconds after which a worker that dies is replaced at once
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds before the replacement of a worker that died earlier, as the one before it did; each pause is twice the last
one."""


class Supervisor:
    """Keeps ``config.workers`` workers until a signal; a second one kills them. A worker that dies, or whose event loop
    does not turn for HUNG seconds, is replaced.

    Signal handlers only write to a pipe, which the supervisor waits on: a signal never interrupts the start of a
    worker, nor finds a list half changed.

    All workers listen on ``sockets``, which are closed at the end. ``prepare`` sets up a worker's interpreter.
    """

    def __init__(self, config: ServerConfig, sockets: list[socket.socket], prepare: Callable[[], None]) -> None:
        self._config = config
        self._sockets = sockets
        self._workers = [Worker(config, sockets, prepare) for _ in range(config.workers)]
        self._signals, self._signalled = SPAWN.Pipe(duplex=False)

    def run(self) -> int:
        """Returns the exit code: 0, or FAILED if the workers can't start. A second signal ends this process in here,
        with 128 and its number."""
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
        """Starts the missing workers. Returns FAILED if one could not start and none ever has, else 0."""
        for worker in self._workers:
            process = worker.process
            if process is not None and not worker.lives():
                if self._signals.poll():  # a signal to the whole process group
                    return 0
                process.kill()  # it may only be hung
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
        """Ends the workers, and kills those that take too long, or all of them at a second signal."""
        for listening in self._sockets:
            listening.close()  # or it would take connections that no worker accepts any more
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
            os._exit(code)  # while Python ends, another signal would change the exit code


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
    """A process with a server of its own, and after its death the next one. The arguments are the Supervisor's."""

    def __init__(self, config: ServerConfig, sockets: list[socket.socket], prepare: Callable[[], None]) -> None:
        self._setup = config, sockets, prepare
        self._pipe: Connection[None, bool]
        self._started_at = self._heard_at = self._due_at = 0.0
        self._next_pause = 0.0
        self.process: SpawnProcess | None = None
        """None before the first start, and from a death to the next start."""
        self.has_served = False  # whether one of the processes has

    def start(self) -> None:
        """Starts the process."""
        self._pipe, theirs = SPAWN.Pipe()
        self._started_at = self._heard_at = time.monotonic()
        process = SPAWN.Process(target=work, args=(*self._setup, theirs))
        process.start()
        self.process = process
        theirs.close()

    def is_due(self) -> bool:
        """Whether there is no process, and it is time to start one."""
        return self.process is None and time.monotonic() >= self._due_at

    def lives(self) -> bool:
        """Whether the process runs and has answered lately. Does not wait for an answer; asks for the next one."""
        try:
            while self._pipe.poll():
                self.has_served = self._pipe.recv() or self.has_served
                self._heard_at = time.monotonic()
            self._pipe.send(None)
        except (EOFError, OSError):  # it is ending
            return False
        return time.monotonic() - self._heard_at < HUNG

    def leave(self) -> float:
        """The process has died. Returns the seconds until the next start."""
        self._pipe.close()
        self.process = None
        return self.pause_after(time.monotonic() - self._started_at)

    def pause_after(self, lived: float) -> float:
        """Returns the seconds until the next start after a process that lived that long: none, or more and more after
        several that died soon, whose starts would take the machine from those that serve."""
        pause = self._next_pause if lived < STEADY else 0.0
        self._next_pause = min(LONGEST_PAUSE, 2 * pause or FIRST_PAUSE)
        self._due_at = time.monotonic() + pause
        return pause


def work(
    config: ServerConfig, sockets: list[socket.socket], prepare: Callable[[], None], supervisor: Connection[bool, None]
) -> None:
    """Runs one server, in the worker's process. Raises SystemExit if it can't start."""
    prepare()
    server = Server(config, impatient=False)
    threading.Thread(target=_answer, args=(server, supervisor), daemon=True).start()
    try:
        server.run(sockets)
    except TransformerError as error:
        logger.error("a worker can't start: %s", error)
        raise SystemExit(STARTUP_FAILURE) from None


def _answer(server: Server, supervisor: Connection[bool, None]) -> None:
    """Answers the supervisor's questions, and ends this process once the supervisor is gone."""
    with suppress(EOFError, OSError):
        while True:
            supervisor.recv()
            supervisor.send(serves(server))
    os.kill(os.getpid(), signal.SIGTERM)


def serves(server: Server) -> bool:
    """Whether the server has started. Once it has, this waits for its event loop to turn, however long that takes:
    a worker whose loop hangs gives no answer. Loading before that may take its time."""
    if server.loop is None:
        return False
    turned = threading.Event()
    with suppress(RuntimeError):  # the loop is closed, and the process about to end
        server.loop.call_soon_threadsafe(turned.set)
    turned.wait()
    return True
