"""How a tokenizer is loaded: its limit, custom code, broken files, and what is not imported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers.models.auto import tokenization_auto

from hf_transformer.errors import InvalidInput, LoadError
from hf_transformer.tokenizer import recipes
from hf_transformer.tokenizer.tokenizer import load_tokenizer
from tests.tiny_tokenizers.folders import sentencepiece_only
from tests.tiny_tokenizers.trained import save, wordpiece

BERT = {"model_type": "bert", "max_position_embeddings": 512}

LIMITS = {
    "512 of the model": ({"max_position_embeddings": 512}, {}, None, 512),
    "tokenizer's is smaller": ({"max_position_embeddings": 512}, {"model_max_length": 128}, None, 128),
    "model's is smaller": ({"max_position_embeddings": 512}, {"model_max_length": 1024}, None, 512),
    "sentinel": ({"n_positions": 77}, {"model_max_length": int(1e30)}, None, 77),
    "old name": ({}, {"max_len": 99}, None, 99),
    "nothing": ({}, {}, None, 512),
    "xlnet": ({"max_position_embeddings": -1}, {}, None, 512),
    "roberta": ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, {}, None, 512),
    "mpnet": ({"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 0}, {}, None, 512),
    "text model": ({"text_config": {"max_position_embeddings": 60}}, {}, None, 60),
    "stretched": ({"max_position_embeddings": 100, "rope_scaling": {"type": "linear", "factor": 4}}, {}, 400, 400),
    "asked for": ({"max_position_embeddings": 512}, {"model_max_length": 64}, 256, 256),
}


@pytest.mark.parametrize(("config", "tokenizer_config", "asked", "length"), LIMITS.values(), ids=LIMITS)
def test_max_length(config: Any, tokenizer_config: Any, asked: int | None, length: int, tmp_path: Path) -> None:
    named = {"model_type": "bert", **config}
    save(tmp_path, wordpiece(lowercase=True), settings={"tokenizer_class": "BertTokenizer", **tokenizer_config})
    assert load_tokenizer(tmp_path, named, max_model_len=asked).max_length == length


def test_limits_of_flags_and_files(folders: Any, ours: Any) -> None:
    for asked, length in ((None, 7), (9, 9)):
        assert load_tokenizer(folders("bert"), BERT, at_most=7, max_model_len=asked).max_length == length
    with pytest.raises(LoadError, match=r"--max_model_len=513 is more than the 512 tokens that config.json"):
        ours("roberta", max_model_len=513)
    with pytest.raises(LoadError, match=r"2 tokens leaves no room for text: 2 special tokens"):
        ours("bert", max_model_len=2)
    with pytest.raises(InvalidInput, match="does not fit into 3 tokens"):
        ours("roberta", max_model_len=3).encode([("a", "b")])


@pytest.mark.slow
def test_no_transformers_import(folders: Any, ours: Any) -> None:
    code = (
        "import sys; from hf_transformer.tokenizer.tokenizer import load_tokenizer\n"
        f"t = load_tokenizer({str(folders('bert'))!r}, {BERT!r}); print(t.encode(['paris'])[0].ids)\n"
        "print([name for name in ('transformers', 'huggingface_hub', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(ours("bert").encode(["paris"])[0].ids), "[]"]


CODE = """
from transformers import ByT5Tokenizer
class OwnTokenizer(ByT5Tokenizer):
    def _tokenize(self, text):
        return super()._tokenize(text[::-1])
"""


def test_custom_code_needs_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    settings = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
    folder = save(tmp_path / "model", None, settings=settings, config={"model_type": "own"}, own_py=CODE)
    with pytest.raises(LoadError, match="--trust_remote_code"):
        load_tokenizer(folder, {"model_type": "own"})
    tokenizer = load_tokenizer(folder, {"model_type": "own"}, trust_remote_code=True, special_tokens=False)
    assert tokenizer.decode(tokenizer.encode(["abc"])[0].ids) == "cba"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", '{"model": ', r"tokenizer\.json is not valid JSON"),
        ("tokenizer.json", '{"model": {"type": "Unknown"}}', r"can't be loaded: \w+: "),
        ("tokenizer_config.json", '{"padding_side": "up"}', "'right' and 'left'"),
        ("spiece.model", "broken", "can't be loaded"),
    ],
)
def test_broken_files(name: str, content: str, says: str, folders: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    if name == "spiece.model":
        sentencepiece_only(folder)
    else:
        shutil.copytree(folders("bert"), folder)
    (folder / name).write_text(content)
    with pytest.raises(LoadError, match=says) as caught:
        load_tokenizer(folder, json.loads((folder / "config.json").read_text()))
    assert "\n" not in str(caught.value)


def test_classes_are_those_of_transformers() -> None:
    registered = tokenization_auto.TOKENIZER_MAPPING_NAMES
    by_name = tokenization_auto.tokenizer_class_from_name
    for name, types in recipes.MODEL_TYPES.items():
        for model_type in types.split():
            assert by_name(registered[model_type] or "") is by_name(name), model_type
    for alias, name in recipes.ALIASES.items():
        assert alias == "DistilBertTokenizer" or by_name(alias) is by_name(name)
    wrong = tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    assert {key for key in wrong if registered[key] != "TokenizersBackend"} == recipes.WRONG_CLASS_TYPES
