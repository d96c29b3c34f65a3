"""The responses of one call of ``stream``, as both transports make them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol, Self, TypeVar

from hf_transformer.errors import RequestError
from hf_transformer.types import Tensor

Outputs = Mapping[str, Tensor]
Raised = TypeVar("Raised", bound=BaseException)


class Watch(Protocol):
    """Who is told what becomes of streams."""

    def begins(self) -> int:
        """A call is about to be sent; gives the turn that ``failed`` wants. Raises RequestError where it may not be."""

    def succeeded(self) -> None:
        """A call was answered: it has a response, or has ended without one."""

    def failed(self, error: RequestError, turn: int) -> None:
        """A call has failed, also one that was answered before."""


class Responses(ABC):
    """Gives them one by one to who asks, and is a Source of what comes in between.

    It tells a watch what becomes of the call. As generators this would be two, one around the other, which cost a
    stream a frame for every step, and the event loop an entry in its book of those that it may have to close. So nobody
    but who reads this closes it: with ``aclose``, if he leaves early.
    """

    _watch: Watch | None
    _turn = 0  # of the watch
    _answered = False
    _is_over = False

    @property
    def source(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> Outputs:
        """The next one. Its end, or an error, closes it."""

    async def aclose(self) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Ends the call, unless it has ended."""

    @abstractmethod
    def take(self) -> Outputs | None: ...

    @abstractmethod
    def follow(self, wake: Callable[[], object]) -> bool: ...

    @abstractmethod
    def unfollow(self) -> None: ...

    def begins(self) -> None:
        """Asks the watch, before the call is made. Raises StopAsyncIteration where it is over, and what the watch
        raises."""
        if self._is_over:
            raise StopAsyncIteration
        if self._watch is not None:
            self._turn = self._watch.begins()

    def answered(self) -> None:
        """Tells the watch, once, that there is a response, or the end without one."""
        if not self._answered and self._watch is not None:
            self._answered = True
            self._watch.succeeded()

    def ended(self, error: Raised) -> Raised:
        """Ends the call for an error that is raised, and tells the watch of one that is a request's; gives it."""
        self.close()
        if self._watch is not None and isinstance(error, RequestError):
            self._watch.failed(error, self._turn)
        return error
