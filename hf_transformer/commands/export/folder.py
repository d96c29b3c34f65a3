"""The folder of one model, written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hf_transformer.errors import ConfigError, LoadError


@contextmanager
def new_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """A folder that takes the name ``target`` once everything in it is there; nothing of it stays if that fails.

    Raises:
        ConfigError: the target may not be replaced; see ``require_free``.
        LoadError: nothing can be written there.
    """
    require_free(target, force=force)
    absent = [folder for folder in target.parents if not folder.exists()]
    made: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=_workplace(target.parent)))
        yield made
        made.chmod(0o755)
        _replace(made, target)
    except OSError as exc:
        raise LoadError(f"--output: {target} can't be written: {exc.strerror or exc}") from exc
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        for folder in absent:  # the innermost first
            with suppress(OSError):  # it is not empty, or was never made
                folder.rmdir()


def require_free(target: Path, *, force: bool) -> None:
    """Raises ConfigError if something is there that is not to be replaced: anything without ``force``, and with it
    whatever is not a model's folder in a repository of Triton's."""
    if not os.path.lexists(target):
        return
    if not force:
        raise ConfigError(f"--output: {target} exists already; --force replaces it")
    if not (target / "config.pbtxt").is_file():
        raise ConfigError(f"--output: {target} has no config.pbtxt, so it is no model of Triton's, and is not replaced")


def _workplace(repository: Path) -> Path:
    """A folder in the file system of the repository, so that what is made there can be renamed. Beside the repository
    where that is possible: Triton takes every folder in it for a model, hidden ones too."""
    beside = repository.resolve().parent
    same = beside.stat().st_dev == repository.stat().st_dev
    return beside if same and os.access(beside, os.W_OK | os.X_OK) else repository


def _replace(made: Path, target: Path) -> None:
    """The new folder in the place of the old one, which is there until the moment before."""
    if not target.exists():
        os.rename(made, target)
        return
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=made.parent))
    old = beside / target.name
    try:
        os.rename(target, old)
        os.rename(made, target)
    finally:  # also when a signal ends it in between
        if not target.exists():
            os.rename(old, target)
        shutil.rmtree(beside, ignore_errors=True)
