"""Continuous batching: every text's next step queues as soon as its last one is there, and leaves with all others'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hf_transformer.core.scheduler import Scheduler
from hf_transformer.generation.cache import Cache
from hf_transformer.generation.cache_budget import Share
from hf_transformer.generation.logits_batches import LOGITS, Running
from hf_transformer.generation.sampling import Chooser
from hf_transformer.generation.types import FinishReason, Step, TokenScore
from hf_transformer.types import Array, Context

AHEAD = 1
"""Tokens that may be there unread while the next one is asked for. Without any, each text would miss every other batch:
its reader gets its turn only when the next one has left. A reader that is slower than that holds up nobody but itself,
and at most one step is made in vain when it stops."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What a text begins with and when it ends: ``start`` are the decoder's first tokens, ``source`` the prompt of an
    encoder-decoder, ``ends`` are tokens that end it, at most ``max_new`` tokens are generated."""

    start: Sequence[int]
    source: Sequence[int]
    ends: frozenset[int]
    max_new: int


class Start(Protocol):
    """Makes the first step of several texts at once."""

    def join(self, text: Continuation, cost: int) -> Callable[[], object]:
        """Takes a text in, before its first step. Its ``decode`` is then called, and its ``done``.

        Returns:
            What withdraws it.
        """


class Continuation(Running):
    """One text in the making, step by step. For one event loop, but ``decode`` may run in a thread.

    Args:
        share: of the bytes for caches, what this text's takes; given back when the text is closed.
        start: makes the first step, with others'; without one it is made alone.
    """

    def __init__(
        self,
        scheduler: Scheduler[Running],
        extent: Extent,
        chooser: Chooser,
        cache: Cache | None,
        context: Context,
        *,
        cost: int,
        share: Share | None,
        start: Start | None,
    ) -> None:
        self._scheduler = scheduler
        self._chooser = chooser
        self._cache = cache
        self._context = context
        self._cost = cost
        self._share = share
        self._start = start
        self._ends = extent.ends
        self._source = np.array(extent.source, np.int64)
        # Memory for all of it: a list would have to become an array with each step.
        self._ids = np.empty(len(extent.start) + extent.max_new, np.int64)
        self._ids[: len(extent.start)] = extent.start
        self._length = len(extent.start)
        self._chosen: tuple[int, TokenScore | None] | None = None
        self._unread: list[int] = []
        self._scores: list[TokenScore] = []
        self._finish: FinishReason | None = None if extent.max_new > 0 else "length"
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._withdraw: Callable[[], object] | None = None
        self._closed = False

    @property
    def tokens(self) -> Array:
        return self._ids[: self._length]

    @property
    def source(self) -> Array:
        return self._source

    @property
    def cache(self) -> Cache | None:
        return self._cache

    async def next(self) -> Step:
        """What is new: at least one token, or the end.

        Raises:
            RequestError: the step failed.
        """
        self._go_on()
        if not self._unread and self._finish is None and self._error is None:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if self._error is not None and not self._unread:
            raise self._error
        step = Step(self._unread, scores=self._scores, finish=self._finish)
        self._unread, self._scores = [], []
        self._go_on()
        return step

    def close(self) -> None:
        """Nobody reads on: a step in the queue leaves it. To be called once."""
        self._closed = True
        if self._withdraw is not None:
            self._withdraw()
            self._withdraw = None
        self._error = None  # whose traceback leads back here: only the collector would find the cache
        if self._share is not None:
            self._share.close()

    def _go_on(self) -> None:
        """Asks for the next step, unless one is under way, the text has ended, or its reader is behind."""
        over = self._closed or self._finish is not None or self._error is not None
        if over or self._withdraw is not None or len(self._unread) > AHEAD:
            return
        cost, cache = self._cost, self._cache
        if cache is not None and self._length > cache.capacity:
            if self._share is not None and not self._share.grow(cache.bytes_for(self._length), self._go_on):
                return  # and comes again once there is room
            cost += cache.cost(self._length)
        start, self._start = self._start, None
        if start is None:
            self._withdraw = self._scheduler.submit_step(self, self.decode, self._context, cost, self.done)
        else:
            self._withdraw = start.join(self, cost)

    def decode(self, owner: object, item: object, rows: Mapping[str, Array], options: object) -> None:
        """Chooses the token and keeps what is new of the cache, while the predictor's buffer is held."""
        self._chosen = self._chooser.choose(rows[LOGITS])
        cache = self._cache
        if cache is not None:
            cache.add(rows, 1 if cache.length else self._length)

    def done(self, error: Exception | None) -> None:
        """A step is there, or has failed."""
        self._withdraw = None
        if error is not None:
            self._error = error
        elif self._chosen is not None:
            self._take(*self._chosen)
        self._go_on()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _take(self, token: int, score: TokenScore | None) -> None:
        if token in self._ends:
            self._finish = "stop"
            return
        self._ids[self._length] = token
        self._length += 1
        self._unread.append(token)
        if score is not None:
            self._scores.append(score)
        if self._length == len(self._ids):
            self._finish = "length"
