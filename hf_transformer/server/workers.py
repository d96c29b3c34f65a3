"""Worker processes that share one port: starts them, replaces dead ones, and ends them together.

Unlike uvicorn's supervisor, this one passes a signal on at once, has an exit code for workers that can't start, and
its workers end when it is killed. It has no signals to restart workers or change their number, since workers have no
configuration to reload.
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
from hf_transformer.server.run import SAME_SIGNAL_SECONDS, SIGNAL_EXIT_CODE, Server, ServerConfig

logger = logging.getLogger(__name__)

SPAWN = multiprocessing.get_context("spawn")
"""Each worker is a fresh interpreter: gRPC and threads do not survive a fork."""
CHECK_SECONDS = 0.5  # between two checks of the workers
HUNG_SECONDS = 30.0
"""Time without an answer after which a worker is killed. On a busy machine a start alone may take several seconds."""
KILL_SECONDS = 10.0  # after the grace period; then workers that still run are killed
START_FAILURE = 1  # exit code if the workers can't start
STABLE_SECONDS = 60.0  # lifetime after which a dead worker is replaced at once
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 8.0
"""Pause before the replacement of a worker that died before STABLE_SECONDS, like its predecessor. Each pause doubles
the last."""


class Supervisor:
    """Runs ``config.workers`` workers until a signal; a second one kills them.

    Replaces workers that die, or whose event loop blocks for HUNG_SECONDS. Signal handlers only write to a pipe, so
    that a signal never interrupts the start of a worker.

    Args:
        config: the server's configuration.
        sockets: the sockets that all workers listen on; closed at shutdown.
        prepare: sets up a worker's interpreter.
    """

    def __init__(self, config: ServerConfig, sockets: list[socket.socket], prepare: Callable[[], None]) -> None:
        self._config = config
        self._sockets = sockets
        self._workers = [Worker(config, sockets, prepare) for _ in range(config.workers)]
        self._signals, self._signalled = SPAWN.Pipe(duplex=False)

    def run(self) -> int:
        """Returns the exit code: 0, or START_FAILURE if the workers can't start.

        A second signal ends this process at once, with 128 plus the signal's number.
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
        return [worker.process for worker in self._workers if worker.process is not None]

    def _replace_dead(self) -> int:
        """Starts missing workers. Returns START_FAILURE if one could not start and none ever served, else 0."""
        for worker in self._workers:
            process = worker.process
            if process is not None and not worker.is_alive():
                if self._signals.poll():  # a signal to the whole process group
                    return 0
                process.kill()  # a hung process still runs
                process.join()
                pause = worker.release()
                self._config.clean_up()
                if process.exitcode and process.exitcode > 0 and not any(worker.has_served for worker in self._workers):
                    logger.error(
                        "worker %s could not start (exit code %s); the service ends", process.pid, process.exitcode
                    )
                    return START_FAILURE
                _log_death(process, pause)
            if worker.is_due() and not self._signals.poll():
                worker.start()
        return 0

    def _shut_down(self) -> None:
        """Terminates the workers. Kills slow ones, or all of them at a second signal."""
        for listening in self._sockets:
            listening.close()  # otherwise it would take connections that no worker accepts
        code, first_signal, began = 0, math.inf, time.monotonic()
        for process in self._processes():
            process.terminate()
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


def _log_death(process: SpawnProcess, pause: float) -> None:
    if not pause:
        logger.error("worker %s has died (exit code %s) and is replaced", process.pid, process.exitcode)
    elif pause == MIN_PAUSE_SECONDS:
        logger.error(
            "worker %s has died (exit code %s) soon after its start, like its predecessor: replacements start after "
            "pauses of up to %g s, without further log lines, until one has lived for %g s",
            *(process.pid, process.exitcode, MAX_PAUSE_SECONDS, STABLE_SECONDS),
        )


class Worker:
    """A worker process, and its replacements. The arguments are the Supervisor's."""

    def __init__(self, config: ServerConfig, sockets: list[socket.socket], prepare: Callable[[], None]) -> None:
        self._setup = config, sockets, prepare
        self._pipe: Connection[None, bool]
        self._started_at = self._answered_at = self._due_at = 0.0
        self._next_pause = 0.0
        self.process: SpawnProcess | None = None
        """None before the first start, and between a death and the next start."""
        self.has_served = False  # whether one of the processes has served

    def start(self) -> None:
        """Starts the process."""
        self._pipe, workers_end = SPAWN.Pipe()
        self._started_at = self._answered_at = time.monotonic()
        process = SPAWN.Process(target=work, args=(*self._setup, workers_end))
        process.start()
        self.process = process
        workers_end.close()

    def is_due(self) -> bool:
        """Whether there is no process, and the pause before the next one is over."""
        return self.process is None and time.monotonic() >= self._due_at

    def is_alive(self) -> bool:
        """Whether the process runs and has answered within HUNG_SECONDS. Sends the next question without waiting."""
        try:
            while self._pipe.poll():
                self.has_served = self._pipe.recv() or self.has_served
                self._answered_at = time.monotonic()
            self._pipe.send(None)
        except (EOFError, OSError):  # it is ending
            return False
        return time.monotonic() - self._answered_at < HUNG_SECONDS

    def release(self) -> float:
        """Releases a dead process. Returns the seconds until the next start."""
        self._pipe.close()
        self.process = None
        return self.pause_after(time.monotonic() - self._started_at)

    def pause_after(self, lived: float) -> float:
        """Returns the seconds until the next start, after a process that lived for ``lived`` seconds.

        Pauses grow while processes die early, since a start takes CPU from the workers that serve.
        """
        pause = self._next_pause if lived < STABLE_SECONDS else 0.0
        self._next_pause = min(MAX_PAUSE_SECONDS, 2 * pause or MIN_PAUSE_SECONDS)
        self._due_at = time.monotonic() + pause
        return pause


def work(
    config: ServerConfig, sockets: list[socket.socket], prepare: Callable[[], None], supervisor: Connection[bool, None]
) -> None:
    """Runs a server in a worker process. Raises SystemExit if it can't start."""
    prepare()
    server = Server(config, impatient=False)
    threading.Thread(target=_answer, args=(server, supervisor), daemon=True).start()
    try:
        server.run(sockets)
    except TransformerError as error:
        logger.error("a worker can't start: %s", error)
        raise SystemExit(STARTUP_FAILURE) from None


def _answer(server: Server, supervisor: Connection[bool, None]) -> None:
    """Answers the supervisor's questions, and ends this process when the supervisor has died."""
    with suppress(EOFError, OSError):
        while True:
            supervisor.recv()
            supervisor.send(is_serving(server))
    os.kill(os.getpid(), signal.SIGTERM)


def is_serving(server: Server) -> bool:
    """Whether the server has started. If so, waits for a turn of its event loop, without a time limit.

    A worker with a blocked event loop gives no answer, and the supervisor replaces it. Loading has no such limit.
    """
    if server.loop is None:
        return False
    turned = threading.Event()
    with suppress(RuntimeError):  # the loop is closed, so the process ends soon
        server.loop.call_soon_threadsafe(turned.set)
    turned.wait()
    return True
