"""The word cache is compared with the library, at load and in service, and is off after a difference."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hf_transformer.observability.metrics import Metrics
from hf_transformer.tokenizer import words as module
from hf_transformer.tokenizer.cache_check import CHECK_EVERY, HARD_TEXTS, MAX_CHARACTERS, CacheCheck
from hf_transformer.tokenizer.load import load_fast
from hf_transformer.tokenizer.rust_engine import RustEngine
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.tokenization import PLAIN, Encoding, TextInput, Tokenization
from tests.support.triton_repository import DEMO_MODEL
from tests.tiny_tokenizers.separable import BACKENDS, copy_of, engine_of

TEXT = "Paris is the capital"


def checked_always(engine: RustEngine) -> RustEngine:
    """The engine with a check of each cached text."""
    engine.cache_check._every = 1
    return engine


def library(name: str) -> RustEngine:
    return RustEngine(copy_of(name), 64, special_tokens=True, truncation_side="right", word_cache=False)


def poison(engine: RustEngine, word: str = "capital") -> None:
    """Makes the ids of one word in the cache wrong."""
    cached: Any = engine._cached
    young = cached._words._young
    assert word in young
    young[word] = (*young[word], 1)


@pytest.mark.parametrize("name", BACKENDS)
def test_the_samples_of_each_tokenizer_are_equal_at_load(name: str) -> None:
    engine = engine_of(name, 64)
    check = engine.cache_check
    assert check.is_on and check.results["different"] == 0
    if engine.has_cache:
        assert check.results["same"] > 10


@pytest.mark.parametrize(
    ("name", "splitter", "pattern"),
    [
        pytest.param("bert", "BertPreTokenizer", r"[A-Za-z0-9]+", id="bert"),
        pytest.param("gpt2", "ByteLevel", r"Ġ?[A-Za-z0-9]+|Ġ?[^A-Za-z0-9Ġ]+", id="gpt2"),
        pytest.param("qwen", module.QWEN2_WORDS, r"Ġ?[A-Za-z]+|[0-9]{1,2}|Ġ?[^A-Za-z0-9Ġ]+|Ġ", id="qwen"),
    ],
)
def test_a_library_that_splits_otherwise_turns_the_cache_off_at_load(
    name: str, splitter: str, pattern: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(module.PART_PATTERNS, splitter, pattern)
    engine = engine_of(name, 64)
    assert not engine.cache_check.is_on and engine.cache_check.results["different"] == 1
    [record] = caplog.records
    assert record.levelname == "ERROR" and record.getMessage().startswith("the word cache is off, since it gave other")
    for text in HARD_TEXTS:
        assert engine.cached(text, PLAIN) is None
        assert engine.encode([text], PLAIN) == library(name).encode([text], PLAIN)
    assert len(caplog.records) == 1


OPTIONS = {
    "plain": PLAIN,
    "windows": Tokenization(windows=True, stride=1, max_length=10),
    "whole": Tokenization(whole=True),
    "shorter": Tokenization(max_length=4, truncation_side="left"),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("text", [TEXT, (TEXT, TEXT)], ids=["text", "pair"])
def test_a_difference_in_service_gives_the_library_s_ids_and_turns_the_cache_off(
    text: TextInput, options: Tokenization, caplog: pytest.LogCaptureFixture
) -> None:
    engine = checked_always(engine_of("bert", 64))
    expected = library("bert").encode([text], options)
    for _ in range(3):
        assert engine.encode([text], options) == expected
    assert engine.cache_check.is_on
    poison(engine)
    assert engine.encode([text], options) == expected
    assert not engine.cache_check.is_on and engine.cache_check.results["different"] == 1
    assert engine.encode([text], options) == expected and engine.cached(text, options) is None
    [record] = caplog.records
    assert "capital" not in record.getMessage(), "texts of users stay out of the log"


def test_one_of_many_texts_is_checked() -> None:
    engine = engine_of("bert", 64)
    engine.encode([TEXT], PLAIN)
    before = engine.cache_check.results["same"]
    for _ in range(2 * CHECK_EVERY):
        engine.encode([TEXT], PLAIN)
    assert engine.cache_check.results["same"] == before + 2
    poison(engine)
    wrong = 0
    for _ in range(CHECK_EVERY):
        wrong += engine.encode([TEXT], PLAIN) != library("bert").encode([TEXT], PLAIN)
    assert not engine.cache_check.is_on and wrong < CHECK_EVERY


def test_long_texts_are_not_checked_on_the_event_loop() -> None:
    engine = checked_always(engine_of("bert", 64))
    long = TEXT + " the" * MAX_CHARACTERS
    engine.encode([long], PLAIN)
    before = engine.cache_check.results["same"]
    assert engine.cached(long, PLAIN) is not None
    assert engine.cache_check.results["same"] == before


def test_copies_with_another_length_and_a_template_share_the_check() -> None:
    engine = checked_always(engine_of("bert", 64))
    copy = engine.with_max_length(4)
    engine.encode([TEXT], PLAIN)
    poison(engine, "Paris")
    copy.encode([TEXT], PLAIN)
    assert engine.cached(TEXT, PLAIN) is None
    framed = engine_of("bert", 64)
    before = framed.cache_check.results["same"]
    framed.frame_pairs("[CLS]", ["Query:"], ["Answer:"])
    assert framed.cache_check.is_on and framed.cache_check.results["same"] > before, "the samples again"


def test_threads_count_each_text_once() -> None:
    check, before = CacheCheck(10), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as executor:
            due = executor.map(lambda _: sum(check.is_due() for _ in range(5000)), range(4))
            assert sum(due) == 2000
    finally:
        sys.setswitchinterval(before)


def test_the_check_compares_type_ids_and_truncation_too() -> None:
    for other in (Encoding([1], [1]), Encoding([1], [0], True), Encoding([2], [0])):
        check = CacheCheck()
        check.compare([Encoding([1], [0])], [other])
        assert not check.is_on
    check.compare([Encoding([1], [0])], [Encoding([1], [0])])
    assert not check.is_on and check.results == {"same": 1, "different": 1}


def test_the_metric_counts_checks_by_result() -> None:
    loaded = load_fast(DEMO_MODEL, {"model_type": "bert"}, lower_case=True)
    assert loaded.backend is not None
    engine = RustEngine(loaded.backend, 64, special_tokens=True, truncation_side="right")
    metrics = Metrics()
    metrics.of("bert").watch_cache_checks(Tokenizer(loaded, engine, 64).cache_checks)
    name = "hf_transformer_word_cache_checks_total"
    engine.encode([TEXT], PLAIN)
    poison(engine)
    checked_always(engine).encode([TEXT], PLAIN)
    text = metrics.render().decode()
    assert f'{name}{{model_name="bert",result="different"}} 1.0' in text
    assert f'{name}{{model_name="bert",result="same"}} {engine.cache_check.results["same"]:.1f}' in text
    off = RustEngine(loaded.backend, 64, special_tokens=True, truncation_side="right", word_cache=False)
    metrics.of("bert").watch_cache_checks(Tokenizer(loaded, off, 64).cache_checks)
    assert name not in metrics.render().decode()
