"""The tokenizer gives what transformers' AutoTokenizer gives, id for id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer.load import NAMED, load_fast
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.generation.tokenizers import without_unknown
from tests.tiny_tokenizers.corpus import PAIRS, TEXTS, grid
from tests.tiny_tokenizers.folders import BY_TRANSFORMERS, FOLDERS, added_to_bert

MAX = 64


def expected(auto: Any, texts: list[Any], **options: Any) -> Any:
    """What AutoTokenizer gives for texts or pairs, as rows of (ids, type ids, offsets, special mask)."""
    columns = [list(column) for column in zip(*texts, strict=True)] if isinstance(texts[0], tuple) else [texts]
    wanted = {"return_token_type_ids": True, "return_special_tokens_mask": True}
    wanted["return_offsets_mapping"] = auto.is_fast
    out = auto(*columns, truncation=True, max_length=MAX, **wanted, **options)
    offsets = out["offset_mapping"] if auto.is_fast else [None] * len(texts)
    return list(zip(out["input_ids"], out["token_type_ids"], offsets, out["special_tokens_mask"], strict=True))


def check_same(tokenizer: Tokenizer, auto: Any, texts: list[Any]) -> None:
    rows = tokenizer.encode(texts, offsets=auto.is_fast), tokenizer.encode(texts), expected(auto, texts)
    for text, encoding, quick, (ids, types, offsets, special) in zip(texts, *rows, strict=True):
        assert encoding.ids == quick.ids == ids, text
        assert encoding.type_ids == quick.type_ids == types, text
        if offsets is not None:
            assert encoding.offsets == [tuple(pair) for pair in offsets], text
            assert encoding.special_mask == special, text
        for skip in (False, True):
            assert tokenizer.decode(ids, skip) == auto.decode(ids, skip_special_tokens=skip), text


@pytest.mark.parametrize("name", FOLDERS | BY_TRANSFORMERS)
def test_same_as_auto_tokenizer(name: str, ours: Any, auto: Any) -> None:
    tokenizer, reference = ours(name, max_model_len=MAX), auto(name)
    check_same(tokenizer, reference, grid())
    check_same(tokenizer, reference, PAIRS)
    assert tokenizer.vocab_size == max(reference.get_vocab().values()) + 1
    assert tokenizer.padding_side == reference.padding_side
    assert tokenizer.pad_token_id == reference.pad_token_id
    if reference.mask_token is not None:
        assert (tokenizer.mask_token, tokenizer.mask_id) == (reference.mask_token, reference.mask_token_id)
    for number in (0, 1, 5, tokenizer.vocab_size - 1):
        token = tokenizer.id_to_token(number)
        assert token == reference.convert_ids_to_tokens(number)
        assert token is None or tokenizer.token_to_id(token) == number


@pytest.mark.parametrize("name", FOLDERS)
def test_mirrored_without_transformers(name: str, folders: Any, auto: Any) -> None:
    path = folders(name) / "config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    loaded, reference = load_fast(folders(name), config, lower_case=True), auto(name)
    assert loaded.tokens == {key: getattr(reference, key) for key in NAMED if getattr(reference, key) is not None}
    assert loaded.truncation_side == reference.truncation_side


@pytest.mark.parametrize("name", ["bert", "bert-cased", "bert-lowercasing-over-cased-file", "albert", "vocab.txt"])
def test_lower_case_switched_off(name: str, ours: Any, folders: Any) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(str(folders(name)), do_lower_case=False)
    check_same(ours(name, max_model_len=MAX, lower_case=False), reference, TEXTS)


def test_lower_case_of_a_generic_class_and_tokens_that_the_settings_do_not_name(tmp_path: Path, ours: Any) -> None:
    folder = added_to_bert(tmp_path)
    for lower_case in (True, False):
        upper, lower = load_tokenizer(folder, {}, lower_case=lower_case).encode(["Paris", "paris"])
        assert (upper.ids == lower.ids) is lower_case
    for name, pad_token_id, mask in (
        ("gpt2", None, (None, None)),
        ("bert-neither", None, ("[MASK]", 4)),
        ("bert", 0, ("[MASK]", 4)),
    ):
        found = ours(name)
        assert (found.pad_token_id, found.pad_id, (found.mask_token, found.mask_id)) == (pad_token_id, 0, mask)


@pytest.mark.parametrize("name", ["bert", "bert-added-decoder", "vocab.txt", "byt5"])
def test_another_max_length(name: str, ours: Any) -> None:
    tokenizer = ours(name, max_model_len=MAX)
    other = tokenizer.with_max_length(8)
    assert tokenizer.with_max_length(MAX) is tokenizer
    for one, length in ((other, 8), (tokenizer, MAX)):
        assert one.max_length == len(one.encode(["word " * 50])[0]) == length
    assert other.encode(["[ENT] a"]) == tokenizer.encode(["[ENT] a"])
    assert (other.mask_id, other.pad_id) == (tokenizer.mask_id, tokenizer.pad_id)


def test_first_token(ours: Any, tmp_path: Path) -> None:
    for name in ("bert", "byt5"):
        tokenizer = ours(name)
        assert tokenizer.first_token_id("paris") == tokenizer.encode(["paris"])[0].ids[0 if name == "byt5" else 1]
        assert tokenizer.first_token_id("") is None
    genes = load_tokenizer(without_unknown(tmp_path), {})
    assert genes.first_token_id("G A") == genes.token_to_id("G")
    assert genes.first_token_id("g") is None


def test_texts_that_can_not_be_encoded(ours: Any) -> None:
    for text in ("a \ud800 b", ("fine", "\udfff")):
        with pytest.raises(InvalidInput, match="lone surrogate"):
            ours("bert").encode([text])
    with pytest.raises(InvalidInput, match="no offsets"):
        ours("byt5").encode(["a"], offsets=True)
