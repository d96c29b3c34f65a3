"""The folder of one model in Triton's repository layout, written whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson

from hf_transformer.commands.export.config_pbtxt import FILES
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.tokenizer.files import SMALL_FILES
from hf_transformer.tokenizer.model_files import ModelFiles, find_model_files
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.request import Json

PYTHON_MODEL = Path(__file__).with_name("python_model.py")
SAMPLE = "The capital of France is Paris, déjà vu."


@contextmanager
def new_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """A folder that takes the name ``target`` once everything is in it. If that fails, nothing of it stays. Raises
    ConfigError as ``require_free``, and LoadError if nothing can be written there."""
    require_free(target, force=force)
    absent = [folder for folder in target.parents if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        place = _place(target.parent)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=place, ignore_cleanup_errors=True) as name:
            made, old = Path(name, "new"), Path(name, "old")
            made.mkdir()
            yield made
            try:
                if target.exists():
                    os.rename(target, old)
                os.rename(made, target)
            finally:  # also when a signal arrives in between
                if old.exists() and not target.exists():
                    os.rename(old, target)
    except BrokenPipeError:
        raise  # printing has failed within new_folder
    except OSError as exc:
        raise LoadError(f"--output: {target} can't be written: {exc.strerror or exc}") from exc
    finally:
        for folder in absent:  # the innermost first
            with suppress(OSError):  # it is not empty, or was never made
                folder.rmdir()


def require_free(target: Path, *, force: bool) -> None:
    """Raises ConfigError if ``target`` exists, with ``force`` only if it is not a model's folder of Triton's."""
    if not os.path.lexists(target):
        return
    if not force:
        raise ConfigError(f"--output: {target} exists already; --force replaces it")
    if not (target / "config.pbtxt").is_file():
        raise ConfigError(f"--output: {target} has no config.pbtxt, so it is no model of Triton's, and is not replaced")


def _place(repository: Path) -> Path:
    """Where the new folder is made: in the repository's file system, so that it can be renamed.

    That is beside the repository where possible: Triton takes every folder in it for a model, hidden ones too.
    """
    beside = repository.resolve().parent
    same = beside.stat().st_dev == repository.stat().st_dev
    return beside if same and os.access(beside, os.W_OK | os.X_OK) else repository


def fill(folder: Path, config: str, files: ModelFiles, settings: Namespace, changes: Mapping[str, Json]) -> None:
    """Writes config.pbtxt, model.py for the Python backend, and the files that the service reads; config.json with
    ``changes``."""
    (folder / "config.pbtxt").write_text(config, encoding="utf-8")
    if settings.backend == "python":
        shutil.copyfile(PYTHON_MODEL, folder / "1" / "model.py")
    patterns = (*SMALL_FILES, "*.py") if settings.trust_remote_code else SMALL_FILES
    for source in dict.fromkeys((files.model_folder, files.tokenizer_folder)):
        for pattern in patterns:
            for found in source.glob(pattern):
                copy = folder / found.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(found, copy)
    if changes:
        (folder / "config.json").write_bytes(orjson.dumps(dict(files.config), option=orjson.OPT_INDENT_2))


def triton_view(folder: Path, settings: Namespace) -> str:
    """What Triton makes of the folder, in a sentence. It reads the leading digits of a subfolder as a version, and
    config.pbtxt's version_policy says which of these are the model's. Raises LoadError if version 1 has no model."""
    file = "model.py" if settings.backend == "python" else FILES[settings.format]
    numbered = sorted(path.name for path in folder.iterdir() if path.is_dir() and re.match(r"[1-9]", path.name))
    if not (folder / "1" / file).is_file():
        raise LoadError(f"{folder.name}: Triton finds no 1/{file}, but {', '.join(numbered) or 'no version at all'}")
    others = [name for name in numbered if int(re.match(r"\d+", name)[0]) != 1]  # type: ignore[index]
    left_out = f"; {', '.join(others)}: no version of it, by version_policy" if others else ""
    return f"Triton reads version 1 of {folder.name}, 1/{file}, in the {settings.backend} backend{left_out}"


def require_loadable(folder: Path, tokenizer: Tokenizer, settings: Namespace) -> None:
    """Starts the tokenizer from the folder alone, as the service will. Raises LoadError if files of it are missing."""
    trusting = settings.trust_remote_code
    files = find_model_files(None, str(folder), trust_remote_code=trusting)
    copied = load_tokenizer(files.tokenizer_folder, files.config, trust_remote_code=trusting)
    if list(tokenizer.encode([SAMPLE])[0].ids) != list(copied.encode([SAMPLE])[0].ids):
        raise LoadError(f"the tokenizer in {folder.name} gives other tokens than that of {settings.model_id}")
