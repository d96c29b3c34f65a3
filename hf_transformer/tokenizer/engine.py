"""From texts to encodings: by the Rust tokenizers library, or by a tokenizer written in Python."""

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
from hf_transformer.tokenizer.words import SPACE, Separable, WordCache, separable
from hf_transformer.types.tokenization import PLAIN, Encoding, TextInput, TokenIds, Tokenization, Truncation, Words

LONG = 32_768
"""In characters. Of longer texts only the beginning is encoded, where its tokens are enough."""
FIRST_TRY, GROWTH = 16_384, 4
"""How many characters of a long text are tried first, and how many times as many next."""
EXPANSION = 32
"""Words that one character of an added token becomes at most; NFKC makes 18 characters of one (UAX 15)."""

LISTS = ("ids", "type_ids", "offsets", "special_mask", "word_ids", "sequence_ids")
"""What an encoding has for each token."""


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
    return TooLarge.of(
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
            raise TooLarge.of(
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

    The library encodes each text whole. A truncated text, or a window, is that encoding without some of its tokens, so
    ``backend`` never changes.
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
        how = separable(backend)
        self._words = None if how is None or not word_cache else WordCache(backend, how, special_tokens)
        self._beginning = None if how is None or self._from_left else PrefixTruncation.of(backend, how)

    def encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """See Engine. TooLarge is raised before the windows are made."""
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
        """``encode`` without the word cache."""
        limit = min(how.max_length or self.max_length, self.max_length)
        # The library takes up to 450 bytes for a character until it is done: one long text at a time.
        with self._long_text if max(map(characters, texts), default=0) > LONG else nullcontext():
            texts = [self._shortened(text, limit, how) for text in texts]
            return self._whole(texts, how) if how.whole else self._cut(texts, limit, how)

    def _cut(self, texts: Sequence[TextInput], limit: int, how: Tokenization) -> list[list[Encoding]]:
        """The texts in ``limit`` tokens each, or in windows of so many."""
        stride = min(limit // 2, 128) if how.stride is None else how.stride
        if how.windows or how.max_length:
            self._check_room(limit, stride, pair=how.one_side)
        encoded = self._run(texts, how)
        plans = [
            self._plan(one, isinstance(text, tuple), limit, stride, how)
            for one, text in zip(encoded, texts, strict=True)
        ]
        if sum(count for count, _ in plans) > how.max_windows:
            raise TooLarge.of(
                f"instances: more than {how.max_windows} windows in one request (--max_sequences); "
                "send shorter texts, or share fewer tokens between windows"
            )
        found = []
        for one, (_, windows) in zip(encoded, plans, strict=True):
            whole = _convert(one, how.detail, truncated=len(one) > limit and not how.windows)
            found.append([self._window(whole, ranges) if ranges else whole for ranges in windows])
        return found

    def _shortened(self, text: TextInput, limit: int, how: Tokenization) -> TextInput:
        """A long text without an end that would be cut off anyway: more than ``limit`` tokens are left of it.

        Where the longer text of a pair is cut first, both lengths count: the other text has to be short enough to be
        the shorter one still.
        """
        if self._beginning is None or how.windows or how.whole or characters(text) <= LONG:
            return text
        if isinstance(text, str):
            return self._beginning.of_text(text, limit)
        if not isinstance(text, tuple):
            return text
        first, second = text
        cuts_first = how.only_first or (not how.only_second and len(first) > len(second))
        long, short = (first, second) if cuts_first else (second, first)
        long = self._beginning.of_text(long, limit if how.one_side else limit + EXPANSION * len(short))
        return (long, short) if cuts_first else (short, long)

    def _window(self, whole: Encoding, ranges: Sequence[range]) -> Encoding:
        """An encoding without some ranges of its tokens; see keeps_space for the offsets."""
        found = without(whole, ranges)
        if found.offsets is not None and found.sequence_ids is not None and self._keeps_space:
            for place in {found.sequence_ids.index(number) for number in (0, 1) if number in found.sequence_ids}:
                token, (start, end) = self._backend.id_to_token(found.ids[place]) or "", found.offsets[place]
                if start and token.startswith(SPACE):
                    found.offsets[place] = start - 1, end if token.strip(SPACE) else start - 1
        return found

    def _check_room(self, limit: int, stride: int, *, pair: bool) -> None:
        """Raises InvalidInput where windows of ``limit`` tokens can't have text, or any beside ``stride`` tokens."""
        room = limit - self._added(pair)
        if room <= 0:
            raise InvalidInput.of(f"{limit} tokens leave no room for text beside the special tokens")
        if stride >= room:
            raise InvalidInput.of(f"a stride of {stride} tokens is too long for windows of {room} tokens of text")

    def _plan(self, whole: tokenizers.Encoding, pair: bool, limit: int, stride: int, how: Tokenization) -> Plan:
        """The windows of a text, or the one that is left of it.

        Source: truncate_encoding in tokenizers/src/tokenizer/encoding.rs.
        """
        if len(whole) <= limit:
            return UNCUT
        if not (how.windows or how.one_side):
            ranges = self._excess(whole, pair, limit)
            if len(whole) - sum(map(len, ranges)) > limit:
                raise InvalidInput.of(f"a pair of texts does not fit into {limit} tokens")
            return 1, [ranges]
        text = tokens_of(whole, 1 if pair and how.only_second else 0)
        room = limit - (len(whole) - len(text))
        if room <= 0:
            other, cut = "first text (the question)", "second"
            if how.only_first:
                other, cut = "second text (the hypothesis with the label)", "first"
            raise InvalidInput.of(
                f"a pair of texts does not fit: its {other} leaves no room for the {cut}, which alone may be cut"
            )
        if not how.windows:
            return 1, [self._outside(text, 0, room)]
        if stride >= room:
            raise InvalidInput.of(
                f"a stride of {stride} tokens is too long for windows of {limit} tokens, most of which the other text "
                "of the pair takes; shorten that text"
            )
        places = range(0, len(text) - stride, room - stride)
        return len(places), (self._outside(text, place, room) for place in places)

    def _outside(self, text: range, place: int, room: int) -> Sequence[range]:
        """The tokens of a text before and after a window of ``room`` tokens. ``place`` tokens lie between the window
        and the side of the text that is kept."""
        if self._from_left:
            end = len(text) - place
            return text[: max(0, end - room)], text[end:]
        return text[:place], text[place + room :]

    def _whole(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """The texts as they are, and what would be removed from each."""
        encoded = self._run(texts, replace(how, detail=True))
        if sum(map(len, encoded)) > how.max_tokens:
            raise too_many_tokens(how)
        found = []
        for text, one in zip(texts, encoded, strict=True):
            ranges, offsets = self._excess(one, isinstance(text, tuple), self.max_length), one.offsets
            spans = tuple((offsets[cut[0]][0], offsets[cut[-1]][1]) if cut else None for cut in ranges)
            converted = _convert(one, how.detail)
            converted.cut = Truncation(sum(map(len, ranges)), spans)
            found.append([converted])
        return found

    def _excess(self, whole: tokenizers.Encoding, pair: bool, limit: int) -> Sequence[range]:
        """The tokens of each text that don't fit into ``limit`` tokens, if the longer text is cut first."""
        tokens = [tokens_of(whole, number) for number in range(1 + pair)]
        kept = longest_first(len(tokens[0]), len(tokens[-1]) * pair, max(0, limit - self._added(pair)))
        sides = zip(tokens, kept, strict=False)
        return [one[: len(one) - left] if self._from_left else one[left:] for one, left in sides]

    def _added(self, pair: bool) -> int:
        """How many special tokens are added to a text or a pair."""
        return self._backend.num_special_tokens_to_add(pair) if self._special_tokens else 0

    def _run(self, texts: Sequence[TextInput], how: Tokenization) -> list[tokenizers.Encoding]:
        """Encodes plain texts and texts in words, each kind in one call, and restores their order."""
        run: Any = self._backend.encode_batch if how.detail else self._backend.encode_batch_fast
        special_tokens = self._special_tokens if how.special_tokens is None else how.special_tokens
        in_words = [isinstance(text, Words) for text in texts]
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
            raise InvalidInput.of(f"the tokenizer can't encode a text: {_reason(texts) or exc}") from exc
        return [next(found[kind]) for kind in in_words]


class PrefixTruncation:
    """Finds a part of a long text whose first tokens are those of the whole text.

    A million characters take some 400 MB to encode, and all but the model's length of it is cut off. Where a tokenizer
    is separable, its words (pre-tokens) depend on the text before them and on little behind them: an end of the text
    can change the last word, the last but one of GPT-2's ('r before e), and words that an added token would have
    covered. So all tokens but those of the last ``uncertain`` words are the same without the rest of the text.
    """

    def __init__(self, backend: tokenizers.Tokenizer, how: Separable) -> None:
        self._backend = backend
        self._uncertain = 2 + EXPANSION * max(map(len, how.added), default=0)

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, how: Separable) -> PrefixTruncation | None:
        """None where a text is refused for a word that the model does not know, which may be at its end."""
        unknown = backend.model.unk_token
        if unknown is None:
            refuses = not isinstance(backend.model, tokenizers.models.BPE)
        else:
            refuses = backend.model.token_to_id(unknown) is None
        return None if refuses else cls(backend, how)

    def of_text(self, text: str, tokens: int) -> str:
        """A beginning with more than so many tokens that are certain; the whole text if there is no shorter one, or if
        it is not Unicode, which the library then says."""
        size = max(FIRST_TRY, 4 * tokens)
        try:
            text.encode()
        except UnicodeEncodeError:
            return text
        while 2 * size <= len(text):
            found = self._backend.encode(text[:size], add_special_tokens=False).word_ids
            if len(found) > tokens and found[tokens] < found[-1] - self._uncertain:  # type: ignore[operator]  # no None
                return text[:size]
            size *= GROWTH
        return text


Plan = tuple[int, Iterable[Sequence[range]]]
"""How many windows a text has, and the tokens that each of them leaves out."""

UNCUT: Plan = (1, ((),))


def keeps_space(backend: tokenizers.Tokenizer) -> bool:
    """Whether the offsets of tokens leave out the space before them, but for the first token of a text or window: the
    library takes one space there for added by itself. Source: process_offsets in pre_tokenizers/byte_level.rs."""
    probe = tokenizers.Tokenizer(tokenizers.models.WordLevel({"Ġa": 0}))
    probe.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    probe.post_processor = backend.post_processor
    return bool(probe.encode("Ġa Ġa", add_special_tokens=False).offsets == [(0, 2), (4, 5)])


def tokens_of(encoded: tokenizers.Encoding, number: int) -> range:
    """The tokens of the first (0) or the second text (1), which follow each other."""
    owners = encoded.sequence_ids
    count = owners.count(number)
    first = owners.index(number) if count else 0
    return range(first, first + count)


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


def without(encoding: Encoding, ranges: Sequence[range]) -> Encoding:
    """An encoding without some ranges of its tokens, which are in order and don't overlap."""
    cuts = [cut for cut in ranges if cut]
    kept = list(map(slice, [0, *(cut.stop for cut in cuts)], [*(cut.start for cut in cuts), len(encoding)]))
    lists = ((name, getattr(encoding, name)) for name in LISTS)
    left: Any = {name: [one for part in kept for one in values[part]] for name, values in lists if values is not None}
    return replace(encoding, **left)


def _convert(encoded: tokenizers.Encoding, detail: bool, *, truncated: bool = False) -> Encoding:
    found = Encoding(encoded.ids, encoded.type_ids, truncated)
    if detail:
        found.offsets, found.special_mask = encoded.offsets, encoded.special_tokens_mask
        found.word_ids, found.sequence_ids = encoded.word_ids, encoded.sequence_ids
    return found


def _reason(texts: Sequence[TextInput]) -> str | None:
    """Why a text can't be encoded, where the library does not say."""
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
        if how not in (PLAIN, Tokenization(only_first=True)) or in_words:
            raise InvalidInput.of(
                "this model's tokenizer is written in Python and has no offsets, windows or texts in words; "
                "a tokenizer.json would give it them"
            )
        strategy = "only_first" if how.only_first else "longest_first"
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
        return Encoding(ids, list(whole["token_type_ids"]), special_mask=mask, cut=Truncation(max(0, rest), None))

    def _truncated(self, text: TextInput, strategy: str) -> Encoding:
        whole = self._call(text)
        truncated = len(whole["input_ids"]) > self.max_length
        if truncated:
            whole = self._call(text, truncation=strategy, max_length=self.max_length)
        ids = list(whole["input_ids"])
        if len(ids) > self.max_length:
            # transformers logs an error then, and leaves the pair as long as it was.
            raise InvalidInput.of(f"a pair of texts does not fit into {self.max_length} tokens")
        return Encoding(ids, list(whole["token_type_ids"]), truncated)

    def _call(self, text: TextInput, **options: Any) -> Mapping[str, Any]:
        pair = text if isinstance(text, tuple) else (str(text), None)
        usual = {"add_special_tokens": self.special_tokens, "return_token_type_ids": True, "verbose": False}
        try:
            found: Mapping[str, Any] = self.tokenizer(*pair, **(usual | options))
        except (ValueError, TypeError, KeyError, UnicodeError) as exc:
            raise InvalidInput.of(f"the tokenizer can't encode a text: {exc}") from exc
        return {"token_type_ids": [0] * len(found["input_ids"]), **found}
