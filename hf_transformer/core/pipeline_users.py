"""Who is in a pipeline that generates, which may be replaced meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from hf_transformer.generation.pipeline import GenerationPipeline


class Users:
    """Who is in a pipeline; once another one has taken its place, and nobody is left, it is closed."""

    def __init__(self, pipeline: GenerationPipeline) -> None:
        self.pipeline = pipeline
        self._count = 0
        self._retired = False
        self._closing: asyncio.Task[None] | None = None

    def enter(self) -> None:
        self._count += 1

    def leave(self) -> None:
        self._count -= 1
        self._close_if_empty()

    @contextmanager
    def one(self) -> Iterator[None]:
        """While one request is in it."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def retire(self) -> None:
        """Nobody enters any more."""
        self._retired = True
        self._close_if_empty()

    def _close_if_empty(self) -> None:
        if self._retired and not self._count and self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self.pipeline.close())

    async def close(self) -> None:
        """Closes it, whoever is left; the service ends."""
        self._retired = True
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self.pipeline.close())
        await asyncio.wait([self._closing])
