"""Model folders for sparse vectors and vectors of tokens, as their libraries write them."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.errors import LoadError
from hf_transformer.tasks.base import SentenceTransformers
from hf_transformer.tasks.multi_vector import LateInteraction, QueryExpansion
from hf_transformer.tasks.sparse import SparsePooling
from hf_transformer.tokenizer.sentence_transformers import read_sentence_transformers

SETTINGS, BERT = "config_sentence_transformers.json", "sentence_bert_config.json"
SPARSE, LATE = {"model_type": "SparseEncoder"}, {"model_type": "MultiVectorEncoder"}
PUNCTUATION = tuple(string.punctuation)
MASK = "1_MultiVectorMask/config.json"


def read(folder: Path, kinds: tuple[str, ...], files: dict[str, Any]) -> SentenceTransformers | None:
    """Writes a folder with these modules and files, and reads its settings."""
    modules = [{"path": f"{i}_{kind}" if i else "", "type": f"module.{kind}"} for i, kind in enumerate(kinds)]
    for name, content in {**({"modules.json": modules} if kinds else {}), **files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return read_sentence_transformers(folder)


@pytest.mark.parametrize(
    ("kinds", "files", "expected"),
    [
        (("MLMTransformer", "SpladePooling"), {}, SparsePooling()),
        (
            ("Transformer", "SpladePooling", "Normalize"),
            {
                SETTINGS: {**SPARSE, "max_active_dims": 8},
                "1_SpladePooling/config.json": {"pooling_strategy": "sum", "activation_function": "log1p_relu"},
            },
            SparsePooling(strategy="sum", activation="log1p_relu", max_active=8, normalize=True),
        ),
        (
            ("Transformer", "Pooling", "SparseAutoEncoder"),
            {"2_SparseAutoEncoder/config.json": {"k": 16}},
            SparsePooling(max_active=16, inside="SparseAutoEncoder"),
        ),
    ],
)
def test_sparse_encoders(tmp_path: Path, kinds: tuple[str, ...], files: Any, expected: SparsePooling) -> None:
    found = read(tmp_path, kinds, {SETTINGS: SPARSE, BERT: {"max_seq_length": 64}, **files})
    assert found == SentenceTransformers(sparse=expected, max_seq_length=64, similarity="dot")


@pytest.mark.parametrize(
    ("kinds", "files", "message"),
    [
        (("Router",), {SETTINGS: SPARSE}, "the module Router can't be served"),
        (("SparseStaticEmbedding",), {SETTINGS: SPARSE}, "the module SparseStaticEmbedding can't be served"),
        (("Transformer", "Pooling"), {SETTINGS: SPARSE}, "expected SpladePooling or SparseAutoEncoder"),
        (
            ("Transformer", "SpladePooling"),
            {SETTINGS: SPARSE, "1_SpladePooling/config.json": {"pooling_strategy": "mean"}},
            "pooling_strategy is 'mean', expected one of max, sum",
        ),
        (("Transformer", "LambdaTokenPooling"), {SETTINGS: LATE}, "the module LambdaTokenPooling can't be served"),
        (
            ("Transformer", "HierarchicalTokenPooling"),
            {SETTINGS: LATE, "1_HierarchicalTokenPooling/config.json": {"pool_factor": 2}},
            "pool_factor is 2; clustered vectors",
        ),
        (("Transformer", "Dense"), {SETTINGS: {"query_prefix": "Q", "skiplist_words": "!"}}, "a list of strings"),
    ],
)
def test_what_can_not_be_served_is_refused(tmp_path: Path, kinds: tuple[str, ...], files: Any, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        read(tmp_path, kinds, files)


def test_pylate_has_its_own_defaults(tmp_path: Path) -> None:
    files = {SETTINGS: {"query_prefix": "[Q] ", "prompts": {"query": "[Q] find: "}}, BERT: {"max_seq_length": 31}}
    settings = read(tmp_path, ("Transformer", "Dense"), {**files, "1_Dense/config.json": {"out_features": 96}})
    late = LateInteraction(
        markers={"query": "[Q] ", "document": "[D] "},
        lengths={"query": 32, "document": 180},
        expansion=QueryExpansion(),
        skiplist=PUNCTUATION,
        size=96,
    )
    prompts = {"query": "find: "}
    assert settings == SentenceTransformers(
        late_interaction=late, prompts=prompts, max_seq_length=180, similarity="maxsim"
    )


def test_pylate_without_expansion_markers_and_skiplist(tmp_path: Path) -> None:
    settings = {"query_prefix": "", "document_prefix": "", "do_query_expansion": False, "skiplist_words": []}
    found = read(tmp_path, ("Transformer",), {SETTINGS: {**settings, "document_length": 300, "query_length": 48}})
    assert found and found.late_interaction == LateInteraction(lengths={"query": 48, "document": 300})


@pytest.mark.parametrize(
    ("first", "mask", "expected"),
    [
        ({}, {}, LateInteraction()),
        (
            {"query_expansion": {"strategy": "fixed", "length": 24, "attend": True, "token": "[P]"}},
            {"skiplist_words": ["!"], "skiplist_tasks": "query", "keep_only_token_ids": [7]},
            LateInteraction(
                lengths={"query": 24},
                expansion=QueryExpansion(length=24, attend=True, token="[P]"),
                skiplist=("!",),
                skiplist_types=("query",),
                kept_ids=(7,),
            ),
        ),
        (
            {"query_expansion": {"strategy": "min", "length": 24}, "query_length": 64, "document_length": 99},
            {},
            LateInteraction(lengths={"query": 64, "document": 99}, expansion=QueryExpansion(length=24)),
        ),
    ],
)
def test_multi_vector_encoders(tmp_path: Path, first: Any, mask: Any, expected: LateInteraction) -> None:
    kinds = ("Transformer", "MultiVectorMask", "Normalize")
    found = read(tmp_path, kinds, {SETTINGS: LATE, BERT: {**first, "max_seq_length": 128}, MASK: mask})
    assert found == SentenceTransformers(late_interaction=expected, max_seq_length=128, similarity="maxsim")


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (
            {"query_token_id": "[QueryMarker]", "query_maxlen": 16, "doc_maxlen": 200, "dim": 64},
            LateInteraction(
                markers={"query": "[QueryMarker]", "document": "[unused1]"},
                lengths={"query": 16, "document": 200},
                expansion=QueryExpansion(length=16),
                skiplist=PUNCTUATION,
                size=64,
            ),
        ),
        (
            {"attend_to_mask_tokens": True, "mask_punctuation": False},
            LateInteraction(
                markers={"query": "[unused0]", "document": "[unused1]"},
                lengths={"query": 32},
                expansion=QueryExpansion(attend=True),
            ),
        ),
    ],
)
def test_checkpoints_of_colbert(tmp_path: Path, metadata: Any, expected: LateInteraction) -> None:
    files = {"config.json": {"architectures": ["HF_ColBERT"]}, "artifact.metadata": metadata}
    length = 200 if "doc_maxlen" in metadata else None
    assert read(tmp_path, (), files) == SentenceTransformers(late_interaction=expected, max_seq_length=length)
    assert read(tmp_path, (), {"config.json": {"architectures": ["BertModel"]}}) is None
