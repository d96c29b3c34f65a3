"""Coroutines that run at once, up to where they first have to wait.

A task begins in the next turn of the event loop, and costs a short request a twentieth of its CPU. Python 3.12 has
asyncio.eager_task_factory for that; this is for the few places where it counts, in any version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class Eager(Generic[Result]):
    """Runs a coroutine, now and then whenever what it waits for is there.

    It is no task: what asks for the current task, such as asyncio.timeout, does not work in it. All on the event loop
    that runs.

    Args:
        coroutine: awaits futures of the loop, or things that end in these.
        done: called once with the result, or with what was raised: an Exception, or CancelledError.
    """

    __slots__ = ("_coroutine", "_done", "_waits_for")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Result],
        done: Callable[[Result | None, BaseException | None], None],
    ) -> None:
        self._coroutine = coroutine
        self._done = done
        self._waits_for: asyncio.Future[Any] | None = None
        self._step()

    def cancel(self) -> None:
        """Cancels what it waits for, and so itself. Nothing happens once it has ended, nor where what it waits for has
        just ended: a task would be cancelled then, this goes on."""
        if self._waits_for is not None:
            self._waits_for.cancel()

    def _step(self, ended: asyncio.Future[Any] | None = None) -> None:
        self._waits_for = None
        try:
            future = self._coroutine.send(None)
        except StopIteration as stop:
            self._done(stop.value, None)
        except (Exception, asyncio.CancelledError) as error:
            self._done(None, error)
        else:
            if future is None:  # asyncio.sleep(0)
                future = asyncio.get_running_loop().create_future()
                future.set_result(None)
            # What a task does with a future that is awaited in it (asyncio.Future.__await__).
            future._asyncio_future_blocking = False
            self._waits_for = future
            future.add_done_callback(self._step)
