"""Exported models for sparse and multi-vector embeddings give the libraries' answers through Triton and the service."""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder, SparseEncoder

from hf_transformer.errors import ConfigError, LoadError
from tests.goldens.embedding_texts import TEXTS
from tests.integration.test_one_pass import assert_near, cases_of, check_goldens
from tests.models.exporting import Exports, printed_by
from tests.models.test_export import FORMATS

pytestmark = pytest.mark.filterwarnings("default")
KINDS = [("splade", ()), ("splade", ("--reduce",)), ("m3", ()), ("m3", ("--reduce",)), ("colbert", ())]


@FORMATS
@pytest.mark.parametrize(("model", "flags"), KINDS, ids=lambda value: "".join(value).strip("-"))
def test_the_goldens(exports: Exports, model: str, form: str, flags: tuple[str, ...]) -> None:
    name, printed = exports.export(exports.checkpoint(model), f"--format={form}", *flags)
    assert "for text_embedding (" in printed
    with exports.serve(name) as service:
        check_goldens(service, model)


def test_a_reduced_model_gives_what_needs_vectors_before_normalization(exports: Exports) -> None:
    texts, answers = ["hello", "The cat sleeps on the sofa. " * 60], []
    for flags in ((), ("--reduce",)):
        name, _ = exports.export(exports.checkpoint("m3"), "--format=onnx", *flags)
        with exports.serve(name, "--on_overflow=window") as service:
            wanted = {"representations": ["dense", "multi_vector"], "normalize": False}
            answers.append(service.predict(texts, wanted))
    for whole, reduced in zip(*answers, strict=True):
        assert np.linalg.norm(whole["dense"]) != pytest.approx(1, abs=0.01)
        for name in ("dense", "multi_vector"):
            assert_near(reduced[name], whole[name])


def test_what_sentence_transformers_6_saves(exports: Exports, tmp_path: Path) -> None:
    texts = list(TEXTS.values())
    sparse = SparseEncoder(str(exports.checkpoint("splade")), device="cpu")
    sparse.save(str(tmp_path / "sparse_6"))
    name, _ = exports.export(tmp_path / "sparse_6", "--reduce")
    expected = sparse.encode(texts, convert_to_sparse_tensor=False, show_progress_bar=False).numpy()
    with exports.serve(name) as service:
        for answer, vector in zip(service.predict(texts), expected, strict=True):
            indices = np.flatnonzero(vector)
            assert_near(answer, {"indices": indices.tolist(), "values": vector[indices].tolist()})
    late = MultiVectorEncoder(str(exports.checkpoint("colbert")), device="cpu")
    late.save(str(tmp_path / "late_6"))
    name, _ = exports.export(tmp_path / "late_6")
    with exports.serve(name) as service:
        for kind, encode in (("query", late.encode_query), ("document", late.encode_document)):
            found = service.predict(texts, {"input_type": kind})
            for answer, vectors in zip(found, encode(texts, show_progress_bar=False), strict=True):
                assert_near(answer, vectors.numpy())


def stanford(source: Path, folder: Path) -> Path:
    """The files of ColBERT v2 with the weights of a PyLate folder."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("1_Dense", "modules.json", "*sentence*"))
    weights = {f"bert.{name}": tensor for name, tensor in load_file(source / "model.safetensors").items()}
    weights |= load_file(source / "1_Dense" / "model.safetensors")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (folder / "config.json").write_text(json.dumps(config))
    metadata = {"query_token_id": "[Q] ", "doc_token_id": "[D] ", "query_maxlen": 32, "doc_maxlen": 48, "dim": 80}
    (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return folder


def test_the_original_colbert(exports: Exports, tmp_path: Path) -> None:
    """Its encoder and projection lie in one file; the answers are those of the same weights in PyLate's form."""
    name, printed = exports.export(stanford(exports.checkpoint("colbert"), tmp_path / "colbert_v2"))
    assert "-> token_vectors ..." in printed
    with exports.serve(name) as service:
        check_goldens(service, "colbert")


def test_a_masked_lm_without_further_files(exports: Exports, tmp_path: Path) -> None:
    """Only the tasks in the commands say what it is for."""
    ignored = shutil.ignore_patterns("modules.json", "*sentence*", "1_*")
    shutil.copytree(exports.checkpoint("splade"), tmp_path / "plain", ignore=ignored)
    name, _ = exports.export(tmp_path / "plain", "--task=fill_mask")
    with exports.serve(name, "--task=text_embedding") as service:
        check_goldens(service, "splade")


def test_fp16_halves_vectors_of_tokens(exports: Exports) -> None:
    name, _ = exports.export(exports.checkpoint("colbert"), "--precision=fp16")
    assert "TYPE_FP16" in (exports.repository / name / "config.pbtxt").read_text()
    case = cases_of("colbert")[0]
    with exports.serve(name) as service:
        (found,) = service.predict([case["text"]], {"input_type": "query"})
    assert np.abs(np.array(found) - np.array(case["query"])).max() < 0.01


def edited(source: Path, folder: Path, file: str, **fields: object) -> Path:
    shutil.copytree(source, folder)
    settings = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(settings | fields))
    return folder


def test_what_can_not_be_exported_says_why(exports: Exports, tmp_path: Path) -> None:
    colbert, m3 = exports.checkpoint("colbert"), exports.checkpoint("m3")
    file = "1_Dense/config.json"
    sentence = edited(colbert, tmp_path / "a", file, module_input_name="sentence_embedding")
    unknown = edited(colbert, tmp_path / "b", file, activation_function="mine.Swish")
    shutil.copytree(colbert, tmp_path / "c", ignore=shutil.ignore_patterns("1_Dense/*.safetensors"))
    (tmp_path / "c" / "1_Dense" / "model.safetensors").unlink()
    shutil.copytree(m3, tmp_path / "d", ignore=shutil.ignore_patterns("modules.json"))
    for source, flags, error, says in (
        (colbert, ("--reduce",), ConfigError, "--reduce: a vector per token has no exact reduction"),
        (m3, ("--reduce", "--top_k=3"), ConfigError, "--top_k: applies to fill_mask only, not to text_embedding"),
        (sentence, (), LoadError, "expected module_input_name to be token_embeddings"),
        (unknown, (), LoadError, "the activation mine.Swish is unknown"),
        (tmp_path / "c", (), LoadError, "1_Dense has neither model.safetensors nor pytorch_model.bin"),
        (tmp_path / "d", (), LoadError, "modules.json is missing"),
    ):
        with pytest.raises(error, match=says):
            printed_by([f"--model_id={source}", f"--output={tmp_path / 'out'}", *flags])
    assert not (tmp_path / "out").exists()
