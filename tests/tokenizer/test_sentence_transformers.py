"""The files of sentence-transformers, as its versions 2, 3 and 6 write them."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.errors import LoadError
from hf_transformer.tasks.base import CrossEncoder, SentenceTransformers
from hf_transformer.tokenizer.sentence_transformers import read_cross_encoder, read_sentence_transformers
from tests.support.triton_repository import task_model_folder

OLD = "sentence_transformers.models."
NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
}
POOLING, BERT, SETTINGS = "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"


def read(folder: Path, *kinds: str, files: Any = None, new: bool = False) -> SentenceTransformers | None:
    """Writes a folder with these modules and further files, and reads its settings."""
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind}" if index else "",
            "type": NEW[kind] if new else OLD + kind,
        }
        for index, kind in enumerate(kinds or ("Transformer", "Pooling"))
    ]
    for name, content in {"modules.json": modules, **(files or {})}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return read_sentence_transformers(folder)


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
        ("bert", None),
    ],
)
def test_the_files_of_published_layouts_are_read(model: str, expected: SentenceTransformers | None) -> None:
    assert read_sentence_transformers(task_model_folder(model)) == expected


@pytest.mark.parametrize("new", [False, True], ids=["version-3", "version-6"])
@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("Pooling",), SentenceTransformers()),
        (("Pooling", "Normalize"), SentenceTransformers(normalize=True)),
        (("Pooling", "Dense", "Normalize"), SentenceTransformers(inside="Dense", normalize=True)),
        (("Normalize",), SentenceTransformers(inside="pooling", normalize=True)),
    ],
    ids=str,
)
def test_modules_decide_about_normalization_and_the_models_own_output(
    tmp_path: Path, kinds: tuple[str, ...], expected: SentenceTransformers, new: bool
) -> None:
    assert read(tmp_path, "Transformer", *kinds, new=new) == expected


CHANGES: list[tuple[dict[str, Any], SentenceTransformers]] = [
    *(
        ({POOLING: pooling}, SentenceTransformers(pooling=modes))
        for pooling, modes in (
            ({}, ("mean",)),
            ({"pooling_mode": "lasttoken"}, ("lasttoken",)),
            ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
            ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, ("cls",)),
            ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean")),
            ({"pooling_mode_mean_tokens": False, "pooling_mode_weightedmean_tokens": True}, ("weightedmean",)),
            ({"pooling_mode_mean_sqrt_len_tokens": True}, ("mean_sqrt_len_tokens",)),
            ({"pooling_mode_mean_tokens": False}, ("mean",)),
        )
    ),
    *(
        ({name: content}, SentenceTransformers(max_seq_length=limit))
        for name, content, limit in (
            (BERT, {"max_seq_length": 256, "do_lower_case": False}, 256),
            ("sentence_roberta_config.json", {"max_seq_length": 75}, 75),
            (BERT, {"max_seq_length": None}, None),
            (BERT, {"max_seq_length": 9, "tokenizer_args": {"model_max_length": 7}}, 7),
            (BERT, {"processor_kwargs": {"model_max_length": 8}}, 8),
            (BERT, {"processor_kwargs": {"padding_side": "left"}, "max_seq_length": 5}, 5),
        )
    ),
]


@pytest.mark.parametrize(("files", "expected"), CHANGES, ids=str)
def test_settings_of_pooling_and_length_are_read(tmp_path: Path, files: Any, expected: SentenceTransformers) -> None:
    assert read(tmp_path, files=files) == expected


@pytest.mark.parametrize("kind", ["CrossEncoder", "LateFusionEncoder"])
def test_models_of_other_types_only_have_an_activation_function(tmp_path: Path, kind: str) -> None:
    assert read(tmp_path, "Transformer", files={SETTINGS: {"model_type": kind}}) is None
    assert read_cross_encoder(tmp_path) == CrossEncoder()
    (tmp_path / SETTINGS).write_text('{"activation_fn": "torch.nn.modules.linear.Identity"}')
    assert read_cross_encoder(tmp_path) == CrossEncoder("torch.nn.modules.linear.Identity")


def test_a_cross_encoder_may_have_prompts(tmp_path: Path) -> None:
    settings = {"model_type": "CrossEncoder", "prompts": {"q": "query: ", "none": None}, "default_prompt_name": "q"}
    (tmp_path / SETTINGS).write_text(json.dumps(settings))
    assert read_cross_encoder(tmp_path) == CrossEncoder(None, {"q": "query: ", "none": ""}, "q")
    (tmp_path / SETTINGS).write_text(json.dumps({**settings, "model_type": "SentenceTransformer"}))
    assert read_cross_encoder(tmp_path) == CrossEncoder()
    (tmp_path / SETTINGS).write_text(json.dumps({**settings, "default_prompt_name": "x"}))
    with pytest.raises(LoadError, match="default_prompt_name is 'x'"):
        read_cross_encoder(tmp_path)


def test_prompts_dimension_case_and_normalized_tokens_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, "Transformer", "Pooling", "Dropout") == SentenceTransformers()
    of_tokens = {"2_Normalize/config.json": {"module_input_name": "token_embeddings"}}
    assert read(tmp_path, "Transformer", "Pooling", "Normalize", files=of_tokens) == SentenceTransformers()
    settings = {
        "model_type": "SentenceTransformer",
        "prompts": {"query": "Q: ", "document": None},
        "default_prompt_name": "query",
        "truncate_dim": 64,
    }
    files = {SETTINGS: settings, BERT: {"do_lower_case": True}, POOLING: {"include_prompt": False}}
    assert read(tmp_path, files=files) == SentenceTransformers(
        prompts={"query": "Q: ", "document": ""},
        default_prompt_name="query",
        truncate_dim=64,
        lower_case=True,
        include_prompt=False,
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"modules.json": {}}, "expected a list of modules"),
        ({"modules.json": [3]}, "expected a list of modules"),
        ({"modules.json": [{"type": "x.Pooling", "path": "../other"}]}, "leads out of"),
        ({"modules.json": [{"type": "x.Pooling", "path": "/etc"}]}, "leads out of"),
        ({POOLING: []}, "must hold a JSON object, but holds a list"),
        ({POOLING: {"pooling_mode": "median"}}, "'median' is unknown.*weightedmean"),
        ({SETTINGS: {"prompts": ["x"]}}, "prompts to be texts by name"),
        ({SETTINGS: {"prompts": {"q": 3}}}, "prompts to be texts by name"),
        ({SETTINGS: {"prompts": {"q": "Q"}, "default_prompt_name": "p"}}, "default_prompt_name is 'p', prompts has q"),
    ],
    ids=str,
)
def test_broken_files_and_unknown_values_are_refused(tmp_path: Path, files: Any, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        read(tmp_path, files=files)
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(LoadError, match=r"modules\.json is not valid JSON"):
        read_sentence_transformers(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(
            {"processing_kwargs": {"text": {"padding": True, "add_special_tokens": False}}},
            "processing_kwargs.text has add_special_tokens",
            id="tokens",
        ),
        pytest.param({"processing_kwargs": {"common": {"max_length": 9}}}, "common has max_length", id="common"),
        pytest.param({"modality_config": {"message": {}}}, "modality_config has message, expected text", id="messages"),
        pytest.param({"processing_kwargs": {"image": {"size": 9}, "text": {"padding": True}}}, None, id="no tokens"),
    ],
)
@pytest.mark.parametrize("kind", ["SentenceTransformer", "CrossEncoder"])
def test_settings_that_change_tokens_are_refused(
    tmp_path: Path, kind: str, settings: dict[str, Any], message: str | None
) -> None:
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(settings))
    with pytest.raises(LoadError, match=message) if message else nullcontext():
        if kind == "CrossEncoder":
            (tmp_path / SETTINGS).write_text(json.dumps({"model_type": kind}))
            read_cross_encoder(tmp_path)
        else:
            read(tmp_path, "Transformer", "Pooling")
