"""The model's folder is there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hf_transformer.commands.export.folder import new_folder, require_free
from hf_transformer.errors import ConfigError, LoadError


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


@pytest.mark.parametrize("error", [LoadError, KeyboardInterrupt, SystemExit, RuntimeError])
def test_nothing_stays_of_a_failure(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), new_folder(tmp_path / "new" / "repository" / "bert", force=False) as made:
        (made / "1").mkdir()
        (made / "1" / "model.onnx").write_bytes(b"half")
        raise error("no")
    assert names(tmp_path) == []


def test_where_only_the_repository_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "repository"
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with new_folder(repository / "bert", force=False) as made:
        assert made.parent == repository
    assert names(repository) == ["bert"] and names(tmp_path) == ["repository"]


def test_other_models_stay(tmp_path: Path, old: Path) -> None:
    with pytest.raises(LoadError), new_folder(tmp_path / "other", force=False):
        raise LoadError("no")
    assert names(tmp_path) == ["bert"]


def test_a_full_disk_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="can't be written: No space left"), new_folder(tmp_path / "bert", force=False):
        raise OSError(28, "No space left on device")
    assert names(tmp_path) == []


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
        if target == old and source.name != old.name:
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


def test_an_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LoadError, match=r"--output: .*/file/repository/bert can't be written: Not a directory"):
        with new_folder(tmp_path / "file" / "repository" / "bert", force=False):
            raise AssertionError("not reached")
    assert names(tmp_path) == ["file"]
