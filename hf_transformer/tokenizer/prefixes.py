"""Prefixes of long texts with the same first tokens, so that truncation need not encode the whole text."""

from __future__ import annotations

import tokenizers

from hf_transformer.tokenizer.words import ChunkRules

LONG_TEXT_CHARACTERS = 32_768
"""Maximum length of a text to encode whole. The engine encodes longer texts one by one, and only a prefix if
possible."""
MIN_PREFIX_CHARACTERS, PREFIX_GROWTH = 16_384, 4
"""Length of the first prefix of a long text, and growth factor of the following prefixes."""
MAX_WORDS_PER_CHARACTER = 32
"""Upper bound of the number of words per character of an added token. NFKC expands a character to up to 18 (UAX 15)."""

UNKNOWN = "\U0010ffff"
"""A character that no vocabulary contains."""


class PrefixTruncation:
    """Shortens a long text to a prefix with the same first tokens.

    Encoding of a million characters takes some 400 MB of memory, and truncation drops most tokens. If a tokenizer has
    ChunkRules, a word (pre-token) depends on the preceding text, and hardly on the following text. A cut can change the
    last word, with GPT-2's pattern the second-to-last word (a cut "'re" is "'" and "r"), and the words of a split added
    token. The rest of the text therefore affects at most the last ``uncertain`` words of the prefix.
    """

    def __init__(self, backend: tokenizers.Tokenizer, rules: ChunkRules) -> None:
        self._backend = backend
        self._uncertain = 2 + MAX_WORDS_PER_CHARACTER * max(map(len, rules.added), default=0)

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, rules: ChunkRules) -> PrefixTruncation | None:
        """Creates an instance, or returns None if the model raises errors for unknown words.

        Truncation would hide an unknown word in the dropped part of the text.
        """
        try:
            backend.model.tokenize(UNKNOWN)
        except Exception:
            return None
        return cls(backend, rules)

    def prefix(self, text: str, tokens: int) -> str:
        """Returns a prefix with more than ``tokens`` tokens that equal those of the whole text.

        Returns the whole text if no prefix is short enough. Also returns a text that is not Unicode, since encoding
        then raises the error."""
        size = max(MIN_PREFIX_CHARACTERS, 4 * tokens)
        try:
            text.encode()
        except UnicodeEncodeError:
            return text
        while 2 * size <= len(text):
            words = self._backend.encode(text[:size], add_special_tokens=False).word_ids
            if len(words) > tokens and words[tokens] < words[-1] - self._uncertain:  # type: ignore[operator]  # no None
                return text[:size]
            size *= PREFIX_GROWTH
        return text
