"""Streams that can be followed: a reader gets by a call what has come, as it comes.

A generator that passes on another one's items costs each item a frame, and all of them together a turn of the event
loop and a task's step. So one that gives items as they come may have a Source beside it, from which its reader takes
what is as usual; whatever is not (the first item, the end, an error), it asks the generator for as ever.

Measured over gRPC with 32 streams of tokens that come one at a time, to a process that sleeps in between: 0.062 ms of
CPU per token where it was 0.081.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class Source(Protocol[Item_co]):
    """What comes between two items of a generator that nobody asks meanwhile. It goes on behind what was taken here."""

    def take(self) -> Item_co | None:
        """The next item; None where there is none yet, or where the generator alone can give what is there.

        Raises nothing that the generator would raise: its reader hears of that by asking it.
        """

    def follow(self, wake: Callable[[], object]) -> bool:
        """Has ``wake`` called, once, when ``take`` may have something. False where the generator has to be asked, and
        ``wake`` is not called then."""

    def unfollow(self) -> None:
        """Nobody is called any more. The generator may be asked only after this."""


class Items(Protocol[Item_co]):
    """What gives items one by one to who asks, as an async generator does; its end, or an error, closes it.

    A class of its own spares a stream what an async generator costs, of which the event loop keeps book.
    """

    def __aiter__(self) -> AsyncIterator[Item_co]: ...
    def __anext__(self) -> Awaitable[Item_co]: ...
    def aclose(self) -> Awaitable[None]: ...


class Followed(AsyncGenerator[Item, None]):
    """A generator that has a source."""

    def __init__(self, generator: AsyncGenerator[Item, None], source: Source[Item]) -> None:
        self._generator = generator
        self.source = source

    def __anext__(self) -> Coroutine[Any, Any, Item]:
        return self._generator.__anext__()

    def asend(self, value: None) -> Coroutine[Any, Any, Item]:
        return self._generator.asend(value)

    def athrow(
        self, kind: Any, value: BaseException | object = None, trace: TracebackType | None = None, /
    ) -> Coroutine[Any, Any, Item]:
        return self._generator.athrow(kind, value, trace)

    def aclose(self) -> Coroutine[Any, Any, None]:
        return self._generator.aclose()


def source_of(items: Items[Item]) -> Source[Item] | None:
    """What a generator can be followed by, its ``source``; None where it has to be asked for each item."""
    found: Source[Item] | None = getattr(items, "source", None)
    return found


class Relay(Source[Item]):
    """The source of a generator that passes on the items of another one, ``origin``, once it has that."""

    __slots__ = ("origin",)

    def __init__(self) -> None:
        self.origin: Source[Item] | None = None

    def take(self) -> Item | None:
        return None if self.origin is None else self.origin.take()

    def follow(self, wake: Callable[[], object]) -> bool:
        return self.origin is not None and self.origin.follow(wake)

    def unfollow(self) -> None:
        if self.origin is not None:
            self.origin.unfollow()
