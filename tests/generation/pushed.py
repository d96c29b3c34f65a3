"""A generator whose steps come when a test says so, and which can be followed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable

from hf_transformer.following import Followed, Source
from hf_transformer.generation.base import Generator
from hf_transformer.generation.types import Prompt, Sampling, Step
from hf_transformer.types import Context


class PushedGenerator(Generator, Source[Step]):
    """For one text at a time. Ends and errors are left to those who ask, as every source does."""

    kind = "tokens"

    def __init__(self, honours: Iterable[str] = ()) -> None:
        self._honours = frozenset(honours)
        self._items: deque[Step | Exception] = deque()
        self._asked = asyncio.Event()
        self.follower: Callable[[], object] | None = None
        self.running = 0
        self.asked_for = 0
        self.taken = 0

    def push(self, *items: Step | Exception) -> None:
        """These come, all in one moment."""
        self._items += items
        self._asked.set()
        follower, self.follower = self.follower, None
        if follower is not None:
            follower()

    @property
    def honours(self) -> frozenset[str]:
        return self._honours

    def generate(self, prompt: Prompt, sampling: Sampling, context: Context) -> AsyncGenerator[Step, None]:
        return Followed(self._steps(), self)

    async def _steps(self) -> AsyncGenerator[Step, None]:
        self.running += 1
        try:
            while True:
                assert self.follower is None, "asked while it is followed"
                while not self._items:
                    self._asked.clear()
                    await self._asked.wait()
                item = self._items.popleft()
                if isinstance(item, Exception):
                    raise item
                self.asked_for += 1
                yield item
        finally:
            await asyncio.sleep(0)
            self.running -= 1

    def take(self) -> Step | None:
        item = self._items[0] if self._items else None
        if not isinstance(item, Step) or item.finish is not None:
            return None
        self.taken += 1
        self._items.popleft()
        return item

    def follow(self, wake: Callable[[], object]) -> bool:
        if self._items:
            return False
        self.follower = wake
        return True

    def unfollow(self) -> None:
        self.follower = None

    async def canary(self, prompt: Prompt) -> None:
        """It always works."""

    async def close(self) -> None:
        """Nothing is kept."""
