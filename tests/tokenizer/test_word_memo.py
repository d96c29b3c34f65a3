"""The memo of words gives the ids that the library gives."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer.engine import RustEngine
from hf_transformer.tokenizer.word_memo import TURNS
from hf_transformer.types import PLAIN, Words
from tests.tiny_tokenizers.any_texts import any_texts
from tests.tiny_tokenizers.corpus import grid
from tests.tiny_tokenizers.separable import BACKENDS, LIMIT, Library, copy_of, engine_of, memo_of, vocabulary
from tests.tiny_tokenizers.trained import wordpiece

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
            assert [engine.encode_one(text) for text in texts] == wanted
        assert engine.encode(texts, PLAIN) == [[one] for one in wanted]


@pytest.mark.parametrize("name", BACKENDS)
def test_texts_of_the_corpus(name: str) -> None:
    for options in ({}, {"special": False}, {"side": "left"}, {"limit": 7}):
        engine, reference = engine_of(name, **options), Library(name, **options)
        wanted = [reference.encode(text) for text in grid()]
        for _ in range(3):
            assert [engine.encode_one(text) for text in grid()] == wanted
        assert [one for [one] in engine.encode(grid(), PLAIN)] == wanted


@pytest.mark.parametrize("name", BACKENDS)
def test_usual_texts_are_remembered(name: str) -> None:
    memo, reference = memo_of(name), Library(name, 512)
    for text in ("Paris is the capital of France.", "don't you (really) mind? No, élève!"):
        tries = [memo.ids(text) for _ in range(len(TURNS) + 1)]
        assert tries[-1] == reference.encode(text).ids
        # Words that are not put together of parts have to be learned.
        assert tries[0] is not None or name == "bert-letters-added"


@pytest.mark.parametrize("name", BACKENDS)
def test_texts_that_begin_with_a_space_as_models_write_them(name: str) -> None:
    memo, reference = memo_of(name), Library(name, 512)
    usual = " Paris is the capital of France."
    for text in (usual, " a", " don't", " 1 2 3", " é\u0301 b", " \u0301a", " [MASK] a", " <mask> a<mask> b"):
        for _ in range(len(TURNS) + 1):
            assert memo.ids(text) in (reference.encode(text).ids, None), text
    assert memo.ids(usual) is not None
    bare = Library(name, 512, special=False)
    assert memo.bare(usual) == bare.encode(usual).ids


ASCII = [chr(number) for number in range(ord("!"), ord("~") + 1)]


@pytest.mark.parametrize("name", BACKENDS)
def test_every_two_characters_of_ascii(name: str) -> None:
    memo, backend = memo_of(name), copy_of(name)
    pairs = ["".join(pair) for pair in itertools.product(ASCII, repeat=2)]
    texts = [f"{first} {second}" for first, second in zip(pairs, reversed(pairs), strict=True)]
    for text, encoded in zip(texts, backend.encode_batch_fast(texts), strict=True):
        assert memo.ids(text) in (encoded.ids, None), text


def test_a_text_as_long_as_the_limit_is_the_librarys() -> None:
    engine, reference = engine_of("bert", 8), Library("bert", 8)
    for count in range(10):
        for _ in range(2):
            encoding = engine.encode_one("a " * count)
            assert encoding == reference.encode("a " * count)
            assert encoding.truncated == (count > 6)


def test_a_copy_with_another_limit() -> None:
    text = "Paris is the capital of France."
    engine = engine_of("bert", 64)
    assert not engine.encode_one(text).truncated
    for limit in (3, 6, 500):
        copy, reference = engine.with_max_length(limit), Library("bert", limit)
        assert copy.encode_one(text) == copy.encode_one(text) == reference.encode(text)


def test_lone_surrogates_are_refused_as_ever() -> None:
    engine = engine_of("bert")
    for text in ("\udc80", "Paris \ud800 Paris", "Paris is\udfff"):
        for _ in range(2):
            with pytest.raises(InvalidInput, match=r"it has a lone surrogate, .*, which is not Unicode text"):
                engine.encode_one(text)
    with pytest.raises(InvalidInput, match=r"lone surrogate, '\\udfff'"):
        engine.encode(["Paris", "is\udfff", "\ud800"], PLAIN)
    assert engine.encode_one("Paris is") == Library("bert").encode("Paris is")


def test_a_model_without_its_unknown_token() -> None:
    backend = wordpiece(lowercase=True)
    backend.model.unk_token = "[NONE]"
    engine = RustEngine(backend, LIMIT, special_tokens=True, truncation_side="right")
    for text in ("paris ∑", "\\\\ paris", "∑"):
        with pytest.raises(InvalidInput, match=r"the tokenizer can't encode a text: .*Missing"):
            engine.encode_one(text)
    assert engine.encode_one("paris").ids == backend.encode("paris").ids


def test_texts_of_all_forms_in_one_call() -> None:
    engine = engine_of("bert")
    plain = engine._encode
    texts: Any = ["Paris", ("Paris is", "the capital"), "∑ ∑1 ∑2 ∑3", Words(("of", "France")), "", "Paris " * 40]
    for _ in range(2):
        assert engine.encode(texts, PLAIN) == plain(texts, PLAIN)
    assert engine.encode([], PLAIN) == []
