"""The word cache: stores the token ids of recent words, since natural text repeats its words.

It saves a third of the CPU time of a short request, and half to two thirds of the time to encode natural text
(benchmarks/tokenizing.py). ``--enable_word_cache=false`` disables it. Encodings are the same without it.

It serves the tokenizers of BERT, RoBERTa, GPT-2, Qwen, Llama 3 and XLM-RoBERTa. It does not serve:

- texts without spaces, such as Chinese and Japanese: their chunks are too long to occur again;
- texts of mostly new words, or with more than 2,000 characters of them, and with RoBERTa, Qwen or Llama 3 texts with
  double spaces, such as indented source code;
- encodings with offsets (token classification, question answering);
- pairs of texts with the tokenizers of Qwen and Llama 3, whose type ids depend on the library's call;
- other tokenizers: SentencePiece's BPE (Llama 2, Mistral, Gemma), ALBERT, DeBERTa v2, and those with added tokens of
  spaces (ModernBERT, GPT-NeoX).

For these, a failed attempt takes up to a fifth of the library's time.

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
  without whitespace. In the patterns of GPT-2, Qwen and Llama 3, each alternative matches a single space only at its
  beginning: before letters or symbols, or alone before digits. They have no lookbehind, and a lookahead only after
  whitespace. A chunk with its single preceding space is therefore split independently of the other chunks, unless it
  begins or ends with whitespace, or is empty (``ChunkRules.spaced``).
- **The model** processes one pre-token at a time. It must be deterministic: no dropout of BPE, no sampling of Unigram.
- **The post-processor** must add constant ids around the texts (``Layout``).

SentencePiece's normalizer (Precompiled) processes grapheme clusters. A space shares its cluster only with a few
characters, with which a chunk must not begin or end (JOINING). Metaspace only marks words if WhitespaceSplit has
separated them. Strip, Replace, Prepend and Metaspace alone act at the ends of a text or across its spaces. Other
patterns may also do so. The effects of stages written in Python are unknown.

Source: tokenizers 0.23, added_vocabulary.rs, normalizers/, pre_tokenizers/, models/ and processors/.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count, pairwise
from typing import Any
from unicodedata import category

import orjson
from tokenizers import AddedToken, Tokenizer, models, normalizers

from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import Encoding

Ids = tuple[int, ...]

MAX_TEXT_CHARACTERS = 20_000
"""Maximum length of a text in characters. The cache holds the GIL: 0.4 ms for 20,000 characters of known words."""
MAX_CHUNK_CHARACTERS = 32
"""Maximum length of a cached chunk in characters. Longer chunks rarely occur again."""
GENERATION_BYTES = 8 << 20
"""Size limit of each of the two generations, enough for some 25,000 English words.

Of documentation and of quotations, 8 and 17 % of the words were unknown; with 9,000 words, 12 and 23 %.
"""
ENTRY_BYTES, CHARACTER_BYTES, ID_BYTES = 232, 4, 40
"""Upper bounds of CPython's memory use in bytes: per entry, per character of the chunk, and per id."""
MIN_UNKNOWN, CHUNKS_PER_UNKNOWN = 20, 3
"""Number of unknown chunks that any text may have, and reciprocal of their largest share beyond, after the first full
generation.

The library encodes texts with more unknown chunks.
"""
MAX_UNKNOWN_CHARACTERS = 2000
"""Maximum number of characters in a text's unknown chunks. Encoding them takes 0.5 to 1.5 ms, and holds the GIL."""
CHARACTERS_PER_OTHER = 4
"""Reciprocal of the largest share of characters in unknown chunks beyond ASCII, beside one chunk.

The library takes about twice as long for a separate chunk as for the same characters in a text.
"""
LEARN_EVERY = 32
"""Interval of texts to learn from, among those with too many unknown chunks, after the first full generation."""
MIN_KNOWN = 1000
"""Number of known chunks from which on a text without any of them teaches nothing."""
MAX_LEARNED = 64
"""Maximum number of chunks to learn from such a text, which takes about 0.3 ms."""

CL100K_START = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
CL100K_END = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_WORDS, QWEN2_WORDS = (CL100K_START + numbers + CL100K_END for numbers in (r"\p{N}{1,3}", r"\p{N}"))
"""Patterns of the pre-tokenizers of Llama 3 (and OpenAI's cl100k_base), and of Qwen2 and Qwen3."""
CL100K_PARTS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^A-Za-z0-9]?[A-Za-z]+|[0-9]{{1,{}}}|Ġ?[^A-Za-z0-9Ġ]+|Ġ"

PART_PATTERNS = {
    "BertPreTokenizer": r"[A-Za-z0-9]+|[^A-Za-z0-9]",
    "Whitespace": r"\w+|[^\w]+",
    "WhitespaceSplit": r".+",
    "Metaspace": r".+",
    "ByteLevel": r"'s|'t|'re|'ve|'m|'ll|'d|Ġ?[A-Za-z]+|Ġ?[0-9]+|Ġ?[^A-Za-z0-9Ġ]+",
    LLAMA3_WORDS: CL100K_PARTS.format(3),
    QWEN2_WORDS: CL100K_PARTS.format(1),
}
"""Patterns equivalent to the pre-tokenizers for printable ASCII. The library's patterns cover all of Unicode."""
WHITESPACE_SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
"""Pre-tokenizers that split at all whitespace, and drop it."""
SEPARABLE_NORMALIZERS = {"BertNormalizer", "Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD"}
"""Normalizers that process the text on both sides of a space independently."""
PRECOMPILED = {"Precompiled"}
"""SentencePiece's normalizer of grapheme clusters. It is separable for chunks that share no cluster with a space."""
JOINING = re.compile("[\u0e33\u0eb3\uff9e\uff9f\U0001f3fb-\U0001f3ff]|.*[\u0d4e\U00011000-\U00011fff]\\Z", re.DOTALL)
"""Chunks that begin or end with a letter or symbol which may share a cluster with the space next to it (UAX 29)."""
WORD_NORMALIZERS = {"Lowercase", "NFC", "NFD"}
"""Normalizers in SEPARABLE_NORMALIZERS that neither drop characters nor create spaces."""
GPT2_SPACE = "Ġ"
"""Character for the space in GPT-2's byte alphabet. Other printable ASCII characters map to themselves."""
ALPHANUMERIC = re.compile("[A-Za-z0-9]")
ASCII = "".join(map(chr, range(ord("!"), ord("~") + 1)))
"""The printable ASCII characters, without the space."""


@dataclass(frozen=True, slots=True)
class ChunkRules:
    """Properties of a tokenizer that can encode the chunks between spaces independently.

    Attributes:
        splitter: the pre-tokenizer's type, or its pattern.
        spaced: whether each chunk except the first includes the preceding space. Double spaces and other whitespace are
            then not supported.
        prefixed: whether the tokenizer adds a space to the first chunk, and to text after an added token.
        graphemes: whether the normalizer depends on grapheme clusters.
        mark: the character that represents a space before a word in the vocabulary; empty if none does.
        added: strings that match added tokens.
    """

    splitter: str
    spaced: bool
    prefixed: bool
    graphemes: bool
    mark: str
    added: tuple[str, ...]


def chunk_rules(backend: Tokenizer) -> ChunkRules | None:
    """Determines the rules of a separable tokenizer; None if its stages don't guarantee equal ids."""
    stages, model = _stages(backend), backend.model
    if stages is None or not isinstance(model, models.BPE | models.WordPiece | models.WordLevel | models.Unigram):
        return None
    if isinstance(model, models.BPE) and model.dropout:
        return None
    splitter, spaced, prefixed, mark = _splitter(stages["pre_tokenizer"])
    if splitter is None or isinstance(model, models.Unigram) != (splitter == "Metaspace"):
        return None
    if isinstance(model, models.Unigram) and (model.alpha is not None or model.nbest_size is not None):
        return None
    steps = _steps(stages["normalizer"])
    graphemes = steps == PRECOMPILED and not spaced and backend.normalizer.normalize_str(" ") == " "
    if not graphemes and not steps <= (WORD_NORMALIZERS if spaced else SEPARABLE_NORMALIZERS):
        return None
    tokens = backend.get_added_tokens_decoder().values()
    added = tuple(text for token in tokens for text in _contents(token, backend.normalizer))
    # If words include the preceding space, lstrip removes the space of the token's own chunk, but rstrip would remove
    # the space of the next chunk.
    strips_next = spaced and any(token.rstrip for token in tokens)
    if strips_next or Layout.of(backend, 1, True) is None or any(text.split() != [text] for text in added):
        return None
    return ChunkRules(splitter, spaced, prefixed, graphemes, mark, added)


def _splitter(stage: Json) -> tuple[str | None, bool, bool, str]:
    """The fields splitter, spaced, prefixed and mark of ChunkRules. The splitter is None for an unknown stage."""
    steps = () if stage is None else stage.get("pretokenizers", [stage])
    match steps:
        case [{"type": "ByteLevel", "use_regex": True, "add_prefix_space": prefixed}]:
            return "ByteLevel", True, prefixed, GPT2_SPACE
        case [
            {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "use_regex": False, "add_prefix_space": False},
        ] if words in (LLAMA3_WORDS, QWEN2_WORDS):
            return words, True, False, GPT2_SPACE
        case [{"type": "WhitespaceSplit"}, {"type": "Metaspace", "prepend_scheme": "always", "replacement": mark}]:
            return "Metaspace", False, True, mark
        case [{"type": name}] if name in WHITESPACE_SPLITTERS:
            return name, False, False, ""
    return None, False, False, ""


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


@dataclass(frozen=True, slots=True)
class Layout:
    """Special tokens around one text or a pair.

    Attributes:
        special: ids and type ids of the special tokens before the first text, between the texts and after the last.
        types: type id of each text.
        size: number of special tokens.
    """

    special: tuple[tuple[Ids, Ids], ...]
    types: Ids
    size: int

    @classmethod
    def of(cls, backend: Tokenizer, texts: int, special_tokens: bool) -> Layout | None:
        """Layout of a tokenizer's post-processor; None if it reorders, repeats or drops texts."""
        probe = Tokenizer(models.WordLevel({"a": 0}))
        probe.post_processor = backend.post_processor
        calls = (probe.encode_batch_fast, probe.encode_batch)
        texts_a: Any = ["a" if texts == 1 else ("a", "a")]
        [encoded], [detailed] = (call(texts_a, add_special_tokens=special_tokens) for call in calls)
        indices = [index for index, is_special in enumerate(encoded.special_tokens_mask) if not is_special]
        # Without a post-processor, the type ids of a pair depend on the call.
        if [encoded.sequence_ids[i] for i in indices] != [*range(texts)] or encoded.type_ids != detailed.type_ids:
            return None
        edges = pairwise([-1, *indices, len(encoded)])
        special = [slice(start + 1, stop) for start, stop in edges]
        ids = tuple((tuple(encoded.ids[part]), tuple(encoded.type_ids[part])) for part in special)
        return cls(ids, tuple(encoded.type_ids[index] for index in indices), len(encoded) - texts)

    @property
    def has_types(self) -> bool:
        """Whether a type id is not 0."""
        return any(self.types) or any(type_id for _, types in self.special for type_id in types)

    def fill(self, texts: Sequence[Sequence[int]]) -> Encoding:
        """Adds the special tokens to the ids of the texts."""
        ids, types = map(list, self.special[0])
        for text, type_id, (special, special_types) in zip(texts, self.types, self.special[1:], strict=True):
            ids += text
            ids += special
            types += [type_id] * len(text)
            types += special_types
        return Encoding(ids, types)


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
        self._mark, self._prefixed = rules.mark, rules.prefixed
        allowed = re.escape("".join(sorted(set(ASCII).difference(forbidden))))
        self._is_plain = re.compile(f"[{allowed}]{{1,{MAX_CHUNK_CHARACTERS}}}").fullmatch
        self._split = re.compile(PART_PATTERNS[rules.splitter], re.ASCII).findall

    @classmethod
    def of(cls, backend: Tokenizer, rules: ChunkRules) -> AsciiEncoder | None:
        """Creates an encoder, or returns None if an added token consists of only letters and digits, or the normalizer
        changes ASCII characters other than capital letters."""
        marks = [ALPHANUMERIC.sub("", text)[:1] for text in rules.added if text.isascii()]
        changed = rules.graphemes and backend.normalizer.normalize_str(ASCII) not in (ASCII, ASCII.lower())
        return cls(backend, rules, marks) if all(marks) and not changed else None

    def ids(self, chunk: str, is_first: bool) -> Ids | None:
        """Ids of a chunk; None if it has unsupported characters. ``is_first`` means that no space precedes it in the
        text.

        Raises a bare Exception if the model has no token for unknown words.
        """
        if self._is_plain(chunk) is None:
            return None
        if self._lower:
            chunk = chunk.lower()
        if self._mark and (self._prefixed or not is_first):
            chunk = self._mark + chunk
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
        self._spaced, self._graphemes = rules.spaced, rules.graphemes
        self._all_separable = not (rules.spaced or rules.graphemes)
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
        chunks = text.split(" ")
        if self._spaced:
            mark_first(chunks)
        known = [*map(self._young.get, chunks)]
        if None in known:
            missing = {chunk for chunk, ids in zip(chunks, known, strict=True) if ids is None}
            encoded = self._encode(missing, len(chunks), len(text))
            if encoded is None:
                return None
            known = [encoded[chunk] if ids is None else ids for chunk, ids in zip(chunks, known, strict=True)]
        return [*chain.from_iterable(filter(None, known))]

    def learn(self, text: str) -> None:
        """Learns chunks of a text that ``ids`` left to the library: of every such text at first, later of some.

        Random text teaches nothing: natural text has chunks that others have.
        """
        if len(text) <= MAX_TEXT_CHARACTERS and (not self._old or next(self._missed_texts) % LEARN_EVERY == 0):
            words = text.split(" ")
            if self._spaced:
                mark_first(words)
            chunks = set(words)
            unknown = chunks.difference(self._young).difference(self._old)
            is_new = len(unknown) == len(chunks) and len(self._young) > MIN_KNOWN
            if not is_new and all(map(self._is_separable, unknown)):
                short = [chunk for chunk in unknown if len(chunk) <= MAX_CHUNK_CHARACTERS]
                with suppress(Exception):  # the library's errors: the text has been refused already
                    self._learn(short[:MAX_LEARNED], {})

    def _is_separable(self, chunk: str) -> bool:
        """Whether a chunk has the same ids in each text."""
        if self._spaced:
            word = chunk.removeprefix(" ")
            return word != "" and not (word[0].isspace() or word[-1].isspace())
        if not self._graphemes or chunk.isascii():
            return True
        # Marks, format characters and unassigned ones may share a grapheme cluster with the space next to them.
        return category(chunk[0])[0] not in "MC" and category(chunk[-1])[0] != "C" and JOINING.match(chunk) is None

    def _encode(self, missing: Collection[str], count: int, size: int) -> Mapping[str, Ids] | None:
        """Ids of chunks that the young generation lacks, of a text with ``count`` chunks and ``size`` characters.

        Returns None if ``ids`` must do so.
        """
        old = self._old
        encoded = {chunk: old[chunk] for chunk in missing if chunk in old}
        unknown = [chunk for chunk in missing if chunk not in encoded] if encoded else [*missing]
        most = MIN_UNKNOWN + count // CHUNKS_PER_UNKNOWN if old else count
        if len(unknown) > most or sum(map(len, unknown)) > MAX_UNKNOWN_CHARACTERS:
            return None
        others = [chunk for chunk in unknown if not chunk.isascii()]
        if sum(map(len, others)) > MAX_CHUNK_CHARACTERS + size // CHARACTERS_PER_OTHER:
            return None
        if not (self._all_separable or all(map(self._is_separable, unknown))):
            return None
        try:
            self._learn(unknown, encoded)
        except Exception:  # TypeError or bare Exception: encoding the whole text raises it again, for the client
            return None
        return encoded

    def _learn(self, chunks: Iterable[str], learned: dict[str, Ids]) -> None:
        """Encodes chunks separately, adds them to ``learned``, and caches all of it. Raises the library's errors."""
        for_library = []
        for chunk in chunks:
            is_first = chunk[:1] == " "
            ids = None if self._ascii is None else self._ascii.ids(chunk[1:] if is_first else chunk, is_first)
            if ids is None:
                for_library.append(chunk)
            else:
                learned[chunk] = ids
        if for_library:
            learned |= self._library_ids(for_library)
        self._keep(learned)

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

    def _keep(self, learned: Mapping[str, Ids]) -> None:
        with self._lock:
            for chunk, ids in learned.items():
                if len(chunk) <= MAX_CHUNK_CHARACTERS:
                    size = ENTRY_BYTES + CHARACTER_BYTES * len(chunk) + ID_BYTES * len(ids)
                    if self._bytes + size > GENERATION_BYTES:
                        self._old, self._young, self._bytes = self._young, {}, 0
                    self._young[chunk] = ids
                    self._bytes += size


def mark_first(chunks: list[str]) -> None:
    """Marks the first of spaced chunks in place: it has no preceding space, so only its key begins with a space."""
    if chunks[0] or len(chunks) == 1:
        chunks[0] = f" {chunks[0]}"
    else:  # the text begins with a space, which belongs to its first word
        del chunks[0]
