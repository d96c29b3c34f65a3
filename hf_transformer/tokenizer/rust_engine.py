"""Encoding of texts with the Rust tokenizers library."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Self

import tokenizers

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer.cache_check import MAX_CHARACTERS, SAMPLES, CacheCheck
from hf_transformer.tokenizer.cached import CachedEncoder
from hf_transformer.tokenizer.engine import Engine, characters, encoding_error, too_many_tokens
from hf_transformer.tokenizer.letters import LettersEncoder, control_tokens
from hf_transformer.tokenizer.prefixes import LONG_TEXT_CHARACTERS, MAX_WORDS_PER_CHARACTER, PrefixTruncation
from hf_transformer.tokenizer.windows import Kept, longest_first, plan, stride_of
from hf_transformer.tokenizer.words import GPT2_SPACE, ChunkRules, WordCache, chunk_rules
from hf_transformer.types.tokenization import (
    PLAIN,
    Encoding,
    PromptText,
    TextInput,
    Tokenization,
    Truncation,
    UserTokens,
    Words,
)

PER_TOKEN_LISTS = ("ids", "type_ids", "offsets", "special_mask", "word_ids", "sequence_ids")
"""Attributes of an Encoding with one item per token."""


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
        self._letters: LettersEncoder | None = None
        self.cache_check = CacheCheck()
        self._cached = self._make_cache()
        self._origin: RustEngine | None = None

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
        letters = self._letters
        if letters is not None and letters.needs(text):
            return None
        windows = self._cached.encode(text, self.max_length, options)
        if windows is None:
            return None
        if letters is not None and letters.varies and self._leaks(letters, text, windows, options):
            return None
        if not self.cache_check.is_due() or characters(text) > MAX_CHARACTERS:
            return windows
        library = self._encode_bounded([text], options)[0]
        self.cache_check.compare(windows, library)
        return library

    @property
    def has_cache(self) -> bool:
        """Whether the tokenizer has a word cache, on or off."""
        return self._cached is not None

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The library's tokenizer, which does not change once texts are encoded."""
        return self._backend

    def content(self) -> bytes | None:
        """Returns a digest of the tokenizer and of all settings but the limit; None if a stage is written in Python.

        Engines with the same digest encode each text alike.
        """
        settings = (
            *(self._special_tokens, self._truncates_left, self._rules is not None),
            self._backend.encode_special_tokens,
        )
        try:
            return hashlib.sha256(f"{settings} {self._backend.to_str()}".encode()).digest()
        except Exception:  # the library raises bare Exception for a stage that it can't serialize
            return None

    def with_max_length(self, length: int) -> Self:
        engine = super().with_max_length(length)
        engine._origin = self._origin or self  # SharedEngines knows the original, which lives as long as a copy
        return engine

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

    def user_tokens_as_letters(self, scope: UserTokens, template: str) -> None:
        """Implements Tokenizer.user_tokens_as_letters. The special tokens of texts must not change any more."""
        if control := control_tokens(self._backend, template):
            self._letters = LettersEncoder(self._backend, control, scope)

    def _leaks(
        self, letters: LettersEncoder, text: TextInput, windows: Sequence[Encoding], options: Tokenization
    ) -> bool:
        return any(letters.leaks(text, window.ids, self._adds_special(options)) for window in windows)

    def _adds_special(self, options: Tokenization) -> bool:
        return self._special_tokens if options.special_tokens is None else options.special_tokens

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
            return self._prefix(self._prefixes, text, limit)
        first, second = text
        cuts_first = options.only_first or (not options.only_second and len(first) > len(second))
        long, short = (first, second) if cuts_first else (second, first)
        tokens = limit if options.one_side else limit + MAX_WORDS_PER_CHARACTER * len(short)
        long = self._prefix(self._prefixes, long, tokens)
        return (long, short) if cuts_first else (short, long)

    @staticmethod
    def _prefix(prefixes: PrefixTruncation, text: str, tokens: int) -> str:
        prefix = prefixes.prefix(text, tokens)
        return text.prefix(len(prefix)) if isinstance(text, PromptText) else prefix

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

    def _run(self, texts: Sequence[TextInput], options: Tokenization) -> list[Any]:
        """Encodes plain texts and texts in words, with one library call for each kind. Preserves the order of
        ``texts``. Returns the library's encodings, and for texts with users' special tokens LettersEncoding."""
        run: Any = self._backend.encode_batch if options.detail else self._backend.encode_batch_fast
        special_tokens, letters = self._adds_special(options), self._letters
        kinds = [
            "letters" if letters is not None and letters.needs(text) else "words" if isinstance(text, Words) else "text"
            for text in texts
        ]
        encoded: dict[str, Any] = {}
        try:
            for kind in {*kinds} - {"letters"}:
                batch = [
                    list(text.words) if isinstance(text, Words) else text
                    for text, own in zip(texts, kinds, strict=True)
                    if own == kind
                ]
                encoded[kind] = iter(run(batch, is_pretokenized=kind == "words", add_special_tokens=special_tokens))
            encodings = [None if kind == "letters" else next(encoded[kind]) for kind in kinds]
            if letters is not None and ("letters" in kinds or letters.varies):
                for index, (text, one) in enumerate(zip(texts, encodings, strict=True)):
                    if one is None or letters.leaks(text, one.ids, special_tokens):
                        encodings[index] = letters.encode(text, special_tokens=special_tokens, detail=options.detail)
        except Exception as exc:  # the library raises TypeError for lone surrogates, else bare Exception
            raise encoding_error(texts, exc) from exc
        return encodings


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
