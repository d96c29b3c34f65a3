"""Key-value caches of a logits model's sequences, and their memory budget.

A model returns the whole cache in each step, in the predictor's buffer. Only the new token's part is copied from that
buffer. Each step's input is a copy of the whole cache.
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
"""Number of bytes copied in one time unit of the scheduler's INLINE_COST."""


@dataclass(frozen=True)
class CacheTensor:
    """One tensor of a key-value cache: the model's input ``past`` and its output ``present``.

    Attributes:
        shape: shape for one sequence, with -1 for the token axis: [heads, -1, head size].
        source: whether the tensor caches the encoder's tokens, which the model returns in the first step only. Other
                    tensors start empty and grow by one token per step.
    """

    past: str
    present: str
    datatype: str
    shape: tuple[int, ...]
    source: bool = False

    @cached_property
    def leading_axes(self) -> tuple[slice, ...]:
        """Index of the axes before the token axis."""
        return (slice(None),) * self.shape.index(-1)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return NUMPY_DTYPES[self.datatype]

    @property
    def token_bytes(self) -> int:
        """Bytes per token."""
        return math.prod(size for size in self.shape if size >= 0) * self.dtype.itemsize

    def shape_for(self, tokens: int) -> tuple[int, ...]:
        """Shape with ``tokens`` on the token axis."""
        return tuple(tokens if size < 0 else size for size in self.shape)

    def index(self, start: int, end: int) -> tuple[slice, ...]:
        """Index of the tokens from ``start`` to ``end`` in one sequence's tensor."""
        return (*self.leading_axes, slice(start, end))


def cache_bytes(tensors: Sequence[CacheTensor], tokens: int, source: int) -> int:
    """Bytes of a cache of ``tokens`` decoder tokens and ``source`` encoder tokens."""
    return sum(tensor.token_bytes * (source if tensor.source else tokens) for tensor in tensors)


class Cache:
    """Key-value cache of one sequence, with ``length`` decoder tokens so far.

    Its memory is allocated for ``capacity`` decoder tokens and ``source`` encoder tokens.
    """

    def __init__(self, tensors: Sequence[CacheTensor], capacity: int, source: int) -> None:
        self.length = 0
        self._tensors = tensors
        self.data = {
            tensor.present: np.empty(tensor.shape_for(source if tensor.source else capacity), tensor.dtype)
            for tensor in tensors
        }

    def append(self, rows: Mapping[str, Array], count: int) -> None:
        """Copies ``count`` new tokens from a step's outputs. The first step also copies the encoder's tokens."""
        for tensor in self._tensors:
            if not tensor.source:
                self.data[tensor.present][tensor.index(self.length, self.length + count)] = rows[tensor.present]
            elif not self.length:
                self.data[tensor.present][...] = rows[tensor.present]
        self.length += count


def past_input(tensor: CacheTensor, caches: Sequence[Cache], width: int) -> Array:
    """Input tensor [rows, ..., width, ...] with the caches of a batch.

    ``width`` is the token count of the longest cache; 0 before the first step. Encoder tokens have padding on the
    right, as in the batch's input_ids. Decoder tokens have padding on the left, because the model appends the new token
    on the right.
    """
    data = np.empty((len(caches), *tensor.shape_for(width)), tensor.dtype)
    for cache, row in zip(caches, data, strict=True):
        whole = cache.data[tensor.present]
        size = min(whole.shape[len(tensor.leading_axes)] if tensor.source else cache.length, width)
        start = 0 if tensor.source else width - size
        # Zero the padding: uninitialized memory may contain NaN, and NaN times the mask's 0 is still NaN.
        if size < width:
            row[tensor.index(0, start)] = 0
            row[tensor.index(start + size, width)] = 0
        row[tensor.index(start, start + size)] = whole[tensor.index(0, size)]
    return data


class CacheBudget:
    """Memory budget of all sequences' caches (--max_cache_bytes), for one event loop.

    A sequence reserves memory for its prompt and max_tokens when it starts. Waiting sequences get memory in order of
    arrival, so that small sequences can't starve a large one.

    Attributes:
        held: bytes in use.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.held = 0

    def check(self, size: int) -> None:
        """Raises TooLarge if a cache of ``size`` bytes exceeds the whole budget."""
        if size > self._limit:
            limit = f"at most {self._limit} bytes of key-value cache (--max_cache_bytes)"
            raise TooLarge("", limit, f"{size} bytes", "ask for fewer tokens")

    async def take(self, size: int) -> None:
        """Waits until ``size`` bytes are free, and reserves them. Raises TooLarge as ``check`` does."""
        self.check(size)
        if not self._waiting and self.held + size <= self._limit:
            self.held += size
            return
        waiter = size, asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter[1]
        except asyncio.CancelledError:
            if waiter[1].cancelled():
                with suppress(ValueError):
                    self._waiting.remove(waiter)
                size = 0  # nothing was reserved, but the next waiters may fit now
            self.give_back(size)
            raise

    def give_back(self, size: int) -> None:
        """Releases ``size`` bytes, and wakes waiting sequences that now fit."""
        self.held -= size
        while self._waiting and self.held + self._waiting[0][0] <= self._limit:
            size, future = self._waiting.popleft()
            if not future.cancelled():
                self.held += size
                future.set_result(None)
