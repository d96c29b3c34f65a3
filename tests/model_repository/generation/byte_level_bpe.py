"""GPT-2's tokenizer from a tokenizer.json, in plain Python: Triton's environment has no library for it."""

from __future__ import annotations

import functools
import itertools
import json
import re
import unicodedata
from pathlib import Path

CONTRACTION = re.compile("'(?:s|t|re|ve|m|ll|d)")
RUN = re.compile("_?(?:L+|N+|O+)|[_S]+(?![^_S])|[_S]+")
"""Of kinds of characters: white space leaves its last sign to the word that follows."""


class ByteLevelBpe:
    """Text to ids and back. Tokens that were added to the vocabulary are found in a text first."""

    def __init__(self, path: Path) -> None:
        document = json.loads(path.read_text(encoding="utf-8"))
        self._ids: dict[str, int] = document["model"]["vocab"]
        self._ranks = {tuple(merge): rank for rank, merge in enumerate(document["model"]["merges"])}
        added = document["added_tokens"]
        self._added = {token["content"]: token["id"] for token in added}
        self.special = frozenset(token["id"] for token in added if token["special"])
        self._split_added = re.compile("(" + "|".join(map(re.escape, self._added)) + ")")
        letters = byte_letters()
        self._letters = letters
        as_bytes = {letter: byte for byte, letter in enumerate(letters)}
        self._bytes = {
            number: bytes(as_bytes[letter] for letter in token)
            for token, number in self._ids.items()
            if token not in self._added
        }
        self._bytes |= {number: token.encode() for token, number in self._added.items()}

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with no token before or after them."""
        ids: list[int] = []
        for part in self._split_added.split(text):
            if part in self._added:
                ids.append(self._added[part])
            else:
                for word in words(part):
                    ids += self._merge("".join(self._letters[byte] for byte in word.encode()))
        return ids

    def decode(self, ids: list[int]) -> str:
        """Their text without special tokens; � for bytes that are no UTF-8."""
        return b"".join(self._bytes[number] for number in ids if number not in self.special).decode(errors="replace")

    def text_of(self, number: int) -> str:
        return self._bytes[number].decode(errors="replace")

    @functools.cache  # noqa: B019 - as long-lived as the process
    def _merge(self, word: str) -> list[int]:
        parts = list(word)
        while len(parts) > 1:
            pairs = [self._ranks.get(pair, len(self._ranks)) for pair in itertools.pairwise(parts)]
            best = min(pairs)
            if best == len(self._ranks):
                break
            at = pairs.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return [self._ids[part] for part in parts]


def byte_letters() -> list[str]:
    """The visible letter that stands for each byte in the vocabulary."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def words(text: str) -> list[str]:
    """GPT-2's pattern: contractions, letters, digits or other signs after at most one space, and white space."""
    kinds = "".join(map(_kind, text))
    parts, start = [], 0
    while start < len(text):
        end = (CONTRACTION.match(text, start) or RUN.match(kinds, start)).end()
        parts.append(text[start:end])
        start = end
    return parts


def _kind(character: str) -> str:
    if character.isspace() and character not in "\x1c\x1d\x1e\x1f":
        return "_" if character == " " else "S"
    category = unicodedata.category(character)[0]
    return category if category in "LN" else "O"
