"""A generator whose steps come when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable

from hf_transformer.generation.base import Generator
from hf_transformer.generation.types import Prompt, Sampling, Step
from hf_transformer.types import Context


class PushedGenerator(Generator):
    """For one text at a time. ``running`` counts the texts that are being written, ``given`` the steps."""

    kind = "tokens"

    def __init__(self, honours: Iterable[str] = ()) -> None:
        self._honours = frozenset(honours)
        self._items: asyncio.Queue[Step | Exception] = asyncio.Queue()
        self.running = self.given = 0

    def push(self, *items: Step | Exception) -> None:
        """These come, all at once; an exception is raised in its place."""
        for item in items:
            self._items.put_nowait(item)

    @property
    def honours(self) -> frozenset[str]:
        return self._honours

    async def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        self.running += 1
        try:
            while True:
                item = await self._items.get()
                if isinstance(item, Exception):
                    raise item
                self.given += 1
                yield item
        finally:
            self.running -= 1
