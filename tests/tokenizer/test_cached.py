"""Pairs, windows, prompts and long texts from the word cache equal the library's, whatever was asked before."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_transformer.errors import InvalidInput, RequestError
from hf_transformer.tokenizer.engine import Engine
from hf_transformer.tokenizer.load import load_fast
from hf_transformer.tokenizer.rust_engine import RustEngine
from hf_transformer.tokenizer.tokenizer import CHUNK_TEXTS, CPUS, INLINE_CHARACTERS, Tokenizer
from hf_transformer.tokenizer.words import MAX_TEXT_CHARACTERS
from hf_transformer.types.tokenization import PLAIN, Encoding, TextInput, Tokenization, Words
from tests.support.triton_repository import DEMO_MODEL
from tests.tiny_tokenizers.corpus import any_texts
from tests.tiny_tokenizers.separable import BACKENDS, copy_of, engine_of, vocabulary

LIMITS = (2, 4, 9, 24, 512)
FORMS = {
    "plain": PLAIN,
    "first only": Tokenization(only_first=True),
    "second only": Tokenization(only_second=True),
    "windows": Tokenization(windows=True, stride=2),
    "half-overlapping windows": Tokenization(windows=True, stride=None),
    "few windows": Tokenization(windows=True, max_windows_each=2),
    "windows of one text of a pair": Tokenization(windows=True, only_second=True, stride=1),
    "prompt": Tokenization(whole=True),
    "bare prompt": Tokenization(whole=True, special_tokens=False),
    "prompt with special tokens": Tokenization(whole=True, special_tokens=True),
    "shorter": Tokenization(max_length=7),
    "shorter second": Tokenization(max_length=7, only_second=True),
    "left": Tokenization(truncation_side="left"),
    "right": Tokenization(truncation_side="right"),
    "windows from the left": Tokenization(windows=True, stride=1, truncation_side="right", max_length=9),
    "windows of the longer text": Tokenization(windows=True, stride=2, fit_stride=True),
    "the first windows of a second text": Tokenization(
        windows=True, stride=2, fit_stride=True, only_second=True, max_each=(3, 8), max_windows_each=2
    ),
    "maximum of each": Tokenization(max_each=(2, 3), truncation_side="left"),
    "detail": Tokenization(detail=True),
}
every_backend = pytest.mark.parametrize("name", BACKENDS)


@cache
def library_of(name: str, limit: int, special: bool, side: str) -> RustEngine:
    return RustEngine(copy_of(name), limit, special_tokens=special, truncation_side=side, word_cache=False)


@cache
def warm(name: str, limit: int, special: bool, side: str) -> RustEngine:
    return engine_of(name, limit, special=special, side=side)


def outcome(engine: Engine, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]] | str:
    try:
        return engine.encode(texts, options)
    except RequestError as error:
        return str(error)


@every_backend
@settings(max_examples=20)
@given(data=st.data())
def test_any_input_has_the_encodings_of_the_library_whatever_was_asked_before(name: str, data: st.DataObject) -> None:
    texts = any_texts(vocabulary(name))
    text = data.draw(st.one_of(texts, st.tuples(texts, texts)))
    options = FORMS[data.draw(st.sampled_from(sorted(FORMS)))]
    engine = (
        data.draw(st.sampled_from(LIMITS)),
        data.draw(st.booleans()),
        data.draw(st.sampled_from(("left", "right"))),
    )
    expected = outcome(library_of(name, *engine), [text], options)
    fresh = engine_of(name, engine[0], special=engine[1], side=engine[2])
    for cached in (warm(name, *engine), fresh, fresh):
        assert outcome(cached, [text], options) == expected


def prose(name: str, words: int) -> str:
    chosen = random.Random(words)
    known = sorted({token for token in vocabulary(name) if token.isascii() and token.isalpha()})
    return " ".join(chosen.choice(known) for _ in range(words))


def pairs(text: str) -> list[TextInput]:
    return [(text, "the capital of France"), ("the capital of France", text), (text, text)]


@every_backend
@pytest.mark.parametrize("side", ["left", "right"])
def test_long_known_texts_pairs_windows_and_prompts_need_no_library(name: str, side: str) -> None:
    text, engine = prose(name, 600), engine_of(name, 64, side=side)
    longer = engine.with_max_length(100_000)
    for known in (text, "the capital of France"):
        for _ in range(4):  # it learns a part of the words at a time
            engine.encode([known, f"{known} ∑"], PLAIN)
    plain, windows = (engine.cached(text, FORMS[form]) for form in ("plain", "windows"))
    assert plain is not None and plain[0].truncated and len(plain[0]) == 64
    assert windows is not None and len(windows) > 9 and not windows[0].truncated
    assert longer.cached(text, FORMS["prompt"]) is not None and engine.cached(text, FORMS["prompt"]) is None
    has_pairs = name not in ("gpt2-lower", "neox", "qwen")  # whose post-processor is missing or only for offsets
    for pair in pairs(text):
        for form in ("plain", "first only" if pair[0] is text else "second only"):  # type: ignore[index]
            cached = engine.cached(pair, FORMS[form])
            assert cached is None or cached == library_of(name, 64, True, side).encode([pair], FORMS[form])[0]
            assert cached is not None or not has_pairs or not form.startswith("plain")
    assert engine.cached(Words(("of",)), PLAIN) is engine.cached(text, FORMS["detail"]) is None
    assert engine.cached("of " * MAX_TEXT_CHARACTERS, PLAIN) is None


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
def test_long_texts_raise_the_errors_of_the_library(options: Tokenization) -> None:
    text, engine = prose("bert", 600), engine_of("bert", 6)
    for _ in range(4):
        engine.encode([text], PLAIN)
    texts: list[TextInput] = [text, f"{text} \udfff", *pairs(text)]
    for limit in (1, 3, 6):
        for one in texts:
            library = library_of("bert", limit, True, "right")
            assert outcome(engine.with_max_length(limit), [one], options) == outcome(library, [one], options)
    with pytest.raises(InvalidInput, match="lone surrogate"):
        engine.encode([f"{text} \udfff"], options)


# Characters that share a grapheme cluster with a space before or after them

BEGINNINGS = (*"\u0301\u0e33\u0eb3\uff9e\u200d\u0903\U0001f3fd\ufe0f\u20e3", "\U000e0061")
ENDINGS = (*"\u0600\u06dd\u070f\u0d4e", *"\U000110bd\U000111c2\U0001193f\U00011a84\U00011d46")


@pytest.mark.parametrize("name", ["xlm-roberta", "xlm-roberta-added", "bert", "nfkd"])
def test_characters_that_join_a_space_have_the_ids_of_the_library(name: str) -> None:
    engine, library = engine_of(name, 512), library_of(name, 512, True, "right")
    pieces = ("a", "´", "ﬃ", "½", "<mask>", "中", *BEGINNINGS, *ENDINGS)
    for first in pieces:
        for second in pieces:
            text = f"Paris{first} {second}is the capital {first}{second} of {second} {first}"
            for _ in range(2):
                assert engine.encode([text], PLAIN) == library.encode([text], PLAIN)


# The event loop and threads


class RecordingEngine(Engine):
    """Has cached all texts except those that begin with "x". Records the threads of the others, and waits in them."""

    max_length = 16

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.calls = threading.Semaphore(0)
        self.go_on = threading.Event()

    def cached(self, text: TextInput, options: Tokenization) -> list[Encoding] | None:
        return None if str(text).startswith("x") else [Encoding([1], [0])]

    def _encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        self.threads.append(threading.current_thread().name)
        self.calls.release()
        assert self.go_on.wait(30)
        return [[Encoding([2, len(str(text))], [0, 0])] for text in texts]


def tokenizer_of(engine: Engine) -> Tokenizer:
    return Tokenizer(load_fast(DEMO_MODEL, {}, lower_case=True), engine, 16)


async def test_a_long_cached_text_needs_no_thread() -> None:
    engine, length = RecordingEngine(), INLINE_CHARACTERS + 1
    engine.go_on.set()
    with ThreadPoolExecutor(1, "tokenizing") as executor:
        encode: Callable[..., Any] = tokenizer_of(engine).encode_off_loop
        assert await encode(["a" * length], executor) == [[Encoding([1], [0])]]
        assert engine.threads == []
        assert await encode(["x" * length], executor) == [[Encoding([2, length], [0, 0])]]
    assert engine.threads == ["tokenizing_0"]


async def test_many_texts_use_all_cpus_in_turn_with_other_requests() -> None:
    engine = RecordingEngine()
    tokenizer, texts = tokenizer_of(engine), ["a" * 100, "x" * 100] * CHUNK_TEXTS * CPUS
    with ThreadPoolExecutor(CPUS + 1) as executor:
        many = [asyncio.create_task(tokenizer.encode_off_loop(texts, executor)) for _ in range(2)]
        for _ in range(CPUS):
            assert await asyncio.to_thread(engine.calls.acquire, timeout=30)
        alone = asyncio.create_task(tokenizer.encode_off_loop(["x" * 5000], executor))  # needs no turn
        assert await asyncio.to_thread(engine.calls.acquire, timeout=30)
        assert len(engine.threads) == CPUS + 1
        engine.go_on.set()
        assert await alone == [[Encoding([2, 5000], [0, 0])]]
        for encodings in await asyncio.gather(*many):
            assert encodings == [[Encoding([1], [0])], [Encoding([2, 100], [0, 0])]] * CHUNK_TEXTS * CPUS


async def test_the_first_refused_text_is_reported_also_with_several_threads() -> None:
    tokenizer = tokenizer_of(engine_of("bert"))
    texts = [prose("bert", 40)] * 600
    texts[300], texts[599] = "a\udc80", "b\udfff"
    with ThreadPoolExecutor(4) as executor:
        with pytest.raises(InvalidInput, match=r"'\\udc80'"):
            await tokenizer.encode_off_loop(texts, executor)
        assert len(await tokenizer.encode_off_loop(texts[301:599], executor)) == 298
