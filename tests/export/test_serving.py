"""What export prints at its end."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_transformer.commands.export.serving import commands, manifest
from hf_transformer.config.options import parse_config
from tests.deploy.manifests import messages
from tests.export.graphs import settings


def parsed(text: str) -> Any:
    """The manifest, which must be what KServe's own schema allows, and no field more."""
    document = yaml.safe_load(text)
    assert messages(document) == []
    return document


@pytest.mark.parametrize(
    ("name", "kubernetes"),
    [("Bert_base.v2", "bert-base-v2"), ("4bit__model-", "model-4bit-model"), ("模型", "model"), ("{a}:b", "a-b")],
)
def test_the_manifest(name: str, kubernetes: str) -> None:
    document = parsed(manifest(settings(f"--model_name={name}", "--task=fill-mask"), "fill_mask"))
    assert document["metadata"]["name"] == kubernetes
    predictor, (container,) = document["spec"]["predictor"]["model"], document["spec"]["transformer"]["containers"]
    assert predictor["storageUri"] == "pvc://models/model_repository"
    assert container["env"] == [{"name": "STORAGE_URI", "value": predictor["storageUri"]}]
    config, _ = parse_config([*container["args"], "--predictor_host=x"], {})
    assert (config.model_name, config.task, config.predictor_protocol) == (name, "fill_mask", "v2")
    assert config.model_dir == "/mnt/models", "where KServe puts the storage"
    assert config.enable_predictor_health_check


def test_the_storage_is_named_where_the_output_is_a_dot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    document = parsed(manifest(settings("--output=."), "fill_mask"))
    assert document["spec"]["predictor"]["model"]["storageUri"] == f"pvc://models/{tmp_path.name}"


def test_the_commands(tmp_path: Path) -> None:
    folder = tmp_path / "my models" / "bert"
    server, service = map(shlex.split, commands(folder, settings(), "fill_mask").splitlines())
    assert server == ["tritonserver", f"--model-repository={folder.parent}"]
    assert service[0] == "hf-transformer"
    config, _ = parse_config(service[1:], {})
    assert (config.model_name, config.model_dir) == ("bert", str(folder))
    assert (config.predictor_host, config.predictor_protocol) == ("localhost:8000", "v2")
    assert config.task is None, "the model's files choose it"


@pytest.mark.parametrize(("form", "needs"), [("onnx", "onnxruntime"), ("torchscript", "torch")])
def test_what_the_python_backend_needs(form: str, needs: str) -> None:
    given = settings(f"--format={form}", "--backend=python")
    printed = commands(Path("models/bert"), given, "fill_mask")
    assert printed.startswith(f"  # Triton's Python needs {needs} and numpy<2.\n")
    assert f"has no {needs} in its Python" in manifest(given, "fill_mask")
