"""The tokens of a client's spans in a text, and the characters of a text's first or last tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from hf_transformer.types.tokenization import Encoding, SpannedEncoding, SpannedText


def locate(text: SpannedText, windows: Sequence[Encoding], stride: int) -> Iterator[Encoding]:
    """Adds the tokens of each span to the windows of a text.

    A token belongs to the spans that contain its last character, and to the first window that contains it. Special
    tokens belong to no span.

    Args:
        windows: the encodings with all details, in the order of the text.
        stride: the number of tokens that neighbouring windows share.
    """
    for number, window in enumerate(windows):
        special, offsets = window.special_mask or [], window.offsets or []
        first = special.index(0) if 0 in special else len(window)
        stop = len(window) - (special[::-1].index(0) if 0 in special else 0)
        first += stride if number else 0
        ends, highest = [], 0
        for start, end in offsets[first:stop]:
            highest = max(highest, end - (end > start))  # never descending, for the search
            ends.append(highest)
        spans = [range(first + bisect_left(ends, start), first + bisect_left(ends, end)) for start, end in text.spans]
        yield SpannedEncoding(
            window.ids, window.type_ids, window.truncated, window.offsets, window.special_mask, spans=spans
        )


def shortened(text: str, encoding: Encoding, count: int, left: bool) -> str:
    """Cuts a text to its first ``count`` tokens, or to the last ones with ``left``.

    A character of several tokens, such as a symbol in a byte-level vocabulary, remains or goes as a whole.

    Args:
        encoding: the tokens with offsets, without special tokens.
    """
    offsets = encoding.offsets or []
    place = len(offsets) - count if left else count
    if not 0 < place < len(offsets):
        return text
    step = 1 if left else -1
    while 0 < place < len(offsets) and offsets[place][0] < offsets[place - 1][1]:
        place += step
    if left:
        return text[offsets[place][0] :] if place < len(offsets) else ""
    return text[: offsets[place - 1][1]] if place else ""
