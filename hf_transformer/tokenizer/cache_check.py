"""Comparison of the word cache with the library: of sample texts at load, and of one in many texts in service.

The cache repeats steps of the library (words.py), which a new version of the library may change. A difference switches
the cache off until the next start, with one line in the log. Texts are then encoded by the library, as with
--enable_word_cache=false.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from itertools import count, pairwise

from hf_transformer.types.tokenization import Encoding, TextInput

log = logging.getLogger(__name__)

CHECK_EVERY = 1024
"""Interval of the checked texts, among those that the cache encodes. A check takes as long as the library, 0.03 to 1
ms: on average less than a microsecond for a text."""
MAX_CHARACTERS = 2000
"""Maximum length of a checked text. The check runs on the event loop."""
HARD_TEXTS = (
    "2023",
    "On 2023-11-28 it cost 1234567.89 or 1,234 or 3,14.",
    "a1b22c333 4x4 H2O 007",
    "don't can't I'LL we've O'Neill's rock'n'roll",
    "two  spaces   three\tand a tab",
    " a space before, and after ",
    "a line\nand another\n\n\nand a last\r\n",
    "def f(x):\n    if x:\n        return {'a': [1, 2]}  # done",
    "https://example.com/a_b-c?d=e&f=%20#g user.name+tag@example.org",
    "Hello, World! HELLO hello HeLLo",
    "``quoted'' \u201cquoted\u201d \u00abquoted\u00bb 'quoted' \u2026 \u2013 \u2014",
    "na\u00efve caf\u00e9 \u00c5ngstr\u00f6m \u0130stanbul stra\u00dfe",
    "nai\u0308ve cafe\u0301 A\u030angstro\u0308m",
    "\u6771\u4eac\u90fd\u306b\u4f4f\u3093\u3067\u3044\u307e\u3059\u3002 \u4f60\u597d\uff0c\u4e16\u754c\uff01",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0645\u064e\u0631\u0652\u062d\u064e\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \uc548\ub155\ud558\uc138\uc694",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \u2764\ufe0f \U0001f1e9\U0001f1ea",
    "\uff26\uff55\uff4c\uff4c \uff12\uff10\uff12\uff13 \ufb01ne \u00bd \u2167 \u2460 x\u00b2",
    "no\u00a0break zero\u200bwidth soft\u00adhyphen \ufeffmark",
    "\u2211 x\u1d62 \u2265 0 \u2227 \u2202f/\u2202x \u2192 \u221e $a_1^2$",
    "snake_case camelCase SCREAMING_CASE kebab-case",
    "[CLS] [SEP] [MASK] <s> </s> <unk> <|endoftext|>",
    "a\u2581b \u0120c ##d @@ e",
    "supercalifragilisticexpialidocious Donaudampfschifffahrtsgesellschaft",
)
"""Texts that tokenizers split differently: digits, white space, accents, scripts, emoji, forms for compatibility, and
marks of vocabularies."""
SAMPLES: Sequence[TextInput] = (*HARD_TEXTS, *pairwise(HARD_TEXTS[:6]))
"""Texts and pairs that are checked at load."""


class CacheCheck:
    """The state of a tokenizer's word cache, shared by all copies of its engine. Thread-safe.

    Attributes:
        is_on: whether no difference was found.
        results: the number of checked texts by result: same, different.
    """

    def __init__(self, every: int = CHECK_EVERY) -> None:
        self.is_on = True
        self.results: dict[str, float] = {"same": 0, "different": 0}
        self._every = every
        self._encoded = count(1)

    def is_due(self) -> bool:
        """Counts a text of the cache. Returns whether to check it."""
        return next(self._encoded) % self._every == 0

    def compare(self, cached: Sequence[Encoding], library: Sequence[Encoding]) -> None:
        """Compares the windows of a text. Switches the cache off if they differ."""
        is_same = [*map(_values, cached)] == [*map(_values, library)]
        self.results["same" if is_same else "different"] += 1
        if not is_same and self.is_on:
            self.is_on = False
            log.error(
                "the word cache is off, since it gave other token ids than tokenizers %s: report this, with the model",
                version("tokenizers"),
            )

    def compare_all(
        self,
        texts: Iterable[TextInput],
        cached: Callable[[TextInput], Sequence[Encoding] | None],
        library: Callable[[TextInput], Sequence[Encoding]],
    ) -> None:
        """Compares the texts that the cache encodes, until one differs."""
        for text in texts:
            windows = cached(text) if self.is_on else None
            if windows is not None:
                self.compare(windows, library(text))


def _values(encoding: Encoding) -> tuple[list[int], list[int], bool]:
    return list(encoding.ids), list(encoding.type_ids), encoding.truncated
