"""Files of a model that anybody may have written: sizes and numbers are bounded before they are used."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.app.loading import load_model
from hf_transformer.config.options import parse_config
from hf_transformer.errors import LoadError
from hf_transformer.tokenizer.files import MAX_SETTINGS_BYTES, SMALL_FILES, load_json
from hf_transformer.tokenizer.load import MAX_LENGTH, MAX_STEPS, choose_max_length
from tests.tiny_tokenizers.trained import save, wordpiece

CONFIG = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "max_position_embeddings": 64}
LIMIT = 2**20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path, wordpiece(lowercase=True), settings={"tokenizer_class": "BertTokenizer"}, config=CONFIG)


def load(folder: Path, *flags: str) -> Any:
    return load_model(parse_config([f"--model_dir={folder}", "--predictor_host=x", *flags], {})[0])


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **fields}))


def test_ordinary_files_are_loaded(folder: Path) -> None:
    assert load(folder).tokenizer.vocab_size > 10


@pytest.mark.parametrize("name", [name for name in SMALL_FILES if not set("*?/") & set(name)])
def test_a_file_over_the_flag_is_a_load_error(folder: Path, name: str) -> None:
    """Also one that only transformers would read."""
    with (folder / name).open("ab") as file:
        file.truncate(LIMIT + 1)
    with pytest.raises(LoadError) as caught:
        load(folder, f"--max_model_file_bytes={LIMIT}")
    assert str(caught.value) == (
        f"{folder / name}: expected at most {LIMIT} bytes (--max_model_file_bytes), got {LIMIT + 1}"
    )


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "added_tokens.json"])
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_file_without_an_end_is_a_load_error(folder: Path, name: str, kind: str) -> None:
    (folder / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero")
    with pytest.raises(LoadError, match=rf"{name}.*: expected a regular file$|no tokenizer files"):
        load(folder)


def test_json_settings_have_a_limit_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'"' + b"x" * MAX_SETTINGS_BYTES)
    with pytest.raises(LoadError, match=rf"expected at most {MAX_SETTINGS_BYTES} bytes, got {MAX_SETTINGS_BYTES + 1}$"):
        load_json(path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("part", ["[],", "{},", "0,", '{"":{}},'], ids=["lists", "objects", "numbers", "keys"])
def test_json_of_many_values_is_a_load_error(folder: Path, name: str, part: str) -> None:
    """A list of two bytes takes 56 bytes of memory."""
    change(folder / name, more=["MORE"])
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace('"MORE"', part * 1_050_000 + "0"))
    flags = ["--max_model_file_bytes=16777216"]
    with pytest.raises(LoadError, match=rf"{name}: expected at most \d+ (values|lists, objects and keys|bytes)"):
        load(folder, *flags)


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("config.json", {"num_labels": 10**9}),
        ("config.json", {"num_labels": 1e300}),
        ("config.json", {"text_config": {"num_labels": 10**9}}),
        ("config.json", {"num_hidden_layers": 10**9}),
        ("tokenizer_config.json", {"extra_ids": 10**8}),
        ("tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", "extra_ids": 10**8}),
        ("tokenizer_config.json", {"tokenizer_class": "ByT5Tokenizer", "extra_ids": 10**8}),
        ("tokenizer_config.json", {"tokenizer_class": "PegasusTokenizer", "offset": 10**8}),
        ("tokenizer_config.json", {"tokenizer_class": "XGLMTokenizer", "num_madeup_words": 10**8}),
    ],
    ids=["labels", "labels-float", "labels-inside", "layers", "extra", "t5", "byt5", "pegasus", "xglm"],
)
def test_a_number_of_objects_is_bounded(folder: Path, file: str, fields: dict[str, Any]) -> None:
    change(folder / file, **fields)
    with pytest.raises(LoadError, match=rf"{file}: \w+: expected at most \d+, got "):
        load(folder)


def spread(folder: Path) -> None:
    document = json.loads((folder / "tokenizer.json").read_text())
    document["model"]["vocab"]["far"] = 4_000_000_000
    (folder / "tokenizer.json").write_text(json.dumps(document))


def normalize(folder: Path) -> None:
    change(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
    change(folder / "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [step] * (MAX_STEPS + 1)})


def expand(folder: Path) -> None:
    change(folder / "config_sentence_transformers.json", query_length=10**9)
    (folder / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Transformer", "path": ""}]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (spread, r"expected token ids below \d+, got 4000000000"),
        (normalize, f"expected at most {MAX_STEPS} steps that replace text, got {MAX_STEPS + 1}"),
        (expand, r"query expansion: expected at most \d+ tokens, got 1000000000"),
    ],
    ids=["token-ids", "steps", "query-length"],
)
def test_numbers_that_cost_memory_for_each_text_are_bounded(
    folder: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(folder)
    with pytest.raises(LoadError, match=message):
        load(folder)


@pytest.mark.parametrize(
    "config",
    [
        {"max_position_embeddings": 10**11},
        {"max_position_embeddings": 10**6, "rope_scaling": {"type": "linear", "factor": 1e308}},
        {"max_position_embeddings": 10**6, "rope_scaling": {"type": "yarn", "factor": 10**300}},
    ],
    ids=["positions", "float", "integer"],
)
def test_a_length_is_bounded(config: dict[str, Any]) -> None:
    assert choose_max_length(None, None, config) == MAX_LENGTH


def test_libraries_errors_are_load_errors(folder: Path) -> None:
    """Nested settings exceed Python's recursion limit."""
    normalizer: Any = {"type": "Lowercase"}
    for _ in range(400):
        normalizer = {"type": "Sequence", "normalizers": [normalizer]}
    change(folder / "tokenizer.json", normalizer=normalizer)
    with pytest.raises(LoadError):
        load(folder, "--disable_lower_case")
