"""Key-value caches of sequences of a logits model, and the budget of their memory.

A model returns the whole cache in each step, in the predictor's buffer. Only the new token's part is copied from there.
Each step's input is a copy of the whole cache.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hf_transformer.errors import TooLarge
from hf_transformer.types.tensors import NUMPY_DTYPES, Array

BYTES_PER_COST = 1000
"""Bytes that are copied in the time of one unit of the scheduler's INLINE_COST."""


@dataclass(frozen=True)
class CacheTensor:
    """One tensor that a model takes (``past``) and returns (``present``).

    ``shape`` is one sequence's, with -1 for the axis of the tokens: [heads, -1, head size]. In the first step the model
    gets one of no tokens. With ``source`` it holds the encoder's tokens and is returned with the first step alone; else
    it grows by a token with each step.
    """

    past: str
    present: str
    datatype: str
    shape: tuple[int, ...]
    source: bool = False

    @cached_property
    def before(self) -> tuple[slice, ...]:
        """The index of the axes before that of the tokens."""
        return (slice(None),) * self.shape.index(-1)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return NUMPY_DTYPES[self.datatype]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's part."""
        return math.prod(size for size in self.shape if size >= 0) * self.dtype.itemsize

    def sized(self, tokens: int) -> tuple[int, ...]:
        """Its shape for ``tokens``."""
        return tuple(tokens if size < 0 else size for size in self.shape)

    def part(self, start: int, end: int) -> tuple[slice, ...]:
        """The index of the tokens from ``start`` to ``end`` of one sequence's tensor."""
        return (*self.before, slice(start, end))


def cache_bytes(tensors: Sequence[CacheTensor], tokens: int, source: int) -> int:
    """Bytes of a cache of ``tokens``, and ``source`` tokens of the encoder."""
    return sum(one.token_bytes * (source if one.source else tokens) for one in tensors)


class Cache:
    """One sequence's cache of ``length`` tokens, with memory for ``capacity``, and for ``source`` of the encoder's."""

    def __init__(self, tensors: Sequence[CacheTensor], capacity: int, source: int) -> None:
        self.length = 0
        self._tensors = tensors
        self.data = {one.present: np.empty(one.sized(source if one.source else capacity), one.dtype) for one in tensors}

    def add(self, rows: Mapping[str, Array], count: int) -> None:
        """Copies ``count`` new tokens from the outputs ``rows``, and in the first step the source."""
        for one in self._tensors:
            if not one.source:
                self.data[one.present][one.part(self.length, self.length + count)] = rows[one.present]
            elif not self.length:
                self.data[one.present][...] = rows[one.present]
        self.length += count


def past_input(tensor: CacheTensor, caches: Sequence[Cache], width: int) -> Array:
    """The model's input [rows, ..., width, ...] for a batch of sequences; ``width`` is the longest one's tokens, 0 if
    they only begin.

    A source is padded on the right, as the batch's input_ids are. Other caches are padded on the left, since the model
    puts the new token behind them.
    """
    data = np.empty((len(caches), *tensor.sized(width)), tensor.dtype)
    for cache, mine in zip(caches, data, strict=True):
        whole = cache.data[tensor.present]
        size = min(whole.shape[len(tensor.before)] if tensor.source else cache.length, width)
        start = 0 if tensor.source else width - size
        # Zeros, not old memory: the mask's weight of 0 times NaN is still NaN.
        if size < width:
            mine[tensor.part(0, start)] = 0
            mine[tensor.part(start + size, width)] = 0
        mine[tensor.part(start, start + size)] = whole[tensor.part(0, size)]
    return data


class CacheBudget:
    """``limit`` bytes for the caches of all sequences (--max_cache_bytes), for one event loop.

    A sequence takes the bytes of its prompt and of max_tokens when it begins. Those that don't fit wait in order, so
    that small ones can't keep a large one waiting for ever.

    Attributes: ``held``, the bytes that are taken.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.held = 0

    def check(self, size: int) -> None:
        """Raises TooLarge for a cache that would not fit if there were no other."""
        if size > self._limit:
            raise TooLarge.of(
                f"the key-value cache of this text needs {size} bytes, --max_cache_bytes allows {self._limit}: ask for "
                "fewer tokens"
            )

    async def take(self, size: int) -> None:
        """Takes ``size`` bytes once they are free; ``give_back`` returns them. Raises TooLarge as ``check`` does."""
        self.check(size)
        if not self._waiting and self.held + size <= self._limit:
            self.held += size
            return
        turn = size, asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn[1]
        except asyncio.CancelledError:
            if turn[1].cancelled():
                with suppress(ValueError):
                    self._waiting.remove(turn)
                size = 0  # but those behind it may fit now
            self.give_back(size)
            raise

    def give_back(self, size: int) -> None:
        """Returns ``size`` bytes, and lets waiting sequences take theirs."""
        self.held -= size
        while self._waiting and self.held + self._waiting[0][0] <= self._limit:
            taken, turn = self._waiting.popleft()
            if not turn.cancelled():
                self.held += taken
                turn.set_result(None)
