"""The tokenizer's input, options and output. Treat instances as immutable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Words:
    """A text that the client has split into words."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A text that the client has tokenized. The service adds no special tokens to it."""

    ids: tuple[int, ...]


TextInput: TypeAlias = str | tuple[str, str] | Words | TokenIds
"""A text, a pair of texts that the tokenizer joins with its separator, a list of words, or token ids."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """The excess of a whole text over the model's length: ``count`` tokens, and their positions.

    ``spans`` has (start, end) in characters for each text of the instance, None for a text within the limit. It is None
    if the tokenizer has no offsets.
    """

    count: int
    spans: tuple[tuple[int, int] | None, ...] | None


@dataclass(slots=True)
class Encoding:
    """The tokens of one instance or window, without padding. All lists have the same length.

    Attributes:
        type_ids: 0 for the first text, 1 for the second, as some models expect.
        truncated: whether truncation removed text that no other window contains.
        offsets: (start, end) in characters of the client's string, or of the word for ``Words``.
        special_mask: 1 for special tokens that the tokenizer added.
        word_ids: the number of each token's word; None for special tokens.
        sequence_ids: 0 for the first text, 1 for the second; None for special tokens.
        tokens: the tokens' names in the vocabulary, for a ``whole`` text only.
        cut: the excess of a ``whole`` text; None for others.

    ``Tokenization.detail`` adds all from ``offsets`` to ``tokens``.
    """

    ids: list[int]
    type_ids: list[int]
    truncated: bool = False
    offsets: list[tuple[int, int]] | None = None
    special_mask: list[int] | None = None
    word_ids: list[int | None] | None = None
    sequence_ids: list[int | None] | None = None
    tokens: list[str] | None = None
    cut: Truncation | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Tokenization:
    """The tokenization options of one request; by default one encoding per text, truncated to the model's length.

    Attributes:
        detail: also return the optional fields of ``Encoding``.
        windows: split a text that is too long into several encodings.
        stride: the number of tokens that neighbouring windows share; None for half of the length, at most 128.
        max_length: a lower limit than the model's, in tokens with special tokens.
        only_second, only_first: truncate only this text of a pair; by default the longer one first.
        max_windows: the limit of all windows of the request together.
        whole: do not truncate, and return ``Encoding.cut``. A tokenizer written in Python omits details that it lacks.
        special_tokens: whether to add special tokens; None for the service's default. Only with ``whole``.
        token_values: the number of values per token in the answer, from which ``max_tokens`` follows. Only with
            ``whole``.
        max_tokens: the limit of all tokens of the request together. Only with ``whole``.
    """

    detail: bool = False
    windows: bool = False
    stride: int | None = 0
    max_length: int | None = None
    only_second: bool = False
    only_first: bool = False
    max_windows: int = 2**31
    whole: bool = False
    special_tokens: bool | None = None
    token_values: int = 0
    max_tokens: int = 2**31

    @property
    def one_side(self) -> bool:
        """Whether only one of the two texts of a pair is truncated."""
        return self.only_first or self.only_second


PLAIN = Tokenization()
