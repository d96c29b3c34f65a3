"""The word cache: the ids of words that occurred before. Natural text repeats its words.

It saves a third of the CPU of a short request, and half of the encoding of natural text with BERT's vocabulary
(benchmarks/tokenizing.py). ``--enable_word_cache=false`` switches it off; encodings are the same without it.

It needs a tokenizer whose ``encode(text)``, special tokens left out, is the concatenation of ``encode(chunk)`` for the
chunks of ``text.split(" ")``. ``separable`` decides that: each stage has to let U+0020 separate the text.

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
"""In characters. Longer texts are encoded in a thread, where the library lets others run and this code would not."""
LONGEST_CHUNK = 32
"""In characters. A longer chunk is not a word that occurs again."""
GENERATION_BYTES = 3 << 20
"""Bound of each of the two generations: some 9,000 English words. A process was seen to grow by 3 MiB with natural text
and by 4 with random words (benchmarks/tokenizing.py); 6 is the bound."""
ENTRY_BYTES, CHARACTER_BYTES, ID_BYTES = 232, 4, 40
"""What CPython takes, at most, for a chunk and its ids without any, for each character, and for each id."""
SHARE = 4
"""One unknown chunk, and a quarter of a text's chunks beside it, are encoded alone if they are unknown. A chunk alone
costs about twice as much as within a text, so the library encodes texts with more of them as a whole."""
TURNS = (True, *(False,) * 31)
"""Of every 32 texts with unknown chunks, one has all of them learned, however many they are."""

PARTS = {
    "BertPreTokenizer": r"[A-Za-z0-9]+|[^A-Za-z0-9]",
    "Whitespace": r"\w+|[^\w]+",
    "WhitespaceSplit": r".+",
    "ByteLevel": r"'s|'t|'re|'ve|'m|'ll|'d|Ġ?[A-Za-z]+|Ġ?[0-9]+|Ġ?[^A-Za-z0-9Ġ]+",
}
"""Where pre-tokenizers split printable ASCII. Their own patterns cover other letters too, and whitespace."""
AT_WHITESPACE = PARTS.keys() - {"ByteLevel"}
"""Pre-tokenizers that split at all whitespace and drop it."""
PARTED = {"BertNormalizer", "Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD"}
"""Normalizers for which a space separates the text."""
KEEPING = {"Lowercase", "NFC", "NFD"}
"""Those that also keep a word a word: they never drop a character, and never make a space."""
SPACE = "Ġ"
"""In GPT-2's alphabet of bytes, in which printable ASCII stands for itself."""
ALPHANUMERIC = re.compile("[A-Za-z0-9]")


@dataclass(frozen=True, slots=True)
class Separable:
    """How a tokenizer can be taken apart.

    ``splitter`` is the pre-tokenizer's type. ``spaced``: each chunk but the first is encoded with the space before it,
    and only texts whose chunks are not empty and have no whitespace count; ``prefixed``: the first chunk, and text
    after an added token, gets a space too. ``before`` and ``after`` are the ids of the special tokens around a text.
    ``added`` has the strings by which added tokens are found.
    """

    splitter: str
    spaced: bool
    prefixed: bool
    before: Ids
    after: Ids
    added: tuple[str, ...]


def separable(backend: Tokenizer) -> Separable | None:
    """How a tokenizer can be taken apart at spaces, None if that is not certain."""
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
    # Where words keep the space before them, lstrip removes it from the token's own chunk, but rstrip would remove the
    # space of the next one.
    greedy = spaced and any(token.rstrip for token in tokens)
    around = _around(backend)
    if greedy or around is None or any(text.split() != [text] for text in added):
        return None
    return Separable(splitter["type"], spaced, spaced and splitter["add_prefix_space"], *around, added)


def _parts(backend: Tokenizer) -> Json:
    """Normalizer and pre-tokenizer as tokenizer.json has them; None if one is written in Python."""
    bare = Tokenizer(models.BPE())
    try:
        bare.normalizer, bare.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        return orjson.loads(bare.to_str())
    except Exception:  # bare Exception is what the Rust library raises for a part that it can't write
        return None


def _steps(normalizer: Json) -> set[str]:
    """The types of a normalizer's steps."""
    if normalizer is None:
        return set()
    if normalizer["type"] == "Sequence":
        return set().union(*map(_steps, normalizer["normalizers"]))
    return {normalizer["type"]}


def _texts(token: AddedToken, normalizer: normalizers.Normalizer | None) -> list[str]:
    """The strings by which an added token is found."""
    if not token.normalized or normalizer is None:
        return [token.content]
    return [token.content, normalizer.normalize_str(token.content)]


def _around(backend: Tokenizer) -> tuple[Ids, Ids] | None:
    """The ids before and after a single text, as the post-processor puts them around a text of one token. None if it
    leaves the text out, repeats it, or gives type ids."""
    probe = Tokenizer(models.WordLevel({"a": 0}))
    probe.post_processor = backend.post_processor
    found = probe.encode("a")
    if found.special_tokens_mask.count(0) != 1 or any(found.type_ids):
        return None
    place = found.special_tokens_mask.index(0)
    return tuple(found.ids[:place]), tuple(found.ids[place + 1 :])


class AsciiEncoder:
    """Encodes chunks of printable ASCII, for a quarter of what the library takes for a chunk.

    With a separable tokenizer, the normalizer lower-cases such characters or does nothing, the pre-tokenizer splits
    them as ``PARTS`` says, and the model gives the ids of each part. A chunk that may hold an added token is not
    encoded: for each of these tokens, one of its characters is forbidden that is neither a letter nor a digit.
    """

    def __init__(self, backend: Tokenizer, how: Separable, forbidden: Sequence[str]) -> None:
        normalizer = backend.normalizer
        self._tokenize = backend.model.tokenize
        self._lower = normalizer is not None and normalizer.normalize_str("A") == "a"
        self._spaced, self._prefixed = how.spaced, how.prefixed
        allowed = re.escape("".join(sorted(set(map(chr, range(ord("!"), ord("~") + 1))).difference(forbidden))))
        self._plain = re.compile(f"[{allowed}]{{1,{LONGEST_CHUNK}}}").fullmatch
        self._parts = re.compile(PARTS[how.splitter], re.ASCII).findall

    @classmethod
    def of(cls, backend: Tokenizer, how: Separable) -> AsciiEncoder | None:
        """None if an added token has only letters and digits."""
        marks = [ALPHANUMERIC.sub("", text)[:1] for text in how.added if text.isascii()]
        return cls(backend, how, marks) if all(marks) else None

    def ids(self, chunk: str, first: bool) -> Ids | None:
        """The ids of a chunk, None if it is of another kind. ``first``: no space precedes it in its text.

        Raises what the model raises: bare Exception where it lacks its token for unknown words.
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
    """Chunks of text between spaces, and their ids.

    Its size is bounded in bytes, and so in entries, whatever clients send: two generations of ``GENERATION_BYTES``
    each. Chunks that are looked up are in the young generation. When that is full it becomes the old one, the previous
    old one is dropped, and chunks of the old one return when they are looked up again.

    Threads share it. Readers take no lock: looking up a string in a dict is one step of CPython, and a reader that
    misses an entry which another thread just moved encodes it again, to the same ids. Writers take a lock, so that the
    bytes are counted right. It is for a tokenizer that does not truncate and never changes.
    """

    def __init__(self, backend: Tokenizer, how: Separable, special_tokens: bool) -> None:
        self._backend = backend
        self._ascii = AsciiEncoder.of(backend, how)
        self._spaced = how.spaced
        self._before, self._after = ([*how.before], [*how.after]) if special_tokens else ([], [])
        self._young: dict[str, Ids] = {}
        self._old: dict[str, Ids] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self._turns = cycle(TURNS)

    def ids(self, text: str) -> list[int] | None:
        """The ids of a text, not truncated, with the special tokens if they are wanted. All are of type 0.

        None if the library has to encode the text: it is too long, too much of it is unknown, its whitespace is not
        covered, or it can't be encoded.
        """
        if len(text) > LONGEST_TEXT:
            return None
        chunks = text.split(" ")
        if self._spaced:
            if chunks[0] or len(chunks) == 1:
                # Only the first one has no space before it; no other key begins with a space.
                chunks[0] = f" {chunks[0]}"
            else:  # the text begins with a space, which belongs to its first word
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
        """What ``ids`` gives if some chunks are not in the young generation."""
        most = 0
        known: dict[str, Ids] = {}
        unknown: list[str] = []
        try:
            for chunk in dict.fromkeys(chunks):
                found = self._young.get(chunk)
                if found is None:
                    found = self._find(chunk)
                if found is not None:
                    known[chunk] = found
                elif self._spaced and chunk.split() != [chunk.removeprefix(" ")]:
                    return None
                else:
                    most = most or (len(chunks) if next(self._turns) else 1 + len(chunks) // SHARE)
                    if len(unknown) == most:
                        return None
                    unknown.append(chunk)
            if unknown:
                known |= self._learn(unknown)
        except Exception:  # TypeError or bare Exception: the library gets the whole text then, and says what is wrong
            return None
        return [*self._before, *chain.from_iterable([known[chunk] for chunk in chunks]), *self._after]

    def _find(self, chunk: str) -> Ids | None:
        """The ids of a chunk that is not in the young generation, and is from then on. None if it must be learned."""
        found = self._old.get(chunk)
        if found is None and self._ascii is not None:
            first = chunk[:1] == " "
            found = self._ascii.ids(chunk[1:] if first else chunk, first)
        if found is not None:
            self._keep(chunk, found)
        return found

    def _learn(self, chunks: Sequence[str]) -> dict[str, Ids]:
        """Encodes chunks, each alone, and keeps them. Raises what the library raises."""
        words = chunks
        if self._spaced:
            words = [chunk[1:] if chunk[0] == " " else f" {chunk}" for chunk in chunks]
        # The library encodes each word of a text in words as if it were a text, all of them in one call.
        encoded = self._backend.encode(words, is_pretokenized=True, add_special_tokens=False)
        owners: list[Any] = encoded.word_ids  # None for special tokens, of which there are none
        found: list[list[int]] = [[] for _ in chunks]
        for number, owner in zip(encoded.ids, owners, strict=True):
            found[owner].append(number)
        learned = {chunk: tuple(ids) for chunk, ids in zip(chunks, found, strict=True)}
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
