"""Finds config.json and the tokenizer's files: in a local folder, or in the cache of a Hugging Face hub.

Files that the cache lacks are downloaded into it. Weights are never downloaded: the predictor has them. The cache has
the hub library's public layout:

    models--<org>--<name>/refs/<branch or tag>          text: a commit
    models--<org>--<name>/snapshots/<commit>/<file>     links into ../../blobs
    models--<org>--<name>/trees/<commit>.json           the names of all files of that commit, where known

Reading it here, without the library, saves 120 ms of imports at each start (measured).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson

from hf_transformer.errors import LoadError
from hf_transformer.types.request import Json

log = logging.getLogger(__name__)

VOCABULARY_FILES = tuple(
    "tokenizer.json vocab.txt vocab.json spiece.model spm.model sentencepiece.bpe.model sentencepiece.model"
    " tokenizer.model tiktoken.model tekken.json source.spm bpe.codes prophetnet.tokenizer".split()
)
"""Files that each make a folder a tokenizer's."""

VOCABLESS_CLASSES = frozenset({"ByT5Tokenizer", "CanineTokenizer", "PerceiverTokenizer"})
"""Tokenizers of bytes or characters, without a vocabulary file."""

MORE_FILES = tuple(
    "merges.txt vocab.bpe dict.txt target.spm vocab-src.json vocab-tgt.json *.tiktoken generation_config.json"
    " chat_template.jinja chat_template.json additional_chat_templates/*.jinja modules.json sentence_*_config.json"
    " config_sentence_transformers.json ?_*/config.json 0_*/*.json 0_*/*.txt 0_*/*.model".split()
)
"""Patterns of further files that the service, transformers or sentence-transformers reads. ``?_*/`` are the modules of
sentence-transformers; its first versions kept the tokenizer in 0_Transformer."""

SETTINGS_FILES = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Files that are read whenever they exist. A cached snapshot without one of them is incomplete if the repository has
it."""

SMALL_FILES = (*SETTINGS_FILES, *VOCABULARY_FILES, *MORE_FILES)
"""Patterns of all files that are downloaded and exported: everything but weights and code."""

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The folders of a model's small files, and its config.json.

    ``config`` is {} if a local folder with a tokenizer has no config.json.
    """

    model_folder: Path
    tokenizer_folder: Path
    config: Mapping[str, Json]


def load_json(path: Path) -> Json:
    """The value in a JSON file. Raises LoadError naming the file."""
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
    """The folder of config.json, the tokenizer and the weights.

    This is the folder itself or, with the first versions of sentence-transformers, the folder of the first module in
    modules.json, such as 0_Transformer.
    """
    path = folder / "modules.json"
    if (folder / "config.json").is_file() or not path.is_file():
        return folder
    modules = load_json(path)
    first = modules[0] if isinstance(modules, list) and modules and isinstance(modules[0], dict) else {}
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
    """Find the files of a model. Makes no request if the cache has all of them.

    Args:
        model_id: the hub's id or a local path; None for ``model_dir``.
        model_dir: the folder of the files. They may also lie in its subfolder ``model_name``, as in Triton's model
            repository.
        model_name: the served model's name.
        model_revision: a branch, tag or commit; None for main.
        tokenizer_revision: the same for the tokenizer; None for the model's revision.
        token: the hub's access token. It is never part of a message.
        trust_remote_code: whether Python files are downloaded too.
        cache_dir: the hub's cache; None for the library's own (HF_HUB_CACHE, HF_HOME).

    Raises:
        LoadError: no such folder, repository or revision, no access, no network, no tokenizer in the folder, or broken
            JSON. The message is one line.
    """
    if model_id is None or Path(model_id).expanduser().is_dir():
        folder = _local_folder(Path(model_id or model_dir).expanduser(), model_name)
        inner = transformer_folder(folder)
        return ModelFiles(folder, inner, read_json(inner / "config.json", required=False))
    if model_id.startswith(("/", ".", "~")):
        raise LoadError(f"--model_id={model_id}: there is no such folder")
    snapshot = partial(_snapshot, model_id, token=token, with_code=trust_remote_code, cache_dir=cache_dir)
    model_revision = model_revision or "main"
    tokenizer_revision = tokenizer_revision or model_revision
    same = tokenizer_revision == model_revision
    model_folder = snapshot(model_revision, with_tokenizer=same)
    tokenizer_folder = transformer_folder(model_folder if same else snapshot(tokenizer_revision, with_tokenizer=True))
    _require_tokenizer(tokenizer_folder, f"{model_id} (revision {tokenizer_revision})")
    config = read_json(transformer_folder(model_folder) / "config.json", required=True)
    return ModelFiles(model_folder, tokenizer_folder, config)


def _local_folder(folder: Path, model_name: str | None) -> Path:
    """The folder itself or, if it has no tokenizer, its subfolder with the model's name."""
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
    """Whether a folder is a model of Triton's model repository: it has a config.pbtxt, or versions with a model."""
    try:
        return (folder / "config.pbtxt").is_file() or any(folder.glob("[0-9]*/model.*"))
    except OSError:  # not a folder, or an unreadable one, such as a volume's lost+found
        return False


def _snapshot(
    repo: str, revision: str, *, token: str | None, with_tokenizer: bool, with_code: bool, cache_dir: Path | None
) -> Path:
    """The folder of one revision, from the cache if it is complete there, else after a download. Raises LoadError.

    ``with_tokenizer``: the tokenizer's files are needed, not only config.json. ``with_code``: Python files too.
    """
    # Imported late: a start from a local folder does not need the library.
    from huggingface_hub import constants

    cache = cache_dir or Path(constants.HF_HUB_CACHE)
    storage = cache / ("models--" + repo.replace("/", "--"))
    cached = _cached(storage, revision, with_tokenizer=with_tokenizer, with_code=with_code)
    if cached is not None and _is_complete(storage, cached):
        return cached
    try:
        return _download(repo, revision, token, cache, with_code)
    except LoadError as exc:
        if cached is None:
            raise
        # The cache may have been filled with just these files on purpose. They suffice for most tokenizers.
        log.warning("%s; using the files in %s", exc, cached)
        return cached


def _cached(storage: Path, revision: str, *, with_tokenizer: bool, with_code: bool) -> Path | None:
    """The snapshot of a revision if it has config.json and, if needed, a tokenizer and its code."""
    commit = revision
    if not COMMIT.fullmatch(revision):
        try:
            commit = (storage / "refs" / revision).read_text().strip()
        except (OSError, ValueError):
            return None
    folder = storage / "snapshots" / commit
    inner = transformer_folder(folder)
    if not commit or not (inner / "config.json").is_file() or (with_tokenizer and not has_tokenizer(inner)):
        return None
    if with_code and not all((folder / name).is_file() for name in _code_files(folder)):
        return None
    return folder


def _code_files(folder: Path) -> set[str]:
    """The Python files in the same repository that tokenizer_config.json's auto_map names."""
    auto_map = read_json(folder / "tokenizer_config.json", required=False).get("auto_map")
    classes = auto_map.get("AutoTokenizer") if isinstance(auto_map, dict) else auto_map
    references = [classes] if isinstance(classes, str) else list(classes or ())
    # "module.Class"; "org/name--module.Class" lies in another repository.
    return {f"{name.split('.')[0]}.py" for name in references if isinstance(name, str) and "--" not in name}


def _is_complete(storage: Path, folder: Path) -> bool:
    """Whether a cached snapshot has all settings files of its commit; True if the commit's files are unknown.

    An interrupted download leaves a snapshot that loads, but without the special tokens, for example.
    """
    try:
        listing = orjson.loads((storage / "trees" / f"{folder.name}.json").read_bytes())
        if listing["format_version"] != 1:
            return True
        files = set(listing["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return True  # the listing is private to the library, and its format may change
    needed = {name for name in (*SETTINGS_FILES, "tokenizer.json") if name in files}
    if "tokenizer.json" not in files:
        needed |= {name for name in (*VOCABULARY_FILES, "merges.txt") if name in files}
    return all((folder / name).is_file() for name in needed)


def _download(repo: str, revision: str, token: str | None, cache: Path, with_code: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    patterns = [*SMALL_FILES, "*.py"] if with_code else list(SMALL_FILES)
    with _map_hub_errors(repo, revision, token):
        return Path(snapshot_download(repo, revision=revision, token=token, cache_dir=cache, allow_patterns=patterns))


@contextmanager
def _map_hub_errors(repo: str, revision: str, token: str | None) -> Iterator[None]:
    """Maps every error of the hub's library to a LoadError of one line, without the token."""
    from huggingface_hub import errors

    name = f"--model_id={repo}"
    advice = "ask for access for the token's account" if token else "set HF_TOKEN"
    try:
        yield
    except errors.HFValidationError as exc:
        raise LoadError(f"{name} is neither a folder here nor an id of the form organisation/name") from exc
    except errors.GatedRepoError as exc:
        raise LoadError(f"{name} is gated: {advice}") from exc
    except errors.RepositoryNotFoundError as exc:
        raise LoadError(f"{name}: the hub has no such model, or not for this token: {advice}") from exc
    except errors.RevisionNotFoundError as exc:
        raise LoadError(f"{name} has no revision {revision} (--model_revision, --tokenizer_revision)") from exc
    except errors.LocalEntryNotFoundError as exc:
        detail = _one_line(exc.__cause__ or exc, token)
        raise LoadError(
            f"{name} revision {revision} is not in the hub's cache and the hub can't be reached ({detail}):"
            " allow the network, or mount the files and set --model_dir"
        ) from exc
    except Exception as exc:  # the library passes on errors of its HTTP client, the disk and the OS
        raise LoadError(f"{name} revision {revision} can't be downloaded: {_one_line(exc, token)}") from exc


def _one_line(exc: BaseException, token: str | None) -> str:
    text = f"{type(exc).__name__}: {' '.join(str(exc).split())}"
    return (text.replace(token, "***") if token else text)[:300]
