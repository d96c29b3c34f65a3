"""The word cache: stores the token ids of recent words, since natural text repeats its words.

It saves a third of the CPU time of a short request, and half of the time to encode natural text with BERT's vocabulary
(benchmarks/tokenizing.py). ``--enable_word_cache=false`` disables it. Encodings are the same without it.

It requires a separable tokenizer: ``encode(text)``, without special tokens, must equal the concatenation of
``encode(chunk)`` for the chunks of ``text.split(" ")``. ``chunk_rules`` checks this condition for each stage:

- **Added tokens** match the text, and then the normalized pieces between the matches (leftmost-longest matching). If no
  content has whitespace, before and after normalization, no match crosses a space. ``single_word`` depends on the
  neighbouring characters, and treats a space like the end of the text. ``lstrip`` and ``rstrip`` remove only
  whitespace, which has no ids if words are split at whitespace.
- **The normalizer** must satisfy ``N(a + " " + b) == N(a) + " " + N(b)``. Normalizers that map or drop single
  characters satisfy it. Unicode normal forms satisfy it too: a space begins a combining sequence, and no composition
  contains one.
- **The pre-tokenizer** must split at every space. Pre-tokenizers that drop whitespace match single characters, or runs
  without whitespace. GPT-2's pattern allows a space only at the beginning of a word. It has no lookbehind, and a
  lookahead only after whitespace. A word with its single preceding space is therefore split independently of the other
  words. Double spaces and other whitespace are not supported (``ChunkRules.spaced``).
- **The model** processes one pre-token at a time. It must be deterministic: no dropout of BPE, no sampling of Unigram.
- **The post-processor** must add constant ids around the text, and only type ids of 0.

Strip, Replace, Prepend, Precompiled and Metaspace act at the ends of a text or across its spaces. Other patterns may
also do so. The effects of stages written in Python are unknown.

Source: tokenizers 0.23, added_vocabulary.rs, normalizers/, pre_tokenizers/, models/ and processors/.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import orjson
from tokenizers import AddedToken, Tokenizer, models, normalizers

from hf_transformer.types.request import Json

Ids = tuple[int, ...]

MAX_TEXT_CHARACTERS = 20_000
"""Maximum length of a text in characters. The cache holds the GIL: 0.4 ms for 20,000 characters of known words."""
MAX_CHUNK_CHARACTERS = 32
"""Maximum length of a cached chunk in characters. Longer chunks rarely occur again."""
GENERATION_BYTES = 3 << 20
"""Size limit of each of the two generations, enough for some 9,000 English words.

A process grew by 3 MiB with natural text and 4 MiB with random words (benchmarks/tokenizing.py).
"""
ENTRY_BYTES, CHARACTER_BYTES, ID_BYTES = 232, 4, 40
"""Upper bounds of CPython's memory use in bytes: per entry, per character of the chunk, and per id."""
MIN_UNKNOWN_CHARACTERS, CHARACTERS_PER_UNKNOWN = 500, 16
"""Maximum length of a text's unknown chunks in characters, and reciprocal of the additional share of a long text.

The library encodes texts with more unknown chunks whole. The cache takes about 0.3 ms for 500 characters.
"""
CHUNKS_PER_UNKNOWN = 4
"""Reciprocal of the largest share of unknown chunks that AsciiEncoder can't encode. One additional chunk is allowed.

A separate chunk costs the library about twice as much as the same characters in a text.
"""
LEARN_EVERY = 32
"""Interval of texts to learn from, among those with too many unknown chunks, after the first full generation."""

PART_PATTERNS = {
    "BertPreTokenizer": r"[A-Za-z0-9]+|[^A-Za-z0-9]",
    "Whitespace": r"\w+|[^\w]+",
    "WhitespaceSplit": r".+",
    "ByteLevel": r"'s|'t|'re|'ve|'m|'ll|'d|Ġ?[A-Za-z]+|Ġ?[0-9]+|Ġ?[^A-Za-z0-9Ġ]+",
}
"""Patterns equivalent to the pre-tokenizers for printable ASCII. The library's patterns cover all of Unicode."""
WHITESPACE_SPLITTERS = PART_PATTERNS.keys() - {"ByteLevel"}
"""Pre-tokenizers that split at all whitespace, and drop it."""
SEPARABLE_NORMALIZERS = {"BertNormalizer", "Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD"}
"""Normalizers that process the text on both sides of a space independently."""
WORD_NORMALIZERS = {"Lowercase", "NFC", "NFD"}
"""Normalizers in SEPARABLE_NORMALIZERS that neither drop characters nor create spaces."""
GPT2_SPACE = "Ġ"
"""Character for the space in GPT-2's byte alphabet. Other printable ASCII characters map to themselves."""
ALPHANUMERIC = re.compile("[A-Za-z0-9]")


@dataclass(frozen=True, slots=True)
class ChunkRules:
    """Properties of a tokenizer that can encode the chunks between spaces independently.

    Attributes:
        splitter: the pre-tokenizer's type.
        spaced: whether each chunk except the first includes the preceding space. Double spaces and other whitespace are
            then not supported.
        prefixed: whether the tokenizer adds a space to the first chunk, and to text after an added token.
        before, after: ids of the special tokens before and after a text.
        added: strings that match added tokens.
    """

    splitter: str
    spaced: bool
    prefixed: bool
    before: Ids
    after: Ids
    added: tuple[str, ...]


def chunk_rules(backend: Tokenizer) -> ChunkRules | None:
    """Determines the rules of a separable tokenizer; None if its stages don't guarantee equal ids."""
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
    # If words include the preceding space, lstrip removes the space of the token's own chunk, but rstrip would remove
    # the space of the next chunk.
    strips_next = spaced and any(token.rstrip for token in tokens)
    special_ids = _special_ids(backend)
    if strips_next or special_ids is None or any(text.split() != [text] for text in added):
        return None
    return ChunkRules(splitter["type"], spaced, spaced and splitter["add_prefix_space"], *special_ids, added)


def _stages(backend: Tokenizer) -> Json:
    """Normalizer and pre-tokenizer in the format of tokenizer.json; None if either is written in Python."""
    bare = Tokenizer(models.BPE())
    try:
        bare.normalizer, bare.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        return orjson.loads(bare.to_str())
    except Exception:  # the Rust library raises bare Exception for a stage that it can't serialize
        return None


def _steps(normalizer: Json) -> set[str]:
    """Types of all steps of a normalizer."""
    if normalizer is None:
        return set()
    if normalizer["type"] == "Sequence":
        return set().union(*map(_steps, normalizer["normalizers"]))
    return {normalizer["type"]}


def _contents(token: AddedToken, normalizer: normalizers.Normalizer | None) -> list[str]:
    """Strings that match an added token."""
    if not token.normalized or normalizer is None:
        return [token.content]
    return [token.content, normalizer.normalize_str(token.content)]


def _special_ids(backend: Tokenizer) -> tuple[Ids, Ids] | None:
    """Ids that the post-processor adds before and after a single text.

    None if it drops or repeats the text, or sets type ids.
    """
    probe = Tokenizer(models.WordLevel({"a": 0}))
    probe.post_processor = backend.post_processor
    encoded = probe.encode("a")
    if encoded.special_tokens_mask.count(0) != 1 or any(encoded.type_ids):
        return None
    index = encoded.special_tokens_mask.index(0)
    return tuple(encoded.ids[:index]), tuple(encoded.ids[index + 1 :])


class AsciiEncoder:
    """Encodes chunks of printable ASCII, four times as fast as the library.

    In a separable tokenizer, the normalizer only lower-cases ASCII characters or leaves them unchanged. The
    pre-tokenizer splits them by PART_PATTERNS, and the model encodes each part. Chunks must not contain added tokens,
    so they must not contain the forbidden characters: one non-alphanumeric character of each added token.
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
        """Creates an encoder, or returns None if an added token consists of only letters and digits."""
        marks = [ALPHANUMERIC.sub("", text)[:1] for text in rules.added if text.isascii()]
        return cls(backend, rules, marks) if all(marks) else None

    def ids(self, chunk: str, is_first: bool) -> Ids | None:
        """Ids of a chunk; None if it has unsupported characters. ``is_first`` means that no space precedes it in the
        text.

        Raises a bare Exception if the model has no token for unknown words.
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
    """Cache of the ids of chunks, the parts of a text between spaces.

    The cache has two generations of at most GENERATION_BYTES each. A lookup moves a chunk into the young generation. A
    full young generation becomes the old generation, and the previous old generation is dropped.

    Thread-safe. Readers take no lock, since a dict lookup is atomic in CPython. A reader may miss an entry that another
    thread is moving; it then encodes the chunk again, with the same result. Writers take a lock to update the size.
    """

    def __init__(self, backend: Tokenizer, rules: ChunkRules) -> None:
        """Creates an empty cache. ``backend`` must not truncate, and must not change."""
        self._backend = backend
        self._ascii = AsciiEncoder.of(backend, rules)
        self._spaced = rules.spaced
        self._young: dict[str, Ids] = {}
        self._old: dict[str, Ids] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self._missed_texts = count()

    def ids(self, text: str) -> list[int] | None:
        """Ids of a text, without truncation and special tokens. Takes at most about 1 ms.

        Returns None if the library has to encode the text: it is too long, has too many unknown chunks or unsupported
        whitespace, or can't be encoded.
        """
        if len(text) > MAX_TEXT_CHARACTERS:
            return None
        chunks = self._chunks(text)
        ids: list[int] = []
        young = self._young
        try:
            for chunk in chunks:
                ids += young[chunk]
        except KeyError:
            return self._encode(chunks, MIN_UNKNOWN_CHARACTERS + len(text) // CHARACTERS_PER_UNKNOWN)
        return ids

    def learn(self, text: str) -> None:
        """Learns the chunks of a text that ``ids`` left to the library: of every such text at first, later of some."""
        if len(text) <= MAX_TEXT_CHARACTERS and (not self._old or next(self._missed_texts) % LEARN_EVERY == 0):
            chunks = dict.fromkeys(self._chunks(text)).keys() - self._young.keys()
            usable = [chunk for chunk in chunks if len(chunk) <= MAX_CHUNK_CHARACTERS and self._is_separable(chunk)]
            with suppress(Exception):  # the library's errors: the text has been refused already
                self._learn(usable, len(usable))

    def _chunks(self, text: str) -> list[str]:
        chunks = text.split(" ")
        if self._spaced:
            if chunks[0] or len(chunks) == 1:
                # Mark the first chunk, which has no preceding space: only its key begins with a space.
                chunks[0] = f" {chunks[0]}"
            else:  # the text begins with a space, which belongs to its first word
                del chunks[0]
        return chunks

    def _is_separable(self, chunk: str) -> bool:
        """Whether a chunk has the same ids in each text."""
        return not self._spaced or not (chunk[-1:].isspace() or chunk[chunk[:1] == " " :][:1].strip() == "")

    def _encode(self, chunks: Sequence[str], max_unknown: int) -> list[int] | None:
        """Implements ``ids`` with at most ``max_unknown`` characters of unknown chunks."""
        young, old, known, unknown = self._young, self._old, dict[str, Ids](), list[str]()
        for chunk in dict.fromkeys(chunks):
            ids = young.get(chunk)
            if ids is None:
                ids = old.get(chunk)
                if ids is None:
                    max_unknown -= len(chunk)
                    if max_unknown < 0 or not self._is_separable(chunk):
                        return None
                    unknown.append(chunk)
                    continue
                self._keep(chunk, ids)
            known[chunk] = ids
        try:
            known |= self._learn(unknown, 1 + len(chunks) // CHUNKS_PER_UNKNOWN)
            return [*chain.from_iterable([known[chunk] for chunk in chunks])]
        except Exception:  # TypeError or bare Exception: encoding the whole text raises it again, for the client
            return None

    def _learn(self, chunks: Sequence[str], max_others: int) -> dict[str, Ids]:
        """Encodes chunks separately, and caches them. Omits some if more than ``max_others`` are not for AsciiEncoder.

        Raises the library's errors.
        """
        learned, others = dict[str, Ids](), list[str]()
        for chunk in chunks:
            is_first = chunk[:1] == " "
            ids = None if self._ascii is None else self._ascii.ids(chunk[1:] if is_first else chunk, is_first)
            if ids is None:
                others.append(chunk)
            else:
                learned[chunk] = ids
        if len(others) <= max_others and others:
            learned |= self._library_ids(others)
        for chunk, ids in learned.items():
            self._keep(chunk, ids)
        return learned

    def _library_ids(self, chunks: Sequence[str]) -> dict[str, Ids]:
        words = chunks
        if self._spaced:
            words = [chunk[1:] if chunk[0] == " " else f" {chunk}" for chunk in chunks]
        # The library encodes each word of a pre-tokenized text like a separate text, and releases the GIL for a batch.
        [encoded] = self._backend.encode_batch([words], is_pretokenized=True, add_special_tokens=False)
        word_ids: list[Any] = encoded.word_ids  # None only for special tokens, which this encoding lacks
        ids: list[list[int]] = [[] for _ in chunks]
        for number, word in zip(encoded.ids, word_ids, strict=True):
            ids[word].append(number)
        return {chunk: tuple(numbers) for chunk, numbers in zip(chunks, ids, strict=True)}

    def _keep(self, chunk: str, ids: Ids) -> None:
        if len(chunk) > MAX_CHUNK_CHARACTERS:
            return
        size = ENTRY_BYTES + CHARACTER_BYTES * len(chunk) + ID_BYTES * len(ids)
        with self._lock:
            if self._bytes + size > GENERATION_BYTES:
                self._old, self._young, self._bytes = self._young, {}, 0
            self._young[chunk] = ids
            self._bytes += size
