"""What lies beside an exported model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_transformer.commands.export.repository import fill, require_loadable
from hf_transformer.errors import LoadError
from hf_transformer.tokenizer.files import ModelFiles, find_model_files
from hf_transformer.tokenizer.tokenizer import load_tokenizer
from tests.export.graphs import GRAPHS, settings
from tests.triton_repository import DEMO_MODEL, task_model_folder


def filled(folder: Path, source: Path, form: str = "onnx", **fields: object) -> ModelFiles:
    (folder / "1").mkdir(parents=True)
    files = find_model_files(None, str(source))
    fill(folder, GRAPHS["fill_mask"], files, "fill_mask", settings(form, **fields))
    return files


def listed(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_service_starts_from_it(tmp_path: Path) -> None:
    files = filled(tmp_path / "bert", DEMO_MODEL)
    assert {"config.pbtxt", "config.json", "tokenizer.json"} <= listed(tmp_path / "bert")
    assert not [name for name in listed(tmp_path / "bert") if name.startswith("1/")]
    require_loadable(tmp_path / "bert", load_tokenizer(files.tokenizer_folder, files.config), settings())


def test_files_of_sentence_transformers(tmp_path: Path) -> None:
    source = task_model_folder("minibert_mean")
    filled(tmp_path / "minibert", source)
    assert listed(source) <= listed(tmp_path / "minibert")


def test_weights_and_code_stay_behind(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for path in DEMO_MODEL.glob("*.json"):
        (source / path.name).write_bytes(path.read_bytes())
    for name in ("model.safetensors", "pytorch_model.bin", "modeling_own.py", ".gitattributes"):
        (source / name).write_text("x")
    filled(tmp_path / "plain", source)
    assert listed(tmp_path / "plain").isdisjoint({"model.safetensors", "pytorch_model.bin", "modeling_own.py"})
    filled(tmp_path / "trusted", source, trust_remote_code=True)
    assert listed(tmp_path / "trusted") - listed(tmp_path / "plain") == {"modeling_own.py"}


@pytest.mark.parametrize(("form", "weights"), [("onnx", "model.onnx"), ("torchscript", "model.pt")])
def test_code_of_the_python_backend(tmp_path: Path, form: str, weights: str) -> None:
    filled(tmp_path / "bert", DEMO_MODEL, form, backend="python")
    assert weights in (tmp_path / "bert" / "1" / "model.py").read_text()


def test_a_tokenizer_that_is_not_the_same(tmp_path: Path) -> None:
    files = filled(tmp_path / "bert", DEMO_MODEL)
    tokenizer = load_tokenizer(files.tokenizer_folder, files.config)
    path = tmp_path / "bert" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"].pop("capital")
    path.write_text(json.dumps(content))
    with pytest.raises(LoadError, match="gives other tokens than that of hub/bert"):
        require_loadable(tmp_path / "bert", tokenizer, settings())
