"""What of a text does not fit, found in its whole encoding: the same tokens that the Rust library would cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tokenizers

from hf_transformer.types import Encoding, TextInput

BYTES = 4
"""Bytes of a character in UTF-8, at most."""
MANY_PIECES = 64
"""Pairs that could be cut into more pieces than this are not cut by the library, which makes a piece of every piece of
the one text with every piece of the other, whether or not anybody reads them."""

LISTS = ("ids", "type_ids", "offsets", "special_mask", "word_ids", "sequence_ids")
"""What an encoding has for each token."""


def many_pieces(text: TextInput, limit: int) -> bool:
    """Whether a pair could be cut into more pieces than are good."""
    if not isinstance(text, tuple):
        return False
    first, second = (1 + BYTES * len(one) // (limit // 2 + 1) for one in text)
    return first * second > MANY_PIECES


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens are left of the two texts of a pair that share ``room`` tokens; a single text has a ``second``
    of 0. Source: truncate_encodings in tokenizers/src/utils/truncation.rs."""
    short, long = sorted((first, second))
    if short + long <= room:
        return first, second
    long = max(short, room - short)
    if short + long > room:
        short = room // 2
        long = room - short
    return (short, long) if first <= second else (long, short)


def cut_ranges(encoded: tokenizers.Encoding, pair: bool, room: int, *, from_left: bool) -> list[range]:
    """The tokens of each text that don't fit, as indices into the encoding of the whole.

    Args:
        room: how many tokens fit beside the special ones.
        from_left: whether the beginning of a text is cut off, and not its end.
    """
    owners = encoded.sequence_ids
    first, second = owners.count(0), owners.count(1)
    ranges = []
    for number, left in enumerate(longest_first(first, second, room)[: 1 + pair]):
        length = second if number else first
        start = owners.index(number) if length else 0
        start += 0 if from_left else left
        ranges.append(range(start, start + length - left))
    return ranges


def without(encoding: Encoding, ranges: Sequence[range]) -> Encoding:
    """An encoding without some ranges of its tokens, which don't overlap."""
    kept: list[int] = []
    start = 0
    for cut in sorted(filter(len, ranges), key=lambda one: one.start):
        kept += range(start, cut.start)
        start = cut.stop
    kept += range(start, len(encoding))
    lists = ((name, getattr(encoding, name)) for name in LISTS)
    left: Any = {name: [values[index] for index in kept] for name, values in lists if values is not None}
    return replace(encoding, **left)


def span(encoded: tokenizers.Encoding, tokens: range) -> tuple[int, int] | None:
    """The characters of some tokens that follow each other in one text."""
    edges = [encoded.token_to_chars(index) for index in (tokens[0], tokens[-1])] if tokens else []
    found = [edge for edge in edges if edge is not None]
    return (found[0][0], found[-1][1]) if found else None
