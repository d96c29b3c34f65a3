"""Texts of a given number of tokens, and the labels that the classifiers must give them."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.stress.ground import DEMO, LABELS

SPECIAL = 2
"""[CLS] and [SEP]."""


class Texts:
    """Random texts of words that are one token each."""

    def __init__(self, seed: int = 1, folder: Path = DEMO) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._words = sorted(word for word in self._tokenizer.get_vocab() if word.isascii() and word.isalpha())
        self._random = random.Random(seed)

    def make(self, tokens: int) -> str:
        """A text of so many tokens, special tokens included."""
        return " ".join(self._random.choices(self._words, k=tokens - SPECIAL))

    def ids(self, text: str) -> list[int]:
        """Its token ids, special tokens included."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def label(self, text: str) -> int:
        """What the classifier answers."""
        return sum(self.ids(text)) % LABELS
