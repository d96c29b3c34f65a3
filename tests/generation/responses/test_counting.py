"""The number of tokens of the reasoning, at every way of cutting the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.generation.responses.counting import BLOCK, ReasoningCounter
from hf_transformer.types.tokenization import Tokenization
from tests.api.generating import tokenizer_of
from tests.generation.scripted import chunks

TEXTS = {
    "short": "Hm.",
    "long": "Paris is a city, and that is the answer.\n" * 120,
    "without spaces": "x" * (3 * BLOCK),
    "one space": " " + "x" * (2 * BLOCK),
}


def counted(parts: list[str]) -> int:
    counter = ReasoningCounter(tokenizer_of())
    for part in parts:
        counter.add(part)
    return counter.count


@pytest.mark.parametrize("name", TEXTS)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_the_number_does_not_depend_on_the_pieces(name: str, cuts: list[int]) -> None:
    assert counted(chunks(TEXTS[name], cuts)) == counted([TEXTS[name]])


@pytest.mark.parametrize("name", ["short", "long"])
def test_the_number_is_that_of_the_tokenizer(name: str) -> None:
    whole = Tokenization(whole=True, special_tokens=False)
    [[encoding]] = tokenizer_of().encode_windows([TEXTS[name]], whole)
    assert counted([TEXTS[name]]) == len(encoding.ids)
