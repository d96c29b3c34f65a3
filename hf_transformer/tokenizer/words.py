"""The word cache: token ids of recent words. Natural text repeats its words.

It saves a third of the CPU of a short request, and half of the encoding of natural text with BERT's vocabulary
(benchmarks/tokenizing.py). ``--enable_word_cache=false`` switches it off; encodings are the same without it.

A tokenizer can be cached if ``encode(text)``, without special tokens, is the concatenation of ``encode(chunk)`` for
the chunks of ``text.split(" ")``. ``chunk_rules`` decides that: U+0020 has to separate the text at each stage.

- **Added tokens** are found by leftmost-longest matching, in the text and then in the normalized pieces between the
  matches. No match crosses a space if no content has whitespace, before and after normalizing. ``single_word`` looks at
  the neighbouring characters, and treats a space like an end. ``lstrip`` and ``rstrip`` remove only whitespace, which
  has no ids where words are split at whitespace.
- **The normalizer** must give ``N(a + " " + b) == N(a) + " " + N(b)``. Those that map or drop single characters do,
  and so do Unicode's normal forms: a space begins a combining sequence, and no composition has one.
- **The pre-tokenizer** must split at every space. Those that drop whitespace look at single characters, or at runs
  without it. GPT-2's pattern has a space only at the beginning of a word, looks ahead only after whitespace, and never
  looks behind: words between single spaces, each with the space before it, are split as they are alone. Two spaces or
  other whitespace are not covered (``ChunkRules.spaced``).
- **The model** sees one pre-token at a time, and must not be random (BPE's dropout; Unigram may sample).
- **The post-processor** must add constant ids around the text, and only type ids of 0.

Strip, Replace, Prepend, Precompiled and Metaspace act at the ends of a text or across its spaces. Other patterns may
also do so. The effects of stages written in Python are unknown.

Source: tokenizers 0.23, added_vocabulary.rs, normalizers/, pre_tokenizers/, models/ and processors/.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import orjson
from tokenizers import AddedToken, Tokenizer, models, normalizers

from hf_transformer.types.request import Json

Ids = tuple[int, ...]

MAX_TEXT_CHARACTERS = 2000
"""Longer texts skip the cache. The library encodes them in a thread without the GIL; this code would hold it."""
MAX_CHUNK_CHARACTERS = 32
"""Longer chunks are not kept: they rarely occur again."""
GENERATION_BYTES = 3 << 20
"""Bound of each of the two generations: some 9,000 English words. A process grew by 3 MiB with natural text and by
4 with random words (benchmarks/tokenizing.py)."""
ENTRY_BYTES, CHARACTER_BYTES, ID_BYTES = 232, 4, 40
"""CPython's memory for an empty chunk with no ids, for each character, and for each id; upper bounds."""
CHUNKS_PER_UNKNOWN = 4
"""A text may have one unknown chunk, and one more per this many chunks, to be learned.

A chunk encoded alone costs about twice as much as within a text, so the library encodes other texts as a whole.
"""
LEARN_ALL_EVERY = 32
"""Among texts with unknown chunks, every 32nd is learned in full."""

PART_PATTERNS = {
    "BertPreTokenizer": r"[A-Za-z0-9]+|[^A-Za-z0-9]",
    "Whitespace": r"\w+|[^\w]+",
    "WhitespaceSplit": r".+",
    "ByteLevel": r"'s|'t|'re|'ve|'m|'ll|'d|Ġ?[A-Za-z]+|Ġ?[0-9]+|Ġ?[^A-Za-z0-9Ġ]+",
}
"""Patterns by which pre-tokenizers split printable ASCII. The library's own also cover other letters and whitespace."""
WHITESPACE_SPLITTERS = PART_PATTERNS.keys() - {"ByteLevel"}
"""Pre-tokenizers that split at all whitespace and drop it."""
SEPARABLE_NORMALIZERS = {"BertNormalizer", "Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD"}
"""Normalizers for which a space separates the text."""
WORD_NORMALIZERS = {"Lowercase", "NFC", "NFD"}
"""Separable normalizers that also never drop a character or make a space."""
GPT2_SPACE = "Ġ"
"""The space in GPT-2's byte alphabet. Other printable ASCII maps to itself."""
ALPHANUMERIC = re.compile("[A-Za-z0-9]")


@dataclass(frozen=True, slots=True)
class ChunkRules:
    """Rules by which a tokenizer encodes a text chunk by chunk.

    Attributes:
        splitter: the pre-tokenizer's type.
        spaced: whether each chunk but the first is encoded with the space before it. Texts with empty chunks or other
            whitespace are then not covered.
        prefixed: whether the first chunk, and text after an added token, gets a space too.
        before, after: ids of the special tokens around a text.
        added: strings that match added tokens.
    """

    splitter: str
    spaced: bool
    prefixed: bool
    before: Ids
    after: Ids
    added: tuple[str, ...]


def chunk_rules(backend: Tokenizer) -> ChunkRules | None:
    """The rules of a tokenizer; None if its spaces may not separate the text."""
    stages, model = _stages(backend), backend.model
    if stages is None or not isinstance(model, models.BPE | models.WordPiece | models.WordLevel):
        return None
    if isinstance(model, models.BPE) and model.dropout:
        return None
    splitter = stages["pre_tokenizer"] or {"type": None}
    spaced = splitter["type"] == "ByteLevel" and splitter["use_regex"]
    if not spaced and splitter["type"] not in WHITESPACE_SPLITTERS:
        return None
    if not _steps(stages["normalizer"]) <= (WORD_NORMALIZERS if spaced else SEPARABLE_NORMALIZERS):
        return None
    tokens = backend.get_added_tokens_decoder().values()
    added = tuple(text for token in tokens for text in _contents(token, backend.normalizer))
    # If words keep the space before them, lstrip removes it from the token's own chunk, but rstrip would remove the
    # space of the next chunk.
    strips_next = spaced and any(token.rstrip for token in tokens)
    special_ids = _special_ids(backend)
    if strips_next or special_ids is None or any(text.split() != [text] for text in added):
        return None
    return ChunkRules(splitter["type"], spaced, spaced and splitter["add_prefix_space"], *special_ids, added)


def _stages(backend: Tokenizer) -> Json:
    """Normalizer and pre-tokenizer as tokenizer.json has them; None if one is written in Python."""
    bare = Tokenizer(models.BPE())
    try:
        bare.normalizer, bare.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        return orjson.loads(bare.to_str())
    except Exception:  # the Rust library raises bare Exception for a stage that it can't serialize
        return None


def _steps(normalizer: Json) -> set[str]:
    """The types of a normalizer's steps."""
    if normalizer is None:
        return set()
    if normalizer["type"] == "Sequence":
        return set().union(*map(_steps, normalizer["normalizers"]))
    return {normalizer["type"]}


def _contents(token: AddedToken, normalizer: normalizers.Normalizer | None) -> list[str]:
    """The strings that match an added token."""
    if not token.normalized or normalizer is None:
        return [token.content]
    return [token.content, normalizer.normalize_str(token.content)]


def _special_ids(backend: Tokenizer) -> tuple[Ids, Ids] | None:
    """The ids that the post-processor adds before and after a text. None if it drops or repeats the text, or gives it
    type ids."""
    probe = Tokenizer(models.WordLevel({"a": 0}))
    probe.post_processor = backend.post_processor
    encoded = probe.encode("a")
    if encoded.special_tokens_mask.count(0) != 1 or any(encoded.type_ids):
        return None
    index = encoded.special_tokens_mask.index(0)
    return tuple(encoded.ids[:index]), tuple(encoded.ids[index + 1 :])


class AsciiEncoder:
    """Encodes chunks of printable ASCII in a quarter of the library's time for a chunk.

    With chunk rules, the normalizer only lower-cases such characters, the pre-tokenizer splits them by PART_PATTERNS,
    and the model gives the ids of each part. Chunks that may contain an added token are excluded: for each of these
    tokens, one of its characters that is neither letter nor digit is forbidden.
    """

    def __init__(self, backend: Tokenizer, rules: ChunkRules, forbidden: Sequence[str]) -> None:
        normalizer = backend.normalizer
        self._tokenize = backend.model.tokenize
        self._lower = normalizer is not None and normalizer.normalize_str("A") == "a"
        self._spaced, self._prefixed = rules.spaced, rules.prefixed
        allowed = re.escape("".join(sorted(set(map(chr, range(ord("!"), ord("~") + 1))).difference(forbidden))))
        self._is_plain = re.compile(f"[{allowed}]{{1,{MAX_CHUNK_CHARACTERS}}}").fullmatch
        self._split = re.compile(PART_PATTERNS[rules.splitter], re.ASCII).findall

    @classmethod
    def of(cls, backend: Tokenizer, rules: ChunkRules) -> AsciiEncoder | None:
        """None if an added token has only letters and digits."""
        marks = [ALPHANUMERIC.sub("", text)[:1] for text in rules.added if text.isascii()]
        return cls(backend, rules, marks) if all(marks) else None

    def ids(self, chunk: str, is_first: bool) -> Ids | None:
        """The ids of a chunk, None if it is not plain. ``is_first``: no space precedes it in its text.

        Raises bare Exception if the model lacks its token for unknown words.
        """
        if self._is_plain(chunk) is None:
            return None
        if self._lower:
            chunk = chunk.lower()
        if self._spaced and (self._prefixed or not is_first):
            chunk = GPT2_SPACE + chunk
        tokenize = self._tokenize
        return tuple([token.id for part in self._split(chunk) for token in tokenize(part)])


class WordCache:
    """Ids by chunk of text between spaces.

    The cache is bounded in bytes, and so in entries: two generations of GENERATION_BYTES each. A lookup moves its chunk
    to the young generation. When that is full, it becomes the old generation, and the previous old one is dropped.

    Thread-safe. Readers take no lock: a dict lookup is atomic in CPython. A reader that misses an entry which another
    thread just moved encodes the chunk again, with the same result. Writers take a lock to keep the byte count right.
    """

    def __init__(self, backend: Tokenizer, rules: ChunkRules, special_tokens: bool) -> None:
        """``backend`` must not truncate, and must never change."""
        self._backend = backend
        self._ascii = AsciiEncoder.of(backend, rules)
        self._spaced = rules.spaced
        self._before, self._after = ([*rules.before], [*rules.after]) if special_tokens else ([], [])
        self._young: dict[str, Ids] = {}
        self._old: dict[str, Ids] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self._incomplete_texts = count()

    def ids(self, text: str) -> list[int] | None:
        """The ids of a text, not truncated, with special tokens if the cache adds them. All type ids are 0.

        None if the library has to encode the text: it is too long, has too many unknown chunks or whitespace that is
        not covered, or can't be encoded.
        """
        if len(text) > MAX_TEXT_CHARACTERS:
            return None
        chunks = text.split(" ")
        if self._spaced:
            if chunks[0] or len(chunks) == 1:
                # Only the first chunk has no space before it, so its key begins with one and no other key does.
                chunks[0] = f" {chunks[0]}"
            else:  # the text begins with a space, which belongs to its first word
                del chunks[0]
        ids = self._before.copy()
        young = self._young
        try:
            for chunk in chunks:
                ids += young[chunk]
        except KeyError:
            return self._learn_and_encode(chunks)
        ids += self._after
        return ids

    def _learn_and_encode(self, chunks: Sequence[str]) -> list[int] | None:
        """Implements ``ids`` for chunks that are not all in the young generation."""
        max_unknown = 0
        known: dict[str, Ids] = {}
        unknown: list[str] = []
        try:
            for chunk in dict.fromkeys(chunks):
                ids = self._young.get(chunk)
                if ids is None:
                    ids = self._find(chunk)
                if ids is not None:
                    known[chunk] = ids
                elif self._spaced and chunk.split() != [chunk.removeprefix(" ")]:
                    return None
                else:
                    if not max_unknown:
                        learns_all = next(self._incomplete_texts) % LEARN_ALL_EVERY == 0
                        max_unknown = len(chunks) if learns_all else 1 + len(chunks) // CHUNKS_PER_UNKNOWN
                    if len(unknown) == max_unknown:
                        return None
                    unknown.append(chunk)
            if unknown:
                known |= self._learn(unknown)
        except Exception:  # TypeError or bare Exception: encoding the whole text raises it again, for the client
            return None
        return [*self._before, *chain.from_iterable([known[chunk] for chunk in chunks]), *self._after]

    def _find(self, chunk: str) -> Ids | None:
        """The ids of a chunk outside the young generation, which then keeps it. None if it has to be learned."""
        ids = self._old.get(chunk)
        if ids is None and self._ascii is not None:
            is_first = chunk[:1] == " "
            ids = self._ascii.ids(chunk[1:] if is_first else chunk, is_first)
        if ids is not None:
            self._keep(chunk, ids)
        return ids

    def _learn(self, chunks: Sequence[str]) -> dict[str, Ids]:
        """Encodes each chunk alone and keeps it. Raises the library's errors."""
        words = chunks
        if self._spaced:
            words = [chunk[1:] if chunk[0] == " " else f" {chunk}" for chunk in chunks]
        # The library encodes each word of a pre-tokenized text like a text of its own, all of them in one call.
        encoded = self._backend.encode(words, is_pretokenized=True, add_special_tokens=False)
        word_ids: list[Any] = encoded.word_ids  # None only for special tokens, which this encoding lacks
        ids: list[list[int]] = [[] for _ in chunks]
        for number, word in zip(encoded.ids, word_ids, strict=True):
            ids[word].append(number)
        learned = {chunk: tuple(numbers) for chunk, numbers in zip(chunks, ids, strict=True)}
        for chunk, numbers in learned.items():
            self._keep(chunk, numbers)
        return learned

    def _keep(self, chunk: str, ids: Ids) -> None:
        if len(chunk) > MAX_CHUNK_CHARACTERS:
            return
        size = ENTRY_BYTES + CHARACTER_BYTES * len(chunk) + ID_BYTES * len(ids)
        with self._lock:
            if self._bytes + size > GENERATION_BYTES:
                self._old, self._young, self._bytes = self._young, {}, 0
            self._young[chunk] = ids
            self._bytes += size
