"""The ids of words that were there before: natural text repeats its words, and a look-up is cheaper than encoding."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import tokenizers

from hf_transformer.tokenizer.ascii_words import AsciiWords, Ids
from hf_transformer.tokenizer.separable import Separable, separable

LONGEST_TEXT = 2000
"""In characters. Longer texts are encoded in a thread, where the library lets others run and this would not."""
LONGEST_CHUNK = 32
"""In characters. A longer chunk is no word that comes again."""
BYTES = 3 << 20
"""What one of the two generations may hold, at most: some 9,000 English words. A process was seen to grow by 3 MiB with
natural text and by 4 with random words (benchmarks/tokenizing.py); 6 is the bound."""
ENTRY_BYTES, CHARACTER_BYTES, ID_BYTES = 232, 4, 40
"""What CPython takes, at most, for a chunk and its ids without any, for each character, and for each id."""
FEW, SHARE, MOST = 2, 2, 32
"""So many unknown chunks of a text, ASCII not counted, are encoded alone: two, or half of all, but 32 at most. A chunk
alone costs about one and a half times what it does within a text."""
TURNS = (True, *(False,) * 31)
"""Every 32nd text teaches up to ``MOST`` of its unknown chunks, however many it has."""


class WordMemo:
    """Chunks of text, between spaces, and their ids.

    It may be used for tokenizers alone whose encoding of a text is that of its chunks (separable.py).

    What it holds is bounded in bytes, and by that in entries, whatever clients send: two generations of ``BYTES`` each.
    Chunks that are asked for are in the young one. When that is full it becomes the old one, the one before is
    forgotten, and what is asked for again comes back.

    Threads share it. Readers take no lock: looking up a string in a dict is one step of CPython, and one that misses
    what another thread just moves encodes it again, to the same ids. Writers have a lock, so that the bytes are
    counted right. Tuples never change.
    """

    def __init__(self, backend: tokenizers.Tokenizer, how: Separable, *, special_tokens: bool) -> None:
        self._backend = backend
        self._ascii = AsciiWords.of(backend, how)
        self._spaced = how.spaced
        self._before, self._after = ([*how.before], [*how.after]) if special_tokens else ([], [])
        self._young: dict[str, Ids] = {}
        self._old: dict[str, Ids] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self._turns = cycle(TURNS)

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, special_tokens: bool) -> WordMemo | None:
        """One for a tokenizer that does not cut and never changes, None if its words are not independent."""
        how = separable(backend)
        return None if how is None else cls(backend, how, special_tokens=special_tokens)

    def ids(self, text: str) -> list[int] | None:
        """The ids of a text, special tokens included where they are wanted, all of type 0 and not cut.

        None where the library has to encode it: it is too long, has too much that is unknown or is not as usual, or
        can't be encoded.
        """
        if len(text) > LONGEST_TEXT:
            return None
        chunks = text.split(" ")
        if self._spaced:
            if chunks[0] or len(chunks) == 1:
                # The first one alone has no space before it; no other key begins with one.
                chunks[0] = f" {chunks[0]}"
            else:  # what models write begins with a space, which is its first word's
                del chunks[0]
        ids = self._before.copy()
        young = self._young
        try:
            for chunk in chunks:
                ids += young[chunk]
        except KeyError:
            return self._rarer(chunks)
        ids += self._after
        return ids

    def _rarer(self, chunks: Sequence[str]) -> list[int] | None:
        """What ``ids`` gives where not all chunks are in the young generation."""
        ids = self._before.copy()
        try:
            for chunk in chunks:
                found = self._young.get(chunk)
                if found is None:
                    found = self._again(chunk)
                    if found is None:
                        return self._learn(chunks)
                ids += found
        except Exception:  # TypeError or bare Exception: the library gets the whole text then, and says what is wrong
            return None
        ids += self._after
        return ids

    def bare(self, text: str) -> list[int] | None:
        """``ids`` without the special tokens around them."""
        ids = self.ids(text)
        return ids and ids[len(self._before) : len(ids) - len(self._after)]

    def _again(self, chunk: str) -> Ids | None:
        """The ids of a chunk that is not in the young generation, which it is from then on. None if they are not
        easily had."""
        found = self._old.get(chunk)
        if found is None and self._ascii is not None:
            first = chunk[:1] == " "
            found = self._ascii.ids(chunk[1:] if first else chunk, first)
        if found is not None:
            self._keep(chunk, found)
        return found

    def _learn(self, chunks: Sequence[str]) -> list[int] | None:
        """What ``ids`` gives where some chunks have to be encoded. Raises what the library raises."""
        known = self._find(chunks)
        if known is None:
            return None
        return [*self._before, *(number for chunk in chunks for number in known[chunk]), *self._after]

    def _find(self, chunks: Sequence[str]) -> dict[str, Ids] | None:
        """The ids of each chunk, None where they are not worth the while or mean nothing."""
        known: dict[str, Ids] = {}
        unknown: list[str] = []
        teaches = next(self._turns)
        limit = MOST if teaches else min(max(FEW, len(chunks) // SHARE), MOST)
        for chunk in dict.fromkeys(chunks):
            found = self._young.get(chunk)
            if found is None:
                found = self._again(chunk)
            if found is not None:
                known[chunk] = found
            elif self._spaced and chunk.split() != [chunk.removeprefix(" ")]:
                return None
            elif len(unknown) < limit:
                unknown.append(chunk)
            else:
                if teaches:
                    self._encode(unknown)
                return None
        return known | self._encode(unknown)

    def _encode(self, chunks: Sequence[str]) -> dict[str, Ids]:
        """Encodes chunks, each alone, and keeps them. Raises what the library raises."""
        pieces = chunks
        if self._spaced:
            pieces = [chunk[1:] if chunk[0] == " " else f" {chunk}" for chunk in chunks]
        # Each word of a text in words is encoded as if it were a text, all of them in one call.
        encoded = self._backend.encode(pieces, is_pretokenized=True, add_special_tokens=False)
        words: list[Any] = encoded.word_ids  # None for special tokens, of which there are none
        found: list[list[int]] = [[] for _ in chunks]
        for number, index in zip(encoded.ids, words, strict=True):
            found[index].append(number)
        learned = {chunk: tuple(ids) for chunk, ids in zip(chunks, found, strict=True)}
        for chunk, ids in learned.items():
            self._keep(chunk, ids)
        return learned

    def _keep(self, chunk: str, ids: Ids) -> None:
        if len(chunk) > LONGEST_CHUNK:
            return
        size = ENTRY_BYTES + CHARACTER_BYTES * len(chunk) + ID_BYTES * len(ids)
        with self._lock:
            if self._bytes + size > BYTES:
                self._old, self._young, self._bytes = self._young, {}, 0
            self._young[chunk] = ids
            self._bytes += size
