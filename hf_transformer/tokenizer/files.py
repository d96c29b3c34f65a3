"""Finds the folder that holds config.json and the tokenizer's files, and reads config.json.

The files lie in a local folder, or in the cache of a Hugging Face hub, which is filled when they are not there yet.
Weights are never downloaded: the predictor has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson

from hf_transformer.errors import LoadError
from hf_transformer.types.request import Json

VOCABULARY_FILES = tuple(
    "tokenizer.json vocab.txt vocab.json spiece.model spm.model sentencepiece.bpe.model sentencepiece.model"
    " tokenizer.model tiktoken.model tekken.json source.spm bpe.codes prophetnet.tokenizer".split()
)
"""Each of these makes a folder one that holds a tokenizer."""

VOCABLESS_CLASSES = frozenset({"ByT5Tokenizer", "CanineTokenizer", "PerceiverTokenizer"})
"""Tokenizers that work on bytes or characters and have no vocabulary file."""

MORE_FILES = tuple(
    "merges.txt vocab.bpe dict.txt target.spm vocab-src.json vocab-tgt.json *.tiktoken generation_config.json"
    " chat_template.jinja chat_template.json additional_chat_templates/*.jinja modules.json sentence_*_config.json"
    " config_sentence_transformers.json ?_*/config.json 0_*/*.json 0_*/*.txt 0_*/*.model".split()
)
"""Read beside these two by the service, by transformers or by sentence-transformers, as patterns: ``?_*/`` are the
modules of sentence-transformers, of which its first versions kept the tokenizer in 0_Transformer."""

SETTINGS_FILES = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Read whenever they exist, so a cached snapshot is complete only with those of them that the repository has."""


SMALL_FILES = (*SETTINGS_FILES, *VOCABULARY_FILES, *MORE_FILES)
"""All that is read of a model's folder beside weights and code, as patterns: what is downloaded and exported."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where the model's small files are, and what config.json says.

    ``config`` is {} if there is no config.json in a local folder that has a tokenizer.
    """

    model_folder: Path
    tokenizer_folder: Path
    config: Mapping[str, Json]


def load_json(path: Path) -> Json:
    """What a JSON file holds. Raises LoadError naming the file."""
    try:
        return orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise LoadError(f"{path} is missing") from None
    except OSError as exc:
        raise LoadError(f"{path} can't be read: {exc.strerror}") from exc
    except orjson.JSONDecodeError as exc:
        raise LoadError(f"{path} is not valid JSON: {exc}") from exc


def read_json(path: Path, *, required: bool) -> dict[str, Json]:
    """The JSON object in a file; {} for a missing file that is not required. Raises LoadError naming the file."""
    if not required and not path.exists():
        return {}
    value = load_json(path)
    if not isinstance(value, dict):
        raise LoadError(f"{path} must hold a JSON object, but holds a {type(value).__name__}")
    return value


def transformer_folder(folder: Path) -> Path:
    """Where config.json, the tokenizer and the weights lie: the folder itself or, as the first versions of
    sentence-transformers have it, that of the first module in modules.json, such as 0_Transformer."""
    modules = folder / "modules.json"
    if (folder / "config.json").is_file() or not modules.is_file():
        return folder
    found = load_json(modules)
    first = found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else {}
    inner = folder / Path(str(first.get("path", ""))).name
    return inner if (inner / "config.json").is_file() else folder


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has a file that a tokenizer can be built from."""
    if any((folder / name).is_file() for name in VOCABULARY_FILES) or any(folder.glob("*.tiktoken")):
        return True
    settings = read_json(folder / "tokenizer_config.json", required=False)
    return "auto_map" in settings or settings.get("tokenizer_class") in VOCABLESS_CLASSES


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
    """Find the files of a model by hub id or local path (``model_id``), or in ``model_dir`` where no id is given.

    In ``model_dir`` the files may also lie in a folder named like the model, as in Triton's repository layout.
    ``tokenizer_revision`` is the model's revision unless given. ``cache_dir`` is the hub's own (HF_HUB_CACHE, HF_HOME)
    unless given. No request is made if the cache has what is needed.

    Raises LoadError, in one line: no such folder, repository or revision, no access, no network, no tokenizer in the
    folder, broken JSON. The token is never part of a message.
    """
    if model_id is None or Path(model_id).expanduser().is_dir():
        folder = _local_folder(Path(model_id or model_dir).expanduser(), model_name)
        inner = transformer_folder(folder)
        return ModelFiles(folder, inner, read_json(inner / "config.json", required=False))
    if model_id.startswith(("/", ".", "~")):
        raise LoadError(f"--model_id={model_id}: there is no such folder")
    # Imported here: a start from a local folder needs nothing of the hub.
    from hf_transformer.tokenizer.hub import hub_snapshot

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
    """The folder itself or, where it has no tokenizer, its subfolder with the model's name."""
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
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    if _is_tritons(folder) or any(_is_tritons(inner) for inner in folder.iterdir()):
        raise LoadError(
            f"no tokenizer files in {where}, which looks like Triton's model repository: expected the folder with"
            f" tokenizer.json and config.json; it holds {shown}. Set --model_dir to that folder, or --model_id"
        )
    raise LoadError(
        f"no tokenizer files in {where}: looked for {', '.join(VOCABULARY_FILES)};"
        f" it holds {shown or 'nothing'}. Put tokenizer.json there or set --model_id"
    )


def _is_tritons(folder: Path) -> bool:
    """Whether a folder is one model of Triton's model repository: it has a config.pbtxt, or versions with a model."""
    try:
        return (folder / "config.pbtxt").is_file() or any(folder.glob("[0-9]*/model.*"))
    except OSError:  # no folder, or one that may not be read, as a volume's lost+found
        return False
