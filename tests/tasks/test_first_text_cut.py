"""``Tokenization.only_first`` against transformers' truncation="only_first", as zero-shot classification uses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types import Encoding, Tokenization
from tests.tiny_tokenizers.folders import byt5
from tests.triton_repository import task_model_folder

LENGTH = 40
PAIRS = (
    ("She plays.", "This is music."),
    ("She plays the guitar. " * 20, "It is music."),
    ("", "It is music."),
    ("She plays the guitar. " * 20, ""),
    ("Zoe\u0308 👩‍👩‍👧‍👦 北京 " * 20, "It is é."),
)
Folder = Callable[[Path], Path]
BOTH = pytest.mark.parametrize("folder", [lambda _: task_model_folder("nli"), byt5], ids=["in Rust", "in Python"])


def load(folder: Path) -> Tokenizer:
    return load_tokenizer(folder, {}, max_model_len=LENGTH)


def encode(tokenizer: Tokenizer, *pairs: tuple[str, str]) -> list[Encoding]:
    return [windows[0] for windows in tokenizer.encode_windows(pairs, Tokenization(only_first=True))]


@BOTH
def test_as_transformers_cuts(tmp_path: Path, folder: Folder) -> None:
    path = folder(tmp_path / "tokenizer")
    auto: Any = transformers.AutoTokenizer.from_pretrained(str(path))
    # A batch as the pipeline sends it: a call with one pair takes an empty second text for none.
    batch = [list(pair) for pair in PAIRS]
    whole = [len(ids) for ids in auto(batch)["input_ids"]]
    cut = auto(batch, truncation="only_first", max_length=LENGTH)["input_ids"]
    assert max(whole) > LENGTH > min(whole)
    for found, ids, length in zip(encode(load(path), *PAIRS), cut, whole, strict=True):
        assert found.ids == ids
        assert found.truncated == (length > LENGTH)


@BOTH
def test_a_second_text_that_leaves_no_room(tmp_path: Path, folder: Folder) -> None:
    tokenizer = load(folder(tmp_path / "tokenizer"))
    with pytest.raises(InvalidInput, match="a pair of texts does not fit"):
        encode(tokenizer, ("She plays.", "It is music, and more of it. " * 10))
