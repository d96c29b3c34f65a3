"""Random English-like texts with frequencies of words as in natural language, for all benchmarks of texts.

Word frequencies follow a power law with two exponents, since rare words are rarer than Zipf's law says (Ferrer i Cancho
and Solé, "Two regimes in the frequency of words", 2001). The constants are fitted to the English frequencies of the
package wordfreq 3.1: the most frequent 1,000, 9,000 and 36,000 words are 72, 92 and 98 % of the text (71, 92 and 98).
"""

from __future__ import annotations

import bisect
import itertools
import random
import string
from collections.abc import Sequence
from typing import Final

FIRST_WORD: Final = "the"
"""The first id of whole words in BERT's vocabulary, where they are in the order of frequency."""
TYPES: Final = 100_000
"""Distinct words of natural text; words beyond the vocabulary are two of its words joined."""
OFFSET, COMMON = 1.5, 3000
COMMON_EXPONENT, RARE_EXPONENT = 1.03, 1.5
"""Offset of the rank, number of common words, and exponents for common and for other words."""
CAPITAL: Final = 0.05
"""Shares of words with a capital letter, and of words before a comma."""
RARE: Final = 0.01
"""Shares of numbers, of possessive forms and of new names in prose."""
SENTENCE: Final = (6, 28)
"""Minimum and maximum words of a sentence of prose."""
FEW_WORDS: Final = (
    "the a this that our food place room people music story river city garden winter summer book game train house was "
    "is very good bad new old small large quiet long short and but or with for from near under over great fine warm"
).split()
"""Words that are one token in BERT's vocabulary."""


class Words:
    """Random words with natural frequencies, from a vocabulary in the order of frequency."""

    def __init__(self, vocabulary: Sequence[str], seed: int | str) -> None:
        self._random = random.Random(seed)
        whole = [word for word in vocabulary[vocabulary.index(FIRST_WORD) :] if word.isascii() and word.isalpha()]
        pairs = random.Random(0).choices(whole[5000:], k=2 * (TYPES - len(whole)))
        self._whole = len(whole)
        self._types = [*whole, *map("".join, zip(pairs[::2], pairs[1::2], strict=True))]
        self._weights = [*itertools.accumulate(map(_frequency, range(1, TYPES + 1)))]

    def natural(self, count: int) -> str:
        """A text with a final full stop."""
        return " ".join(self._word() for _ in range(count)) + "."

    def prose(self, count: int) -> str:
        """A text of sentences with capital letters, punctuation, numbers and now and then a new name."""
        sentences = []
        while count:
            length = min(count, self._random.randint(*SENTENCE))
            words = [self._of_prose() for _ in range(length)]
            sentences.append(" ".join([words[0].capitalize(), *words[1:]]).rstrip(",") + self._random.choice("....?"))
            count -= length
        return " ".join(sentences)

    def between(self, least: int, most: int) -> str:
        """One sentence whose number of words is random."""
        words = [self._of_prose() for _ in range(self._random.randint(least, most))]
        return " ".join([words[0].capitalize(), *words[1:]]).rstrip(",") + "."

    def whole(self, count: int) -> str:
        """Words that are one token each."""
        top = self._weights[self._whole - 1]
        chosen = (bisect.bisect(self._weights, self._random.random() * top) for _ in range(count))
        return " ".join(self._types[min(number, self._whole - 1)] for number in chosen)

    def few(self, count: int) -> str:
        """A text of FEW_WORDS."""
        return " ".join([*self._random.choices(FEW_WORDS, k=count), "."])

    def unknown(self, count: int, letters: str = string.ascii_lowercase) -> str:
        """A text of new random words, the worst case."""
        words = ("".join(self._random.choices(letters, k=self._random.randint(4, 10))) for _ in range(count))
        return " ".join(words)

    def _word(self) -> str:
        number = bisect.bisect(self._weights, self._random.random() * self._weights[-1])
        word = self._types[number]
        word = word.capitalize() if self._random.random() < CAPITAL else word
        return word + "," if self._random.random() < CAPITAL else word

    def _of_prose(self) -> str:
        kind = self._random.random()
        if kind < RARE:
            return f"{self._random.randint(1, 9999):,}"
        if kind < 2 * RARE:
            return self.unknown(1).capitalize()
        word = self._word()
        return word if kind > 3 * RARE else word.rstrip(",") + "'s"


def _frequency(rank: int) -> float:
    """Relative frequency of the word with this rank, from 1."""
    common = (rank + OFFSET) ** -COMMON_EXPONENT
    if rank <= COMMON:
        return common
    return common * ((COMMON + OFFSET) / (rank + OFFSET)) ** (RARE_EXPONENT - COMMON_EXPONENT)
