"""The word cache: the ids of words that occurred before, since natural text repeats its words.

It saves a third of the CPU time of a short request, and half of the time to encode natural text with BERT's vocabulary
(benchmarks/tokenizing.py). ``--enable_word_cache=false`` disables it; encodings are the same without it.

It needs a tokenizer whose ``encode(text)``, special tokens left out, is the concatenation of ``encode(chunk)`` for the
chunks of ``text.split(" ")``. ``find_separable`` decides that: each stage has to let U+0020 separate the text.

- **Added tokens** are found by leftmost-longest matching, in the text and then in the normalized pieces between the
  matches. No match crosses a space if no content has whitespace, before and after normalizing. ``single_word`` looks at
  the neighbouring characters, and treats a space like an end. ``lstrip`` and ``rstrip`` remove only whitespace, which
  has no ids where words are split at whitespace.
- **The normalizer** must give ``N(a + " " + b) == N(a) + " " + N(b)``. Those that map or drop single characters do,
  and so do Unicode's normal forms: a space begins a combining sequence, and no composition has one.
- **The pre-tokenizer** must split at every space. Those that drop whitespace look at single characters, or at runs
  without it. GPT-2's pattern has a space only at the beginning of a word, looks ahead only after whitespace, and never
  looks behind: words between single spaces, each with the space before it, are split as they are alone. Two spaces or
  other whitespace are not covered (``Separable.spaced``).
- **The model** sees one pre-token at a time, and must not be random (BPE's dropout; Unigram may sample).
- **The post-processor** must add constant ids around the text, and only type ids of 0.

Strip, Replace, Prepend, Precompiled and Metaspace act at the ends of a text or across its spaces. Other patterns may do
so, and stages written in Python are unknown. Source: tokenizers 0.23, added_vocabulary.rs, normalizers/,
pre_tokenizers/, models/ and processors/.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, cycle
from typing import Any

import orjson
from tokenizers import AddedToken, Tokenizer, models, normalizers

from hf_transformer.types.request import Json

Ids = tuple[int, ...]

LONGEST_TEXT = 2000
"""In characters. Longer texts go to a thread, where the library releases the GIL and this code would hold it."""
LONGEST_CHUNK = 32
"""In characters. Longer chunks are not repeated words."""
GENERATION_BYTES = 3 << 20
"""Size limit of each of two generations: some 9,000 English words. Measured growth of a process is 3 MiB with natural
text and 4 MiB with random words (benchmarks/tokenizing.py); the limit of both is 6 MiB."""
ENTRY_BYTES, CHARACTER_BYTES, ID_BYTES = 232, 4, 40
"""Upper bounds of CPython's memory for an entry, per character of the chunk, and per id."""
SHARE = 4
"""A text with at most one plus a quarter of its chunks unknown has them encoded one by one. A single chunk costs about
twice as much as within a text, so the library encodes other texts whole."""
TURNS = (True, *(False,) * 31)
"""Every 32nd text with unknown chunks is cached in full."""

PARTS = {
    "BertPreTokenizer": r"[A-Za-z0-9]+|[^A-Za-z0-9]",
    "Whitespace": r"\w+|[^\w]+",
    "WhitespaceSplit": r".+",
    "ByteLevel": r"'s|'t|'re|'ve|'m|'ll|'d|Ġ?[A-Za-z]+|Ġ?[0-9]+|Ġ?[^A-Za-z0-9Ġ]+",
}
"""Patterns by which pre-tokenizers split printable ASCII."""
AT_WHITESPACE = PARTS.keys() - {"ByteLevel"}
"""Pre-tokenizers that split at all whitespace and drop it."""
PARTED = {"BertNormalizer", "Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD"}
"""Normalizers that process the text on both sides of a space independently."""
KEEPING = {"Lowercase", "NFC", "NFD"}
"""Normalizers in PARTED that neither drop characters nor create spaces."""
SPACE = "Ġ"
"""The space in GPT-2's byte alphabet, where printable ASCII characters stand for themselves."""
ALPHANUMERIC = re.compile("[A-Za-z0-9]")


@dataclass(frozen=True, slots=True)
class Separable:
    """How a tokenizer can be split at spaces.

    ``splitter`` is the pre-tokenizer's type. ``spaced``: each chunk except the first includes the space before it, and
    texts with double spaces or other whitespace are not supported. ``prefixed``: the first chunk, and text after an
    added token, also gets a space. ``before`` and ``after`` are the ids of the special tokens around a text. ``added``
    has the strings that match added tokens.
    """

    splitter: str
    spaced: bool
    prefixed: bool
    before: Ids
    after: Ids
    added: tuple[str, ...]


def find_separable(backend: Tokenizer) -> Separable | None:
    """How a tokenizer can be split at spaces, None if its stages don't guarantee equal ids."""
    parts, model = _parts(backend), backend.model
    if parts is None or not isinstance(model, models.BPE | models.WordPiece | models.WordLevel):
        return None
    if isinstance(model, models.BPE) and model.dropout:
        return None
    splitter = parts["pre_tokenizer"] or {"type": None}
    spaced = splitter["type"] == "ByteLevel" and splitter["use_regex"]
    if not spaced and splitter["type"] not in AT_WHITESPACE:
        return None
    if not _steps(parts["normalizer"]) <= (KEEPING if spaced else PARTED):
        return None
    tokens = backend.get_added_tokens_decoder().values()
    added = tuple(text for token in tokens for text in _texts(token, backend.normalizer))
    # If words include the space before them, lstrip removes it from the token's own chunk, but rstrip would remove the
    # space of the next one.
    greedy = spaced and any(token.rstrip for token in tokens)
    around = _around(backend)
    if greedy or around is None or any(text.split() != [text] for text in added):
        return None
    return Separable(splitter["type"], spaced, spaced and splitter["add_prefix_space"], *around, added)


def _parts(backend: Tokenizer) -> Json:
    """Normalizer and pre-tokenizer as in tokenizer.json; None if one is written in Python."""
    bare = Tokenizer(models.BPE())
    try:
        bare.normalizer, bare.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        return orjson.loads(bare.to_str())
    except Exception:  # the Rust library raises bare Exception for a part that it can't serialize
        return None


def _steps(normalizer: Json) -> set[str]:
    """The types of all steps of a normalizer."""
    if normalizer is None:
        return set()
    if normalizer["type"] == "Sequence":
        return set().union(*map(_steps, normalizer["normalizers"]))
    return {normalizer["type"]}


def _texts(token: AddedToken, normalizer: normalizers.Normalizer | None) -> list[str]:
    """The strings that match an added token."""
    if not token.normalized or normalizer is None:
        return [token.content]
    return [token.content, normalizer.normalize_str(token.content)]


def _around(backend: Tokenizer) -> tuple[Ids, Ids] | None:
    """The ids that the post-processor adds before and after a single text. None if it drops or repeats the text, or
    sets type ids."""
    probe = Tokenizer(models.WordLevel({"a": 0}))
    probe.post_processor = backend.post_processor
    encoding = probe.encode("a")
    if encoding.special_tokens_mask.count(0) != 1 or any(encoding.type_ids):
        return None
    index = encoding.special_tokens_mask.index(0)
    return tuple(encoding.ids[:index]), tuple(encoding.ids[index + 1 :])


class AsciiEncoder:
    """Encodes chunks of printable ASCII in a quarter of the library's time per chunk.

    With a separable tokenizer, the normalizer lower-cases such characters or does nothing, the pre-tokenizer splits
    them by ``PARTS``, and the model encodes each part. To exclude added tokens, one non-alphanumeric character of each
    is forbidden in chunks.
    """

    def __init__(self, backend: Tokenizer, separable: Separable, forbidden: Sequence[str]) -> None:
        normalizer = backend.normalizer
        self._tokenize = backend.model.tokenize
        self._lower = normalizer is not None and normalizer.normalize_str("A") == "a"
        self._spaced, self._prefixed = separable.spaced, separable.prefixed
        allowed = re.escape("".join(sorted(set(map(chr, range(ord("!"), ord("~") + 1))).difference(forbidden))))
        self._plain = re.compile(f"[{allowed}]{{1,{LONGEST_CHUNK}}}").fullmatch
        self._parts = re.compile(PARTS[separable.splitter], re.ASCII).findall

    @classmethod
    def of(cls, backend: Tokenizer, separable: Separable) -> AsciiEncoder | None:
        """The encoder; None if an added token has only letters and digits."""
        marks = [ALPHANUMERIC.sub("", text)[:1] for text in separable.added if text.isascii()]
        return cls(backend, separable, marks) if all(marks) else None

    def ids(self, chunk: str, first: bool) -> Ids | None:
        """The ids of a chunk, None if it has other characters. ``first``: no space precedes it in the text.

        Raises the model's bare Exception if it lacks a token for unknown words.
        """
        if self._plain(chunk) is None:
            return None
        if self._lower:
            chunk = chunk.lower()
        if self._spaced and (self._prefixed or not first):
            chunk = SPACE + chunk
        tokenize = self._tokenize
        return tuple([token.id for part in self._parts(chunk) for token in tokenize(part)])


class WordCache:
    """The ids of chunks of text between spaces.

    Its size is bounded: two generations of ``GENERATION_BYTES`` each. A lookup moves a chunk into the young generation.
    When that is full it becomes the old one, and the previous old one is dropped.

    Threads share it. Readers take no lock: a dict lookup is atomic in CPython, and a reader that misses an entry that
    another thread just moved encodes it again, to the same ids. Writers take a lock to count the bytes. The tokenizer
    must not truncate, and must not change.
    """

    def __init__(self, backend: Tokenizer, separable: Separable, special_tokens: bool) -> None:
        self._backend = backend
        self._ascii = AsciiEncoder.of(backend, separable)
        self._spaced = separable.spaced
        self._before, self._after = ([*separable.before], [*separable.after]) if special_tokens else ([], [])
        self._young: dict[str, Ids] = {}
        self._old: dict[str, Ids] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self._turns = cycle(TURNS)

    def ids(self, text: str) -> list[int] | None:
        """The ids of a text, not truncated, with special tokens if enabled; all type ids are 0.

        None if the library has to encode the text: it is too long, has too many unknown chunks or unsupported
        whitespace, or can't be encoded.
        """
        if len(text) > LONGEST_TEXT:
            return None
        chunks = text.split(" ")
        if self._spaced:
            if chunks[0] or len(chunks) == 1:
                # Mark the first chunk, which has no space before it; no other key begins with a space.
                chunks[0] = f" {chunks[0]}"
            else:  # the text begins with a space, which is part of the first word
                del chunks[0]
        ids = self._before.copy()
        young = self._young
        try:
            for chunk in chunks:
                ids += young[chunk]
        except KeyError:
            return self._with_unknown(chunks)
        ids += self._after
        return ids

    def _with_unknown(self, chunks: Sequence[str]) -> list[int] | None:
        """``ids`` for a text with chunks that are not in the young generation."""
        max_unknown = 0
        known: dict[str, Ids] = {}
        unknown: list[str] = []
        try:
            for chunk in dict.fromkeys(chunks):
                cached = self._young.get(chunk)
                if cached is None:
                    cached = self._find(chunk)
                if cached is not None:
                    known[chunk] = cached
                elif self._spaced and chunk.split() != [chunk.removeprefix(" ")]:
                    return None
                else:
                    max_unknown = max_unknown or (len(chunks) if next(self._turns) else 1 + len(chunks) // SHARE)
                    if len(unknown) == max_unknown:
                        return None
                    unknown.append(chunk)
            if unknown:
                known |= self._learn(unknown)
        except Exception:  # TypeError or bare Exception: the library then encodes the whole text, and reports the error
            return None
        return [*self._before, *chain.from_iterable([known[chunk] for chunk in chunks]), *self._after]

    def _find(self, chunk: str) -> Ids | None:
        """The ids of a chunk from the old generation or the ASCII encoder, moved to the young one; None if unknown."""
        ids = self._old.get(chunk)
        if ids is None and self._ascii is not None:
            first = chunk[:1] == " "
            ids = self._ascii.ids(chunk[1:] if first else chunk, first)
        if ids is not None:
            self._keep(chunk, ids)
        return ids

    def _learn(self, chunks: Sequence[str]) -> dict[str, Ids]:
        """Encode chunks one by one, and cache them. Raises the library's errors."""
        words = chunks
        if self._spaced:
            words = [chunk[1:] if chunk[0] == " " else f" {chunk}" for chunk in chunks]
        # The library encodes each word of a pre-tokenized text like a text of its own, all in one call.
        encoded = self._backend.encode(words, is_pretokenized=True, add_special_tokens=False)
        owners: list[Any] = encoded.word_ids  # never None: there are no special tokens
        ids_by_chunk: list[list[int]] = [[] for _ in chunks]
        for number, owner in zip(encoded.ids, owners, strict=True):
            ids_by_chunk[owner].append(number)
        learned = {chunk: tuple(ids) for chunk, ids in zip(chunks, ids_by_chunk, strict=True)}
        for chunk, ids in learned.items():
            self._keep(chunk, ids)
        return learned

    def _keep(self, chunk: str, ids: Ids) -> None:
        if len(chunk) > LONGEST_CHUNK:
            return
        size = ENTRY_BYTES + CHARACTER_BYTES * len(chunk) + ID_BYTES * len(ids)
        with self._lock:
            if self._bytes + size > GENERATION_BYTES:
                self._old, self._young, self._bytes = self._young, {}, 0
            self._young[chunk] = ids
            self._bytes += size
