"""Finds config.json and the tokenizer's files, in a local folder or in a Hugging Face hub.

Never downloads weights, since only the predictor needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hf_transformer.errors import LoadError
from hf_transformer.tokenizer.files import (
    MAX_FILE_BYTES,
    VOCABULARY_FILES,
    check_files,
    has_tokenizer,
    model_config,
    transformer_folder,
)
from hf_transformer.tokenizer.hub import hub_snapshot
from hf_transformer.types.request import Json


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Folders of a model's small files, and its config.json.

    ``config`` is {} for a local folder with a tokenizer but without config.json.
    """

    model_folder: Path
    tokenizer_folder: Path
    config: Mapping[str, Json]


def find_model_files(
    model_id: str | None,
    model_dir: str,
    *,
    model_name: str | None = None,
    model_revision: str | None = None,
    tokenizer_revision: str | None = None,
    token: str | None = None,
    trust_remote_code: bool = False,
    cache_dir: Path | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> ModelFiles:
    """Finds the files of a model. Sends no request if the cache has all files.

    Args:
        model_id: the hub's id or a local path; None for ``model_dir``.
        model_dir: the folder of the files. The files may also be in its subfolder ``model_name``, as in Triton's model
            repository.
        model_name: the served model's name.
        model_revision: a branch, tag or commit; None for main.
        tokenizer_revision: a branch, tag or commit for the tokenizer; None for the model's revision.
        token: the hub's access token. Messages never contain it.
        trust_remote_code: whether to download Python files, too.
        cache_dir: the hub's cache; None for the library's own (HF_HUB_CACHE, HF_HOME).
        max_file_bytes: the limit of each file.

    Raises:
        LoadError: a missing folder, repository or revision, denied access, a network error, a folder without a
            tokenizer, a too large file or number, or invalid JSON. The message is one line.
    """
    if model_id is None or Path(model_id).expanduser().is_dir():
        folder = _local_folder(Path(model_id or model_dir).expanduser(), model_name)
        inner = transformer_folder(folder)
        check_files((folder, inner), max_file_bytes)
        return ModelFiles(folder, inner, model_config(inner, required=False))
    if model_id.startswith(("/", ".", "~")):
        raise LoadError(f"--model_id={model_id}: there is no such folder")
    snapshot = partial(hub_snapshot, model_id, token=token, with_code=trust_remote_code, cache_dir=cache_dir)
    model_revision = model_revision or "main"
    tokenizer_revision = tokenizer_revision or model_revision
    same = tokenizer_revision == model_revision
    model_folder = snapshot(model_revision, with_tokenizer=same)
    tokenizer_folder = transformer_folder(model_folder if same else snapshot(tokenizer_revision, with_tokenizer=True))
    _require_tokenizer(tokenizer_folder, f"{model_id} (revision {tokenizer_revision})")
    check_files((model_folder, tokenizer_folder), max_file_bytes)
    config = model_config(transformer_folder(model_folder), required=True)
    return ModelFiles(model_folder, tokenizer_folder, config)


def _local_folder(folder: Path, model_name: str | None) -> Path:
    """Returns the folder itself, or its subfolder with the model's name if only the subfolder has a tokenizer."""
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise LoadError(f"the model folder {folder} {problem} (set --model_dir or --model_id)")
    if has_tokenizer(transformer_folder(folder)):
        return folder
    if model_name not in (None, ".."):
        inner = folder / model_name
        if inner.is_dir() and has_tokenizer(transformer_folder(inner)):
            return inner
    _require_tokenizer(folder, str(folder))
    return folder


def _require_tokenizer(folder: Path, where: str) -> None:
    if has_tokenizer(folder):
        return
    names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    listing = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    if _is_tritons(folder) or any(_is_tritons(inner) for inner in folder.iterdir()):
        raise LoadError(
            f"no tokenizer files in {where}, which looks like Triton's model repository: expected the folder with"
            f" tokenizer.json and config.json; it holds {listing}. Set --model_dir to that folder, or --model_id"
        )
    raise LoadError(
        f"no tokenizer files in {where}: looked for {', '.join(VOCABULARY_FILES)};"
        f" it holds {listing or 'nothing'}. Put tokenizer.json there or set --model_id"
    )


def _is_tritons(folder: Path) -> bool:
    """Whether a folder is a model in a Triton model repository, with a config.pbtxt or version folders."""
    try:
        return (folder / "config.pbtxt").is_file() or any(folder.glob("[0-9]*/model.*"))
    except OSError:  # not a folder, or an unreadable one, such as a volume's lost+found
        return False
