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
from hf_transformer.tokenizer.cached import CachedEncoder, longest_first
from hf_transformer.tokenizer.words import GPT2_SPACE, ChunkRules, WordCache, chunk_rules
from hf_transformer.types.tokenization import PLAIN, Encoding, TextInput, TokenIds, Tokenization, Truncation, Words

LONG_TEXT_CHARACTERS = 32_768
"""Maximum length of a text to encode whole. The engine encodes longer texts one by one, and only a prefix if
possible."""
MIN_PREFIX_CHARACTERS, PREFIX_GROWTH = 16_384, 4
"""Length of the first prefix of a long text, and growth factor of the following prefixes."""
MAX_WORDS_PER_CHARACTER = 32
"""Upper bound of the number of words per character of an added token. NFKC expands a character to up to 18 (UAX 15)."""

UNKNOWN = "\U0010ffff"
"""A character that no vocabulary contains."""

PER_TOKEN_LISTS = ("ids", "type_ids", "offsets", "special_mask", "word_ids", "sequence_ids")
"""Attributes of an Encoding with one item per token."""


def strings(text: TextInput) -> Sequence[str]:
    """Strings of an input: the text itself, both texts of a pair, or the words. Empty for token ids."""
    if isinstance(text, str):
        return (text,)
    if isinstance(text, TokenIds):
        return ()
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


def too_many_windows(options: Tokenization) -> TooLarge:
    """Error for more than ``options.max_windows`` windows."""
    return TooLarge(
        "instances",
        f"at most {options.max_windows} windows in a request (--max_sequences)",
        hint="send shorter texts, or share fewer tokens between windows",
    )


class Engine(ABC):
    """Encodes texts, truncated to ``max_length`` tokens. Thread-safe."""

    max_length: int

    def encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Encodes each text into windows: one window unless ``options.windows`` is set. Returns token ids unchanged.

        Raises:
            InvalidInput: a text is not Unicode, a pair can't fit, a stride is too long, or the tokenizer lacks an
                option.
            TooLarge: more than ``options.max_windows`` or ``options.max_tokens``, or too many token ids in a text.
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

    def encode_missed(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Encodes texts as ``encode`` does, without ``cached``."""
        if TokenIds not in map(type, texts):
            return self._encode(texts, options)
        untokenized = [text for text in texts if not isinstance(text, TokenIds)]
        encoded = iter(self._encode(untokenized, options) if untokenized else ())
        return [[self._from_ids(text, options)] if isinstance(text, TokenIds) else next(encoded) for text in texts]

    @abstractmethod
    def _encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Implements ``encode_missed`` for all inputs except token ids."""

    def _from_ids(self, text: TokenIds, options: Tokenization) -> Encoding:
        if len(text.ids) > self.max_length and not options.whole:
            raise TooLarge(
                "",
                f"at most {self.max_length} token ids in a text",
                str(len(text.ids)),
                "they are not truncated, which would lose their special tokens",
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
        self._truncates_left = truncation_side == "left"
        self._trims_space = trims_space(backend)
        self._long_text = threading.Lock()
        rules = chunk_rules(backend)
        words = WordCache(backend, rules) if rules and word_cache else None
        self._cached = CachedEncoder(words, backend, special_tokens, self._truncates_left) if words else None
        self._prefixes = PrefixTruncation.of(backend, rules) if rules and not self._truncates_left else None

    def cached(self, text: TextInput, options: Tokenization) -> list[Encoding] | None:
        return None if self._cached is None else self._cached.encode(text, self.max_length, options)

    def _encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        encodings = self._encode_bounded(texts, options)
        if self._cached is not None and not options.detail:
            self._cached.learn(texts[0])  # of one text of each call, since learning holds the GIL
        return encodings

    def _encode_bounded(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        limit = min(options.max_length or self.max_length, self.max_length)
        # The library uses up to 450 bytes per character during encoding, so encode one long text at a time.
        is_long = max(map(characters, texts), default=0) > LONG_TEXT_CHARACTERS
        with self._long_text if is_long else nullcontext():
            texts = [self._prefix(text, limit, options) for text in texts]
            return self._whole(texts, options) if options.whole else self._limited(texts, limit, options)

    def _limited(self, texts: Sequence[TextInput], limit: int, options: Tokenization) -> list[list[Encoding]]:
        """Encodes texts, each truncated to ``limit`` tokens or split into windows of that length."""
        stride = min(limit // 2, 128) if options.stride is None else options.stride
        if options.windows or options.max_length:
            self._check_room(limit, stride, is_pair=options.one_side)
        wholes = self._run(texts, options)
        plans = [
            self._plan(whole, isinstance(text, tuple), limit, stride, options)
            for whole, text in zip(wholes, texts, strict=True)
        ]
        if sum(count for count, _ in plans) > options.max_windows:
            raise too_many_windows(options)
        encodings = []
        for whole, (_, windows) in zip(wholes, plans, strict=True):
            converted = _convert(whole, options.detail, truncated=len(whole) > limit and not options.windows)
            encodings.append([self._window(converted, ranges) if ranges else converted for ranges in windows])
        return encodings

    def _prefix(self, text: TextInput, limit: int, options: Tokenization) -> TextInput:
        """Shortens a long text to a prefix with more than ``limit`` tokens. Returns other texts unchanged.

        If truncation shortens the longer text of a pair first, the prefix must remain the longer text.
        """
        if self._prefixes is None or options.windows or options.whole or characters(text) <= LONG_TEXT_CHARACTERS:
            return text
        if isinstance(text, str):
            return self._prefixes.prefix(text, limit)
        if not isinstance(text, tuple):
            return text
        first, second = text
        cuts_first = options.only_first or (not options.only_second and len(first) > len(second))
        long, short = (first, second) if cuts_first else (second, first)
        tokens = limit if options.one_side else limit + MAX_WORDS_PER_CHARACTER * len(short)
        long = self._prefixes.prefix(long, tokens)
        return (long, short) if cuts_first else (short, long)

    def _window(self, whole: Encoding, ranges: Sequence[range]) -> Encoding:
        """Returns an encoding without the given ranges of tokens. Adjusts offsets as the library does for a window."""
        window = without(whole, ranges)
        if window.offsets is not None and window.sequence_ids is not None and self._trims_space:
            for index in {window.sequence_ids.index(number) for number in (0, 1) if number in window.sequence_ids}:
                token, (start, end) = self._backend.id_to_token(window.ids[index]) or "", window.offsets[index]
                if start and token.startswith(GPT2_SPACE):
                    window.offsets[index] = start - 1, end if token.strip(GPT2_SPACE) else start - 1
        return window

    def _check_room(self, limit: int, stride: int, *, is_pair: bool) -> None:
        """Raises InvalidInput if windows of ``limit`` tokens have no room for text, or room for at most ``stride``
        tokens."""
        added = self._added(is_pair)
        room = limit - added
        if room <= 0:
            raise InvalidInput("", f"a length of more than {added} tokens, the number of special tokens", str(limit))
        if stride >= room:
            raise InvalidInput("", f"a stride of less than {room} tokens, the text in a window", str(stride))

    def _plan(
        self, whole: tokenizers.Encoding, is_pair: bool, limit: int, stride: int, options: Tokenization
    ) -> WindowPlan:
        """Computes the windows of an encoding, or its truncation.

        Source: truncate_encoding in tokenizers/src/tokenizer/encoding.rs.
        """
        if len(whole) <= limit:
            return NOT_TRUNCATED
        if not (options.windows or options.one_side):
            ranges = self._excess(whole, is_pair, limit)
            if len(whole) - sum(map(len, ranges)) > limit:
                raise InvalidInput("", f"a pair of texts that fits into {limit} tokens")
            return 1, [ranges]
        tokens = tokens_of(whole, 1 if is_pair and options.only_second else 0)
        room = limit - (len(whole) - len(tokens))
        if room <= 0:
            kept, truncated = ("second", "first") if options.only_first else ("first", "second")
            raise InvalidInput(
                "",
                f"a pair of texts whose {kept} one leaves room for the {truncated} in {limit} tokens",
                f"{len(whole) - len(tokens)} tokens without the {truncated}",
                f"only the {truncated} is truncated",
            )
        if not options.windows:
            return 1, [self._outside(tokens, 0, room)]
        if stride >= room:
            raise InvalidInput(
                "",
                f"a stride of less than {room} tokens, the room that one text of the pair leaves in {limit} tokens",
                str(stride),
                "shorten that text",
            )
        starts = range(0, len(tokens) - stride, room - stride)
        return len(starts), (self._outside(tokens, start, room) for start in starts)

    def _outside(self, tokens: range, start: int, room: int) -> Sequence[range]:
        """Tokens before and after a window of ``room`` tokens.

        ``start`` counts from the beginning of the text, or from its end if truncation drops the beginning.
        """
        if self._truncates_left:
            end = len(tokens) - start
            return tokens[: max(0, end - room)], tokens[end:]
        return tokens[:start], tokens[start + room :]

    def _whole(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Encodes texts without truncation. Sets ``cut`` to the truncation that the model's limit would require."""
        wholes = self._run(texts, replace(options, detail=True))
        if sum(map(len, wholes)) > options.max_tokens:
            raise too_many_tokens(options)
        encodings = []
        for text, whole in zip(texts, wholes, strict=True):
            ranges, offsets = self._excess(whole, isinstance(text, tuple), self.max_length), whole.offsets
            spans = tuple((offsets[cut[0]][0], offsets[cut[-1]][1]) if cut else None for cut in ranges)
            encoding = _convert(whole, options.detail)
            encoding.cut = Truncation(sum(map(len, ranges)), spans)
            encodings.append([encoding])
        return encodings

    def _excess(self, whole: tokenizers.Encoding, is_pair: bool, limit: int) -> Sequence[range]:
        """Tokens of each text that longest-first truncation to ``limit`` tokens drops."""
        tokens = [tokens_of(whole, number) for number in range(1 + is_pair)]
        counts = longest_first(len(tokens[0]), len(tokens[-1]) * is_pair, max(0, limit - self._added(is_pair)))
        sides = zip(tokens, counts, strict=False)
        return [side[: len(side) - kept] if self._truncates_left else side[kept:] for side, kept in sides]

    def _added(self, is_pair: bool) -> int:
        """Number of special tokens added to a text or a pair of texts."""
        return self._backend.num_special_tokens_to_add(is_pair) if self._special_tokens else 0

    def _run(self, texts: Sequence[TextInput], options: Tokenization) -> list[tokenizers.Encoding]:
        """Encodes plain texts and texts in words, with one library call for each kind. Preserves the order of
        ``texts``."""
        run: Any = self._backend.encode_batch if options.detail else self._backend.encode_batch_fast
        special_tokens = self._special_tokens if options.special_tokens is None else options.special_tokens
        kinds = [isinstance(text, Words) for text in texts]
        encoded: dict[bool, Any] = {}
        try:
            for in_words in set(kinds):
                batch = [
                    list(text.words) if isinstance(text, Words) else text
                    for text, kind in zip(texts, kinds, strict=True)
                    if kind == in_words
                ]
                encoded[in_words] = iter(run(batch, is_pretokenized=in_words, add_special_tokens=special_tokens))
        except Exception as exc:  # the library raises TypeError for lone surrogates, else bare Exception
            raise _encoding_error(texts, exc) from exc
        return [next(encoded[in_words]) for in_words in kinds]


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


WindowPlan = tuple[int, Iterable[Sequence[range]]]
"""Number of windows of a text, and the token ranges to drop for each window."""

NOT_TRUNCATED: WindowPlan = (1, ((),))


def trims_space(backend: tokenizers.Tokenizer) -> bool:
    """Whether offsets exclude the space before each token except the first token of a text or window.

    The library assumes that it added the first token's space itself. Source: process_offsets in
    pre_tokenizers/byte_level.rs.
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


def without(encoding: Encoding, ranges: Sequence[range]) -> Encoding:
    """Returns an encoding without the given ranges of tokens. The ranges are in order and don't overlap."""
    cuts = [cut for cut in ranges if cut]
    kept = list(map(slice, [0, *(cut.stop for cut in cuts)], [*(cut.start for cut in cuts), len(encoding)]))
    lists = ((name, getattr(encoding, name)) for name in PER_TOKEN_LISTS)
    remaining: Any = {
        name: [item for part in kept for item in values[part]] for name, values in lists if values is not None
    }
    return replace(encoding, **remaining)


def _convert(encoded: tokenizers.Encoding, detail: bool, *, truncated: bool = False) -> Encoding:
    encoding = Encoding(encoded.ids, encoded.type_ids, truncated)
    if detail:
        encoding.offsets, encoding.special_mask = encoded.offsets, encoded.special_tokens_mask
        encoding.word_ids, encoding.sequence_ids = encoded.word_ids, encoded.sequence_ids
    return encoding


def _encoding_error(texts: Sequence[TextInput], error: Exception) -> InvalidInput:
    """Error for texts that a tokenizer rejected. It mentions lone surrogates, unlike the library's message."""
    for text in texts:
        try:
            "".join(strings(text)).encode()
        except UnicodeEncodeError as exc:
            return InvalidInput("", "Unicode text", f"a text with a lone surrogate, {exc.object[exc.start]!r}")
    return InvalidInput("", "a text that the tokenizer can encode", hint=str(error))


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
                "no request for offsets, windows or texts in words",
                hint="this model's tokenizer is written in Python and has none; a tokenizer.json would add them",
            )
        strategy = "only_first" if options.only_first else "longest_first"
        return [[self._truncated(text, strategy)] for text in texts]

    def _whole(self, text: TextInput, options: Tokenization) -> Encoding:
        """Encodes a text without truncation. ``cut`` has no spans, since the tokenizer has no offsets."""
        special = self.special_tokens if options.special_tokens is None else options.special_tokens
        whole = self._call(text, add_special_tokens=special, return_special_tokens_mask=True)
        ids = list(whole["input_ids"])
        if len(ids) > options.max_tokens:
            raise too_many_tokens(options)
        added: int = self.tokenizer.num_special_tokens_to_add(isinstance(text, tuple))
        excess = len(ids) + added * (self.special_tokens - special) - self.max_length
        mask = list(whole["special_tokens_mask"]) if options.detail else None
        return Encoding(ids, list(whole["token_type_ids"]), special_mask=mask, cut=Truncation(max(0, excess), None))

    def _truncated(self, text: TextInput, strategy: str) -> Encoding:
        whole = self._call(text)
        truncated = len(whole["input_ids"]) > self.max_length
        if truncated:
            whole = self._call(text, truncation=strategy, max_length=self.max_length)
        ids = list(whole["input_ids"])
        if len(ids) > self.max_length:
            # In this case transformers logs an error, and does not truncate the pair.
            raise InvalidInput("", f"a pair of texts that fits into {self.max_length} tokens")
        return Encoding(ids, list(whole["token_type_ids"]), truncated)

    def _call(self, text: TextInput, **options: Any) -> Mapping[str, Any]:
        pair = text if isinstance(text, tuple) else (str(text), None)
        defaults = {"add_special_tokens": self.special_tokens, "return_token_type_ids": True, "verbose": False}
        try:
            encoded: Mapping[str, Any] = self.tokenizer(*pair, **(defaults | options))
        except (ValueError, TypeError, KeyError, UnicodeError) as exc:
            raise _encoding_error((text,), exc) from exc
        return {"token_type_ids": [0] * len(encoded["input_ids"]), **encoded}
