"""The doctor's comparison of the served ids with those of tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.commands.doctor import command
from hf_transformer.tokenizer.cache_check import HARD_TEXTS
from tests.support.triton_repository import DEMO_MODELS
from tests.tiny_tokenizers.folders import BY_TRANSFORMERS, FOLDERS, LLAMA3_WORDS, of_bytes

WRITERS: dict[str, Callable[[Path], Path]] = {
    **{name: FOLDERS[name] for name in ("bert", "bert-cased-over-lowercasing-file", "gpt2", "qwen", "llama")},
    **{name: FOLDERS[name] for name in ("xlm-roberta", "llama-byte-level", "qwen-of-another-file")},
    "gpt2-three-digits": of_bytes({"tokenizer_class": "GPT2Tokenizer"}, "gpt2", words=LLAMA3_WORDS),
    "qwen-three-digits": of_bytes({"tokenizer_class": "Qwen2Tokenizer"}, "qwen3", words=LLAMA3_WORDS),
    "generic-three-digits": of_bytes({"tokenizer_class": "PreTrainedTokenizerFast"}, "", words=LLAMA3_WORDS),
    "vocab.txt": BY_TRANSFORMERS["vocab.txt"],
    "rare-class": BY_TRANSFORMERS["rare-class"],
}


def examined(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    """The result of the check for a folder."""
    common = ("--predictor_protocol=none", "--model_name=m", "--task=feature_extraction", "--json")
    command.run([*common, f"--model_dir={folder}", *flags], {})
    results = json.loads(capsys.readouterr().out)["results"]
    [result] = [result for result in results if result["name"] == "tokens"]
    return dict(result)


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("bert", "ok", "hard texts have the ids of tokenizer.json (the class BertTokenizer"),
        ("gpt2", "ok", "hard texts have the ids of tokenizer.json (the class GPT2Tokenizer"),
        ("qwen", "warning", "1 of 24 hard texts"),  # the class composes accents, the file does not
        ("llama-byte-level", "ok", "hard texts have the ids of tokenizer.json (its tokenizer.json)"),
        ("generic-three-digits", "ok", "hard texts have the ids of tokenizer.json (its tokenizer.json)"),
        ("gpt2-three-digits", "warning", "The ids are those of the class GPT2Tokenizer"),
        ("qwen-three-digits", "warning", "The ids are those of the class Qwen2Tokenizer"),
        ("qwen-of-another-file", "warning", "'2023' has"),
        ("bert-cased-over-lowercasing-file", "warning", "The ids are those of the class BertTokenizer"),
        ("xlm-roberta", "warning", "The ids are those of the class XLMRobertaTokenizer"),
        ("rare-class", "warning", "The ids are those of transformers"),
        ("vocab.txt", "skipped", "there is no tokenizer.json to compare with; the ids are those of transformers"),
    ],
)
def test_a_class_that_differs_from_the_file_is_a_warning(
    name: str, status: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = examined(WRITERS[name](tmp_path), capsys)
    assert result["status"] == status and says in result["found"], result
    assert bool(result["change"]) is (status == "warning")


def test_the_remedy_serves_the_ids_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = WRITERS["qwen-three-digits"](tmp_path)
    assert '"tokenizer_class": "PreTrainedTokenizerFast"' in examined(folder, capsys)["change"]
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    assert examined(folder, capsys)["status"] == "ok"


@pytest.mark.parametrize("flags", [("--disable_lower_case",), ("--disable_special_tokens",)], ids=["case", "special"])
def test_flags_that_change_ids_are_no_difference(
    flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examined(WRITERS["bert"](tmp_path), capsys, *flags)["status"] == "ok"


@pytest.mark.parametrize("model", ["bert", "gpt2", "minibert_mean", "t5", "cross"])
def test_the_demo_s_models_have_the_ids_of_their_files(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--predictor_protocol=none", "--json", f"--model_name={model}", f"--model_dir={DEMO_MODELS / model}")
    command.run(common, {})
    results = json.loads(capsys.readouterr().out)["results"]
    assert [row["status"] for row in results if row["name"] == "tokens"] == ["ok"]


def test_hard_texts_are_different() -> None:
    assert len({*HARD_TEXTS}) == len(HARD_TEXTS) > 20 and all(map(str.strip, HARD_TEXTS))
