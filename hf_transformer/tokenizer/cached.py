"""Encodings from the word cache: special tokens, truncation and windows without the library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokenizers import Tokenizer

from hf_transformer.tokenizer.words import Layout, WordCache
from hf_transformer.types.tokenization import PLAIN, Encoding, TextInput, Tokenization, Truncation


class CachedEncoder:
    """Encodes texts and pairs whose words the cache knows, with the library's ids, type ids and truncation.

    It returns None for all others, and for what needs the library: offsets, a ``max_length`` of the request, cuts of
    a ``whole`` text, and errors. An Engine then asks the library.
    """

    def __init__(self, words: WordCache, backend: Tokenizer, special_tokens: bool, truncates_left: bool) -> None:
        self._words = words
        self._special_tokens, self._left = special_tokens, truncates_left
        self._layouts = {(n, special): Layout.of(backend, n, special) for n in (1, 2) for special in (True, False)}
        single = self._layouts[1, special_tokens]
        # Special tokens around a text, if all type ids are 0.
        self._around = None if single is None or single.has_types else (single.special[0][0], single.special[1][0])

    def encode(self, text: TextInput, limit: int, options: Tokenization) -> list[Encoding] | None:
        """Encodes a text into windows of at most ``limit`` tokens: one unless ``options.windows`` is set."""
        if options is PLAIN and type(text) is str and self._around is not None:  # the usual case
            plain, (before, after) = self._words.ids(text), self._around
            if plain is None:
                return None
            excess = len(before) + len(plain) + len(after) - limit
            if excess > 0:
                if excess > len(plain):
                    return None
                plain = plain[excess:] if self._left else plain[:-excess]
            plain = [*before, *plain, *after]
            return [Encoding(plain, [0] * len(plain), excess > 0)]
        if options.detail or options.max_length or not isinstance(text, str | tuple):
            return None
        parts = (text,) if isinstance(text, str) else text
        layout = self._layouts[len(parts), self._special_tokens]
        if layout is None or (options.windows and (options.one_side or len(parts) > 1)):
            return None
        texts = []
        for part in parts:
            ids = self._words.ids(part)
            if ids is None:
                return None
            texts.append(ids)
        room = limit - layout.size
        stride = min(limit // 2, 128) if options.stride is None else options.stride
        if options.windows and stride >= room:
            return None
        if sum(map(len, texts)) > room:
            return None if options.whole else self._truncated(texts, layout, room, stride, options)
        if not options.whole:
            return [layout.fill(texts)]
        if options.special_tokens is not None and (layout := self._layouts[len(texts), options.special_tokens]) is None:
            return None
        return [replace(layout.fill(texts), cut=Truncation(0, (None,) * len(texts)))]

    def learn(self, text: TextInput) -> None:
        """Learns words of a text or pair that ``encode`` left to the library."""
        parts = (text,) if isinstance(text, str) else text
        if isinstance(parts, tuple) and self._layouts[len(parts), self._special_tokens] is not None:
            for part in parts:
                self._words.learn(part)

    def _truncated(
        self, texts: Sequence[list[int]], layout: Layout, room: int, stride: int, options: Tokenization
    ) -> list[Encoding] | None:
        """Implements ``encode`` for texts that exceed ``room`` tokens together."""
        counts = [*map(len, texts)]
        if options.windows:
            [ids] = texts
            starts = range(0, len(ids) - stride, room - stride)
            if len(starts) > options.max_windows:
                return None
            ends = [len(ids) - start if self._left else start + room for start in starts]
            return [layout.fill([ids[max(0, end - room) : end]]) for end in ends]
        if options.one_side:
            counts[options.only_second and len(texts) > 1] -= sum(counts) - room
        else:
            counts[:] = longest_first(counts[0], sum(counts[1:]), room)[: len(texts)]
        if room < 0 or min(counts) < options.one_side:
            return None
        kept = [ids[len(ids) - n :] if self._left else ids[:n] for ids, n in zip(texts, counts, strict=True)]
        return [replace(layout.fill(kept), truncated=True)]


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
