"""What a request on its short way is answered with, for handlers that answer whole: a stand-in for the server."""

from __future__ import annotations

import asyncio

from hf_transformer.short_way import Response


class Answers(Response):
    """Keeps whole responses: status, lines and body of each. Nothing else may be asked of it."""

    def __init__(self) -> None:
        self.all: list[tuple[int, bytes, bytes]] = []

    def whole(self, status: int, lines: bytes, body: bytes) -> None:
        self.all.append((status, lines, body))

    def hold(self, task: asyncio.Task[None]) -> None:
        raise AssertionError(task)

    def begin(self, status: int, lines: bytes, body: bytes = b"") -> bool:
        raise AssertionError(status)

    def part(self, body: bytes) -> bool:
        raise AssertionError(body)

    async def send(self, body: bytes) -> None:
        raise AssertionError(body)

    def end(self, *parts: bytes) -> None:
        raise AssertionError

    def break_off(self) -> None:
        raise AssertionError
