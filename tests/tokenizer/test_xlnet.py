"""XLNet's tokenizer.json, read without transformers, gives what transformers gives."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers.trainers import UnigramTrainer

from hf_transformer.tokenizer.load import load_fast
from hf_transformer.tokenizer.tokenizer import load_tokenizer

SPECIAL = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
WORDS = "the capital of france is paris and a river runs through it naïve Ünïcode ''quoted'' ``yes`` 12 3.5".split()
TEXTS = [
    *("The capital of France is Paris.", "naïve ``yes'' Ünï", "", " two  spaces ", "<mask> is </s> odd <sep>"),
    *("日本 12 3.5", "a" * 30, "line\nbreak\ttab"),
]
CONFIG = {"model_type": "xlnet", "architectures": ["XLNetForSequenceClassification"]}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder as transformers saves it, and its own tokenizer."""
    trained: Any = transformers.XLNetTokenizer()._tokenizer
    lines = [" ".join(random.Random(number).choices(WORDS, k=8)) for number in range(400)]
    trained.train_from_iterator(lines, UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>"))
    vocab = [(piece, score) for piece, score in json.loads(trained.to_str())["model"]["vocab"]]
    tokenizer = transformers.XLNetTokenizer(vocab=vocab, unk_id=0)
    folder = tmp_path_factory.mktemp("xlnet")
    tokenizer.save_pretrained(folder)
    return folder, tokenizer


def test_it_is_read_without_transformers(saved: tuple[Path, Any]) -> None:
    assert load_fast(saved[0], CONFIG, lower_case=True).padding_side == "left"


@pytest.mark.parametrize("pair", [False, True], ids=["text", "pair"])
def test_ids_and_types(saved: tuple[Path, Any], pair: bool) -> None:
    folder, original = saved
    texts: Any = [(text or "a", "the river") for text in TEXTS] if pair else TEXTS
    for text, found in zip(texts, load_tokenizer(folder, CONFIG).encode(texts), strict=True):
        expected = original(*text, return_token_type_ids=True) if pair else original(text, return_token_type_ids=True)
        assert (found.ids, found.type_ids) == (expected["input_ids"], expected["token_type_ids"]), text
