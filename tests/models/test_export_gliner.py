"""Exported GLiNER models, span-based and token-level, uni-encoders and bi-encoders, answer through Triton and the
service as their library does.

The library needs another transformers than the other tests, so models are made and exported by the environment
.venv-models-gliner, or the one that HF_TRANSFORMER_MODELS_GLINER_ENVIRONMENT names.
"""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path

import onnx
import pytest
import torch

from tests.integration.test_zero_shot_token_classification import PARAMETERS, assert_entities
from tests.models.exporting import ROOT, Exports
from tests.models.gliner_checkpoints import MODELS

pytestmark = pytest.mark.filterwarnings("default")
SPANS = {"span_idx", "span_mask"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    folder = Path(os.environ.get("HF_TRANSFORMER_MODELS_GLINER_ENVIRONMENT") or ROOT / ".venv-models-gliner")
    command = [str(folder / "bin" / "python"), "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


def export(source: Path, repository: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return run("hf_transformer", "export", f"--model_id={source}", f"--output={repository}", *flags)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gliner")
    made = run("tests.models.gliner_checkpoints", str(folder))
    assert made.returncode == 0, made.stderr
    return folder


@pytest.mark.parametrize("model", MODELS)
def test_answers_are_those_of_the_library(exports: Exports, checkpoints: Path, model: str) -> None:
    name = f"gliner_{model}"
    result = export(checkpoints / model, exports.repository, f"--model_name={name}", "--backend=python")
    assert result.returncode == 0, result.stderr
    assert result.stderr == "" and "for zero_shot_token_classification (" in result.stdout
    is_bi_encoder = model.startswith("bi_")
    assert result.stdout.count("same outputs in ") == (2 if is_bi_encoder else 1)
    folder, labels = exports.repository / name, f"{name}_labels"
    assert {"1", "config.pbtxt", "gliner_config.json", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    read = {tensor.name for tensor in onnx.load(folder / "1" / "model.onnx").graph.input}
    assert read & SPANS == (SPANS if MODELS[model][1].startswith("marker") else set())
    assert ("labels_embeddings" in read) == is_bi_encoder == (exports.repository / labels).is_dir()
    if is_bi_encoder:
        assert f"{folder}, and {exports.repository / labels} for its labels, are ready" in result.stdout
        assert {path.name for path in (exports.repository / labels).iterdir()} == {"1", "config.pbtxt"}
        assert (folder / "labels_tokenizer" / "tokenizer.json").is_file()
        weights = [onnx.load(path / "1" / "model.onnx") for path in (folder, exports.repository / labels)]
        first, second = (" ".join(tensor.name for tensor in graph.graph.initializer) for graph in weights)
        assert ".bert_layer." in first and ".bert_layer." not in second, "each file has one encoder alone"
        assert ".labels_encoder." in second and ".labels_encoder." not in first
    cases = json.loads((checkpoints / model / "goldens.json").read_text(encoding="utf-8"))
    groups = {}
    for case in cases:
        groups.setdefault(tuple(case[name] for name in PARAMETERS), []).append(case)
    assert sum(len(case["entities"]) for case in cases) > len(cases)
    with exports.loaded(labels) if is_bi_encoder else nullcontext(), exports.serve(name) as service:
        for values, same in groups.items():
            instances = [{"text": case["text"], "labels": case["labels"]} for case in same]
            found = service.predict(instances, dict(zip(PARAMETERS, values, strict=True)))
            for case, entities in zip(same, found, strict=True):
                assert_entities(entities, case)


@pytest.mark.parametrize(("base", "says"), [("encoder", "its encoder"), ("labels_encoder", "its encoder of labels")])
def test_code_of_either_encoder_does_not_run(checkpoints: Path, tmp_path: Path, base: str, says: str) -> None:
    ran, own, path = tmp_path / "ran", tmp_path / "base", tmp_path / "model" / "gliner_config.json"
    shutil.copytree(checkpoints / "bi_span", path.parent)
    own.mkdir()
    config = json.loads(path.read_text())
    (own / "config.json").write_text(json.dumps(config.pop(f"{base}_config") | {"auto_map": {"AutoModel": "m.Model"}}))
    (own / "m.py").write_text(f"open({str(ran)!r}, 'w')")
    path.write_text(json.dumps(config | {"model_name" if base == "encoder" else base: str(own)}))
    result = export(path.parent, tmp_path / "models")
    assert result.returncode == 1 and f"{says} brings its own Python code" in result.stderr
    assert not ran.exists() and not (tmp_path / "models").exists()


def without_tokenizer(source: Path, folder: Path) -> Path:
    """A folder as on the hub, whose tokenizer and encoder's config.json are those of another model."""
    base = folder / "base"
    shutil.copytree(source, folder / "model")
    base.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.move(folder / "model" / name, base / name)
    path = folder / "model" / "gliner_config.json"
    config = json.loads(path.read_text())
    (base / "config.json").write_text(json.dumps(config.pop("encoder_config")))
    path.write_text(json.dumps(config | {"model_name": str(base)}))
    return folder / "model"


def test_a_tokenizer_of_the_encoder_is_written(checkpoints: Path, tmp_path: Path) -> None:
    source = without_tokenizer(checkpoints / "span", tmp_path)
    result = export(source, tmp_path / "models", "--model_name=ner")
    assert result.returncode == 0, result.stderr
    assert "same outputs in " in result.stdout
    written = tmp_path / "models" / "ner"
    assert json.loads((written / "tokenizer.json").read_text())["model"]["vocab"]
    config = json.loads((written / "gliner_config.json").read_text())
    assert config["model_name"] == str(tmp_path / "base") and config["max_width"] == 4


@pytest.mark.parametrize(
    ("model", "part"),
    [("token", "scorer."), ("bi_span", "token_rep_layer.labels_encoder."), ("bi_span", "token_rep_layer.labels_proj")],
)
def test_missing_weights_are_refused(checkpoints: Path, tmp_path: Path, model: str, part: str) -> None:
    """The library would draw them at random."""
    source = tmp_path / "model"
    shutil.copytree(checkpoints / model, source)
    weights = torch.load(source / "pytorch_model.bin", weights_only=True)
    name = next(name for name in weights if name.startswith(part))
    torch.save({key: value for key, value in weights.items() if key != name}, source / "pytorch_model.bin")
    result = export(source, tmp_path / "models")
    assert result.returncode == 1 and f"has no weights for {name}" in result.stderr
    assert not (tmp_path / "models").exists()
