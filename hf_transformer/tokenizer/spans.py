"""The tokens of a client's spans in a text."""

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
