"""Encoding of texts: the interface of both engines, and the inputs that are encoded one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Self

from hf_transformer.errors import ContextLengthExceeded, InvalidInput, TooLarge
from hf_transformer.tokenizer.labelled import WHOLE, encode_labelled
from hf_transformer.tokenizer.windows import locate, shortened, stride_of
from hf_transformer.types.tokenization import (
    Encoding,
    FramedPair,
    LabelledText,
    PromptText,
    SpannedText,
    TextInput,
    TokenIds,
    Tokenization,
    TunedText,
    UserTokens,
    Words,
)

ONE_BY_ONE = (TokenIds, SpannedText, TunedText, FramedPair, LabelledText)
"""The inputs that are encoded one by one. The library encodes all others together."""


def strings(text: TextInput) -> Sequence[str]:
    """Strings of an input: the text itself, both texts of a pair, or the words. Empty for token ids."""
    if isinstance(text, str):
        return (text,)
    if isinstance(text, TokenIds):
        return ()
    if isinstance(text, SpannedText | TunedText):
        return (text.text,)
    if isinstance(text, FramedPair):
        return (text.before, text.query, text.after, text.second)
    if isinstance(text, LabelledText):
        return (text.text, *text.labels)
    return text.words if isinstance(text, Words) else text


def characters(text: TextInput) -> int:
    """Number of characters in all strings of an input. A token id counts as one character."""
    if isinstance(text, str):
        return len(text)
    return len(text.ids) if isinstance(text, TokenIds) else sum(map(len, strings(text)))


def too_many_tokens(options: Tokenization) -> TooLarge:
    """Error for more than ``options.max_tokens`` tokens."""
    return TooLarge(
        "instances",
        f"at most {options.max_tokens} tokens in a request, so that its answer stays within --max_answer_values",
        hint="send fewer or shorter texts, or ask for less of each",
    )


class Engine(ABC):
    """Encodes texts, truncated to ``max_length`` tokens. Thread-safe."""

    max_length: int

    def encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Encodes each text into windows: one window unless ``options.windows`` is set. Returns token ids unchanged.

        Raises:
            InvalidInput: a text is not Unicode, a pair can't fit, a stride is too long, or the tokenizer lacks an
                option.
            TooLarge: more than ``options.max_tokens``, a limit of ``options.budget``, or too many token ids in a text.
            TooManyRequests: see WindowBudget.
        """
        encodings: list[list[Encoding]] = []
        misses: list[TextInput] = []
        for text in texts:
            windows = self.cached(text, options)
            if windows is None:
                misses.append(text)
            encodings.append(windows or [])
        if not misses:
            return encodings
        encoded = iter(self.encode_missed(misses, options))
        return [windows or next(encoded) for windows in encodings]

    def cached(self, text: TextInput, options: Tokenization) -> list[Encoding] | None:
        """Encodes a text if that is quick enough for the event loop, about 1 ms; None otherwise."""
        return None

    def user_tokens_as_letters(self, scope: UserTokens, template: str) -> None:
        """Implements Tokenizer.user_tokens_as_letters."""
        raise NotImplementedError

    def encode_missed(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Encodes texts as ``encode`` does, without ``cached``."""
        if {*map(type, texts)}.isdisjoint(ONE_BY_ONE):
            return self._encode(texts, options)
        others = [text for text in texts if not isinstance(text, ONE_BY_ONE)]
        encoded = iter(self._encode(others, options) if others else ())
        cut: dict[tuple[str, int], str] = {}
        return [
            self._encode_one(text, options, cut) if isinstance(text, ONE_BY_ONE) else next(encoded) for text in texts
        ]

    @abstractmethod
    def _encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Implements ``encode_missed`` for all inputs except ONE_BY_ONE."""

    def _encode_one(
        self,
        text: TokenIds | SpannedText | TunedText | FramedPair | LabelledText,
        options: Tokenization,
        cut: dict[tuple[str, int], str],
    ) -> list[Encoding]:
        """Implements ``encode_missed`` for ONE_BY_ONE. ``cut`` collects the queries after their truncation."""
        if isinstance(text, TokenIds):
            return [self._from_ids(text, options)]
        if isinstance(text, SpannedText):
            return self._spanned(text, options)
        if isinstance(text, TunedText):
            return self.encode([text.text], replace(text.options, budget=options.budget))[0]
        if isinstance(text, LabelledText):
            return encode_labelled(text, self._encode_words, self._limit(options), options)
        key = text.query, text.count
        if key not in cut:
            cut[key] = self._cut(text.query, text.count, options)
        first = PromptText.around(text.before, cut[key], text.after)
        windows = self.encode([(first, text.second)], options)[0]
        for window in windows:
            window.truncated = window.truncated or cut[key] != text.query
        return windows

    def _encode_words(self, words: Words) -> Encoding:
        """Encodes words without truncation and special tokens."""
        return self._encode([words], WHOLE)[0][0]

    def _cut(self, query: str, count: int, options: Tokenization) -> str:
        """Cuts a query to ``count`` tokens."""
        [[encoding]] = self._encode([query], Tokenization(detail=True, truncation_side=options.truncation_side))
        return shortened(query, encoding, count, self._is_left(options))

    def _limit(self, options: Tokenization) -> int:
        """The maximum number of tokens of a text in this request."""
        return min(options.max_length or self.max_length, self.max_length)

    def _is_left(self, options: Tokenization) -> bool:
        """Whether truncation removes the beginning of a text."""
        return options.truncation_side == "left"

    def _spanned(self, text: SpannedText, options: Tokenization) -> list[Encoding]:
        """Encodes a text with spans. Its windows run from the beginning of the text."""
        side = "right" if options.windows else options.truncation_side
        [windows] = self._encode([text.text], replace(options, detail=True, truncation_side=side))
        return [*locate(text, windows, options, stride_of(self._limit(options), options))]

    def _from_ids(self, text: TokenIds, options: Tokenization) -> Encoding:
        limit = self._limit(options)
        if len(text.ids) > limit and not options.whole:
            raise ContextLengthExceeded(
                "",
                f"at most {limit} token ids in a text",
                str(len(text.ids)),
                "they are not truncated, which would lose their special tokens",
                limit=self.max_length,
            )
        return Encoding(list(text.ids), [0] * len(text.ids))

    def with_max_length(self, length: int) -> Self:
        """Returns a copy with a different limit in tokens."""
        engine = copy(self)
        engine.max_length = length
        return engine


def encoding_error(texts: Sequence[TextInput], error: Exception) -> InvalidInput:
    """Error for texts that a tokenizer rejected. It mentions lone surrogates, unlike the library's message."""
    for text in texts:
        try:
            "".join(strings(text)).encode()
        except UnicodeEncodeError as exc:
            return InvalidInput("", "Unicode text", f"a text with a lone surrogate, {exc.object[exc.start]!r}")
    return InvalidInput("", "a text that the tokenizer can encode", hint=str(error))
