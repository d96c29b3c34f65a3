"""Encoding of texts with the Rust tokenizers library, or with a tokenizer written in Python."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import tokenizers

from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.tokenizer.words import SPACE, Separable, WordCache, find_separable
from hf_transformer.types.tokenization import PLAIN, Encoding, TextInput, TokenIds, Tokenization, Truncation, Words

LONG = 32_768
"""Text length in characters above which the engine encodes only a prefix if its tokens fill the model's length."""
FIRST_TRY, GROWTH = 16_384, 4
"""Length of the first prefix in characters, and growth factor of the following prefixes."""
EXPANSION = 32
"""Upper bound of the number of words per character of an added token. NFKC expands a character to up to 18 (UAX 15)."""

LISTS = ("ids", "type_ids", "offsets", "special_mask", "word_ids", "sequence_ids")
"""Fields of an Encoding with one value per token."""


def strings(text: TextInput) -> Sequence[str]:
    """Strings of an input: the text itself, both texts of a pair, or the words; empty for token ids."""
    if isinstance(text, str):
        return (text,)
    if isinstance(text, TokenIds):
        return ()
    return text.words if isinstance(text, Words) else text


def characters(text: TextInput) -> int:
    """Number of characters of a text, a pair or words. A token id counts as one character."""
    if isinstance(text, str):
        return len(text)
    return len(text.ids) if isinstance(text, TokenIds) else sum(map(len, strings(text)))


def too_many_tokens(options: Tokenization) -> TooLarge:
    """Error for more than ``options.max_tokens`` tokens."""
    return TooLarge(
        "instances",
        f"at most {options.max_tokens} tokens in a request, whose answer holds at most --max_answer_values values",
        hint="send fewer or shorter texts, or ask for less of each",
    )


class Engine(ABC):
    """Encodes texts, truncated to ``max_length`` tokens. Thread-safe."""

    max_length: int

    def encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Encodes each text into windows: one window unless ``options`` requests more. Returns token ids unchanged.

        Raises:
            InvalidInput: a text is not Unicode, a pair can't be truncated to the limit, a stride is too long, or the
                tokenizer lacks a feature.
            TooLarge: more than ``options.max_windows`` or ``options.max_tokens``, or too many token ids.
        """
        if TokenIds not in map(type, texts):
            return self._encode(texts, options)
        rest = [text for text in texts if not isinstance(text, TokenIds)]
        encoded = iter(self._encode(rest, options) if rest else ())
        return [[self._encode_ids(text, options)] if isinstance(text, TokenIds) else next(encoded) for text in texts]

    @abstractmethod
    def _encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Implements ``encode`` for all inputs except token ids."""

    def _encode_ids(self, text: TokenIds, options: Tokenization) -> Encoding:
        if len(text.ids) > self.max_length and not options.whole:
            raise TooLarge(
                "",
                f"at most {self.max_length} token ids in a text",
                str(len(text.ids)),
                "token ids are not truncated, since their special tokens would be lost",
            )
        return Encoding(list(text.ids), [0] * len(text.ids))

    def with_max_length(self, length: int) -> Self:
        """Returns a copy with a different limit in tokens."""
        engine = copy(self)
        engine.max_length = length
        return engine


class RustEngine(Engine):
    """A tokenizer of the Rust library.

    The library encodes each text without truncation. This class then truncates the encoding or splits it into windows,
    so it never modifies ``backend``.
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
        self._from_left = truncation_side == "left"
        self._keeps_space = keeps_space(backend)
        self._long_text = threading.Lock()
        separable = find_separable(backend)
        self._words = WordCache(backend, separable, special_tokens) if separable and word_cache else None
        self._prefix = PrefixTruncation.of(backend, separable) if separable and not self._from_left else None

    def encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Encodes as Engine does, using the word cache. Raises TooLarge before building windows."""
        if options is not PLAIN or self._words is None:
            return super().encode(texts, options)
        limit, known = self.max_length, self._words.ids
        results: list[list[Encoding]] = []
        uncached: list[TextInput] = []
        for text in texts:
            ids = known(text) if type(text) is str else None
            if ids is None or len(ids) > limit:
                uncached.append(text)
                results.append([])
            else:
                results.append([Encoding(ids, [0] * len(ids))])
        if not uncached:
            return results
        rest = iter(super().encode(uncached, options))
        return [windows or next(rest) for windows in results]

    def _encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Encodes without the word cache."""
        limit = min(options.max_length or self.max_length, self.max_length)
        # The library uses up to 450 bytes per character during encoding, so encode one long text at a time.
        with self._long_text if max(map(characters, texts), default=0) > LONG else nullcontext():
            texts = [self._shortened(text, limit, options) for text in texts]
            return self._whole(texts, options) if options.whole else self._cut(texts, limit, options)

    def _cut(self, texts: Sequence[TextInput], limit: int, options: Tokenization) -> list[list[Encoding]]:
        """Encodes texts, truncated to ``limit`` tokens or split into windows of ``limit`` tokens."""
        stride = min(limit // 2, 128) if options.stride is None else options.stride
        if options.windows or options.max_length:
            self._check_room(limit, stride, pair=options.one_side)
        encoded = self._run(texts, options)
        plans = [
            self._plan(encoding, isinstance(text, tuple), limit, stride, options)
            for encoding, text in zip(encoded, texts, strict=True)
        ]
        if sum(count for count, _ in plans) > options.max_windows:
            raise TooLarge(
                "instances",
                f"at most {options.max_windows} windows in a request (--max_sequences)",
                str(sum(count for count, _ in plans)),
                "send shorter texts, or use a smaller stride",
            )
        results = []
        for encoding, (_, windows) in zip(encoded, plans, strict=True):
            whole = _convert(encoding, options.detail, truncated=len(encoding) > limit and not options.windows)
            results.append([self._window(whole, ranges) if ranges else whole for ranges in windows])
        return results

    def _shortened(self, text: TextInput, limit: int, options: Tokenization) -> TextInput:
        """Shortens a long text to a prefix with more than ``limit`` tokens, since truncation drops the rest.

        If truncation shortens the longer text of a pair first, the prefix must remain the longer text.
        """
        if self._prefix is None or options.windows or options.whole or characters(text) <= LONG:
            return text
        if isinstance(text, str):
            return self._prefix.of_text(text, limit)
        if not isinstance(text, tuple):
            return text
        first, second = text
        cuts_first = options.only_first or (not options.only_second and len(first) > len(second))
        long, short = (first, second) if cuts_first else (second, first)
        long = self._prefix.of_text(long, limit if options.one_side else limit + EXPANSION * len(short))
        return (long, short) if cuts_first else (short, long)

    def _window(self, whole: Encoding, ranges: Sequence[range]) -> Encoding:
        """Returns an encoding without the given ranges of tokens. Adjusts offsets; see ``keeps_space``."""
        window = without(whole, ranges)
        if window.offsets is not None and window.sequence_ids is not None and self._keeps_space:
            for index in {window.sequence_ids.index(number) for number in (0, 1) if number in window.sequence_ids}:
                token, (start, end) = self._backend.id_to_token(window.ids[index]) or "", window.offsets[index]
                if start and token.startswith(SPACE):
                    window.offsets[index] = start - 1, end if token.strip(SPACE) else start - 1
        return window

    def _check_room(self, limit: int, stride: int, *, pair: bool) -> None:
        """Raises InvalidInput if windows of ``limit`` tokens have no room for text, or room for at most ``stride``
        tokens."""
        room = limit - self._added(pair)
        if room <= 0:
            raise InvalidInput("", "a length with room for text besides the special tokens", f"{limit} tokens")
        if stride >= room:
            raise InvalidInput("", f"a stride below the {room} tokens of text in a window", f"{stride} tokens")

    def _plan(self, whole: tokenizers.Encoding, pair: bool, limit: int, stride: int, options: Tokenization) -> Plan:
        """Computes the windows of a text, or its truncation.

        Source: truncate_encoding in tokenizers/src/tokenizer/encoding.rs.
        """
        if len(whole) <= limit:
            return UNCUT
        if not (options.windows or options.one_side):
            ranges = self._excess(whole, pair, limit)
            if len(whole) - sum(map(len, ranges)) > limit:
                raise InvalidInput("", f"a pair of texts that fits into {limit} tokens", f"{len(whole)} tokens")
            return 1, [ranges]
        text = tokens_of(whole, 1 if pair and options.only_second else 0)
        room = limit - (len(whole) - len(text))
        if room <= 0:
            uncut, cut = ("second", "first") if options.only_first else ("first", "second")
            raise InvalidInput(
                "",
                f"a pair of texts whose {uncut} one leaves room for the {cut} one within {limit} tokens",
                hint=f"only the {cut} one may be truncated",
            )
        if not options.windows:
            return 1, [self._outside(text, 0, room)]
        if stride >= room:
            raise InvalidInput(
                "",
                f"a stride below the {room} tokens that the other text of the pair leaves in a window",
                f"{stride} tokens",
                "shorten the other text",
            )
        starts = range(0, len(text) - stride, room - stride)
        return len(starts), (self._outside(text, start, room) for start in starts)

    def _outside(self, text: range, start: int, room: int) -> Sequence[range]:
        """Tokens of a text before and after a window of ``room`` tokens.

        ``start`` counts from the beginning of the text, or from its end if truncation drops the beginning.
        """
        if self._from_left:
            end = len(text) - start
            return text[: max(0, end - room)], text[end:]
        return text[:start], text[start + room :]

    def _whole(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Encodes texts without truncation. Sets ``cut`` to the truncation that the model's limit would require."""
        encoded = self._run(texts, replace(options, detail=True))
        if sum(map(len, encoded)) > options.max_tokens:
            raise too_many_tokens(options)
        results = []
        for text, encoding in zip(texts, encoded, strict=True):
            ranges, offsets = self._excess(encoding, isinstance(text, tuple), self.max_length), encoding.offsets
            spans = tuple((offsets[cut[0]][0], offsets[cut[-1]][1]) if cut else None for cut in ranges)
            converted = _convert(encoding, options.detail)
            converted.cut = Truncation(sum(map(len, ranges)), spans)
            results.append([converted])
        return results

    def _excess(self, whole: tokenizers.Encoding, pair: bool, limit: int) -> Sequence[range]:
        """Tokens of each text that longest-first truncation to ``limit`` tokens drops."""
        tokens = [tokens_of(whole, number) for number in range(1 + pair)]
        kept = longest_first(len(tokens[0]), len(tokens[-1]) * pair, max(0, limit - self._added(pair)))
        sides = zip(tokens, kept, strict=False)
        return [text[: len(text) - count] if self._from_left else text[count:] for text, count in sides]

    def _added(self, pair: bool) -> int:
        """Number of special tokens added to a text or a pair of texts."""
        return self._backend.num_special_tokens_to_add(pair) if self._special_tokens else 0

    def _run(self, texts: Sequence[TextInput], options: Tokenization) -> list[tokenizers.Encoding]:
        """Encodes plain texts and texts in words, with one library call for each kind. Preserves the order of
        ``texts``."""
        run: Any = self._backend.encode_batch if options.detail else self._backend.encode_batch_fast
        special_tokens = self._special_tokens if options.special_tokens is None else options.special_tokens
        in_words = [isinstance(text, Words) for text in texts]
        encoded: dict[bool, Any] = {}
        try:
            for kind in set(in_words):
                batch = [
                    list(text.words) if isinstance(text, Words) else text
                    for text, is_split in zip(texts, in_words, strict=True)
                    if is_split == kind
                ]
                encoded[kind] = iter(run(batch, is_pretokenized=kind, add_special_tokens=special_tokens))
        except Exception as exc:  # the library raises TypeError for lone surrogates, else bare Exception
            raise InvalidInput("", "texts that the tokenizer can encode", _reason(texts) or str(exc)) from exc
        return [next(encoded[kind]) for kind in in_words]


class PrefixTruncation:
    """Finds a prefix of a long text whose first tokens equal those of the whole text.

    Encoding of a million characters takes some 400 MB of memory, and truncation drops almost all tokens. With a
    separable tokenizer, words (pre-tokens) depend on the preceding text, and hardly on the following text. A cut can
    change the last word, the second-to-last word with GPT-2's pattern ('r before e), and the words of a split added
    token. The rest of the text therefore affects at most the last ``uncertain`` words of the prefix.
    """

    def __init__(self, backend: tokenizers.Tokenizer, separable: Separable) -> None:
        self._backend = backend
        self._uncertain = 2 + EXPANSION * max(map(len, separable.added), default=0)

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, separable: Separable) -> PrefixTruncation | None:
        """Creates an instance, or returns None if the model raises errors for unknown words.

        Truncation would hide an unknown word in the dropped part of the text.
        """
        unknown = backend.model.unk_token
        if unknown is None:
            refuses = not isinstance(backend.model, tokenizers.models.BPE)
        else:
            refuses = backend.model.token_to_id(unknown) is None
        return None if refuses else cls(backend, separable)

    def of_text(self, text: str, tokens: int) -> str:
        """Returns a prefix with more than ``tokens`` tokens that equal those of the whole text.

        Returns the whole text if no prefix is short enough. Also returns a text that is not Unicode, since encoding
        then raises the error.
        """
        size = max(FIRST_TRY, 4 * tokens)
        try:
            text.encode()
        except UnicodeEncodeError:
            return text
        while 2 * size <= len(text):
            words = self._backend.encode(text[:size], add_special_tokens=False).word_ids
            if len(words) > tokens and words[tokens] < words[-1] - self._uncertain:  # type: ignore[operator]  # no None
                return text[:size]
            size *= GROWTH
        return text


Plan = tuple[int, Iterable[Sequence[range]]]
"""Number of windows of a text, and the token ranges to drop for each window."""

UNCUT: Plan = (1, ((),))


def keeps_space(backend: tokenizers.Tokenizer) -> bool:
    """Whether offsets exclude the space before each token except the first token of a text.

    The library assumes that it added the first token's space itself.
    Source: process_offsets in pre_tokenizers/byte_level.rs.
    """
    probe = tokenizers.Tokenizer(tokenizers.models.WordLevel({"Ġa": 0}))
    probe.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    probe.post_processor = backend.post_processor
    return bool(probe.encode("Ġa Ġa", add_special_tokens=False).offsets == [(0, 2), (4, 5)])


def tokens_of(encoded: tokenizers.Encoding, number: int) -> range:
    """Range of tokens of the first (0) or second (1) text."""
    owners = encoded.sequence_ids
    count = owners.count(number)
    first = owners.index(number) if count else 0
    return range(first, first + count)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Token counts of both texts after longest-first truncation to ``room`` tokens in total.

    ``second`` is 0 for a single text. Source: truncate_encodings in tokenizers/src/utils/truncation.rs.
    """
    short, long = sorted((first, second))
    if short + long <= room:
        return first, second
    long = max(short, room - short)
    if short + long > room:
        short = room // 2
        long = room - short
    return (short, long) if first <= second else (long, short)


def without(encoding: Encoding, ranges: Sequence[range]) -> Encoding:
    """Returns an encoding without the given ranges of tokens. The ranges are in order and don't overlap."""
    cuts = [cut for cut in ranges if cut]
    kept = list(map(slice, [0, *(cut.stop for cut in cuts)], [*(cut.start for cut in cuts), len(encoding)]))
    lists = ((name, getattr(encoding, name)) for name in LISTS)
    fields: Any = {name: [x for part in kept for x in values[part]] for name, values in lists if values is not None}
    return replace(encoding, **fields)


def _convert(encoded: tokenizers.Encoding, detail: bool, *, truncated: bool = False) -> Encoding:
    encoding = Encoding(encoded.ids, encoded.type_ids, truncated)
    if detail:
        encoding.offsets, encoding.special_mask = encoded.offsets, encoded.special_tokens_mask
        encoding.word_ids, encoding.sequence_ids = encoded.word_ids, encoded.sequence_ids
    return encoding


def _reason(texts: Sequence[TextInput]) -> str | None:
    """Describes a lone surrogate in the texts, since the library's error does not; None if there is no lone
    surrogate."""
    for text in texts:
        try:
            "".join(strings(text)).encode()
        except UnicodeEncodeError as exc:
            return f"a lone surrogate, {exc.object[exc.start]!r}, which is not Unicode"
    return None


@dataclass
class PythonEngine(Engine):
    """Tokenizer of transformers written in Python. It does not support offsets, windows and texts in words."""

    tokenizer: Any
    max_length: int
    special_tokens: bool

    def _encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        in_words = any(isinstance(text, Words) for text in texts)
        if options.whole and not in_words:
            return [[self._whole(text, options)] for text in texts]
        if options not in (PLAIN, Tokenization(only_first=True)) or in_words:
            raise InvalidInput(
                "",
                "a request without offsets, windows or texts in words",
                hint="this model's tokenizer is written in Python; a tokenizer.json would add them",
            )
        strategy = "only_first" if options.only_first else "longest_first"
        return [[self._truncated(text, strategy)] for text in texts]

    def _whole(self, text: TextInput, options: Tokenization) -> Encoding:
        """Encodes a text without truncation. The result has no offsets."""
        special = self.special_tokens if options.special_tokens is None else options.special_tokens
        whole = self._call(text, add_special_tokens=special, return_special_tokens_mask=True)
        ids = list(whole["input_ids"])
        if len(ids) > options.max_tokens:
            raise too_many_tokens(options)
        added: int = self.tokenizer.num_special_tokens_to_add(isinstance(text, tuple))
        rest = len(ids) + added * (self.special_tokens - special) - self.max_length
        mask = list(whole["special_tokens_mask"]) if options.detail else None
        return Encoding(ids, list(whole["token_type_ids"]), special_mask=mask, cut=Truncation(max(0, rest), None))

    def _truncated(self, text: TextInput, strategy: str) -> Encoding:
        whole = self._call(text)
        truncated = len(whole["input_ids"]) > self.max_length
        if truncated:
            whole = self._call(text, truncation=strategy, max_length=self.max_length)
        ids = list(whole["input_ids"])
        if len(ids) > self.max_length:
            # In this case transformers logs an error, and does not truncate the pair.
            raise InvalidInput("", f"a pair of texts that fits into {self.max_length} tokens", f"{len(ids)} tokens")
        return Encoding(ids, list(whole["token_type_ids"]), truncated)

    def _call(self, text: TextInput, **options: Any) -> Mapping[str, Any]:
        pair = text if isinstance(text, tuple) else (str(text), None)
        defaults = {"add_special_tokens": self.special_tokens, "return_token_type_ids": True, "verbose": False}
        try:
            encoded: Mapping[str, Any] = self.tokenizer(*pair, **(defaults | options))
        except (ValueError, TypeError, KeyError, UnicodeError) as exc:
            raise InvalidInput("", "texts that the tokenizer can encode", str(exc)) from exc
        return {"token_type_ids": [0] * len(encoded["input_ids"]), **encoded}
