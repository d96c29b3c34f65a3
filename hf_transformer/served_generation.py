"""Generations of one served model: who is in a pipeline, and what is noted of each that ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.following import Source
from hf_transformer.generation.pipeline import Generation, GenerationPipeline
from hf_transformer.generation.types import Piece
from hf_transformer.types import Context


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


class ServedGeneration:
    """A generation that tells the served model how it ended.

    Args:
        generation: what was started.
        users: those of its pipeline; this is one of them until it is left.
        succeeded: called once all of it was given.
        failed: called with what ended it early.
    """

    def __init__(
        self,
        generation: Generation,
        users: Users,
        context: Context,
        succeeded: Callable[[Context], None],
        failed: Callable[[RequestError], None],
    ) -> None:
        self._generation = generation
        self._users = users
        self._context = context
        self._succeeded = succeeded
        self._failed = failed
        self._started = time.perf_counter()
        self._over = False

    @property
    def prompt_tokens(self) -> int:
        return self._generation.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        """Those that have come so far."""
        return self._generation.completion_tokens

    @property
    def source(self) -> Source[Piece] | None:
        """See Generation. What ends it comes by asking, so that the served model hears of it."""
        return self._generation.source

    async def __aenter__(self) -> Self:
        try:
            await self._generation.__aenter__()
        except BaseException:
            self._users.leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._generation.__aexit__(kind, error, trace)
        finally:
            self._users.leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        timings = self._context.timings
        try:
            piece = await self._generation.__anext__()
        except StopAsyncIteration:
            if not self._over:
                self._over = True
                self._succeeded(self._context)
            raise
        except (PredictorError, PredictorTimeout, PredictorUnavailable) as error:
            self._failed(error)
            raise
        if not timings.predict:
            timings.predict = time.perf_counter() - self._started  # to the first piece, for who is told by then
        return piece
