"""Texts before the tokenizer, and encodings after it. Treat instances as immutable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Words:
    """A text that the client has split into words already."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A text that the client has tokenized already. They are used as they are: special tokens are the client's."""

    ids: tuple[int, ...]


TextInput: TypeAlias = str | tuple[str, str] | Words | TokenIds
"""A text, a pair of texts that the tokenizer joins with its separator, a text in words, or in tokens."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """What the model's length would cut off of a whole text: ``count`` tokens, and where they lie.

    ``spans`` have (start, end) positions in characters for each text of the instance, None for a text of which nothing
    is cut. They are None together where the tokenizer has no offsets.
    """

    count: int
    spans: tuple[tuple[int, int] | None, ...] | None


@dataclass(slots=True)
class Encoding:
    """One instance's (or one window's) tokens, as the tokenizer gave them, without padding.

    All lists have the same length S. ``type_ids`` tell the first text (0) from the second (1), for models that want
    it. ``truncated`` is true when text was cut off to fit, and lies in no other window. The rest is None unless
    ``Tokenization.detail`` asks for it: ``offsets`` are (start, end) positions in characters of the caller's own string
    (of its word, for ``Words``), ``special_mask`` is 1 where the tokenizer added a special token, ``word_ids`` number
    the words, ``sequence_ids`` are 0 for the first text and 1 for the second; both are None at special tokens.
    ``cut``, and with ``detail`` the names of the ids in the vocabulary, ``tokens``, are there for a ``whole`` text.
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
    """How one request's texts are tokenized; the default is one encoding per text, cut to the model's length.

    ``max_length`` (tokens, special ones included) may lower the model's own. With ``windows`` a text that is too long
    becomes several encodings, of which neighbours share ``stride`` tokens; None stands for half of the length, 128 at
    most. ``only_second`` cuts the second text of a pair alone (a question's context), ``only_first`` the first alone,
    otherwise the longer one is cut first. ``detail`` fills in all of Encoding. ``max_windows`` bounds all windows of
    the request together.

    With ``whole`` texts are not cut; Encoding.cut tells what would be. A tokenizer written in Python then leaves out
    the details that it does not have. ``special_tokens`` says whether they are added, None for what the service does.
    ``max_tokens`` bounds all tokens of the request together, and follows from ``token_values``: how many values the
    answer will hold for each of them. These three go with ``whole`` alone.
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
        """Whether one certain text of a pair is cut and the other one never."""
        return self.only_first or self.only_second


PLAIN = Tokenization()
