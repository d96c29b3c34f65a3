"""Deadlines of many calls, and of the many responses to one, with one timer of the event loop."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self, cast


class SharedTimeouts:
    """Deadlines of calls that share one timeout, so that they pass in the order of the calls. Not thread-safe.

    asyncio.timeout_at sets a timer for each call, and takes five times as many instructions.
    """

    def __init__(self) -> None:
        self.scopes: dict[TimeoutScope, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, deadline: float) -> TimeoutScope:
        """A context manager for the current task, like ``asyncio.timeout_at(deadline)``. Enter it at once."""
        scope = TimeoutScope(self, deadline)
        self.scopes[scope] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)
        return scope

    def _expire(self) -> None:
        """Expires all scopes whose deadline has passed, and sets the timer for the oldest other scope."""
        loop, self._timer = asyncio.get_running_loop(), None
        for scope in [*self.scopes]:
            if scope.deadline > loop.time():
                self._timer = loop.call_at(scope.deadline, self._expire)
                return
            del self.scopes[scope]
            scope.expire()


class ResponseTimeout:
    """A limit of each wait of one task for a response. A context manager, with one timer for all waits.

    Raises TimeoutError in place of the cancellation by which it ends a wait. asyncio.timeout would set a timer for each
    response.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._task = cast("asyncio.Task[object]", asyncio.current_task())
        self._cancelling = self._task.cancelling()
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_expired = False

    def begin(self) -> None:
        """Begins a wait."""
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._check)

    def end(self) -> None:
        """Ends a wait. The timer stays, for the next one."""
        self._since = None

    def _check(self) -> None:
        self._timer = None
        if self._since is None:
            return
        expires = self._since + self._seconds
        if self._loop.time() < expires:
            self._timer = self._loop.call_at(expires, self._check)
        else:
            self._is_expired = True
            self._task.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._since = None
        if self._timer is not None:
            self._timer.cancel()
        if self._is_expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


class TimeoutScope:
    """A deadline of one task. It cancels the task, and raises TimeoutError in place of this cancellation."""

    __slots__ = ("_cancelling", "_is_expired", "_owner", "_task", "deadline")

    def __init__(self, owner: SharedTimeouts, deadline: float) -> None:
        self.deadline = deadline
        self._owner = owner
        self._is_expired = False
        self._task = cast("asyncio.Task[object]", asyncio.current_task())
        self._cancelling = self._task.cancelling()

    def expire(self) -> None:
        self._is_expired = True
        self._task.cancel()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owner.scopes.pop(self, None)
        if self._is_expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
