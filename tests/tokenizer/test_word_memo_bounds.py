"""What the memo of words keeps, and when: never more than its bounds, whoever asks."""

from __future__ import annotations

import random
import string
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hf_transformer.tokenizer import word_memo
from hf_transformer.tokenizer.ascii_words import Ids
from hf_transformer.tokenizer.word_memo import LONGEST_CHUNK, LONGEST_TEXT, TURNS
from tests.tiny_tokenizers.separable import Library, engine_of, memo_of


def random_words(chosen: random.Random, alphabet: str) -> str:
    return " ".join("".join(chosen.choices(alphabet, k=chosen.randint(3, 12))) for _ in range(6))


HOSTILE = {"ascii": string.ascii_letters, "cjk": "".join(map(chr, range(0x4E00, 0x9FFF))), "emoji": "😀😁😂🤣😃😄😅😆"}


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("alphabet", HOSTILE)
def test_memory_is_bounded(name: str, alphabet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 400_000
    monkeypatch.setattr(word_memo, "BYTES", size)
    monkeypatch.setattr(word_memo, "TURNS", (True,))
    chosen, memo = random.Random(3), memo_of(name)
    for _ in range(50):
        memo.ids(random_words(chosen, HOSTILE[alphabet]))
    entries = set()
    tracemalloc.start()
    try:
        for _ in range(2000):
            memo.ids(random_words(chosen, HOSTILE[alphabet]))
            entries.add(len(memo._young))
            assert len(memo._young) + len(memo._old) <= 2 * size / word_memo.ENTRY_BYTES
        assert tracemalloc.get_traced_memory()[0] < 2 * size
    finally:
        tracemalloc.stop()
    assert max(entries) > 200, "it was full"
    assert len(memo._young) < max(entries), "and began anew"
    assert memo.ids("Paris is the capital") == Library(name).encode("Paris is the capital").ids


def test_long_chunks_are_not_kept() -> None:
    memo = memo_of("bert")
    for length, kept in ((LONGEST_CHUNK, 1), (LONGEST_CHUNK + 1, 0), (500, 0)):
        for letter in "aé":
            chunk = letter * length
            assert memo.ids(chunk) == Library("bert", 512).encode(chunk).ids
            assert (chunk in memo._young) == kept


def test_long_texts_are_not_looked_at() -> None:
    memo = memo_of("bert")
    assert memo.ids("a" + " " * LONGEST_TEXT) is None
    assert memo.ids("a" + " " * (LONGEST_TEXT - 1)) == Library("bert").encode("a").ids


def test_words_that_are_asked_for_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    memo = memo_of("bert")
    monkeypatch.setattr(word_memo, "BYTES", 20_000)
    encoded: list[str] = []
    encode = memo._encode

    def counting(chunks: Sequence[str]) -> dict[str, Ids]:
        encoded.extend(chunks)
        return encode(chunks)

    monkeypatch.setattr(memo, "_encode", counting)
    for number in range(1000):
        assert memo.ids(f"élève is {number}") == Library("bert").encode(f"élève is {number}").ids
    assert encoded == ["élève"]
    for number in range(1000):
        memo.ids(f"is {number}")
    memo.ids("élève")
    assert encoded == ["élève"] * 2, "forgotten after a while"


def test_a_text_of_unknown_words_is_the_librarys_and_teaches_now_and_then() -> None:
    memo = memo_of("bert")
    turns = iter(range(10_000))
    found: list[bool] = []
    while len(found) < 3 * len(TURNS):
        number = next(turns)
        found.append(memo.ids(f"é{number}a é{number}b é{number}c é{number}d") is not None)
    assert sum(found) == 3 and found[0] and found[len(TURNS)]
    assert memo.ids("é0a é0b é0c é0d") is not None
    assert memo.ids("é1a é1b the capital of France") is not None, "few unknown words are encoded alone"


@pytest.mark.parametrize("text", ["", " ", "a  b", "  a", "a ", "a\nb", "a\u00a0b c", "\x1ca", "é \t"])
def test_other_spaces_than_single_ones_are_the_librarys_where_they_count(text: str) -> None:
    assert memo_of("gpt2").ids(text) is None
    assert memo_of("bert").ids(text) == Library("bert").encode(text).ids


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
def test_threads_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_memo, "BYTES", 5_000)
    engine, reference = engine_of("bert", 64), Library("bert", 64)
    texts = [f"élève {number % 7} is Paris {number % 40} número{number % 13}" for number in range(200)]
    wanted = [reference.encode(text) for text in texts]
    with ThreadPoolExecutor(4) as executor:
        for found in executor.map(lambda _: [engine.encode_one(text) for text in texts], range(12)):
            assert found == wanted
    memo: Any = engine._memo
    assert 0 < memo._bytes <= 5_000
    assert sum(map(memo_size, memo._young.items())) <= memo._bytes


def memo_size(entry: tuple[str, Ids]) -> int:
    """What CPython takes for it, without the dict."""
    chunk, ids = entry
    return sys.getsizeof(chunk) + sys.getsizeof(ids) + sum(map(sys.getsizeof, ids))
