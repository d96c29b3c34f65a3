"""From texts to encodings: by the Rust tokenizers library, or by a tokenizer written in Python."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import tokenizers

from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.tokenizer.words import WordCache
from hf_transformer.types import PLAIN, Cut, Encoding, TextInput, TokenIds, Tokenization, Words

LONGEST_FIRST = "longest_first"
"""Of a pair, the longer text is truncated until they are equally long, then both."""

LISTS = ("ids", "type_ids", "offsets", "special_mask", "word_ids", "sequence_ids")
"""What an encoding has for each token."""

FIRST_ALONE = Tokenization(only_first=True)


def strings(text: TextInput) -> Sequence[str]:
    """The strings that a text consists of: one, the two of a pair, its words, or none if it comes in token ids."""
    if isinstance(text, str):
        return (text,)
    if isinstance(text, TokenIds):
        return ()
    return text.words if isinstance(text, Words) else text


def characters(text: TextInput) -> int:
    """How many characters a text has, both of a pair, all of the words; of token ids, one for each."""
    if isinstance(text, str):
        return len(text)
    return len(text.ids) if isinstance(text, TokenIds) else sum(map(len, strings(text)))


def too_many_tokens(how: Tokenization) -> TooLarge:
    """The error for more than ``how.max_tokens``."""
    return TooLarge(
        f"instances: more than {how.max_tokens} tokens in one request, whose answer would hold more values than are "
        "given in one (--max_answer_values); send fewer or shorter texts, or ask for less of each"
    )


class Engine(ABC):
    """Encodes texts, truncated to ``max_length`` tokens. Threads share it."""

    max_length: int

    def encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """The windows of each text, one unless ``how`` asks for more. Token ids stay as they are.

        Raises:
            InvalidInput: a text is not Unicode, a pair can't fit, a stride is too long, or the tokenizer lacks this.
            TooLarge: more than ``how.max_windows`` or ``how.max_tokens``, or too many token ids.
        """
        if TokenIds not in map(type, texts):
            return self._encode(texts, how)
        rest = [text for text in texts if not isinstance(text, TokenIds)]
        others = iter(self._encode(rest, how) if rest else ())
        return [[self._as_given(text, how)] if isinstance(text, TokenIds) else next(others) for text in texts]

    @abstractmethod
    def _encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """``encode`` for texts of which none comes in token ids."""

    def _as_given(self, text: TokenIds, how: Tokenization) -> Encoding:
        if len(text.ids) > self.max_length and not how.whole:
            raise TooLarge(
                f"{len(text.ids)} token ids in one text, and the model takes {self.max_length}; "
                "they are not cut, since their special tokens would be lost"
            )
        return Encoding(list(text.ids), [0] * len(text.ids))

    def with_max_length(self, length: int) -> Self:
        """The same with another limit in tokens."""
        other = copy(self)
        other.max_length = length
        return other


class RustEngine(Engine):
    """A tokenizer of the Rust library.

    ``backend`` does not truncate, and is not changed: what doesn't fit is removed from the whole encoding. Windows,
    and pairs of which one certain text is truncated, are made by the library. There truncation is a setting of the
    object, so these use a second object, behind a lock, with the same vocabulary. The word cache needs neither.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        max_length: int,
        *,
        special_tokens: bool,
        truncation_side: str,
        word_cache: bool = True,
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self.max_length = max_length
        self._special_tokens = special_tokens
        self._truncation_side = truncation_side
        self._words = WordCache.of(backend, special_tokens) if word_cache else None
        self._lock = threading.Lock()
        self._truncating: tokenizers.Tokenizer | None = None

    def encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """See Engine. TooLarge is found before the windows are made."""
        if how is not PLAIN or self._words is None:
            return super().encode(texts, how)
        limit, known = self.max_length, self._words.ids
        found: list[list[Encoding]] = []
        others: list[TextInput] = []
        for text in texts:
            ids = known(text) if type(text) is str else None
            if ids is None or len(ids) > limit:
                others.append(text)
                found.append([])
            else:
                found.append([Encoding(ids, [0] * len(ids))])
        if not others:
            return found
        rest = iter(super().encode(others, how))
        return [windows or next(rest) for windows in found]

    def _encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """What ``encode`` gives, without the word cache."""
        if how.whole:
            return self._whole(texts, how)
        limit = min(how.max_length or self.max_length, self.max_length)
        # The library may give the first token that is left on the left other offsets than it has in the whole text.
        if how.windows or how.one_side or (how.detail and self._truncation_side == "left"):
            return self._by_library(texts, limit, how)
        if limit < self.max_length:
            self._room(limit, how)
        encoded = self._run(self._backend, texts, how)
        return [[self._fitted(one, text, limit, how)] for one, text in zip(encoded, texts, strict=True)]

    def _whole(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """The texts as they are, and what would be removed from each."""
        encoded = self._run(self._backend, texts, replace(how, detail=True))
        if sum(map(len, encoded)) > how.max_tokens:
            raise too_many_tokens(how)
        found = [_convert(one, False, how.detail) for one in encoded]
        for converted, text, one in zip(found, texts, encoded, strict=True):
            ranges = self._excess(one, text, self.max_length)
            converted.cut = Cut(sum(map(len, ranges)), tuple(span(one, tokens) for tokens in ranges))
        return [[one] for one in found]

    def _fitted(self, encoded: tokenizers.Encoding, text: TextInput, limit: int, how: Tokenization) -> Encoding:
        """An encoding of at most ``limit`` tokens."""
        if len(encoded) <= limit:
            return _convert(encoded, False, how.detail)
        fitted = without(_convert(encoded, True, how.detail), self._excess(encoded, text, limit))
        if len(fitted) > limit:
            raise _does_not_fit(limit)
        return fitted

    def _excess(self, encoded: tokenizers.Encoding, text: TextInput, limit: int) -> list[range]:
        pair = isinstance(text, tuple)
        added = self._backend.num_special_tokens_to_add(pair) * self._special_tokens
        return excess(encoded, pair, max(0, limit - added), from_left=self._truncation_side == "left")

    def _by_library(self, texts: Sequence[TextInput], limit: int, how: Tokenization) -> list[list[Encoding]]:
        """The windows of each text. Of those that don't fit, the library makes them, once their number is known."""
        stride = min(limit // 2, 128) if how.stride is None else how.stride
        room = self._room(limit, how)
        if stride >= room:
            raise InvalidInput(f"a stride of {stride} tokens is too long for windows of {room} tokens of text")
        found: list[list[Encoding]] = []
        long: dict[int, TextInput] = {}
        total = 0
        for text, whole in zip(texts, self._run(self._backend, texts, how), strict=True):
            fits = len(whole) <= limit
            total += 1 if fits else self._count_windows(text, whole, room, stride, limit, how)
            if total > how.max_windows:
                raise TooLarge(
                    f"instances: more than {how.max_windows} windows in one request (--max_sequences); "
                    "send shorter texts, or share fewer tokens between windows"
                )
            if not fits:
                long[len(found)] = text
            found.append([_convert(whole, False, how.detail)] if fits else [])
        for index, first in zip(long, self._truncate([*long.values()], limit, stride, how), strict=True):
            if len(first) > limit:
                # The library doesn't truncate at all where the special tokens alone are too many.
                raise _does_not_fit(limit)
            windows = [first, *first.overflowing] if how.windows else [first]
            found[index] = [_convert(one, not how.windows, how.detail) for one in windows]
        return found

    def _room(self, limit: int, how: Tokenization) -> int:
        """How many tokens of text fit into a window. Raises InvalidInput if there is none."""
        # The library leaves room for special tokens even where they are not added (--disable_special_tokens).
        room = limit - self._backend.num_special_tokens_to_add(how.one_side)
        if room <= 0:
            raise InvalidInput(f"{limit} tokens leave no room for text beside the special tokens")
        return room

    def _count_windows(
        self, text: TextInput, whole: tokenizers.Encoding, room: int, stride: int, limit: int, how: Tokenization
    ) -> int:
        """How many windows a text has that doesn't fit into ``limit`` tokens. Raises InvalidInput if it can't have any.

        Of some pairs the text that is never truncated leaves no more than ``stride``. The library would panic then,
        which no ``except Exception`` catches.
        """
        owners = whole.sequence_ids
        kept = owners.count(0 if how.only_second else 1) if how.one_side and isinstance(text, tuple) else 0
        room -= kept
        if room <= stride and (stride or how.windows):
            self._truncate([text], limit, 0, how)  # raises InvalidInput where the other text alone is too long
            raise InvalidInput(
                f"a stride of {stride} tokens is too long for windows of {limit} tokens, most of which the other text "
                "of the pair takes; shorten that text"
            )
        rest = len(owners) - owners.count(None) - kept - room
        return 1 + -(-rest // (room - stride)) if how.windows else 1

    def _truncate(
        self, texts: Sequence[TextInput], limit: int, stride: int, how: Tokenization
    ) -> list[tokenizers.Encoding]:
        """The first window of each text by the library, with the others as its ``overflowing``."""
        if not texts:
            return []
        strategy = "only_second" if how.only_second else "only_first" if how.only_first else LONGEST_FIRST
        with self._lock:
            if self._truncating is None:
                self._truncating = _another(self._backend)
            self._truncating.enable_truncation(limit, stride=stride, strategy=strategy, direction=self._truncation_side)
            return self._run(self._truncating, texts, how)

    def _run(
        self, backend: tokenizers.Tokenizer, texts: Sequence[TextInput], how: Tokenization
    ) -> list[tokenizers.Encoding]:
        """Encodes plain texts and texts in words, each kind in one call, and restores their order."""
        run: Any = backend.encode_batch if how.detail else backend.encode_batch_fast
        in_words = [isinstance(text, Words) for text in texts]
        special_tokens = self._special_tokens if how.special_tokens is None else how.special_tokens
        found: dict[bool, Any] = {}
        try:
            for kind in set(in_words):
                batch = [
                    list(text.words) if isinstance(text, Words) else text
                    for text, other in zip(texts, in_words, strict=True)
                    if other == kind
                ]
                found[kind] = iter(run(batch, is_pretokenized=kind, add_special_tokens=special_tokens))
        except Exception as exc:  # the library raises TypeError for lone surrogates, else bare Exception
            if how.one_side and "too short" in str(exc):
                other, cut = "second text (the hypothesis with the label)", "first"
                if not how.only_first:
                    other, cut = "first text (the question)", "second"
                raise InvalidInput(
                    f"a pair of texts does not fit: its {other} leaves no room for the {cut}, which alone may be cut"
                ) from exc
            raise InvalidInput(f"the tokenizer can't encode a text: {_reason(texts) or exc}") from exc
        return [next(found[kind]) for kind in in_words]


def _another(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy without truncation and padding, with the same vocabulary in memory if the library can share it."""
    other = tokenizers.Tokenizer(backend.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        setattr(other, part, getattr(backend, part))
    added = backend.get_added_tokens_decoder()
    other.add_tokens([added[number] for number in sorted(added)])
    if other.get_added_tokens_decoder() != added:
        other = tokenizers.Tokenizer.from_str(backend.to_str())
        other.no_truncation()
    other.encode_special_tokens = backend.encode_special_tokens
    return other


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens are left of the two texts of a pair that share ``room`` tokens; a single text has a ``second``
    of 0. Source: truncate_encodings in tokenizers/src/utils/truncation.rs."""
    short, long = sorted((first, second))
    if short + long <= room:
        return first, second
    long = max(short, room - short)
    if short + long > room:
        short = room // 2
        long = room - short
    return (short, long) if first <= second else (long, short)


def excess(encoded: tokenizers.Encoding, pair: bool, room: int, *, from_left: bool) -> list[range]:
    """The tokens of each text that don't fit, as indices into the encoding of the whole.

    Args:
        room: how many tokens fit beside the special ones.
        from_left: whether the beginning of a text is removed, and not its end.
    """
    owners = encoded.sequence_ids
    first, second = owners.count(0), owners.count(1)
    ranges = []
    for number, left in enumerate(longest_first(first, second, room)[: 1 + pair]):
        length = second if number else first
        start = owners.index(number) if length else 0
        start += 0 if from_left else left
        ranges.append(range(start, start + length - left))
    return ranges


def without(encoding: Encoding, ranges: Sequence[range]) -> Encoding:
    """An encoding without some ranges of its tokens, which don't overlap."""
    cuts = sorted(filter(len, ranges), key=lambda one: one.start)
    kept = list(map(slice, [0, *(cut.stop for cut in cuts)], [*(cut.start for cut in cuts), len(encoding)]))
    lists = ((name, getattr(encoding, name)) for name in LISTS)
    left: Any = {name: [one for part in kept for one in values[part]] for name, values in lists if values is not None}
    return replace(encoding, **left)


def span(encoded: tokenizers.Encoding, tokens: range) -> tuple[int, int] | None:
    """The characters of some tokens that follow each other in one text."""
    edges = [encoded.token_to_chars(index) for index in (tokens[0], tokens[-1])] if tokens else []
    found = [edge for edge in edges if edge is not None]
    return (found[0][0], found[-1][1]) if found else None


def _convert(encoded: tokenizers.Encoding, truncated: bool, detail: bool) -> Encoding:
    found = Encoding(encoded.ids, encoded.type_ids, truncated)
    if detail:
        found.offsets, found.special_mask = encoded.offsets, encoded.special_tokens_mask
        found.word_ids, found.sequence_ids = encoded.word_ids, encoded.sequence_ids
    return found


def _does_not_fit(limit: int) -> InvalidInput:
    return InvalidInput(f"a pair of texts does not fit into {limit} tokens")


def _reason(texts: Sequence[TextInput]) -> str | None:
    for text in texts:
        try:
            "".join(strings(text)).encode()
        except UnicodeEncodeError as exc:
            return f"it has a lone surrogate, {exc.object[exc.start]!r}, which is not Unicode text"
    return None


@dataclass
class PythonEngine(Engine):
    """A tokenizer of transformers that is written in Python. It has no offsets, windows or texts in words."""

    tokenizer: Any
    max_length: int
    special_tokens: bool

    def _encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        in_words = any(isinstance(text, Words) for text in texts)
        if how.whole and not in_words:
            return [[self._whole(text, how)] for text in texts]
        if how not in (PLAIN, FIRST_ALONE) or in_words:
            raise InvalidInput(
                "this model's tokenizer is written in Python and has no offsets, windows or texts in words; "
                "a tokenizer.json would give it them"
            )
        strategy = "only_first" if how.only_first else LONGEST_FIRST
        return [[self._truncated(text, strategy)] for text in texts]

    def _whole(self, text: TextInput, how: Tokenization) -> Encoding:
        """A text as it is; where its tokens lie in it is not known."""
        special = self.special_tokens if how.special_tokens is None else how.special_tokens
        whole = self._call(text, add_special_tokens=special, return_special_tokens_mask=True)
        ids = list(whole["input_ids"])
        if len(ids) > how.max_tokens:
            raise too_many_tokens(how)
        added: int = self.tokenizer.num_special_tokens_to_add(isinstance(text, tuple))
        rest = len(ids) + added * (self.special_tokens - special) - self.max_length
        mask = list(whole["special_tokens_mask"]) if how.detail else None
        return Encoding(ids, _type_ids(whole), special_mask=mask, cut=Cut(max(0, rest), None))

    def _truncated(self, text: TextInput, strategy: str) -> Encoding:
        whole = self._call(text)
        truncated = len(whole["input_ids"]) > self.max_length
        if truncated:
            whole = self._call(text, truncation=strategy, max_length=self.max_length)
        ids = list(whole["input_ids"])
        if len(ids) > self.max_length:
            # transformers logs an error then, and leaves the pair as long as it was.
            raise _does_not_fit(self.max_length)
        return Encoding(ids, _type_ids(whole), truncated)

    def _call(self, text: TextInput, **options: Any) -> Mapping[str, Any]:
        pair = text if isinstance(text, tuple) else (str(text), None)
        usual = {"add_special_tokens": self.special_tokens, "return_token_type_ids": True, "verbose": False}
        try:
            encoded: Mapping[str, Any] = self.tokenizer(*pair, **(usual | options))
        except (ValueError, TypeError, KeyError, UnicodeError) as exc:
            raise InvalidInput(f"the tokenizer can't encode a text: {exc}") from exc
        return encoded


def _type_ids(encoded: Mapping[str, Any]) -> list[int]:
    return list(encoded.get("token_type_ids") or [0] * len(encoded["input_ids"]))
