"""Ranges of tokens: truncation of texts and pairs, their windows, and spans of a text in windows,
and the characters of a text's first or last tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from hf_transformer.errors import InvalidInput
from hf_transformer.types.tokenization import Encoding, SpannedEncoding, SpannedText, Tokenization

Kept: TypeAlias = tuple[range, ...]
"""The tokens of each text that an encoding keeps, counted from the text's first token."""


def plan(
    counts: Sequence[int], added: int, limit: int, options: Tokenization, left: bool
) -> tuple[Sequence[Kept], bool]:
    """Truncates a text or pair to ``limit`` tokens and ``options.max_each``, or splits it into windows.

    Sources: truncate_encoding in tokenizers/src/tokenizer/encoding.rs, truncate_encodings in utils/truncation.rs.

    Args:
        counts: the number of tokens of each text, one or two.
        added: the number of special tokens.
        limit: the maximum number of tokens with special tokens.
        left: whether to drop the beginning of a text, and to count windows from its end.

    Returns:
        the kept tokens of each window (without ``options.windows`` a single one), and whether no window contains some
        tokens.

    Raises:
        InvalidInput: a pair doesn't fit, or the stride exceeds the room.
        TooLarge, TooManyRequests: see WindowBudget.
    """
    kept = [min(count, most) for count, most in zip(counts, options.max_each or counts, strict=False)]
    cut, room = kept != [*counts], limit - added
    if sum(kept) > room:
        if options.windows:
            windows, more = _windows(counts, kept, added, limit, options, left)
            return windows, more or cut
        if options.one_side:
            kept[_split(kept, options)] = _room(kept, added, limit, options)
        else:
            if room < 0:
                raise InvalidInput("", f"a pair of texts that fits into {limit} tokens")
            kept[:] = longest_first(kept[0], sum(kept[1:]), room)[: len(kept)]
        cut = True
    return (tuple(_end(range(count), number, left) for count, number in zip(counts, kept, strict=True)),), cut


def _windows(
    counts: Sequence[int], kept: Sequence[int], added: int, limit: int, options: Tokenization, left: bool
) -> tuple[list[Kept], bool]:
    """Implements ``plan`` for windows of one text, each with the other text."""
    split, room, stride = _split(kept, options), _room(kept, added, limit, options), stride_of(limit, options)
    if options.fit_stride:
        stride = min(stride, room // 2)
    if stride >= room:
        raise InvalidInput(
            "",
            f"a stride of less than {room} tokens, the room that one text of the pair leaves in {limit} tokens",
            str(stride),
            "shorten that text",
        )
    starts = range(0, kept[split] - stride, room - stride)
    used = starts[: options.max_windows_each]
    if options.budget is not None:
        options.budget.windows(len(used), len(used) * limit, detail=options.detail)
    whole = [_end(range(count), number, left) for count, number in zip(counts, kept, strict=True)]
    text, windows = whole[split], []
    for start in used:
        end = len(text) - start
        whole[split] = text[max(0, end - room) : end] if left else text[start : start + room]
        windows.append(tuple(whole))
    return windows, len(used) < len(starts)


def stride_of(limit: int, options: Tokenization) -> int:
    """The number of tokens that neighbouring windows share."""
    return min(limit // 2, 128) if options.stride is None else options.stride


def _split(kept: Sequence[int], options: Tokenization) -> int:
    """The index of the text to cut: by default the longer text."""
    if len(kept) == 1 or options.one_side:
        return int(options.only_second and len(kept) > 1)
    return int(kept[1] > kept[0])


def _room(kept: Sequence[int], added: int, limit: int, options: Tokenization) -> int:
    """The number of tokens that special tokens and the other text leave. Raises InvalidInput if there are none."""
    split = _split(kept, options)
    taken = added + sum(kept) - kept[split]
    if taken >= limit:
        here, other = ("second", "first") if split else ("first", "second")
        raise InvalidInput(
            "",
            f"a pair of texts whose {other} one leaves room for the {here} in {limit} tokens",
            f"{taken} tokens without the {here}",
            f"only the {here} is truncated",
        )
    return limit - taken


def _end(tokens: range, count: int, left: bool) -> range:
    """The first ``count`` tokens, or the last ones with ``left``."""
    return tokens[len(tokens) - count :] if left else tokens[:count]


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Token counts of both texts after longest-first truncation to ``room`` tokens in total. ``second`` is 0 for one
    text.

    Source: truncate_encodings in tokenizers/src/utils/truncation.rs.
    """
    short, long = sorted((first, second))
    if short + long <= room:
        return first, second
    long = max(short, room - short)
    if short + long > room:
        short = room // 2
        long = room - short
    return (short, long) if first <= second else (long, short)


def locate(text: SpannedText, windows: Sequence[Encoding], options: Tokenization, stride: int) -> Iterator[Encoding]:
    """Adds the tokens of each span to the windows of a text.

    A token belongs to the spans that contain its last character, and to the first window that contains it. Special
    tokens belong to no span.

    Args:
        windows: the encodings with all details, in the order of the text.
        stride: the number of tokens that neighbouring windows share.

    Raises:
        TooLarge, TooManyRequests: see WindowBudget.
    """
    starts, ends = np.array(text.spans, np.int64).T
    for number, window in enumerate(windows):
        special, offsets = window.special_mask or [], window.offsets or []
        first = special.index(0) if 0 in special else len(window)
        stop = len(window) - (special[::-1].index(0) if 0 in special else 0)
        first += stride if number else 0
        last = np.array([end - (end > start) for start, end in offsets[first:stop]], np.int64)
        last = np.maximum.accumulate(last)  # never descending, for the search
        begins, stops = last.searchsorted(starts) + first, last.searchsorted(ends) + first
        found = np.flatnonzero(begins < stops)
        if options.budget is not None:
            options.budget.spans(len(found))
        ranges = zip(found.tolist(), map(range, begins[found].tolist(), stops[found].tolist()), strict=True)
        yield SpannedEncoding(
            window.ids, window.type_ids, window.truncated, window.offsets, window.special_mask, spans=dict(ranges)
        )


def shortened(text: str, encoding: Encoding, count: int, left: bool) -> str:
    """Cuts a text to its first ``count`` tokens, or to the last ones with ``left``.

    A character of several tokens, such as a symbol in a byte-level vocabulary, remains or goes as a whole.

    Args:
        encoding: the tokens with offsets, without special tokens.
    """
    offsets = encoding.offsets or []
    cut = len(offsets) - count if left else count
    if not 0 < cut < len(offsets):
        return text
    step = 1 if left else -1
    while 0 < cut < len(offsets) and offsets[cut][0] < offsets[cut - 1][1]:
        cut += step
    if left:
        return text[offsets[cut][0] :] if cut < len(offsets) else ""
    return text[: offsets[cut - 1][1]] if cut else ""
