"""Tokens of overlapping windows are put together to those of the whole text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from hf_transformer.tasks.token_classification import WindowShape, window_parts
from hf_transformer.tokenizer.engine import RustEngine
from hf_transformer.types import Encoding, Tokenization, Words


def engine(max_length: int, side: str, special: bool) -> RustEngine:
    """A token per word; [CLS] and [SEP] around a text."""
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return RustEngine(backend, max_length, special_tokens=special, truncation_side=side)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("special", [True, False], ids=["special", "bare"])
@pytest.mark.parametrize("in_words", [True, False], ids=["words", "text"])
@given(count=st.integers(1, 40), max_length=st.integers(4, 20), data=st.data())
def test_every_token_once(side: str, special: bool, in_words: bool, count: int, max_length: int, data: Any) -> None:
    stride = data.draw(st.integers(0, max_length - 3))
    words = tuple(f"w{number}" for number in range(count))
    text = Words(words) if in_words else " ".join(words)
    (windows,) = engine(max_length, side, special).encode(
        [text], Tokenization(detail=True, windows=True, stride=stride)
    )
    ((whole,),) = engine(1000, side, special).encode([text], Tokenization(detail=True))
    parts = window_parts([WindowShape.of(window) for window in windows], stride)
    found = [one for part in parts for one in places(windows[part.window])[part.begin : part.end]]
    assert found == places(whole)
    assert [part.place for part in parts] == [sum(p.end - p.begin for p in parts[:n]) for n in range(len(parts))]


def places(encoding: Encoding) -> list[Any]:
    assert encoding.offsets is not None and encoding.word_ids is not None
    return list(zip(encoding.ids, encoding.offsets, encoding.word_ids, strict=True))


def test_the_middle_of_what_windows_share_is_the_seam() -> None:
    first, second = WindowShape(10, 1, 1, (0, 0)), WindowShape(8, 1, 1, (0, 30))
    parts = window_parts([first, second], stride=4)
    assert [(part.begin, part.end) for part in parts] == [(0, 7), (3, 8)]
    assert [part.window for part in window_parts([second, first], stride=4)] == [1, 0]


def test_a_text_without_tokens_of_its_own() -> None:
    shape = WindowShape.of(Encoding([1, 2], [0, 0], offsets=[(0, 0)] * 2, special_mask=[1, 1], word_ids=[None] * 2))
    assert [(part.begin, part.end) for part in window_parts([shape], 3)] == [(0, 2)]
