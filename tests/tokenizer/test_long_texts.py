"""Long texts give the results of transformers: whole, truncated, and in windows."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from hf_transformer.errors import InvalidInput
from hf_transformer.types.tokenization import TextInput, Tokenization, Truncation
from tests.goldens.hard_texts import HARD_TEXTS

RUST = (
    "minibert_mean ner_roberta tokenizers/unigram bert-left bert-added-decoder roberta gpt2"
    " generic-bytes-no-post-processor xlm-roberta albert t5 rare-class"
).split()
CUT = 24
WHOLE = Tokenization(detail=True, whole=True)
TEXTS = list(HARD_TEXTS.values())
SOME = ["Anna", HARD_TEXTS["accents_combining"], HARD_TEXTS["turkish_many"], HARD_TEXTS["emoji_zwj"], "the hotel " * 60]
PAIRS = [(first, second) for first in SOME for second in (*SOME, HARD_TEXTS["very_long_one_word"])]
ALL: Sequence[TextInput] = [*TEXTS, *PAIRS]


def reference(auto: Any, text: TextInput, **options: Any) -> Any:
    """transformers' encoding of a text or a pair, as a batch: otherwise it drops an empty second text."""
    columns = [[side] for side in text] if isinstance(text, tuple) else [[text]]
    outputs = {"return_token_type_ids": True, "return_special_tokens_mask": True, "verbose": False}
    return auto(*columns, return_offsets_mapping=auto.is_fast, **outputs, **options)


def expected_cut(auto: Any, text: TextInput) -> Truncation:
    """The tokens that transformers removes when it truncates."""
    whole, short = reference(auto, text), reference(auto, text, truncation=True, max_length=CUT)
    count = len(whole["input_ids"][0]) - len(short["input_ids"][0])
    if not auto.is_fast:
        return Truncation(count, None)
    spans: list[tuple[int, int] | None] = []
    for number in range(2 if isinstance(text, tuple) else 1):
        indices, kept = (
            [index for index, owner in enumerate(encoding.sequence_ids(0)) if owner == number]
            for encoding in (whole, short)
        )
        cut = indices[len(kept) :] if auto.truncation_side == "right" else indices[: len(indices) - len(kept)]
        offsets = [whole["offset_mapping"][0][index] for index in cut]
        spans.append((offsets[0][0], offsets[-1][1]) if offsets else None)
    return Truncation(count, tuple(spans))


@pytest.mark.parametrize("name", [*RUST, "byt5"])
def test_a_whole_text_names_the_tokens_that_truncation_would_remove(name: str, ours: Any, auto: Any) -> None:
    tokenizer, theirs = ours(name, max_model_len=CUT), auto(name)
    bare = tokenizer.encode_windows(ALL, replace(WHOLE, special_tokens=False))
    for text, [encoding], [plain] in zip(ALL, tokenizer.encode_windows(ALL, WHOLE), bare, strict=True):
        expected = reference(theirs, text)
        assert encoding.ids == expected["input_ids"][0], text
        assert encoding.type_ids == expected["token_type_ids"][0], text
        assert encoding.special_mask == expected["special_tokens_mask"][0], text
        assert encoding.offsets == expected.get("offset_mapping", [None])[0], text
        assert encoding.tokens == theirs.convert_ids_to_tokens(encoding.ids), text
        assert encoding.cut == plain.cut == expected_cut(theirs, text), text
        assert not encoding.truncated
        assert plain.ids == reference(theirs, text, add_special_tokens=False)["input_ids"][0]
        assert plain.special_mask == [0] * len(plain)


@pytest.mark.parametrize("name", ["bert", "bert-left", "roberta", "xlm-roberta", "t5", "albert", "vocab.txt", "byt5"])
def test_special_tokens_can_be_left_out_and_asked_for(name: str, ours: Any) -> None:
    tokenizer = ours(name, max_model_len=CUT, special_tokens=False)
    text = "the hotel " * 60
    [[alone]], [cut] = tokenizer.encode_windows([text], WHOLE), tokenizer.encode([text])
    assert sum(alone.special_mask or [1]) == 0
    assert alone.cut is not None and len(alone) - alone.cut.count == len(cut) == CUT
    [[added]] = tokenizer.encode_windows([text], replace(WHOLE, special_tokens=True))
    assert sum(added.special_mask or []) > 0
    assert added.cut == alone.cut


LONG = [(f"{first} " * 6, f"{second} " * 4) for first, second in PAIRS[:4]]
LONG += [(f"{first} " * 3, f"{second} " * 5) for first, second in PAIRS[6:10]]
SHORT = ("Is it?", "It is.")
EMPTY = [("", SHORT[1]), (SOME[4], "")]
OVERFLOWING = {"stride": 3, "return_overflowing_tokens": True}
CASES: dict[str, tuple[Tokenization, Sequence[TextInput], dict[str, Any]]] = {
    "longest first": (Tokenization(), [*LONG, *ALL], {"truncation": True}),
    "first only": (
        Tokenization(only_first=True),
        [SHORT, *EMPTY, *((second, SHORT[1]) for _, second in LONG)],
        {"truncation": "only_first"},
    ),
    "second only": (
        Tokenization(only_second=True),
        [SHORT, *((SHORT[0], second) for _, second in LONG)],
        {"truncation": "only_second"},
    ),
    "the other side": (Tokenization(truncation_side="left"), [*LONG, *ALL], {"truncation": True}),
    "shorter second, from the left": (
        Tokenization(max_length=17, truncation_side="left", only_second=True),
        [SHORT, *((SHORT[0], second) for _, second in LONG)],
        {"truncation": "only_second"},
    ),
    "windows": (Tokenization(windows=True, stride=3), TEXTS, {"truncation": True, **OVERFLOWING}),
    "windows of the second": (
        Tokenization(windows=True, stride=3, only_second=True),
        [SHORT, *((SHORT[0], second) for _, second in LONG)],
        {"truncation": "only_second", **OVERFLOWING},
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [*RUST, "roberta-prefix-space", "byt5"])
def test_truncated_texts_and_windows_are_those_of_transformers(name: str, case: str, ours: Any, auto: Any) -> None:
    tokenizer, theirs = ours(name, max_model_len=CUT), auto(name)
    tokenization, texts, options = CASES[case]
    if tokenization.truncation_side is not None:
        theirs = copy(theirs)
        theirs.truncation_side = tokenization.truncation_side
    limit = tokenization.max_length or CUT
    if not theirs.is_fast and tokenization.windows:
        with pytest.raises(InvalidInput, match="written in Python"):
            tokenizer.encode_windows(texts, tokenization)
        return
    quick = tokenizer.encode_windows(texts, tokenization)
    assert all(len(window) <= limit for windows in quick for window in windows)
    detailed = tokenizer.encode_windows(texts, replace(tokenization, detail=True)) if theirs.is_fast else quick
    for text, windows, same in zip(texts, detailed, quick, strict=True):
        expected = reference(theirs, text, max_length=limit, **options)
        assert [window.ids for window in windows] == [window.ids for window in same] == expected["input_ids"], text
        whole = len(reference(theirs, text)["input_ids"][0])
        assert [window.truncated for window in windows] == [whole > limit and not tokenization.windows] * len(windows)
        if theirs.is_fast:
            assert [window.special_mask for window in windows] == expected["special_tokens_mask"], text
            assert [window.sequence_ids for window in windows] == [*map(expected.sequence_ids, range(len(windows)))], (
                text
            )
            assert windows[0].type_ids == expected["token_type_ids"][0], text
            # The library gets some type ids of later windows of pairs wrong.
            assert (
                len({frozenset(zip(window.sequence_ids, window.type_ids, strict=True)) for window in windows}) == 1
            ), text
            assert [window.offsets for window in windows] == expected["offset_mapping"], text


@pytest.mark.parametrize(
    ("name", "limit", "options", "message"),
    [
        ("ner_roberta", 3, Tokenization(), "into 3 tokens"),
        ("byt5", 1, Tokenization(), "into 1 tokens"),
        (
            "ner_roberta",
            CUT,
            Tokenization(only_first=True),
            "second one leaves room for the first in 24 tokens, got 5.. tokens",
        ),
        ("byt5", CUT, Tokenization(only_first=True), "into 24 tokens"),
        (
            "ner_roberta",
            CUT,
            Tokenization(only_second=True),
            "first one leaves room for the second in 24 tokens, got 5.. tokens",
        ),
    ],
)
def test_a_pair_that_can_not_be_truncated_to_fit_is_refused(
    name: str, limit: int, options: Tokenization, message: str, ours: Any
) -> None:
    with pytest.raises(InvalidInput, match=f"a pair of texts .*{message}"):
        ours(name, max_model_len=CUT).with_max_length(limit).encode_windows([("a " * 500, "b " * 500)], options)


@pytest.mark.parametrize("name", ["minibert_mean", "gpt2", "t5", "byt5"])
@pytest.mark.parametrize("times", [1, 40])
async def test_decoded_texts_are_those_of_transformers(name: str, times: int, ours: Any, auto: Any) -> None:
    tokenizer, theirs = ours(name), auto(name)
    ids = [encoding["input_ids"] * times for encoding in map(theirs, TEXTS[:20])]
    for skip in (False, True):
        expected = [theirs.decode(one, skip_special_tokens=skip) for one in ids]
        assert await tokenizer.decode_off_loop(ids, None, skip) == expected
        assert [tokenizer.decode(one, skip) for one in ids] == expected
