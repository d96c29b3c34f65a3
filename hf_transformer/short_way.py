"""A way for a request that is all there: a call, where ASGI has a scope, a task and messages.

An application that has such ways shows them as ``short_ways``, by the target of the request (the bytes behind the
method). A server that does not know of them serves the application as ever; so does one that does, with whatever is
not as usual: another method, a long body that comes in parts, a client of HTTP/1.0.

Measured with 32 connections: ASGI is a quarter of the CPU of a short request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case."""


class Response(Protocol):
    """What the request is answered with: ``whole``, once, or ``begin`` and what follows. Nothing happens if the client
    is gone. Whoever can't answer calls ``break_off``, or the client would wait for ever.

    ``lines`` are those of its head between the server's own and what says how long the body is; each ends with CRLF.
    They are not looked at again.
    """

    def whole(self, status: int, lines: bytes, body: bytes) -> None:
        """Sends all of it."""

    def hold(self, task: asyncio.Task[None]) -> None:
        """Has the server wait for a task that makes it, when it ends."""

    def begin(self, status: int, lines: bytes, body: bytes = b"") -> bool:
        """Sends the head of one whose body comes in parts, with the first of these if there is one. False: the part was
        not sent, because the client does not read, or is gone."""

    def part(self, body: bytes) -> bool:
        """Sends a part, which is not empty. False: nothing was sent, because the client does not read, or is gone."""

    async def send(self, body: bytes) -> None:
        """Sends a part, which may be empty, as soon as the client reads."""

    def end(self, *parts: bytes) -> None:
        """Sends the last parts, each of which may be empty. That was all."""

    def break_off(self) -> None:
        """Closes the connection, unless all was sent."""


class Begin(Protocol):
    """Begins to answer a POST request whose headers are known, and never raises. ``scheme`` is http or https.

    Returns:
        What ends the work, because nobody waits for the answer any more.
    """

    def __call__(self, body: bytes, scheme: str, response: Response) -> Callable[[], object]: ...


class ShortWay(Protocol):
    """Finds out what requests with these headers have in common, and never raises.

    Clients send the same headers again and again: what this gives may be kept, and called for one request after the
    other, also while others are worked on. What may change in between, as the keys that are taken, is looked at there.
    """

    def __call__(self, headers: Headers) -> Begin: ...


_NONE: Final[Mapping[bytes, ShortWay]] = {}


def short_ways_of(app: Any) -> Mapping[bytes, ShortWay]:
    """Those that an ASGI application has, none for any other."""
    ways: Mapping[bytes, ShortWay] = getattr(app, "short_ways", _NONE)
    return ways
