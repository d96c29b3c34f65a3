"""Several processes that share one port: started, replaced when they die, and ended together."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import FrameType

from uvicorn.config import STARTUP_FAILURE

from hf_transformer.errors import TransformerError
from hf_transformer.serving.server import SAME_WISH, SIGNALLED, Server
from hf_transformer.serving.settings import ServerConfig

logger = logging.getLogger(__name__)

TICK = 0.5
"""Seconds between two looks at the workers."""
HUNG = 30.0
"""Seconds without a sign of life after which a worker is killed; on a busy machine a start alone may take several."""
LATE = 10.0
"""Seconds beyond the grace after which a worker that has not ended is killed."""
FAILED = 1
"""Exit code where the workers can't start."""


class Worker:
    """A process with a server of its own, on the sockets of all; it runs from the beginning.

    Args:
        prepare: what a fresh interpreter has to set up first.
    """

    def __init__(self, config: ServerConfig, sockets: list[socket.socket], prepare: Callable[[], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._asked = False
        self._heard_at = time.monotonic()
        self.has_served = False
        self.process = context.Process(target=work, args=(config, sockets, prepare, theirs))
        self.process.start()
        theirs.close()

    def lives(self) -> bool:
        """Whether it runs and is not hung, without waiting for it; to be asked every TICK."""
        if not self.process.is_alive():
            return False
        try:
            while self._pipe.poll():
                self.has_served = self._pipe.recv()
                self._asked, self._heard_at = False, time.monotonic()
            if not self._asked:
                self._asked = True
                self._pipe.send(True)
        except (EOFError, OSError):  # it is ending
            return False
        return time.monotonic() - self._heard_at < HUNG

    def tell(self, number: signal.Signals) -> None:
        """Sends a signal."""
        if self.process.pid is not None and self.process.exitcode is None:
            os.kill(self.process.pid, number)

    def end(self) -> int | None:
        """Kills it, as it may only be hung; the exit code."""
        self.tell(signal.SIGKILL)
        self.process.join()
        self._pipe.close()
        return self.process.exitcode


def work(
    config: ServerConfig, sockets: list[socket.socket], prepare: Callable[[], None], supervisor: Connection[bool, bool]
) -> None:
    """What a worker does. A start that fails ends it with uvicorn's STARTUP_FAILURE."""
    prepare()
    server = Server(config, impatient=False)
    threading.Thread(target=_answer, args=(server, supervisor), daemon=True).start()
    try:
        server.run(sockets)
    except TransformerError as error:
        logger.error("a worker can't start: %s", error)
        raise SystemExit(STARTUP_FAILURE) from None


def _answer(server: Server, supervisor: Connection[bool, bool]) -> None:
    """Says that the process is alive, and whether it serves, each time that the supervisor asks. When that is gone,
    killed as it must be, the worker ends too."""
    try:
        while True:
            supervisor.recv()
            supervisor.send(server.started)
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)


class Supervisor:
    """Keeps ``config.workers`` workers until a signal; a second one kills them.

    Unlike uvicorn's it passes a signal on at once, tells by its exit code that the workers can't start, and has no
    signals that change their number or start them anew: there is nothing that a fresh worker would read and an old one
    does not.
    """

    def __init__(self, config: ServerConfig, sockets: list[socket.socket], prepare: Callable[[], None]) -> None:
        self._config = config
        self._sockets = sockets
        self._prepare = prepare
        self._workers: list[Worker] = []
        self._told_at: float | None = None
        self._killed_by = 0
        self._has_served = False

    def run(self) -> int:
        """The exit code: 0, or FAILED where the workers can't start. A second signal ends the process in here, with 128
        and its number."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)
        self._workers = [self._start() for _ in range(self._config.workers)]
        code = 0
        while self._told_at is None and code == 0:
            wait([worker.process.sentinel for worker in self._workers], timeout=TICK)
            if self._told_at is None:
                code = self._replace_the_dead()
        self._end()
        if self._killed_by:
            os._exit(SIGNALLED + self._killed_by)
        return code

    def _start(self) -> Worker:
        return Worker(self._config, self._sockets, self._prepare)

    def _replace_the_dead(self) -> int:
        """FAILED if a worker has not even started and none ever has, else 0."""
        for place, worker in enumerate(self._workers):
            if worker.lives():
                self._has_served = self._has_served or worker.has_served
                continue
            if self._told_at is not None:
                return 0
            code = worker.end()
            if code is not None and code > 0 and not self._has_served:
                logger.error("worker %s could not start (exit code %d); the service ends", worker.process.pid, code)
                return FAILED
            logger.error("worker %s has died (exit code %s) and is replaced", worker.process.pid, code)
            try:
                self._workers[place] = self._start()
            except (OSError, ValueError):  # of the sockets, which a signal has closed in between
                if self._told_at is None:
                    raise
        return 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Runs between two steps of whatever the process does, so it only does what can't wait."""
        now = time.monotonic()
        if self._told_at is None:
            self._told_at = now
            self._tell(signal.SIGTERM)
            # Held open here, it would take connections that no worker accepts any more.
            for listening in self._sockets:
                listening.close()
        elif now - self._told_at > SAME_WISH:
            self._killed_by = number
            self._tell(signal.SIGKILL)

    def _tell(self, number: signal.Signals) -> None:
        for worker in self._workers:
            worker.tell(number)

    def _end(self) -> None:
        """Ends the workers, and kills those that take too long."""
        self._tell(signal.SIGTERM)  # again, for those that had not been started when the first one came
        deadline = time.monotonic() + self._config.grace + LATE
        while alive := [worker.process.sentinel for worker in self._workers if worker.process.exitcode is None]:
            if self._killed_by or time.monotonic() > deadline:
                self._tell(signal.SIGKILL)
            wait(alive, timeout=TICK)
