"""A request on its short way, and what comes back, piece by piece; see Exchange, which is the same over ASGI."""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any, Self

from hf_transformer.api.direct import Direct
from hf_transformer.short_way import Response


class ShortExchange(Response):
    """One POST request. Leaving the context closes the connection.

    Attributes: ``broken`` is true once the server was told to close the connection; ``offered`` is 1 once the response
    has begun, as of an Exchange whose client does not read.
    """

    def __init__(self, app: Direct, path: str, body: Any, *, reads: bool = True, **headers: str) -> None:
        way = app.short_ways[path.encode()]
        self._begin = way([(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()])
        self._body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._pieces: asyncio.Queue[tuple[int, bytes] | bytes | None] = asyncio.Queue()
        self._left = self._over = self.broken = False
        self.taken = asyncio.Event()
        if reads:
            self.taken.set()
        self.offered = 0
        self.task: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._leave = self._begin(self._body, "http", self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._over:
            self.leave()
        await asyncio.wait([self.task])

    def hold(self, task: asyncio.Task[None]) -> None:
        self.task = task

    def whole(self, status: int, lines: bytes, body: bytes) -> None:
        self.begin(status, lines)
        self._pieces.put_nowait(body)
        self.end()

    def begin(self, status: int, lines: bytes, body: bytes = b"") -> bool:
        assert not self.offered, "a response begins once"
        self.offered = 1
        self._pieces.put_nowait((status, lines))
        return not body or self.part(body)

    def part(self, body: bytes) -> bool:
        assert body and self.offered and not self._over
        if self._left or not self.taken.is_set():
            return False
        self._pieces.put_nowait(body)
        return True

    async def send(self, body: bytes) -> None:
        assert self.offered and not self._over
        await self.taken.wait()
        if body and not self._left:
            self._pieces.put_nowait(body)

    def end(self, *parts: bytes) -> None:
        assert self.offered and not self._over
        for part in parts:
            if part and not self._left:
                self._pieces.put_nowait(part)
        self._over = True
        self._pieces.put_nowait(None)

    def break_off(self) -> None:
        self.broken = True
        self._pieces.put_nowait(None)

    async def head(self) -> tuple[int, dict[str, str]]:
        found = await self._next()
        assert isinstance(found, tuple)
        status, lines = found
        return status, dict(line.split(": ", 1) for line in lines.decode("latin-1").splitlines())

    async def piece(self) -> bytes | None:
        """The next piece of the body, None at its end."""
        found = await self._next()
        assert not isinstance(found, tuple)
        return found

    async def rest(self) -> bytes:
        found = b""
        while (piece := await self.piece()) is not None:
            found += piece
        return found

    async def _next(self) -> tuple[int, bytes] | bytes | None:
        async with asyncio.timeout(20):
            return await self._pieces.get()

    def leave(self) -> None:
        """Closes the connection; a server tells of that more than once."""
        self._left = True
        self._leave()
        self._leave()
