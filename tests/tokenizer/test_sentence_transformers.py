"""The files of sentence-transformers, in the forms that its versions 2, 3 and 6 write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.errors import LoadError
from hf_transformer.tasks.base import SentenceTransformers
from hf_transformer.tokenizer.sentence_transformers import read_activation, read_sentence_transformers
from tests.triton_repository import task_model_folder

OLD = "sentence_transformers.models."
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
}


def write(folder: Path, *kinds: str, new: bool = False, **files: Any) -> Path:
    """A folder with these modules; a __ in the names of further files stands for a dot, a ___ for a slash."""
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind}" if index else "",
            "type": NEW[kind] if new else OLD + kind,
        }
        for index, kind in enumerate(kinds)
    ]
    for name, content in {"modules__json": modules, **files}.items():
        path = folder / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


def read(folder: Path) -> SentenceTransformers:
    found = read_sentence_transformers(folder)
    assert found is not None
    return found


def test_other_folders_have_none(tmp_path: Path) -> None:
    assert read_sentence_transformers(tmp_path) is None


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            "minibert_mean",
            SentenceTransformers(
                normalize=True, prompts={"query": "query: ", "passage": "passage: "}, max_seq_length=128
            ),
        ),
        ("minibert_cls", SentenceTransformers(pooling=("cls",), max_seq_length=64)),
        ("minibert_max", SentenceTransformers(pooling=("max",), max_seq_length=128)),
        ("minibert_last", SentenceTransformers(pooling=("lasttoken",))),
    ],
)
def test_the_test_models(model: str, expected: SentenceTransformers) -> None:
    assert read(task_model_folder(model)) == expected


@pytest.mark.parametrize("new", [False, True], ids=["version-3", "version-6"])
def test_modules(tmp_path: Path, new: bool) -> None:
    assert read(write(tmp_path, "Transformer", "Pooling", new=new)) == SentenceTransformers()
    assert read(write(tmp_path, "Transformer", "Pooling", "Normalize", new=new)).normalize
    dense = read(write(tmp_path, "Transformer", "Pooling", "Dense", "Normalize", new=new))
    assert (dense.inside, dense.normalize) == ("Dense", True)
    assert read(write(tmp_path, "Transformer", "Normalize", new=new)).inside == "pooling"


def test_dropout_changes_nothing(tmp_path: Path) -> None:
    assert read(write(tmp_path, "Transformer", "Pooling", "Dropout")) == SentenceTransformers()


def test_normalization_of_token_vectors_is_another_thing(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        "Transformer",
        "Pooling",
        "Normalize",
        new=True,
        **{"2_Normalize___config__json": {"module_input_name": "token_embeddings"}},
    )
    assert not read(folder).normalize


@pytest.mark.parametrize(
    ("pooling", "modes"),
    [
        ({}, ("mean",)),
        ({"pooling_mode": "lasttoken"}, ("lasttoken",)),
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, ("cls",)),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean")),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_weightedmean_tokens": True}, ("weightedmean",)),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, ("mean_sqrt_len_tokens",)),
        ({"pooling_mode_mean_tokens": False}, ("mean",)),
    ],
    ids=str,
)
def test_pooling_modes(tmp_path: Path, pooling: Any, modes: tuple[str, ...]) -> None:
    folder = write(tmp_path, "Transformer", "Pooling", **{"1_Pooling___config__json": pooling})
    assert read(folder).pooling == modes


def test_include_prompt(tmp_path: Path) -> None:
    files: Any = {"1_Pooling___config__json": {"include_prompt": False}}
    folder = write(tmp_path, "Transformer", "Pooling", **files)
    assert not read(folder).include_prompt


@pytest.mark.parametrize(
    ("name", "content", "limit"),
    [
        ("sentence_bert_config__json", {"max_seq_length": 256, "do_lower_case": False}, 256),
        ("sentence_roberta_config__json", {"max_seq_length": 75}, 75),
        ("sentence_bert_config__json", {"max_seq_length": None}, None),
        ("sentence_bert_config__json", {"max_seq_length": 9, "tokenizer_args": {"model_max_length": 7}}, 7),
        ("sentence_bert_config__json", {"processor_kwargs": {"model_max_length": 8}}, 8),
        ("sentence_bert_config__json", {"processor_kwargs": {"padding_side": "left"}, "max_seq_length": 5}, 5),
    ],
    ids=str,
)
def test_max_seq_length(tmp_path: Path, name: str, content: Any, limit: int | None) -> None:
    assert read(write(tmp_path, "Transformer", "Pooling", **{name: content})).max_seq_length == limit


def test_do_lower_case(tmp_path: Path) -> None:
    folder = write(tmp_path, "Transformer", "Pooling", sentence_bert_config__json={"do_lower_case": True})
    assert read(folder).lower_case


def test_settings(tmp_path: Path) -> None:
    settings = {
        "model_type": "SentenceTransformer",
        "prompts": {"query": "Q: ", "document": None},
        "default_prompt_name": "query",
        "truncate_dim": 64,
    }
    found = read(write(tmp_path, "Transformer", "Pooling", config_sentence_transformers__json=settings))
    assert found.prompts == {"query": "Q: ", "document": ""}
    assert (found.default_prompt_name, found.truncate_dim) == ("query", 64)


@pytest.mark.parametrize("kind", ["CrossEncoder", "SparseEncoder", "MultiVectorEncoder"])
def test_models_for_something_else(tmp_path: Path, kind: str) -> None:
    settings = {"model_type": kind}
    folder = write(tmp_path, "Transformer", config_sentence_transformers__json=settings)
    assert read_sentence_transformers(folder) is None


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"modules__json": {}}, "expected a list of modules"),
        ({"modules__json": [3]}, "expected a list of modules"),
        ({"modules__json": [{"type": "x.Pooling", "path": "../other"}]}, "leads out of"),
        ({"modules__json": [{"type": "x.Pooling", "path": "/etc"}]}, "leads out of"),
        ({"1_Pooling___config__json": []}, "expected a JSON object"),
        ({"1_Pooling___config__json": {"pooling_mode": "median"}}, "'median' is unknown.*weightedmean"),
        ({"config_sentence_transformers__json": {"prompts": ["x"]}}, "prompts to be texts by name"),
        ({"config_sentence_transformers__json": {"prompts": {"q": 3}}}, "prompts to be texts by name"),
        (
            {"config_sentence_transformers__json": {"prompts": {"q": "Q"}, "default_prompt_name": "p"}},
            "default_prompt_name is 'p', prompts has q",
        ),
    ],
    ids=str,
)
def test_broken_files(tmp_path: Path, files: Any, words: str) -> None:
    with pytest.raises(LoadError, match=words):
        read_sentence_transformers(write(tmp_path, "Transformer", "Pooling", **files))


def test_no_json(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(LoadError, match=r"modules\.json can't be read"):
        read_sentence_transformers(tmp_path)


def test_the_activation_of_a_cross_encoder(tmp_path: Path) -> None:
    assert read_activation(tmp_path) is None
    path = tmp_path / "config_sentence_transformers.json"
    path.write_text('{"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}')
    assert read_activation(tmp_path) == "torch.nn.modules.linear.Identity"
