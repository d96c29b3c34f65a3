"""Encoding of texts behind a prompt of labels, as GLiNER models read them.

Each word and each label is tokenized by itself, so the prompt of a text and its windows are put together from ids.
Sources: gliner 0.2.29, data_processing/processor.py, utils.py and tokenizer.py; the paper, arXiv:2311.08526.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain, islice

import numpy as np

from hf_transformer.errors import ContextLengthExceeded
from hf_transformer.tokenizer.windows import stride_of
from hf_transformer.types.tokenization import (
    Encoding,
    LabelFrame,
    LabelledEncoding,
    LabelledText,
    Tokenization,
    Words,
)

WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
"""A word of the splitter "whitespace": letters and digits, also joined by - and _, or any other single character."""
WHOLE = Tokenization(detail=True, whole=True, special_tokens=False)
Encode = Callable[[Words], Encoding]
"""Encodes words without truncation and special tokens."""
Span = tuple[int, int]


def encode_labelled(text: LabelledText, encode: Encode, limit: int, options: Tokenization) -> list[Encoding]:
    """Encodes a text in windows of whole words, each with the prompt; without ``options.windows`` in the first one.

    Words without tokens, such as a mark that the tokenizer's normalization removes, are no words of the model; one that
    follows a word directly belongs to it. A text without words has no encodings.

    Args:
        limit: the maximum number of tokens of an encoding.

    Raises:
        ContextLengthExceeded: the labels leave no room for a word.
        TooLarge, TooManyRequests: see WindowBudget.
    """
    frame = text.frame
    prompt = _prompt(text.labels, frame, encode)
    room = limit - len(prompt) - len(frame.suffix)
    if room < 1:
        raise ContextLengthExceeded(
            "",
            f"labels that leave room for a word in {limit} tokens",
            f"{len(prompt) + len(frame.suffix)} tokens of {len(text.labels)} labels",
            "send fewer or shorter labels",
            limit=limit,
            counted=False,
        )
    found = WORD.finditer(text.text)
    spans = [match.span() for match in (found if options.windows else islice(found, frame.max_words + 1))]
    if not spans:
        return []
    whole = encode(Words(tuple([text.text[start:end] for start, end in spans])))
    numbers = np.array(whole.word_ids, np.int64)
    counts = np.bincount(numbers, minlength=len(spans))
    words, kept = _joined(spans, counts.tolist()), counts.nonzero()[0]
    if not words:
        return []
    starts = np.searchsorted(numbers, kept)
    sizes = np.minimum(counts[kept], room)
    windows = word_windows(sizes, room, frame.max_words, options, around=limit - room)
    cut = bool((counts[kept] > room).any()) or windows[-1].stop < len(words)
    tokens = [whole.ids[start : start + size] for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]
    encodings: list[Encoding] = []
    for number, window in enumerate(windows):
        parts = tokens[window.start : window.stop]
        ids = [*prompt, *chain.from_iterable(parts), *frame.suffix]
        mask = [0] * len(prompt) + words_mask([*map(len, parts)], frame) + [0] * len(frame.suffix)
        encodings.append(
            LabelledEncoding(
                ids,
                [0] * len(ids),
                cut,
                words=words[window.start : window.stop],
                words_mask=mask,
                labels=len(text.labels),
                first=window.start,
                before=windows[number - 1] if number else None,
                after=windows[number + 1] if number + 1 < len(windows) else None,
                is_last_but_one=number + 2 == len(windows),
            )
        )
    return encodings


def _prompt(labels: Sequence[str], frame: LabelFrame, encode: Encode) -> list[int]:
    """The ids before the text: the prefix, a marker and the tokens of each label, and the separator."""
    if not frame.marker:
        return [*frame.prefix, *frame.separator]
    encoded = encode(Words(tuple(labels)))
    tokens: list[list[int]] = [[] for _ in labels]
    for number, word in zip(encoded.ids, encoded.word_ids or (), strict=True):
        if word is not None:
            tokens[word].append(number)
    marked = [part for label in tokens for part in (frame.marker, label)]
    return [*frame.prefix, *chain.from_iterable(marked), *frame.separator]


def _joined(spans: Sequence[Span], counts: Sequence[int]) -> list[Span]:
    """The words that have tokens. One without tokens extends the word that it follows directly."""
    words: list[Span] = []
    for (start, end), count in zip(spans, counts, strict=True):
        if count:
            words.append((start, end))
        elif words and words[-1][1] == start:
            words[-1] = words[-1][0], end
    return words


def words_mask(sizes: Sequence[int], frame: LabelFrame) -> list[int]:
    """The number of the word, from 1, at the tokens of it that the model reads, and 0 at its other tokens."""
    mask: list[int] = []
    for number, size in enumerate(sizes, 1):
        if frame.pooling == "first":
            mask += number, *[0] * (size - 1)
        elif frame.pooling == "last":
            mask += *[0] * (size - 1), number
        else:
            mask += [number] * size
    return mask


def word_windows(
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]], room: int, most: int, options: Tokenization, *, around: int
) -> list[range]:
    """Splits words into windows of at most ``room`` tokens and ``most`` words; the first one without
    ``options.windows``.

    Neighbours share whole words of at most the stride, half the room and half of ``most``.

    Args:
        sizes: the tokens of each word, at most ``room``.
        around: the tokens of the prompt and the suffix, which each window repeats.

    Raises:
        TooLarge, TooManyRequests: see WindowBudget.
    """
    ends = np.cumsum(sizes)
    stride = min(stride_of(room, options), room // 2)
    windows, first, tokens = list[range](), 0, 0
    while True:
        done = int(ends[first - 1]) if first else 0
        stop = min(int(ends.searchsorted(done + room, "right")), first + most)
        windows.append(range(first, stop))
        tokens += around + int(ends[stop - 1]) - done
        if stop >= len(ends) or not options.windows:
            break
        shared = int(ends.searchsorted(ends[stop - 1] - stride)) + 1
        least = (
            int(ends.searchsorted(ends[stop] - room)) + 1 if ends[stop] > room else 0
        )  # leaves room for the next word
        first = max(first + 1, min(shared, stop), stop - most // 2, least)
    if options.windows and options.budget is not None and len(windows) > 1:
        options.budget.windows(len(windows), tokens, detail=True)
    return windows
