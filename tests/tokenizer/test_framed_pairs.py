"""Texts with options of their own, and pairs with a limit for a part of their first text."""

from __future__ import annotations

import pytest

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.tokenization import PLAIN, FramedPair, TextInput, Tokenization, TunedText
from tests.support.triton_repository import task_model_folder

QUERY = "the capital of the city"


def tokenizer_of(name: str = "cross") -> Tokenizer:
    return load_tokenizer(task_model_folder(name), {}, special_tokens=False)


def pieces(tokenizer: Tokenizer, text: TextInput, options: Tokenization = PLAIN) -> list[str]:
    """The text of each window."""
    return [tokenizer.decode(window.ids) for window in tokenizer.encode_windows([text], options)[0]]


def test_a_text_has_options_of_its_own_beside_others() -> None:
    tokenizer = tokenizer_of()
    own, windows = Tokenization(max_length=2), Tokenization(max_length=2, windows=True)
    texts: list[TextInput] = [TunedText(QUERY, own), QUERY, TunedText(QUERY, windows)]
    cut, whole, split = tokenizer.encode_windows(texts, PLAIN)
    assert [len(window) for window in (*cut, *whole)] == [2, 5] and cut[0].truncated and not whole[0].truncated
    assert [len(window) for window in split] == [2, 2, 1]


@pytest.mark.parametrize(("side", "kept"), [(None, "the capital"), ("right", "the capital"), ("left", "the city")])
def test_only_the_query_of_a_framed_pair_is_cut(side: object, kept: str) -> None:
    tokenizer, options = tokenizer_of(), Tokenization(truncation_side=side)  # type: ignore[arg-type]
    [[cut]] = tokenizer.encode_windows([FramedPair("city ", QUERY, " of", "the city", 2)], options)
    [[expected]] = tokenizer.encode_windows([(f"city {kept} of", "the city")], PLAIN)
    assert cut.ids == expected.ids and cut.truncated
    [[whole]] = tokenizer.encode_windows([FramedPair("city ", QUERY, " of", "the city", 5)], options)
    assert whole.ids == tokenizer.encode([(f"city {QUERY} of", "the city")])[0].ids and not whole.truncated


@pytest.mark.parametrize("count", range(1, 13))
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_character_of_several_tokens_is_kept_or_cut_as_a_whole(count: int, side: object) -> None:
    tokenizer, query = tokenizer_of("ner_roberta"), "a\U0001f600b\U0001f600\U0001f600c"
    options = Tokenization(truncation_side=side)  # type: ignore[arg-type]
    [[cut]] = tokenizer.encode_windows([FramedPair("", query, "", "", count)], options)
    text = tokenizer.decode(cut.ids).strip()
    assert len(cut.ids) <= count + 1 or text == query  # a text's first character may get a space before it
    assert query.endswith(text) if side == "left" else query.startswith(text)


def test_a_query_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(InvalidInput, match="lone surrogate"):
        pieces(tokenizer_of(), FramedPair("", "a \udfff", "", "b", 1))
