"""The model's folder is there whole or not at all, and has what the service reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hf_transformer.commands.export.repository import fill, new_folder, require_free, require_loadable
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.tokenizer.files import ModelFiles, find_model_files
from hf_transformer.tokenizer.tokenizer import load_tokenizer
from tests.export.graphs import settings
from tests.triton_repository import DEMO_MODEL, task_model_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A model's folder that is there already."""
    target = tmp_path / "bert"
    (target / "1").mkdir(parents=True)
    (target / "config.pbtxt").write_text("old")
    return target


def test_it_takes_its_name_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "new" / "repository" / "bert"
    with new_folder(target, force=False) as made:
        assert names(target.parent) == [], "Triton may look there at any time"
        (made / "config.pbtxt").write_text("new")
    assert names(target.parent) == ["bert"] and (target / "config.pbtxt").read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o755, "another user runs Triton"


@pytest.mark.parametrize("error", [LoadError, KeyboardInterrupt])
def test_nothing_stays_of_a_failure(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), new_folder(tmp_path / "new" / "repository" / "bert", force=False) as made:
        (made / "model.onnx").write_bytes(b"half")
        raise error("no")
    assert names(tmp_path) == []


def test_where_only_the_repository_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "repository"
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with new_folder(repository / "bert", force=False) as made:
        assert made.parent.parent == repository
    assert names(repository) == ["bert"] and names(tmp_path) == ["repository"]


def test_what_can_not_be_written_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="can't be written: No space left"), new_folder(tmp_path / "bert", force=False):
        raise OSError(28, "No space left on device")
    assert names(tmp_path) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(LoadError, match=r"--output: .*/file/repository/bert can't be written: Not a directory"):
        with new_folder(tmp_path / "file" / "repository" / "bert", force=False):
            raise AssertionError("not reached")
    assert names(tmp_path) == ["file"]


def test_the_old_one_stays_until_the_new_one_is_whole(tmp_path: Path, old: Path) -> None:
    with new_folder(old, force=True) as made:
        (made / "config.pbtxt").write_text("new")
        assert (old / "config.pbtxt").read_text() == "old"
    assert names(tmp_path) == ["bert"] and names(old) == ["config.pbtxt"]
    assert (old / "config.pbtxt").read_text() == "new"
    with pytest.raises(LoadError), new_folder(old, force=True):
        raise LoadError("no")
    assert names(tmp_path) == ["bert"] and (old / "config.pbtxt").read_text() == "new"


def test_a_signal_between_the_two_renames_brings_the_old_one_back(
    tmp_path: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def interrupted(source: Path, target: Path) -> None:
        if target == old and (source / "config.pbtxt").read_text() == "new":
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), new_folder(old, force=True) as made:
        (made / "config.pbtxt").write_text("new")
    assert names(tmp_path) == ["bert"] and (old / "config.pbtxt").read_text() == "old"


def test_what_is_not_replaced(tmp_path: Path, old: Path) -> None:
    with pytest.raises(ConfigError, match=r"--output: .*/bert exists already; --force replaces it"):
        require_free(old, force=False)
    require_free(old, force=True)
    (tmp_path / "documents").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("documents", "file", "link"):
        with pytest.raises(ConfigError, match=f"/{name} has no config.pbtxt, so it is no model of Triton's"):
            require_free(tmp_path / name, force=True)


def filled(folder: Path, source: Path, *flags: str) -> ModelFiles:
    (folder / "1").mkdir(parents=True)
    files = find_model_files(None, str(source))
    fill(folder, "# config.pbtxt", files, settings(*flags))
    return files


def listed(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_service_starts_from_it(tmp_path: Path) -> None:
    files = filled(tmp_path / "bert", DEMO_MODEL)
    assert {"config.pbtxt", "config.json", "tokenizer.json"} <= listed(tmp_path / "bert")
    source = task_model_folder("minibert_mean")  # with the files of sentence-transformers
    filled(tmp_path / "minibert", source)
    of_triton = {name for name in listed(source) if name.startswith(("1/", "configs/"))}
    assert listed(source) - of_triton <= listed(tmp_path / "minibert")
    require_loadable(tmp_path / "bert", load_tokenizer(files.tokenizer_folder, files.config), settings())


def test_weights_and_code_stay_behind(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for path in DEMO_MODEL.glob("*.json"):
        (source / path.name).write_bytes(path.read_bytes())
    for name in ("model.safetensors", "pytorch_model.bin", "modeling_own.py", ".gitattributes"):
        (source / name).write_text("x")
    filled(tmp_path / "plain", source)
    assert listed(tmp_path / "plain").isdisjoint({"model.safetensors", "pytorch_model.bin", "modeling_own.py"})
    filled(tmp_path / "trusted", source, "--trust_remote_code", "--backend=python")
    assert listed(tmp_path / "trusted") - listed(tmp_path / "plain") == {"modeling_own.py", "1/model.py"}


def test_a_tokenizer_that_is_not_the_same(tmp_path: Path) -> None:
    files = filled(tmp_path / "bert", DEMO_MODEL)
    tokenizer = load_tokenizer(files.tokenizer_folder, files.config)
    path = tmp_path / "bert" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"].pop("capital")
    path.write_text(json.dumps(content))
    with pytest.raises(LoadError, match="gives other tokens than that of hub/bert"):
        require_loadable(tmp_path / "bert", tokenizer, settings())
