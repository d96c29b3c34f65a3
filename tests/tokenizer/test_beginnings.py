"""Of a long text only the beginning is encoded where that is enough, and nobody can tell it from the answer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer import engine as module
from hf_transformer.types.tokenization import Encoding, TextInput, Tokenization
from tests.tiny_tokenizers.corpus import ADDED, ODD, SPACES, any_texts
from tests.tiny_tokenizers.separable import BACKENDS, engine_of, vocabulary

LIMIT = 9
HOWS = {
    "plain": Tokenization(),
    "detail": Tokenization(detail=True),
    "shorter": Tokenization(max_length=7),
    "first alone": Tokenization(only_first=True, detail=True),
    "second alone": Tokenization(only_second=True),
}
warm = cache(engine_of)


@pytest.fixture
def eager() -> Iterator[pytest.MonkeyPatch]:
    """Texts are long from 30 characters on, and an added token is as many words as it has characters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONG", 30)
        patch.setattr(module, "EXPANSION", 1)
        yield patch


def encode(name: str, text: TextInput, how: Tokenization) -> Encoding | str:
    try:
        [[found]] = warm(name, LIMIT).encode([text], how)
    except InvalidInput as error:
        return str(error)
    return found


def same(name: str, text: TextInput, how: Tokenization, patch: pytest.MonkeyPatch, first: int) -> bool:
    """Whether the text was cut before it was encoded; the answer has to be that of the whole text."""
    patch.setattr(module, "FIRST_TRY", 10**9)
    wanted = encode(name, text, how)
    patch.setattr(module, "FIRST_TRY", first)
    assert encode(name, text, how) == wanted
    return warm(name, LIMIT)._shortened(text, LIMIT, how) != text


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=25)
@given(data=st.data())
def test_same_tokens_as_of_the_whole_text(name: str, data: st.DataObject) -> None:
    texts = st.lists(any_texts(vocabulary(name)), min_size=1, max_size=8)
    text = "".join(data.draw(texts)) * data.draw(st.integers(1, 30))
    other = data.draw(any_texts(vocabulary(name)))
    how, first = HOWS[data.draw(st.sampled_from(sorted(HOWS)))], data.draw(st.integers(1, 200))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONG", 30)
        patch.setattr(module, "EXPANSION", 1)
        for form in (text, (text, other), (other, text)):
            if not how.one_side or isinstance(form, tuple):
                same(name, form, how, patch, first)


@pytest.mark.parametrize("name", BACKENDS)
def test_every_cut_of_a_hard_text(name: str, eager: pytest.MonkeyPatch) -> None:
    """Added tokens, contractions, accents and whitespace, cut after each of their characters."""
    seed = random.Random(name)
    pieces = [*ADDED, *ODD, "can't", "we'll", "they're", "e" + "\u0301" * 30]
    text = "".join(seed.choice(pieces) + seed.choice(SPACES) for _ in range(400))
    cut = [same(name, text, HOWS["detail"], eager, first) for first in range(100, 400, 7)]
    assert any(cut), "the text is long enough for some cuts"


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("unit", ["the hotel ", "a ", ".", "中", "a. b, "])
def test_a_very_long_text_is_cut(name: str, unit: str) -> None:
    """A run of full stops is one word of GPT-2's, so that all of it is encoded."""
    text = (unit * 300_000)[:300_000]
    engine = engine_of(name, 512)
    shortened = engine._shortened(text, 512, Tokenization())
    assert len(str(shortened)) <= 65_536 or (name, unit) in (("gpt2", "."), ("gpt2", "中"))
    for pair in ((text, "Is it?"), ("Is it?", text)):
        found = engine._shortened(pair, 512, Tokenization())
        assert found == tuple(shortened if len(one) > 10 else one for one in pair) or name == "gpt2"


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("how", [Tokenization(windows=True), Tokenization(whole=True), Tokenization()], ids=str)
def test_what_needs_the_whole_text_has_it(side: str, how: Tokenization, eager: pytest.MonkeyPatch) -> None:
    eager.setattr(module, "FIRST_TRY", 16)
    text = " ".join(map(str, range(500)))
    found = engine_of("bert", LIMIT, side=side).encode([text], how)
    eager.setattr(module, "LONG", 10**9)
    assert engine_of("bert", LIMIT, side=side).encode([text], how) == found
    assert "lone surrogate" in str(encode("bert", "the hotel " * 500 + "∑ \udfff", Tokenization()))
