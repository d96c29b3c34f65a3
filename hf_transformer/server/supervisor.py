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
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from types import FrameType

from uvicorn.config import STARTUP_FAILURE

from hf_transformer.errors import TransformerError
from hf_transformer.server.run import SAME_WISH, SIGNALLED, Server, ServerConfig

logger = logging.getLogger(__name__)

TICK = 0.5
"""Seconds between two looks at the workers."""
HUNG = 30.0
"""Seconds without a sign of life after which a worker is killed; on a busy machine a start alone may take several. Once
it serves the sign is its event loop's."""
LATE = 10.0
"""Seconds beyond the grace after which a worker that has not ended is killed."""
FAILED = 1
"""Exit code where the workers can't start."""
STEADY = 60.0
"""Seconds after which a worker that dies is replaced at once."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
"""Seconds before a worker is replaced that died sooner, as the one before it did; each pause is twice the last one."""


class Worker:
    """A process with a server of its own, on the sockets of all; it runs from the beginning.

    Args:
        prepare: what a fresh interpreter has to set up first.
    """

    def __init__(self, config: ServerConfig, sockets: list[socket.socket], prepare: Callable[[], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._asked = False
        self._heard_at = self._begun = time.monotonic()
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

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._begun

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
    """Answers the supervisor, as often as it asks. When that is gone, killed as it must be, the worker ends too."""
    try:
        while True:
            answer_once(server, supervisor)
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)


def answer_once(server: Server, supervisor: Connection[bool, bool]) -> None:
    """Waits for a question, and says whether this process serves: that it does is said by the event loop, so that one
    that no longer turns says nothing. What is loaded at the start may take as long as it does.

    Raises:
        EOFError, OSError: there is nobody who asks.
    """

    def say_so() -> None:
        with suppress(OSError):  # the next question, which does not come, ends the worker
            supervisor.send(True)

    supervisor.recv()
    if server.loop is None:
        supervisor.send(False)
        return
    with suppress(RuntimeError):  # the loop is closed, and the process about to end
        server.loop.call_soon_threadsafe(say_so)


class Place:
    """Where a worker is; between the death of one and the start of the next there is none."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self._pause = 0.0
        self._due = 0.0

    def is_due(self) -> bool:
        """Whether it is time for the next worker."""
        return time.monotonic() >= self._due

    def leave(self, lived: float) -> float:
        """The worker has died, ``lived`` seconds after its start. Gives the seconds until the next one is due: none, or
        more and more where one after the other dies soon, so that they don't take the machine from those that live."""
        self.worker = None
        pause = self._pause if lived < STEADY else 0.0
        self._pause = min(LONGEST_PAUSE, 2 * pause or FIRST_PAUSE)
        self._due = time.monotonic() + pause
        return pause


class Supervisor:
    """Keeps ``config.workers`` workers until a signal; a second one kills them. One that dies, or whose event loop does
    not turn for HUNG seconds, is replaced.

    Unlike uvicorn's it passes a signal on at once, tells by its exit code that the workers can't start, and has no
    signals that change their number or start them anew: there is nothing that a fresh worker would read and an old one
    does not.
    """

    def __init__(self, config: ServerConfig, sockets: list[socket.socket], prepare: Callable[[], None]) -> None:
        self._config = config
        self._sockets = sockets
        self._prepare = prepare
        self._places = [Place() for _ in range(config.workers)]
        self._starting = False
        self._told_at: float | None = None
        self._killed_by = 0
        self._has_served = False

    def run(self) -> int:
        """The exit code: 0, or FAILED where the workers can't start. A second signal ends the process in here, with 128
        and its number."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)
        code = 0
        try:
            for place in self._places:
                if self._told_at is None:
                    place.worker = self._start()
            while self._told_at is None and code == 0:
                wait([worker.process.sentinel for worker in self._workers()], timeout=TICK)
                if self._told_at is None:
                    code = self._replace_the_dead()
        finally:
            self._end()
        if self._killed_by:
            os._exit(SIGNALLED + self._killed_by)
        return code

    def _workers(self) -> list[Worker]:
        return [place.worker for place in self._places if place.worker is not None]

    def _start(self) -> Worker:
        """A signal that comes in between leaves the sockets open until the worker has got them. It is in no list yet,
        and is told by ``_end``."""
        self._starting = True
        try:
            return Worker(self._config, self._sockets, self._prepare)
        finally:
            self._starting = False
            if self._told_at is not None:
                self._stop_listening()

    def _replace_the_dead(self) -> int:
        """FAILED if a worker has not even started and none ever has, else 0."""
        for place in self._places:
            worker = place.worker
            if worker is not None:
                if worker.lives():
                    self._has_served = self._has_served or worker.has_served
                    continue
                if self._told_at is not None:
                    return 0
                code, pid = worker.end(), worker.process.pid
                self._config.clean_up()
                if code is not None and code > 0 and not self._has_served:
                    logger.error("worker %s could not start (exit code %d); the service ends", pid, code)
                    return FAILED
                self._say_dead(pid, code, place.leave(worker.age))
            if place.is_due() and self._told_at is None:
                place.worker = self._start()
        return 0

    def _say_dead(self, pid: int | None, code: int | None, pause: float) -> None:
        if not pause:
            logger.error("worker %s has died (exit code %s) and is replaced", pid, code)
        elif pause == FIRST_PAUSE:
            logger.error(
                "worker %s has died (exit code %s) soon after its start, as the one before it did: the next ones are "
                "started after pauses of up to %g s, without a line for each, until one has lived for %g s",
                pid,
                code,
                LONGEST_PAUSE,
                STEADY,
            )

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Runs between two steps of whatever the process does, so it only does what can't wait."""
        now = time.monotonic()
        if self._told_at is None:
            self._told_at = now
            self._tell(signal.SIGTERM)
            if not self._starting:
                self._stop_listening()
        elif now - self._told_at > SAME_WISH:
            self._killed_by = number
            self._tell(signal.SIGKILL)

    def _stop_listening(self) -> None:
        """Held open here, the sockets would take connections that no worker accepts any more."""
        for listening in self._sockets:
            listening.close()

    def _tell(self, number: signal.Signals) -> None:
        for worker in self._workers():
            worker.tell(number)

    def _end(self) -> None:
        """Ends the workers, and kills those that take too long. One may have died unnoticed before."""
        self._tell(signal.SIGTERM)  # again, for those that had not been started when the first one came
        deadline = time.monotonic() + self._config.grace + LATE
        while alive := [worker.process.sentinel for worker in self._workers() if worker.process.exitcode is None]:
            if self._killed_by or time.monotonic() > deadline:
                self._tell(signal.SIGKILL)
            wait(alive, timeout=TICK)
        self._config.clean_up()
