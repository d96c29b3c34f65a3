"""What turns texts into encodings: the Rust tokenizers library, or a tokenizer written in Python."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from typing import Any, Protocol

import tokenizers

from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.tokenizer.cutting import BYTES, cut_ranges, many_pieces, span, without
from hf_transformer.tokenizer.uncut import uncut
from hf_transformer.tokenizer.word_memo import WordMemo
from hf_transformer.types import PLAIN, Cut, Encoding, TextInput, TokenIds, Tokenization, Words

LONGEST_FIRST = "longest_first"
"""Of a pair, the longer text is cut until they are equally long, then both."""


def strings(text: TextInput) -> Sequence[str]:
    """The strings that a text consists of: one, the two of a pair, its words, or none if it comes in token ids."""
    if isinstance(text, str):
        return (text,)
    if isinstance(text, TokenIds):
        return ()
    return text.words if isinstance(text, Words) else text


def characters(text: TextInput) -> int:
    """How many characters a text has, both of a pair, all of the words; of token ids, one for each."""
    if isinstance(text, TokenIds):
        return len(text.ids)
    return len(text) if isinstance(text, str) else sum(map(len, strings(text)))


def too_many_tokens(how: Tokenization) -> TooLarge:
    """The error for more than ``how.max_tokens``."""
    return TooLarge(
        f"instances: more than {how.max_tokens} tokens in one request, whose answer would hold more values than are "
        "given in one (--max_answer_values); send fewer or shorter texts, or ask for less of each"
    )


class Engine(Protocol):
    """What encodes."""

    def encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]: ...
    def encode_one(self, text: str) -> Encoding: ...
    def ids(self, text: str, *, special_tokens: bool) -> list[int]: ...
    def with_max_length(self, length: int) -> Engine: ...


class RustEngine:
    """A tokenizer of the Rust library, shared by threads.

    Where to cut is a setting inside the library's object. The usual one is made once and never changes; for a request
    that wants another there is a second object behind a lock, made when it is first needed. A third one never cuts.
    They share one vocabulary. Short texts of words that were there before need none of them (WordMemo).
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, max_length: int, *, special_tokens: bool, truncation_side: str
    ) -> None:
        backend.no_padding()
        backend.enable_truncation(max_length, stride=0, strategy=LONGEST_FIRST, direction=truncation_side)
        self._backend = backend
        self._max_length = max_length
        self._special_tokens = special_tokens
        self._truncation_side = truncation_side
        self._lock = threading.Lock()
        self._adjustable: tokenizers.Tokenizer | None = None
        self._uncut = uncut(self._backend)
        self._memo = WordMemo.of(self._uncut, special_tokens)

    def encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """The windows of each text, one unless ``how`` asks for more.

        Raises:
            InvalidInput: a text is not Unicode, a pair can't fit, or a stride is too long.
            TooLarge: more than ``how.max_windows`` or ``how.max_tokens``; that is found before they are made.
        """
        if how is not PLAIN or self._memo is None:
            return self._encode(texts, how)
        found = [self._remembered(text) if isinstance(text, str) else None for text in texts]
        others = [text for text, one in zip(texts, found, strict=True) if one is None]
        rest = iter(self._encode(others, how) if others else ())
        return [next(rest) if one is None else [one] for one in found]

    def encode_one(self, text: str) -> Encoding:
        """What ``encode`` gives for one text in the usual way, with little around it."""
        ids = None if self._memo is None else self._memo.ids(text)
        if ids is None or len(ids) >= self._max_length:
            return self._one(text)[0]
        return Encoding(ids, [0] * len(ids))

    def ids(self, text: str, *, special_tokens: bool) -> list[int]:
        """All ids of one text: it is not cut. Special ones are added as usual, or not at all."""
        found = None
        if self._memo is not None:
            found = self._memo.ids(text) if special_tokens else self._memo.bare(text)
        if found is None:
            return self._run_one(self._uncut, text, special_tokens and self._special_tokens).ids
        return found

    def _remembered(self, text: str) -> Encoding | None:
        """An encoding made of known words, if it need not be cut."""
        ids = None if self._memo is None else self._memo.ids(text)
        return Encoding(ids, [0] * len(ids)) if ids is not None and len(ids) < self._max_length else None

    def _encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """What ``encode`` gives, by the library."""
        if how is PLAIN and len(texts) == 1 and isinstance(texts[0], str):
            return [self._one(texts[0])]
        if how.whole:
            return self._whole(texts, how)
        limit = min(how.max_length or self._max_length, self._max_length)
        if not how.windows and not how.one_side:
            if any(apart := [many_pieces(text, limit) for text in texts]):
                pairs = iter(self._cut_pairs([*compress(texts, apart)], limit, how))
                others = [text for text, many in zip(texts, apart, strict=True) if not many]
                rest = iter(self._encode(others, how) if others else ())
                return [[next(pairs)] if many else next(rest) for many in apart]
            if limit == self._max_length:
                return [self._windows(one, limit, how) for one in self._run(self._backend, texts, how)]
        stride = min(limit // 2, 128) if how.stride is None else how.stride
        rooms = self._rooms(texts, limit, stride, how)
        with self._lock:
            if how.windows:
                self._count_windows(texts, rooms, stride, how)
            if min(rooms) > stride:
                encoded = self._run(self._adjust(limit, stride, how), texts, how)
            else:
                encoded = [
                    self._run(self._adjust(limit, stride, how), [text], how)[0]
                    if room > stride
                    else self._one_window(text, limit, stride, how)
                    for text, room in zip(texts, rooms, strict=True)
                ]
        return [self._windows(one, limit, how) for one in encoded]

    def _whole(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """The texts as they are, and what would be cut off of each."""
        encoded = self._run(self._uncut, texts, replace(how, detail=True))
        if sum(map(len, encoded)) > how.max_tokens:
            raise too_many_tokens(how)
        found = []
        for text, one in zip(texts, encoded, strict=True):
            ranges = self._cut_ranges(one, isinstance(text, tuple), self._max_length)
            cut = Cut(sum(map(len, ranges)), tuple(span(one, tokens) for tokens in ranges))
            found.append([_convert(one, one.ids, False, how.detail, cut)])
        return found

    def _cut_pairs(self, pairs: Sequence[TextInput], limit: int, how: Tokenization) -> list[Encoding]:
        """Pairs, cut here and not by the library: in the same way, without what it makes of the rest."""
        found = []
        for encoded in self._run(self._uncut, pairs, how):
            ranges = self._cut_ranges(encoded, True, limit)
            whole = _convert(encoded, encoded.ids, any(ranges), how.detail)
            found.append(without(whole, ranges))
            if len(found[-1]) > limit:
                raise _does_not_fit(limit)
        return found

    def _cut_ranges(self, encoded: tokenizers.Encoding, pair: bool, limit: int) -> list[range]:
        added = self._backend.num_special_tokens_to_add(pair) * self._special_tokens
        return cut_ranges(encoded, pair, max(0, limit - added), from_left=self._truncation_side == "left")

    def _adjust(self, limit: int, stride: int, how: Tokenization) -> tokenizers.Tokenizer:
        """The second object, cutting as asked. Call it with the lock held."""
        adjustable = self._adjustable = self._adjustable or uncut(self._backend)
        adjustable.enable_truncation(limit, stride=stride, strategy=_strategy(how), direction=self._truncation_side)
        return adjustable

    def _rooms(self, texts: Sequence[TextInput], limit: int, stride: int, how: Tokenization) -> list[int]:
        """For each text, how many tokens a window has for what is cut of it.

        Of some pairs the text that is never cut leaves no more than ``stride``: no windows can be made of these, and
        the library would panic, which no ``except Exception`` catches.
        """
        count = self._backend.num_special_tokens_to_add
        # The library leaves room for special tokens even where they are not added (--disable_special_tokens).
        room = limit - count(how.one_side)
        if room <= 0:
            raise InvalidInput(f"{limit} tokens leave no room for text beside the special tokens")
        if stride >= room:
            raise InvalidInput(f"a stride of {stride} tokens is too long for windows of {room} tokens of text")
        if not how.one_side or not (stride or how.windows):
            return [room] * len(texts)
        whole = [text[0 if how.only_second else 1] if isinstance(text, tuple) else "" for text in texts]
        added = count(False) * self._special_tokens
        return [room - (len(one.ids) - added) for one in self._run(self._backend, whole, PLAIN)]

    def _count_windows(self, texts: Sequence[TextInput], rooms: Sequence[int], stride: int, how: Tokenization) -> None:
        """Raises TooLarge where there would be too many. Call it with the lock held."""
        total = 0
        for text, room in zip(texts, rooms, strict=True):
            # No tokenizer makes more tokens of a text than it has bytes. Without room for windows there is one.
            total += 1 + (BYTES * characters(text) // (room - stride) if room > stride else 0)
        if total <= how.max_windows:
            return
        counting = self._adjustable = self._adjustable or uncut(self._backend)
        counting.no_truncation()
        added = counting.num_special_tokens_to_add(False) * self._special_tokens
        total = 0
        for text, room in zip(texts, rooms, strict=True):
            cut = text[1 if how.only_second else 0] if how.one_side and isinstance(text, tuple) else text
            [encoded] = self._run(counting, [cut], PLAIN)
            rest = max(0, len(encoded.ids) - added - room)
            total += 1 + (-(-rest // (room - stride)) if room > stride else 0)
            if total > how.max_windows:
                raise TooLarge(
                    f"instances: more than {how.max_windows} windows in one request (--max_sequences); "
                    "send shorter texts, or share fewer tokens between windows"
                )

    def _one_window(self, text: TextInput, limit: int, stride: int, how: Tokenization) -> tokenizers.Encoding:
        """A pair that can't become windows, and need not if it fits. Call it with the lock held."""
        encoded = self._run(self._adjust(limit, 0, how), [text], how)[0]
        if encoded.overflowing:
            raise InvalidInput(
                f"a stride of {stride} tokens is too long for windows of {limit} tokens, most of which the other text "
                "of the pair takes; shorten that text"
            )
        return encoded

    def _one(self, text: str) -> list[Encoding]:
        """What ``_encode`` does for one text in the usual way, with little around the library's own work."""
        return self._windows(self._run_one(self._backend, text, self._special_tokens), self._max_length, PLAIN)

    def _run_one(self, backend: tokenizers.Tokenizer, text: str, special_tokens: bool) -> tokenizers.Encoding:
        try:
            return backend.encode_batch_fast([text], add_special_tokens=special_tokens)[0]
        except Exception as exc:  # as in _run
            raise InvalidInput(f"the tokenizer can't encode a text: {_reason([text]) or exc}") from exc

    def _run(
        self, backend: tokenizers.Tokenizer, texts: Sequence[TextInput], how: Tokenization
    ) -> list[tokenizers.Encoding]:
        """Encodes plain texts and texts in words, each kind in one call, and puts them into their order again."""
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
            if how.only_first and "too short" in str(exc):
                raise InvalidInput(
                    "a pair of texts does not fit: its second text (the hypothesis with the label) leaves no room for "
                    "the first, which alone may be cut"
                ) from exc
            if how.only_second and "too short" in str(exc):
                raise InvalidInput(
                    "a pair of texts does not fit: its first text (the question) leaves no room for the second, which "
                    "alone may be cut"
                ) from exc
            raise InvalidInput(f"the tokenizer can't encode a text: {_reason(texts) or exc}") from exc
        return [next(found[kind]) for kind in in_words]

    def _windows(self, encoded: tokenizers.Encoding, limit: int, how: Tokenization) -> list[Encoding]:
        ids = encoded.ids
        if len(ids) > limit:
            # The library doesn't truncate at all where the special tokens alone are too many.
            raise _does_not_fit(limit)
        # Only a text that was cut is as long as the limit and has a rest; reading the rest costs time. A pair of which
        # one text alone is cut can be shorter.
        rest = encoded.overflowing if len(ids) == limit or how.one_side else []
        if how.windows:
            return [_convert(one, one.ids, False, how.detail) for one in (encoded, *rest)]
        return [_convert(encoded, ids, bool(rest), how.detail)]

    def with_max_length(self, length: int) -> RustEngine:
        """A copy that cuts elsewhere."""
        return RustEngine(
            uncut(self._backend), length, special_tokens=self._special_tokens, truncation_side=self._truncation_side
        )


def _strategy(how: Tokenization) -> str:
    """Which text of a pair is cut, as the library calls it."""
    return "only_second" if how.only_second else "only_first" if how.only_first else LONGEST_FIRST


def _does_not_fit(limit: int) -> InvalidInput:
    return InvalidInput(f"a pair of texts does not fit into {limit} tokens")


def _convert(
    encoded: tokenizers.Encoding, ids: list[int], truncated: bool, detail: bool, cut: Cut | None = None
) -> Encoding:
    if not detail:
        return Encoding(ids, encoded.type_ids, truncated, cut=cut)
    return Encoding(
        ids,
        encoded.type_ids,
        truncated,
        encoded.offsets,
        encoded.special_tokens_mask,
        encoded.word_ids,
        encoded.sequence_ids,
        cut=cut,
    )


def _reason(texts: Sequence[TextInput]) -> str | None:
    for text in texts:
        try:
            "".join(strings(text)).encode()
        except UnicodeEncodeError as exc:
            return f"it has a lone surrogate, {exc.object[exc.start]!r}, which is not Unicode text"
    return None
