"""Finds the folder with config.json and the tokenizer's files, and reads config.json.

The files are in a local folder or in the Hugging Face hub's cache. Missing files are downloaded into the cache, except
for weights, which only the predictor needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hf_transformer.errors import LoadError
from hf_transformer.tokenizer.files import VOCABULARY_FILES, has_tokenizer, read_json, transformer_folder
from hf_transformer.tokenizer.hub import hub_snapshot
from hf_transformer.types.request import Json


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The folders of a model's small files, and config.json.

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
) -> ModelFiles:
    """Finds the files of a model by hub id or local path (``model_id``), or in ``model_dir`` without an id.

    In ``model_dir`` the files may also be in a subfolder named after the model, as in Triton's repository layout.
    ``tokenizer_revision`` defaults to the model's revision, ``cache_dir`` to the hub's (HF_HUB_CACHE, HF_HOME). Sends
    no request if the cache has the files.

    Raises LoadError with a one-line message that omits the token. Causes are a missing folder, repository or revision,
    denied access, a network error, a folder without a tokenizer, and invalid JSON.
    """
    if model_id is None or Path(model_id).expanduser().is_dir():
        folder = _local_folder(Path(model_id or model_dir).expanduser(), model_name)
        inner = transformer_folder(folder)
        return ModelFiles(folder, inner, read_json(inner / "config.json", required=False))
    if model_id.startswith(("/", ".", "~")):
        raise LoadError(f"--model_id={model_id}: there is no such folder")
    snapshot = partial(hub_snapshot, model_id, token=token, with_code=trust_remote_code, cache_dir=cache_dir)
    model_revision = model_revision or "main"
    tokenizer_revision = tokenizer_revision or model_revision
    same = tokenizer_revision == model_revision
    model_folder = snapshot(model_revision, with_tokenizer=same)
    tokenizer_folder = transformer_folder(model_folder if same else snapshot(tokenizer_revision))
    _require_tokenizer(tokenizer_folder, f"{model_id} (revision {tokenizer_revision})")
    config = read_json(transformer_folder(model_folder) / "config.json", required=True)
    return ModelFiles(model_folder, tokenizer_folder, config)


def _local_folder(folder: Path, model_name: str | None) -> Path:
    """Returns the folder itself, or its subfolder with the model's name if only the subfolder has a tokenizer."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise LoadError(f"the model folder {folder} {what} (set --model_dir or --model_id)")
    if has_tokenizer(transformer_folder(folder)):
        return folder
    if (
        model_name not in (None, "..")
        and (folder / model_name).is_dir()
        and has_tokenizer(transformer_folder(folder / model_name))
    ):
        return folder / model_name
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
    except OSError:  # not a folder, or not readable, such as a volume's lost+found
        return False
