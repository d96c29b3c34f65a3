"""The number of tokens of the reasoning in an answer."""

from __future__ import annotations

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.tokenization import Tokenization

BLOCK = 1_000
"""Number of characters to tokenize at once, 1 ms. Blocks end between words, which tokens rarely cross."""

_WHOLE = Tokenization(whole=True, special_tokens=False)


class ReasoningCounter:
    """Counts the tokens of a text while it is written. The number does not depend on how the text is cut into pieces.

    The service's tokenizer counts, since a piece of a model that returns text has no number of tokens.
    """

    __slots__ = ("_count", "_parts", "_size", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._parts: list[str] = []
        self._size = self._count = 0

    def add(self, text: str) -> None:
        self._parts.append(text)
        self._size += len(text)
        if self._size < BLOCK:
            return
        text, start = "".join(self._parts), 0
        while len(text) - start >= BLOCK:
            most = start + BLOCK
            end = max(text.rfind(" ", start + 1, most), text.rfind("\n", start + 1, most))
            end = end if end > 0 else most
            self._count += self._tokens(text[start:end])
            start = end
        self._parts, self._size = [text[start:]], len(text) - start

    @property
    def count(self) -> int:
        """Number of tokens so far."""
        return self._count + (self._tokens("".join(self._parts)) if self._size else 0)

    def _tokens(self, text: str) -> int:
        if not text:
            return 0
        try:
            [[encoding]] = self._tokenizer.encode_windows([text], _WHOLE)
        except InvalidInput:  # a tokenizer of another alphabet
            return 0
        return len(encoding.ids)
