"""Writes the folders of a model, or of several that belong together, in Triton's repository layout, atomically."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
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
def new_folders(targets: Sequence[Path], *, force: bool) -> Iterator[list[Path]]:
    """Yields a temporary folder for each of ``targets``, which are in one repository, and renames all after the block.
    The folders have the targets' names. After an error there is none of them.

    Raises the ConfigError of ``require_free``, LoadError if a folder is not writable.
    """
    for target in targets:
        require_free(target, force=force)
    repository = targets[0].parent
    absent = [folder for folder in targets[0].parents if not folder.exists()]
    try:
        repository.mkdir(parents=True, exist_ok=True)
        parent = _parent_for_temporary(repository)
        with tempfile.TemporaryDirectory(prefix=f".{targets[0].name}-", dir=parent, ignore_cleanup_errors=True) as name:
            moves = [(target, Path(name, "new", target.name), Path(name, "old", target.name)) for target in targets]
            Path(name, "old").mkdir()
            for _, made, _ in moves:
                made.mkdir(parents=True)
            yield [made for _, made, _ in moves]
            try:
                for target, _, old in moves:
                    if target.exists():
                        os.rename(target, old)
                for target, made, _ in moves:
                    os.rename(made, target)
            finally:  # even if a signal arrives between the renames
                if any(made.exists() for _, made, _ in moves):
                    _restore(moves)
    except BrokenPipeError:
        raise  # from a print in the block
    except OSError as exc:
        named = " and ".join(map(str, targets))
        raise LoadError(f"--output: can't write {named}: {exc.strerror or exc}") from exc
    finally:
        for folder in absent:  # the innermost first
            with suppress(OSError):  # not empty, or never created
                folder.rmdir()


def _restore(moves: Sequence[tuple[Path, Path, Path]]) -> None:
    """Undoes incomplete renames, each of (target, new folder, old folder)."""
    for target, made, old in moves:
        if not made.exists():
            os.rename(target, made)
        if old.exists():
            os.rename(old, target)


def require_free(target: Path, *, force: bool) -> None:
    """Raises ConfigError if ``target`` exists. ``force`` permits an existing folder of a Triton model."""
    if not os.path.lexists(target):
        return
    if not force:
        raise ConfigError(f"--output: {target} exists; --force replaces it")
    if not (target / "config.pbtxt").is_file():
        raise ConfigError(
            f"--output: {target} has no config.pbtxt, so it is not a Triton model, and --force does not replace it"
        )


def _parent_for_temporary(repository: Path) -> Path:
    """The parent of the repository, or the repository if a rename from the parent is impossible. Triton treats every
    subfolder of a repository as a model, even a hidden folder."""
    outside = repository.resolve().parent
    same_device = outside.stat().st_dev == repository.stat().st_dev
    return outside if same_device and os.access(outside, os.W_OK | os.X_OK) else repository


def fill(folder: Path, config: str, files: ModelFiles | None, settings: Namespace, changes: Mapping[str, Json]) -> None:
    """Writes config.pbtxt, model.py for the Python backend, and the service's files, if the service reads this folder.
    Applies changes to config.json."""
    (folder / "config.pbtxt").write_text(config, encoding="utf-8")
    if settings.backend == "python":
        shutil.copyfile(PYTHON_MODEL, folder / "1" / "model.py")
    if files is None:
        return
    patterns = (*SMALL_FILES, "*.py") if settings.trust_remote_code else SMALL_FILES
    for source in dict.fromkeys((files.model_folder, files.tokenizer_folder)):
        for pattern in patterns:
            for file in source.glob(pattern):
                copy = folder / file.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
    if changes:
        (folder / "config.json").write_bytes(orjson.dumps(dict(files.config), option=orjson.OPT_INDENT_2))


def triton_view(folder: Path, settings: Namespace) -> str:
    """Describes Triton's interpretation of the folder. Raises LoadError without a model file for version 1.

    Triton interprets the leading digits of a subfolder as a version. version_policy in config.pbtxt selects version 1.
    """
    file = "model.py" if settings.backend == "python" else FILES[settings.format]
    numbered = sorted(path.name for path in folder.iterdir() if path.is_dir() and re.match(r"[1-9]", path.name))
    if not (folder / "1" / file).is_file():
        raise LoadError(f"{folder.name}: expected 1/{file}, found the versions {', '.join(numbered) or '(none)'}")
    ignored = [name for name in numbered if int(re.match(r"\d+", name)[0]) != 1]  # type: ignore[index]
    note = f"; its version_policy ignores {', '.join(ignored)}" if ignored else ""
    return f"Triton runs version 1 of {folder.name}, 1/{file}, with the {settings.backend} backend{note}"


def require_loadable(folder: Path, tokenizer: Tokenizer, settings: Namespace) -> None:
    """Loads the copied tokenizer, as the service does. Raises LoadError if the load fails or the tokens differ."""
    trusting = settings.trust_remote_code
    files = find_model_files(None, str(folder), trust_remote_code=trusting)
    copied = load_tokenizer(files.tokenizer_folder, files.config, trust_remote_code=trusting)
    if list(tokenizer.encode([SAMPLE])[0].ids) != list(copied.encode([SAMPLE])[0].ids):
        raise LoadError(
            f"the tokenizer copied to {folder.name} gives other tokens than the original of {settings.model_id}"
        )
