"""The word cache gives the ids that the library gives, and never holds more than its bounds."""

from __future__ import annotations

import itertools
import random
import string
import sys
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer import words
from hf_transformer.tokenizer.engine import RustEngine
from hf_transformer.tokenizer.words import LONGEST_CHUNK, LONGEST_TEXT, TURNS, Ids, WordCache
from hf_transformer.types import PLAIN, Words
from hf_transformer.wiring import load_parts
from tests.configuring import config
from tests.tiny_tokenizers.any_texts import any_texts
from tests.tiny_tokenizers.corpus import grid
from tests.tiny_tokenizers.separable import BACKENDS, LIMIT, Library, cache_of, copy_of, encode, engine_of, vocabulary
from tests.tiny_tokenizers.trained import wordpiece

BERT = Path(__file__).parents[2] / "deploy" / "model_repository" / "bert"
warm = cache(engine_of)
library = cache(Library)


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_same_encodings_as_the_library(name: str, data: st.DataObject) -> None:
    texts = data.draw(st.lists(any_texts(vocabulary(name)), min_size=1, max_size=4))
    wanted = [library(name).encode(text) for text in texts]
    for engine in (warm(name), engine_of(name)):
        # The second time what is known was learned with the first.
        for _ in range(2):
            assert [encode(engine, text) for text in texts] == wanted
        assert engine.encode(texts, PLAIN) == [[one] for one in wanted]


@pytest.mark.parametrize("name", BACKENDS)
def test_texts_of_the_corpus(name: str) -> None:
    for options in ({}, {"special": False}, {"side": "left"}, {"limit": 7}):
        engine, reference = engine_of(name, **options), Library(name, **options)
        wanted = [reference.encode(text) for text in grid()]
        for _ in range(3):
            assert [encode(engine, text) for text in grid()] == wanted
        assert [one for [one] in engine.encode(grid(), PLAIN)] == wanted


@pytest.mark.parametrize("name", BACKENDS)
def test_usual_texts_are_in_the_cache(name: str) -> None:
    known, reference = cache_of(name), Library(name, 512)
    for text in ("Paris is the capital of France.", "don't you (really) mind? No, élève!"):
        tries = [known.ids(text) for _ in range(len(TURNS) + 1)]
        assert tries[-1] == reference.encode(text).ids
        # Words that are not put together of parts have to be learned.
        assert tries[0] is not None or name == "bert-letters-added"


@pytest.mark.parametrize("name", BACKENDS)
def test_texts_that_begin_with_a_space_as_models_write_them(name: str) -> None:
    known, reference = cache_of(name), Library(name, 512)
    usual = " Paris is the capital of France."
    for text in (usual, " a", " don't", " 1 2 3", " é\u0301 b", " \u0301a", " [MASK] a", " <mask> a<mask> b"):
        for _ in range(len(TURNS) + 1):
            assert known.ids(text) in (reference.encode(text).ids, None), text
    assert known.ids(usual) is not None
    bare = Library(name, 512, special=False)
    without_special = WordCache.of(copy_of(name), False)
    assert without_special is not None and without_special.ids(usual) == bare.encode(usual).ids


ASCII = [chr(number) for number in range(ord("!"), ord("~") + 1)]


@pytest.mark.parametrize("name", BACKENDS)
def test_every_two_characters_of_ascii(name: str) -> None:
    known, backend = cache_of(name), copy_of(name)
    pairs = ["".join(pair) for pair in itertools.product(ASCII, repeat=2)]
    texts = [f"{first} {second}" for first, second in zip(pairs, reversed(pairs), strict=True)]
    for text, encoded in zip(texts, backend.encode_batch_fast(texts), strict=True):
        assert known.ids(text) in (encoded.ids, None), text


def test_a_text_as_long_as_the_limit_is_not_truncated() -> None:
    engine, reference = engine_of("bert", 8), Library("bert", 8)
    for count in range(10):
        for _ in range(2):
            encoding = encode(engine, "a " * count)
            assert encoding == reference.encode("a " * count)
            assert encoding.truncated == (count > 6)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_cache_can_be_switched_off(name: str) -> None:
    engine = RustEngine(copy_of(name), LIMIT, special_tokens=True, truncation_side="right", word_cache=False)
    for without in (engine, engine.with_max_length(7)):
        assert without._words is None
    with_cache = warm(name)
    for text in (*grid(), *grid()):
        assert encode(engine, text) == encode(with_cache, text)


def test_the_switch_of_the_service() -> None:
    for flags, expected in (((), True), (("--enable_word_cache=false",), False)):
        engine: Any = load_parts(config(f"--model_dir={BERT}", *flags)).tokenizer._engine
        assert (engine._words is not None) == expected


def test_a_copy_with_another_limit() -> None:
    text = "Paris is the capital of France."
    engine = engine_of("bert", 64)
    assert not encode(engine, text).truncated
    for limit in (3, 6, 500):
        copy, reference = engine.with_max_length(limit), Library("bert", limit)
        assert encode(copy, text) == encode(copy, text) == reference.encode(text)


def test_lone_surrogates_are_refused() -> None:
    engine = engine_of("bert")
    for text in ("\udc80", "Paris \ud800 Paris", "Paris is\udfff"):
        for _ in range(2):
            with pytest.raises(InvalidInput, match=r"it has a lone surrogate, .*, which is not Unicode text"):
                encode(engine, text)
    with pytest.raises(InvalidInput, match=r"lone surrogate, '\\udfff'"):
        engine.encode(["Paris", "is\udfff", "\ud800"], PLAIN)
    assert encode(engine, "Paris is") == Library("bert").encode("Paris is")


def test_a_model_without_its_unknown_token() -> None:
    backend = wordpiece(lowercase=True)
    backend.model.unk_token = "[NONE]"
    engine = RustEngine(backend, LIMIT, special_tokens=True, truncation_side="right")
    for text in ("paris ∑", "\\\\ paris", "∑"):
        with pytest.raises(InvalidInput, match=r"the tokenizer can't encode a text: .*Missing"):
            encode(engine, text)
    assert encode(engine, "paris").ids == backend.encode("paris").ids


def test_texts_of_all_forms_in_one_call() -> None:
    engine = engine_of("bert")
    plain = engine._encode
    texts: Any = ["Paris", ("Paris is", "the capital"), "∑ ∑1 ∑2 ∑3", Words(("of", "France")), "", "Paris " * 40]
    for _ in range(2):
        assert engine.encode(texts, PLAIN) == plain(texts, PLAIN)
    assert engine.encode([], PLAIN) == []


def random_words(chosen: random.Random, alphabet: str) -> str:
    return " ".join("".join(chosen.choices(alphabet, k=chosen.randint(3, 12))) for _ in range(6))


HOSTILE = {"ascii": string.ascii_letters, "cjk": "".join(map(chr, range(0x4E00, 0x9FFF))), "emoji": "😀😁😂🤣😃😄😅😆"}


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("alphabet", HOSTILE)
def test_memory_is_bounded(name: str, alphabet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 400_000
    monkeypatch.setattr(words, "GENERATION_BYTES", size)
    monkeypatch.setattr(words, "TURNS", (True,))
    chosen, known = random.Random(3), cache_of(name)
    for _ in range(50):
        known.ids(random_words(chosen, HOSTILE[alphabet]))
    entries = set()
    tracemalloc.start()
    try:
        for _ in range(2000):
            known.ids(random_words(chosen, HOSTILE[alphabet]))
            entries.add(len(known._young))
            assert len(known._young) + len(known._old) <= 2 * size / words.ENTRY_BYTES
        assert tracemalloc.get_traced_memory()[0] < 2 * size
    finally:
        tracemalloc.stop()
    assert max(entries) > 200, "it was full"
    assert len(known._young) < max(entries), "and began anew"
    assert known.ids("Paris is the capital") == Library(name).encode("Paris is the capital").ids


def test_long_chunks_are_not_kept() -> None:
    known = cache_of("bert")
    for length, kept in ((LONGEST_CHUNK, 1), (LONGEST_CHUNK + 1, 0), (500, 0)):
        for letter in "aé":
            chunk = letter * length
            assert known.ids(chunk) == Library("bert", 512).encode(chunk).ids
            assert (chunk in known._young) == kept


def test_long_texts_are_not_looked_at() -> None:
    known = cache_of("bert")
    assert known.ids("a" + " " * LONGEST_TEXT) is None
    assert known.ids("a" + " " * (LONGEST_TEXT - 1)) == Library("bert").encode("a").ids


def test_words_that_are_asked_for_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    known = cache_of("bert")
    monkeypatch.setattr(words, "GENERATION_BYTES", 20_000)
    encoded: list[str] = []
    learn = known._learn

    def counting(chunks: Sequence[str]) -> dict[str, Ids]:
        encoded.extend(chunks)
        return learn(chunks)

    monkeypatch.setattr(known, "_learn", counting)
    for number in range(1000):
        assert known.ids(f"élève is {number}") == Library("bert").encode(f"élève is {number}").ids
    assert encoded == ["élève"]
    for number in range(1000):
        known.ids(f"is {number}")
    known.ids("élève")
    assert encoded == ["élève"] * 2, "forgotten after a while"


def test_a_text_of_unknown_words_is_the_librarys_and_teaches_now_and_then() -> None:
    known = cache_of("bert")
    turns = iter(range(10_000))
    found: list[bool] = []
    while len(found) < 3 * len(TURNS):
        number = next(turns)
        found.append(known.ids(f"é{number}a é{number}b é{number}c é{number}d") is not None)
    assert sum(found) == 3 and found[0] and found[len(TURNS)]
    assert known.ids("é0a é0b é0c é0d") is not None
    assert known.ids("é1a é1b the capital of France") is not None, "few unknown words are encoded alone"


@pytest.mark.parametrize("text", ["", " ", "a  b", "  a", "a ", "a\nb", "a\u00a0b c", "\x1ca", "é \t"])
def test_other_spaces_than_single_ones_are_the_librarys_where_they_count(text: str) -> None:
    assert cache_of("gpt2").ids(text) is None
    assert cache_of("bert").ids(text) == Library("bert").encode(text).ids


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
def test_threads_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "GENERATION_BYTES", 5_000)
    engine, reference = engine_of("bert", 64), Library("bert", 64)
    texts = [f"élève {number % 7} is Paris {number % 40} número{number % 13}" for number in range(200)]
    wanted = [reference.encode(text) for text in texts]
    with ThreadPoolExecutor(4) as executor:
        for found in executor.map(lambda _: [encode(engine, text) for text in texts], range(12)):
            assert found == wanted
    known: Any = engine._words
    assert 0 < known._bytes <= 5_000
    assert sum(map(entry_size, known._young.items())) <= known._bytes


def entry_size(entry: tuple[str, Ids]) -> int:
    """What CPython takes for it, without the dict."""
    chunk, ids = entry
    return sys.getsizeof(chunk) + sys.getsizeof(ids) + sum(map(sys.getsizeof, ids))
