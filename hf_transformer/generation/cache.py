"""The key-value caches of running texts: what a model gave for their tokens, to be given back to it with the next one.

A model returns the whole cache each time, in the predictor's buffer. Only what is new of it, one token's part, is
copied out of there; the rest of a text's cache is here already. The way back is a copy of all of it, into the batch's
input tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hf_transformer.types import NUMPY_DTYPES, Array

BLOCK = 64
"""Tokens that a cache grows by. To copy what is there costs some 3 percent of what the steps cost that copy it into
their inputs (measured with GPT-2's shapes, up to 128 and to 1,000 tokens)."""

BYTES_PER_COST = 1000
"""Bytes that are copied in the time of one unit of the scheduler's INLINE_COST."""


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """One tensor that a model takes (``past``) and returns (``present``).

    ``shape`` is one text's, with -1 for the axis of the tokens: [heads, -1, head size]. With ``source`` it holds the
    encoder's tokens, is returned with the first step and stays as it is; else it grows by a token with each step.
    ``optional`` says that the model can do without it in the first step; else it gets one of no tokens.
    """

    past: str
    present: str
    datatype: str
    shape: tuple[int, ...]
    source: bool = False
    optional: bool = False
    before: tuple[slice, ...] = field(init=False, repr=False)
    """The index of the axes before that of the tokens, computed once: every text's part is found by it in each step."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "before", (slice(None),) * self.shape.index(-1))

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return NUMPY_DTYPES[self.datatype]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's part."""
        return math.prod(size for size in self.shape if size >= 0) * self.dtype.itemsize

    def sized(self, tokens: int) -> tuple[int, ...]:
        """Its shape for so many tokens."""
        return tuple(tokens if size < 0 else size for size in self.shape)

    def part(self, start: int, end: int) -> tuple[slice, ...]:
        """The index of the tokens from ``start`` to ``end`` of one text's tensor."""
        return (*self.before, slice(start, end))


class Cache:
    """One text's cache, of which the parts of ``length`` tokens are there, with memory for ``capacity``.

    Its memory grows by BLOCK tokens at a time, and what is there is then copied. To ask for all of it at once and let
    the system give it as it is written to would be no less: its pages may be larger than what a head has of a text.
    """

    def __init__(self, tensors: Sequence[CacheTensor], most: int, source: int) -> None:
        """
        Args:
            most: tokens that it will have at the end.
            source: tokens of the encoder's.
        """
        self.length = 0
        self._tensors = tensors
        self._most = most
        self._source = source
        self.capacity = 0
        self.data = {one.present: np.empty(one.sized(source if one.source else 0), one.dtype) for one in tensors}

    def bytes_for(self, tokens: int) -> int:
        """Bytes that it takes with so many tokens."""
        return cache_bytes(self._tensors, self._capacity_for(tokens), self._source)

    def cost(self, tokens: int) -> int:
        """How long it takes to ``add`` up to so many, in the units of the scheduler's INLINE_COST, where that takes
        more memory. Else it is one token's part, which is little."""
        return tokens * sum(one.token_bytes for one in self._tensors) // BYTES_PER_COST

    def add(self, rows: Mapping[str, Array], count: int) -> None:
        """Copies the parts of ``count`` new tokens, and with the first step those of the source.

        Args:
            rows: by the name of the output, of the tokens that are new alone.
        """
        self._extend(self._capacity_for(self.length + count))
        for one in self._tensors:
            if not one.source:
                self.data[one.present][one.part(self.length, self.length + count)] = rows[one.present]
            elif not self.length:
                self.data[one.present][...] = rows[one.present]
        self.length += count

    def _capacity_for(self, tokens: int) -> int:
        return self.capacity if tokens <= self.capacity else next_capacity(tokens, self._most)

    def _extend(self, capacity: int) -> None:
        if capacity == self.capacity:
            return
        for one in self._tensors:
            if not one.source:
                larger = np.empty(one.sized(capacity), one.dtype)
                larger[one.part(0, self.length)] = self.data[one.present][one.part(0, self.length)]
                self.data[one.present] = larger
        self.capacity = capacity


def next_capacity(tokens: int, most: int) -> int:
    """For how many tokens there is memory once there are so many, of a text that comes to ``most`` in the end."""
    return min(tokens + BLOCK, most)


def cache_bytes(tensors: Sequence[CacheTensor], capacity: int, source: int) -> int:
    """Bytes of a text's cache, for so many tokens and so many of the encoder's."""
    return sum(one.token_bytes * (source if one.source else capacity) for one in tensors)


def past(tensor: CacheTensor, caches: Sequence[Cache | None], width: int) -> Array:
    """The model's input for a batch of texts, one of no tokens for those that only begin.

    A source is padded on the right, as the batch's input_ids are; what grows on the left, so that the new token, which
    the model puts behind it, is next to the last one.

    Args:
        caches: one per row.
        width: the tokens of the longest.

    Returns:
        [rows, ..., width, ...]
    """
    begun = [cache for cache in caches if cache is not None and cache.length]
    if not begun:
        return np.empty((len(caches), *tensor.sized(0)), tensor.dtype)
    data = np.empty((len(begun), *tensor.sized(width)), tensor.dtype)
    for row, cache in enumerate(begun):
        whole, mine = cache.data[tensor.present], data[row]
        size = whole.shape[len(tensor.before)] if tensor.source else cache.length
        gap = width - size
        # Zeros, not what the memory held: a mask takes their weight away, but NaN times nothing is still NaN.
        if tensor.source:
            mine[tensor.part(0, size)] = whole
            mine[tensor.part(size, width)] = 0
        elif gap:
            mine[tensor.part(0, gap)] = 0
            mine[tensor.part(gap, width)] = whole[tensor.part(0, size)]
        else:
            mine[...] = whole[tensor.part(0, size)]
    return data
