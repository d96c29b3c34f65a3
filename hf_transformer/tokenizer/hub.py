"""Small files of a model from a Hugging Face hub: read from the cache on disk, or downloaded into it.

The cache has the hub library's public layout:

    models--<org>--<name>/refs/<branch or tag>          text: a commit
    models--<org>--<name>/snapshots/<commit>/<file>     links into ../../blobs
    models--<org>--<name>/trees/<commit>.json           the names of all files of that commit, if known

Direct access to the cache saves 120 ms for importing the library at each start (measured).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hf_transformer.errors import LoadError
from hf_transformer.tokenizer.files import (
    GLINER,
    SETTINGS_FILES,
    SMALL_FILES,
    VOCABULARY_FILES,
    has_tokenizer,
    load_json,
    read_json,
    transformer_folder,
)

log = logging.getLogger(__name__)

COMMIT = re.compile(r"[0-9a-f]{40}")


def hub_snapshot(
    repo: str, revision: str, *, token: str | None, with_tokenizer: bool, with_code: bool, cache_dir: Path | None
) -> Path:
    """Snapshot folder of a revision: from the cache if it is complete, else downloaded. Raises LoadError.

    ``with_tokenizer`` requires the tokenizer's files in addition to config.json. ``with_code`` also requires Python
    files.
    """
    # Imported here, because loading from a local folder does not need the library.
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
        # The cached files are sufficient for most tokenizers.
        log.warning("%s; using the files in %s", exc, cached)
        return cached


def _cached(storage: Path, revision: str, *, with_tokenizer: bool, with_code: bool) -> Path | None:
    """Cached snapshot of a revision; None if it lacks config.json, or the requested tokenizer or code."""
    commit = revision
    if not COMMIT.fullmatch(revision):
        try:
            commit = (storage / "refs" / revision).read_text().strip()
        except (OSError, ValueError):
            return None
    folder = storage / "snapshots" / commit
    inner = transformer_folder(folder)
    if (
        not commit
        or not any((inner / name).is_file() for name in ("config.json", GLINER))
        or (with_tokenizer and not has_tokenizer(inner))
    ):
        return None
    if with_code and not all((folder / name).is_file() for name in _code_files(folder)):
        return None
    return folder


def _code_files(folder: Path) -> set[str]:
    """Python files of this repository that auto_map of tokenizer_config.json lists."""
    auto_map = read_json(folder / "tokenizer_config.json", required=False).get("auto_map")
    classes = auto_map.get("AutoTokenizer") if isinstance(auto_map, dict) else auto_map
    references = [classes] if isinstance(classes, str) else list(classes or ())
    # "module.Class" is in this repository, "org/name--module.Class" in another repository.
    return {f"{name.split('.')[0]}.py" for name in references if isinstance(name, str) and "--" not in name}


def _is_complete(storage: Path, folder: Path) -> bool:
    """Whether a cached snapshot has all settings files of its commit; True if the commit's files are unknown.

    After an interrupted download, a snapshot may load, but lack the special tokens.
    """
    try:
        listing = load_json(storage / "trees" / f"{folder.name}.json")
        if listing["format_version"] != 1:
            return True
        files = set(listing["files"])
    except (LoadError, KeyError, TypeError):
        return True  # the listing's format is internal to the library, so ignore unknown formats
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
    """Converts all errors of the hub library to a LoadError with a one-line message that omits the token."""
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
    except Exception as exc:  # the library does not wrap errors of its HTTP client, the disk and the OS
        raise LoadError(f"{name} revision {revision} can't be downloaded: {_one_line(exc, token)}") from exc


def _one_line(exc: BaseException, token: str | None) -> str:
    text = f"{type(exc).__name__}: {' '.join(str(exc).split())}"
    return (text.replace(token, "***") if token else text)[:300]
