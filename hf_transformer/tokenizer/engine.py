"""Encoding of texts with the Rust tokenizers library, or with a tokenizer written in Python."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import tokenizers

from hf_transformer.errors import ContextLengthExceeded, InvalidInput, TooLarge
from hf_transformer.tokenizer.cache_check import MAX_CHARACTERS, SAMPLES, CacheCheck
from hf_transformer.tokenizer.cached import CachedEncoder
from hf_transformer.tokenizer.windows import Kept, locate, longest_first, plan, shortened, stride_of
from hf_transformer.tokenizer.words import GPT2_SPACE, ChunkRules, WordCache, chunk_rules
from hf_transformer.types.tokenization import (
    PLAIN,
    Encoding,
    FramedPair,
    Side,
    SpannedText,
    TextInput,
    TokenIds,
    Tokenization,
    Truncation,
    TunedText,
    Words,
)

LONG_TEXT_CHARACTERS = 32_768
"""Maximum length of a text to encode whole. The engine encodes longer texts one by one, and only a prefix if
possible."""
MIN_PREFIX_CHARACTERS, PREFIX_GROWTH = 16_384, 4
"""Length of the first prefix of a long text, and growth factor of the following prefixes."""
MAX_WORDS_PER_CHARACTER = 32
"""Upper bound of the number of words per character of an added token. NFKC expands a character to up to 18 (UAX 15)."""

UNKNOWN = "\U0010ffff"
"""A character that no vocabulary contains."""

ONE_BY_ONE = (TokenIds, SpannedText, TunedText, FramedPair)
"""The inputs that are encoded one by one. The library encodes all others together."""

PER_TOKEN_LISTS = ("ids", "type_ids", "offsets", "special_mask", "word_ids", "sequence_ids")
"""Attributes of an Encoding with one item per token."""


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
        text: TokenIds | SpannedText | TunedText | FramedPair,
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
        key = text.query, text.count
        if key not in cut:
            cut[key] = self._cut(text.query, text.count, options)
        windows = self.encode([(text.before + cut[key] + text.after, text.second)], options)[0]
        for window in windows:
            window.truncated = window.truncated or cut[key] != text.query
        return windows

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
        self._rules = rules if word_cache else None
        self._prefixes = PrefixTruncation.of(backend, rules) if rules else None
        self.cache_check = CacheCheck()
        self._cached = self._make_cache()

    def _make_cache(self) -> CachedEncoder | None:
        """Creates an empty cache for the current special tokens. Returns None if the tokenizer has no rules for it."""
        if self._rules is None:
            return None
        made, trial = (self._new_cache(self._rules) for _ in range(2))  # the samples don't fill the cache
        self.cache_check.compare_all(
            SAMPLES,
            lambda text: trial.encode(text, self.max_length, PLAIN),
            lambda text: self._encode_bounded([text], PLAIN)[0],
        )
        return made

    def _new_cache(self, rules: ChunkRules) -> CachedEncoder:
        words = WordCache(self._backend, rules)
        return CachedEncoder(words, self._backend, self._special_tokens, self._truncates_left)

    def cached(self, text: TextInput, options: Tokenization) -> list[Encoding] | None:
        if self._cached is None or not self.cache_check.is_on:
            return None
        windows = self._cached.encode(text, self.max_length, options)
        if windows is None or not self.cache_check.is_due() or characters(text) > MAX_CHARACTERS:
            return windows
        library = self._encode_bounded([text], options)[0]
        self.cache_check.compare(windows, library)
        return library

    @property
    def has_cache(self) -> bool:
        """Whether the tokenizer has a word cache, on or off."""
        return self._cached is not None

    def frame_pairs(self, start: str, separator: Sequence[str], suffix: Sequence[str]) -> None:
        """Replaces the special tokens of texts and pairs. Call it before the first text is encoded.

        Args:
            start: a special token before a pair; empty for none.
            separator, suffix: texts between both texts of a pair and after them, each encoded by itself.
        """
        special, pair = [], []
        for number, text in enumerate((start, "$A", *separator, "$B", *suffix)):
            if text in ("$A", "$B"):
                pair.append(f"{text}:0")
            elif text:
                encoded = self._backend.encode(text, add_special_tokens=False)
                special.append({"id": f"part{number}", "ids": encoded.ids, "tokens": encoded.tokens})
                pair.append(f"part{number}:0")
        self._backend.post_processor = tokenizers.processors.TemplateProcessing(
            single="$A:0", pair=" ".join(pair), special_tokens=special
        )
        self._special_tokens, self._trims_space = True, trims_space(self._backend)
        self._cached = self._make_cache()

    def _encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        encodings = self._encode_bounded(texts, options)
        if self._cached is not None and self.cache_check.is_on and not options.detail:
            self._cached.learn(texts[0])  # of one text of each call, since learning holds the GIL
        return encodings

    def _encode_bounded(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        limit = self._limit(options)
        # The library uses up to 450 bytes per character during encoding, so encode one long text at a time.
        is_long = max(map(characters, texts), default=0) > LONG_TEXT_CHARACTERS
        with self._long_text if is_long else nullcontext():
            texts = [self.prefix(text, limit, options) for text in texts]
            return self._whole(texts, options) if options.whole else self._limited(texts, limit, options)

    def _limited(self, texts: Sequence[TextInput], limit: int, options: Tokenization) -> list[list[Encoding]]:
        """Encodes texts, each truncated to ``limit`` tokens or split into windows of that length."""
        if options.windows or options.max_length:
            self._check_room(limit, stride_of(limit, options), is_pair=options.one_side)
        wholes = self._run(texts, options)
        plans = [
            self._plan(whole, isinstance(text, tuple), limit, options)
            for whole, text in zip(wholes, texts, strict=True)
        ]
        encodings = []
        for whole, (windows, cut) in zip(wholes, plans, strict=True):
            converted = _convert(whole, options.detail, truncated=cut)
            encodings.append([self._window(converted, ranges) if ranges else converted for ranges in windows])
        return encodings

    def prefix(self, text: TextInput, limit: int, options: Tokenization) -> TextInput:
        """Shortens a long text to a prefix with more than ``limit`` tokens. Returns other texts unchanged.

        If truncation shortens the longer text of a pair first, the prefix must remain the longer text.
        """
        if self._prefixes is None or options.windows or options.whole or characters(text) <= LONG_TEXT_CHARACTERS:
            return text
        if self._is_left(options) or not isinstance(text, str | tuple):
            return text
        if isinstance(text, str):
            return self._prefixes.prefix(text, limit)
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
        self, whole: tokenizers.Encoding, is_pair: bool, limit: int, options: Tokenization
    ) -> tuple[Sequence[Sequence[range]], bool]:
        """Ranges of tokens to drop for each window of an encoding, and whether no window contains some tokens."""
        if len(whole) <= limit and not options.max_each:
            return ((),), False
        texts = [tokens_of(whole, number) for number in range(1 + is_pair)]
        counts = [*map(len, texts)]
        windows, cut = plan(counts, len(whole) - sum(counts), limit, options, self._is_left(options))
        return [dropped(texts, kept) for kept in windows], cut

    def _is_left(self, options: Tokenization) -> bool:
        side = options.truncation_side
        return self._truncates_left if side is None else side == "left"

    def _whole(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        """Encodes texts without truncation. Sets ``cut`` to the truncation that the model's limit would require."""
        wholes = self._run(texts, replace(options, detail=True))
        if sum(map(len, wholes)) > options.max_tokens:
            raise too_many_tokens(options)
        encodings = []
        for text, whole in zip(texts, wholes, strict=True):
            ranges, offsets = self._excess(whole, isinstance(text, tuple)), whole.offsets
            spans = tuple((offsets[cut[0]][0], offsets[cut[-1]][1]) if cut else None for cut in ranges)
            encoding = _convert(whole, options.detail)
            encoding.cut = Truncation(sum(map(len, ranges)), spans)
            encodings.append([encoding])
        return encodings

    def _excess(self, whole: tokenizers.Encoding, is_pair: bool) -> Sequence[range]:
        """Tokens of each text that longest-first truncation to ``max_length`` tokens drops."""
        tokens = [tokens_of(whole, number) for number in range(1 + is_pair)]
        counts = longest_first(
            len(tokens[0]), len(tokens[-1]) * is_pair, max(0, self.max_length - self._added(is_pair))
        )
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


def dropped(texts: Sequence[range], kept: Kept) -> list[range]:
    """Ranges of tokens of both texts before and after those to keep, in the order of the tokens."""
    ranges = [cut for side, part in zip(texts, kept, strict=True) for cut in (side[: part.start], side[part.stop :])]
    return sorted(filter(None, ranges), key=lambda cut: cut.start)


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
        if options.detail or options.windows or options.max_each or in_words:
            raise InvalidInput(
                "",
                "no request for offsets, windows or texts in words",
                hint="this model's tokenizer is written in Python and has none; a tokenizer.json would add them",
            )
        return [[self._truncated(text, options)] for text in texts]

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

    def _truncated(self, text: TextInput, options: Tokenization) -> Encoding:
        whole, limit = self._call(text), self._limit(options)
        truncated = len(whole["input_ids"]) > limit
        if truncated:
            is_second = options.only_second and isinstance(text, tuple)
            one = "only_second" if is_second else "only_first" if options.one_side else "longest_first"
            whole = self._call(text, options.truncation_side, truncation=one, max_length=limit)
        ids = list(whole["input_ids"])
        if len(ids) > limit:
            # In this case transformers logs an error, and does not truncate the pair.
            raise InvalidInput("", f"a pair of texts that fits into {limit} tokens")
        return Encoding(ids, list(whole["token_type_ids"]), truncated)

    def _call(self, text: TextInput, side: Side | None = None, **options: Any) -> Mapping[str, Any]:
        pair, tokenizer = text if isinstance(text, tuple) else (str(text), None), self.tokenizer
        if side is not None:  # an attribute and no argument; copy() would load some vocabularies again
            tokenizer = object.__new__(type(tokenizer))
            tokenizer.__dict__.update(self.tokenizer.__dict__, truncation_side=side)
        defaults = {"add_special_tokens": self.special_tokens, "return_token_type_ids": True, "verbose": False}
        try:
            encoded: Mapping[str, Any] = tokenizer(*pair, **(defaults | options))
        except (ValueError, TypeError, KeyError, UnicodeError) as exc:
            raise _encoding_error((text,), exc) from exc
        return {"token_type_ids": [0] * len(encoded["input_ids"]), **encoded}
