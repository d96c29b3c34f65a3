"""A pool of child processes for work of libraries on client input that has no bound of its own in time and memory.

Each child does one task at a time. One that takes too long or too much memory ends, and is replaced: its request gets
413, and no other request notices. child.py has the processes' side.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from typing import Any, Final, Literal, Self

import orjson

from hf_transformer.errors import InvalidInput, Path, TooLarge, TooManyRequests, Unavailable
from hf_transformer.generation.constraint import Constraint
from hf_transformer.types.request import Json

logger = logging.getLogger(__name__)

Task = Literal["compile", "check", "verify"]
HEADER: Final = struct.Struct("!I")
"""Number of bytes of the message that follows."""
WALL_TIMES: Final = 5
"""Time limit of a task by the clock, as a multiple of its CPU time limit: the machine may be busy."""
WAIT_SECONDS: Final = 10.0
GRACE_SECONDS: Final = 1.0
"""Time after the last limit of a task in which the kernel's timer ends the child."""
START_SECONDS: Final = 30.0
"""Maximum time for the start of the nursery and of a child, on a busy machine."""
TASKS_PER_CHILD: Final = 200
"""Number of tasks after which a child is replaced, so that free memory in its heap does not count against a task."""
END_SECONDS: Final = 2.0
"""Time in which the nursery ends after its socket is closed, before it is killed."""


class ChildPool:
    """At most ``count`` child processes, which start when they are needed. An async context manager.

    Args:
        seconds: the CPU time limit of a task.
        max_bytes: the memory that a task may take.
        wait: the maximum time for which a request waits for a free child, in seconds.
    """

    def __init__(
        self, count: int = 2, *, seconds: float = 2.0, max_bytes: int = 128 << 20, wait: float = WAIT_SECONDS
    ) -> None:
        self._slots = asyncio.Semaphore(count)
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._wait = wait
        self._idle: list[Child] = []
        self._nursery: Nursery | None = None
        self._starting = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_open = False

    async def __aenter__(self) -> Self:
        self._is_open = True
        return self

    async def __aexit__(self, *error: object) -> None:
        self._is_open = False
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        while self._idle:
            self._idle.pop().close()
        if self._nursery is not None:
            await asyncio.to_thread(self._nursery.close)
            self._nursery = None

    def warm_up(self) -> None:
        """Starts a child in the background, so that the first task need not wait for it. Does nothing in a pool that
        is not entered."""
        if self._is_open and self._nursery is None:
            self._in_background(self._warm_up())

    async def run(self, task: Task, constraint: Constraint, path: Path, text: str = "") -> Json:
        """Returns the answer of a task; ``path`` is the field of the constraint.

        Raises:
            InvalidInput: the constraint can't be applied.
            TooLarge: the task takes more than the limits of time or memory.
            TooManyRequests: no child was free in time.
            Unavailable: no child could be started.
        """
        fields = {"task": task, "kind": constraint.kind, "source": constraint.source, "text": text}
        message = orjson.dumps(fields)
        try:
            async with asyncio.timeout(self._wait):
                await self._slots.acquire()
        except TimeoutError:
            raise TooManyRequests(
                f"no child process was free for a constraint in {self._wait:g} s (--max_children)"
            ) from None
        # The slot stays taken until the child is free, also if the client leaves.
        answer = await asyncio.shield(self._in_background(self._run(message, path)))
        if "invalid" in answer:
            raise InvalidInput(path, *answer["invalid"])
        return answer["answer"]

    def _in_background(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # An error of a task whose client has left is of no interest.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _warm_up(self) -> None:
        async with self._slots:
            self._idle.append(await self._child())

    async def _run(self, message: bytes, path: Path) -> Json:
        child: Child | None = None
        try:
            child = self._idle.pop() if self._idle else await self._child()
            if not child.is_alive:
                child.close()
                child = await self._child()
            answer = await child.ask(message, self._seconds)
            if child.tasks < TASKS_PER_CHILD:
                self._idle.append(child)
                child = None
            return answer
        except ChildFell:
            limits = f"{self._seconds:g} s (--child_timeout_seconds) and {self._max_bytes} bytes (--max_child_bytes)"
            raise TooLarge(path, f"a constraint that takes at most {limits} to apply", "more") from None
        finally:
            if child is not None:
                child.close()
            self._slots.release()

    async def _child(self) -> Child:
        """Starts a child, and the nursery if it is not running. Raises Unavailable."""
        for _ in range(2):
            nursery: Nursery | None = None
            try:
                async with self._starting:
                    if self._nursery is None:
                        self._nursery = await asyncio.to_thread(Nursery, self._seconds, self._max_bytes)
                    nursery = self._nursery
                return await nursery.child()
            except (OSError, EOFError, TimeoutError, RuntimeError) as error:  # RuntimeError: no thread can be started
                logger.warning("a child process, or the process that starts them, can't be started: %r", error)
                if nursery is not None:
                    if self._nursery is nursery:
                        self._nursery = None
                    await asyncio.to_thread(nursery.close)
        raise Unavailable("the service could not start a child process, which applies constraints")


class ChildFell(Exception):
    """A child ended in its task."""


class Nursery:
    """The process that forks children. Blocks while it starts. Raises OSError if it can't."""

    def __init__(self, seconds: float, max_bytes: int) -> None:
        self._control, theirs = socket.socketpair()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from hf_transformer.generation.child import main; "
            f"main({theirs.fileno()}, {seconds!r}, {max_bytes!r})"
        )
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
        except OSError:
            self._control.close()
            raise

    async def child(self) -> Child:
        """Forks a child. Raises OSError, EOFError or TimeoutError if the nursery has died or can't fork."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        child = Child(reader, writer)
        try:
            async with asyncio.timeout(START_SECONDS):
                await reader.readexactly(1)
        except BaseException:
            child.close()
            raise
        return child

    def close(self) -> None:
        """Ends the process. Its children end by themselves, when their sockets close."""
        self._control.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Child:
    """The service's end of a child's socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.tasks = 0
        """Number of tasks so far."""

    @property
    def is_alive(self) -> bool:
        """Whether the child has not ended while it was idle."""
        return not self._reader.at_eof()

    async def ask(self, message: bytes, seconds: float) -> Json:
        """Returns the answer to a message. Raises ChildFell if the child ends first."""
        self.tasks += 1
        self._writer.write(HEADER.pack(len(message)) + message)
        try:
            async with asyncio.timeout(seconds * WALL_TIMES + GRACE_SECONDS):
                [size] = HEADER.unpack(await self._reader.readexactly(HEADER.size))
                return orjson.loads(await self._reader.readexactly(size))
        except (EOFError, OSError, TimeoutError):
            raise ChildFell from None

    def close(self) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._writer.close()
