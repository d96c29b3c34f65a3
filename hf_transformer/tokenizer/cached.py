"""Encodings from the word cache: special tokens, truncation and windows without the library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokenizers import Tokenizer

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer.windows import plan, stride_of
from hf_transformer.tokenizer.words import Layout, WordCache
from hf_transformer.types.tokenization import PLAIN, Encoding, TextInput, Tokenization, Truncation


class CachedEncoder:
    """Encodes texts and pairs whose words the cache knows, with the library's ids, type ids and truncation.

    It returns None for all others, and for what needs the library: offsets, cuts of a ``whole`` text, and errors. An
    Engine then asks the library.
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
        if options.detail or not isinstance(text, str | tuple):
            return None
        parts = (text,) if isinstance(text, str) else text
        layout = self._layouts[len(parts), self._special_tokens]
        if layout is None:
            return None
        texts = []
        for part in parts:
            ids = self._words.ids(part)
            if ids is None:
                return None
            texts.append(ids)
        if options.max_length:
            limit = min(limit, options.max_length)
        room = limit - layout.size
        if options.windows or options.max_length:
            if room <= max(0, stride_of(limit, options)) or (options.one_side and len(texts) == 1):
                return None
        if options.max_each or sum(map(len, texts)) > room:
            if options.whole:
                return None
            return self._truncated(texts, layout, limit, options)
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
        self, texts: Sequence[list[int]], layout: Layout, limit: int, options: Tokenization
    ) -> list[Encoding] | None:
        """Implements ``encode`` for texts that may exceed ``limit`` tokens or ``options.max_each``."""
        left = self._left if options.truncation_side is None else options.truncation_side == "left"
        try:
            windows, cut = plan([*map(len, texts)], layout.size, limit, options, left)
        except InvalidInput:
            return None
        encodings = [
            layout.fill([ids[part.start : part.stop] for ids, part in zip(texts, kept, strict=True)])
            for kept in windows
        ]
        for encoding in encodings:
            encoding.truncated = cut
        return encodings
