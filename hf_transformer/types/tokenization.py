"""The tokenizer's input, options and output. Treat all objects as immutable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from hf_transformer.types.tensors import Array


@dataclass(frozen=True, slots=True)
class Words:
    """A text, split into words by the client."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A text, tokenized by the client. The service adds no special tokens."""

    ids: tuple[int, ...]


Side: TypeAlias = Literal["left", "right"]
"""The side of a text that truncation removes."""


@dataclass(frozen=True, slots=True)
class SpannedText:
    """A text with the (start, end) of spans in characters. Its encodings are SpannedEncoding."""

    text: str
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TunedText:
    """A text with tokenization options of its own, in place of the request's."""

    text: str
    options: Tokenization


class PromptText(str):
    """A text that the service composes: of a template or a prompt, and of texts of users.

    Special tokens in it are tokens, except in ``letters``: the (start, end) of parts that users wrote, in order. Other
    code may treat it as a plain string; its copies and slices are plain strings.
    """

    letters: tuple[tuple[int, int], ...]

    def __new__(cls, text: str, letters: tuple[tuple[int, int], ...] = ()) -> PromptText:
        made = super().__new__(cls, text)
        made.letters = letters
        return made

    @classmethod
    def around(cls, before: str, text: str, after: str = "") -> PromptText:
        """Composes a user's text with the texts around it. The first one may have letters of its own."""
        letters = before.letters if isinstance(before, PromptText) else ()
        return cls(f"{before}{text}{after}", (*letters, (len(before), len(before) + len(text))))

    def prefix(self, size: int) -> PromptText:
        """The first ``size`` characters."""
        return PromptText(self[:size], tuple((start, min(end, size)) for start, end in self.letters if start < size))


UserTokens: TypeAlias = Literal["none", "pairs", "all"]
"""The plain strings whose special tokens are letters: none, the texts of pairs, or all. See PromptText for others."""


@dataclass(frozen=True, slots=True)
class FramedPair:
    """The pair of ``before + query + after`` and ``second``, with the query cut to ``count`` tokens."""

    before: str
    query: str
    after: str
    second: str
    count: int


WordPooling: TypeAlias = Literal["first", "last", "mean", "max"]
"""The tokens of a word whose vectors become the word's vector."""


@dataclass(frozen=True, slots=True)
class LabelFrame:
    """The prompt of a model for labels of the client, as token ids: prefix (marker label)* separator words suffix.

    Without a ``marker``, as for a bi-encoder, the labels are not in the prompt.
    ``max_words`` is the maximum number of words that the model reads.
    """

    prefix: tuple[int, ...]
    marker: tuple[int, ...]
    separator: tuple[int, ...]
    suffix: tuple[int, ...]
    max_words: int
    pooling: WordPooling = "first"


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text behind a prompt of labels, at least one. Its encodings are LabelledEncoding."""

    text: str
    labels: tuple[str, ...]
    frame: LabelFrame


TextInput: TypeAlias = str | tuple[str, str] | Words | TokenIds | SpannedText | TunedText | FramedPair | LabelledText
"""A text, a pair of texts to join with the separator token, a list of words, token ids, or one of the forms above."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """The ``count`` tokens that truncation to the model's maximum length would remove from a text or pair.

    ``spans`` contains their (start, end) in characters of each text, None for an unaffected text. ``spans`` is None if
    the tokenizer has no offsets.
    """

    count: int
    spans: tuple[tuple[int, int] | None, ...] | None


@dataclass(slots=True)
class Encoding:
    """The tokens of a text, pair or window, without padding. All lists have the same length.

    ``Tokenization.detail`` adds the attributes from ``offsets`` to ``tokens``; ``Tokenization.whole`` adds ``cut``.

    Attributes:
        type_ids: 0 for the first text, 1 for the second, as some models expect.
        truncated: whether truncation removed text that no other window contains.
        offsets: (start, end) in characters of the client's string, or of the word for ``Words``.
        special_mask: 1 for special tokens that the tokenizer added.
        word_ids: the index of each token's word; None for special tokens.
        sequence_ids: 0 for the first text, 1 for the second; None for special tokens.
        tokens: the tokens' names in the vocabulary, only for a ``whole`` text.
        attended: the number of leading tokens in the attention mask; None for all.
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
    attended: int | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(slots=True)
class SpannedEncoding(Encoding):
    """The tokens of a SpannedText. ``spans`` has the indices of each span's tokens that no earlier window has, by the
    number of the span, without spans that have none."""

    spans: Mapping[int, range] = field(default_factory=dict)


@dataclass(slots=True)
class LabelledEncoding(Encoding):
    """The tokens of a LabelledText, or of one of its windows of whole words.

    Attributes:
        words: the (start, end) of the window's words in characters of the text.
        words_mask: for each token the number of its word in the window, from 1; 0 for other tokens.
        labels: the number of labels of the text.
        vectors: the labels' vectors float32 [labels, size], for a model that gets them as an input; else None.
        first: the number of words in the text before the window.
        before, after: the words of the neighbouring windows, counted in the text; None if there is no such window.
        is_last_but_one: whether ``after`` is the last window of the text.
    """

    words: list[tuple[int, int]] = field(default_factory=list)
    words_mask: list[int] = field(default_factory=list)
    labels: int = 0
    vectors: Array | None = None
    first: int = 0
    before: range | None = None
    after: range | None = None
    is_last_but_one: bool = False


class WindowBudget(Protocol):
    """Counts windows and spans before they are made, also in threads. Raises TooLarge or TooManyRequests."""

    def windows(self, count: int, tokens: int, *, detail: bool) -> None: ...
    def spans(self, count: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Tokenization:
    """A request's tokenization options. The defaults return one encoding per text, truncated to the model's length.

    ``whole`` disables truncation. Only ``whole`` permits ``special_tokens``, ``token_values`` and ``max_tokens``.

    Attributes:
        detail: also return the optional fields of ``Encoding``.
        windows: split an overlong text into several encodings.
        stride: the number of tokens that neighbouring windows share; None means half of the length, at most 128.
        fit_stride: shorten the stride to half of the room that the other text of a pair leaves.
        max_length: a maximum below the model's length, including special tokens.
        truncation_side: the side to cut; None means the tokenizer's. ``left`` counts windows from the end of a text.
        only_second, only_first: truncate only this text of a pair; the default truncates the longer text first.
            Windows by default split the longer text, and repeat the other.
        max_each: maximum numbers of tokens of both texts of a pair, without special tokens; empty for no maximum.
        max_windows_each: the maximum number of windows of a text; the rest of the text is cut off.
        whole: return the complete text and ``Encoding.cut``. A slow (Python) tokenizer omits missing details.
        special_tokens: whether to add special tokens; None means the service's default.
        token_values: the number of values per token in the answer; determines ``max_tokens``.
        max_tokens: the maximum number of tokens in the request.
        budget: counts windows and spans; None for no limit.
    """

    detail: bool = False
    windows: bool = False
    stride: int | None = 0
    fit_stride: bool = False
    max_length: int | None = None
    truncation_side: Side | None = None
    only_second: bool = False
    only_first: bool = False
    max_each: tuple[int, ...] = ()
    max_windows_each: int | None = None
    whole: bool = False
    special_tokens: bool | None = None
    token_values: int = 0
    max_tokens: int = 2**31
    budget: WindowBudget | None = field(default=None, compare=False, repr=False)

    @property
    def one_side(self) -> bool:
        """Whether truncation affects only one text of a pair."""
        return self.only_first or self.only_second


PLAIN = Tokenization()


class TaskTokenizer(Protocol):
    """The tokenizer's interface for tasks. None means a token that the tokenizer lacks."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def mask_id(self) -> int | None: ...
    @property
    def mask_token(self) -> str | None: ...
    @property
    def pad_token_id(self) -> int | None: ...
    @property
    def cls_id(self) -> int | None: ...
    @property
    def unk_id(self) -> int | None: ...
    @property
    def padding_side(self) -> str: ...
    @property
    def marks_subwords(self) -> bool: ...
    @property
    def special_tokens(self) -> Mapping[str, str]: ...
    @property
    def user_tokens(self) -> UserTokens: ...
    def token_to_id(self, token: str) -> int | None: ...
    def id_to_token(self, number: int) -> str | None: ...
    def join_tokens(self, tokens: list[str]) -> str: ...
    def first_token_id(self, text: str) -> int | None: ...
    def encode(self, texts: Sequence[TextInput], *, offsets: bool = False) -> list[Encoding]: ...
    def encode_windows(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str: ...
