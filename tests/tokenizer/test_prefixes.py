"""Encoding only a prefix of a long text gives the same result as encoding all of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer import prefixes, rust_engine
from hf_transformer.types.tokenization import Encoding, TextInput, Tokenization
from tests.tiny_tokenizers.corpus import ADDED, ODD, SPACES, any_texts
from tests.tiny_tokenizers.separable import BACKENDS, engine_of, vocabulary

LIMIT = 9
OPTIONS = {
    "plain": Tokenization(),
    "detail": Tokenization(detail=True),
    "shorter": Tokenization(max_length=7),
    "first only": Tokenization(only_first=True, detail=True),
    "second only": Tokenization(only_second=True),
}
warm = cache(engine_of)


def set_limits(patch: pytest.MonkeyPatch, long_text: int, words: int) -> None:
    patch.setattr(rust_engine, "LONG_TEXT_CHARACTERS", long_text)
    for module in (prefixes, rust_engine):
        patch.setattr(module, "MAX_WORDS_PER_CHARACTER", words)


@pytest.fixture(scope="module", autouse=True)
def low_limits() -> Iterator[None]:
    """Texts are long from 30 characters on, and an added token is as many words as it has characters."""
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, long_text=30, words=1)
        yield


def encode(name: str, text: TextInput, options: Tokenization) -> Encoding | str:
    try:
        [[encoding]] = warm(name, LIMIT).encode([text], options)
    except InvalidInput as error:
        return str(error)
    return encoding


def shortens(name: str, text: TextInput, options: Tokenization, first_prefix: int) -> bool:
    """Whether the engine encodes only a prefix. Asserts that the result is that of the whole text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "MIN_PREFIX_CHARACTERS", 10**9)
        expected = encode(name, text, options)
        patch.setattr(prefixes, "MIN_PREFIX_CHARACTERS", first_prefix)
        assert encode(name, text, options) == expected
        return warm(name, LIMIT).prefix(text, LIMIT, options) != text


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=12)
@given(data=st.data())
def test_a_prefix_gives_the_tokens_of_the_whole_text(name: str, data: st.DataObject) -> None:
    texts = st.lists(any_texts(vocabulary(name)), min_size=1, max_size=8)
    text = "".join(data.draw(texts)) * data.draw(st.integers(1, 30))
    short = data.draw(any_texts(vocabulary(name)))
    options, first_prefix = OPTIONS[data.draw(st.sampled_from(sorted(OPTIONS)))], data.draw(st.integers(1, 200))
    for form in (text, (text, short), (short, text)):
        if not options.one_side or isinstance(form, tuple):
            shortens(name, form, options, first_prefix)


@pytest.mark.parametrize("name", BACKENDS)
def test_prefixes_may_end_inside_added_tokens_contractions_accents_and_spaces(name: str) -> None:
    seed = random.Random(name)
    pieces = [*ADDED, *ODD, "can't", "we'll", "they're", "e" + "\u0301" * 30]
    text = "".join(seed.choice(pieces) + seed.choice(SPACES) for _ in range(400))
    shortened = [shortens(name, text, OPTIONS["detail"], first_prefix) for first_prefix in range(100, 400, 7)]
    assert any(shortened), "the text is long enough for a prefix"


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("unit", ["the hotel ", "a ", ".", "中", "a. b, "])
def test_a_very_long_text_is_encoded_by_a_prefix(name: str, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2 takes a run of full stops for one word, and has to encode all of it."""
    set_limits(monkeypatch, long_text=32_768, words=32)
    text = (unit * 300_000)[:300_000]
    engine = engine_of(name, 512)
    prefix = engine.prefix(text, 512, Tokenization())
    assert len(str(prefix)) <= 65_536 or (name, unit) in (("gpt2", "."), ("gpt2", "中"))
    for pair in ((text, "Is it?"), ("Is it?", text)):
        shortened = engine.prefix(pair, 512, Tokenization())
        assert shortened == tuple(prefix if len(side) > 10 else side for side in pair) or name == "gpt2"


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", [Tokenization(windows=True), Tokenization(whole=True), Tokenization()], ids=str)
def test_windows_whole_texts_and_left_truncation_read_the_whole_text(
    side: str, options: Tokenization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefixes, "MIN_PREFIX_CHARACTERS", 16)
    text = " ".join(map(str, range(500)))
    encoded = engine_of("bert", LIMIT, side=side).encode([text], options)
    monkeypatch.setattr(rust_engine, "LONG_TEXT_CHARACTERS", 10**9)
    assert engine_of("bert", LIMIT, side=side).encode([text], options) == encoded


def test_a_lone_surrogate_after_the_prefix_is_refused() -> None:
    assert "lone surrogate" in str(encode("bert", "the hotel " * 500 + "∑ \udfff", Tokenization()))
