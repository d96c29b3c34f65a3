"""Names, readers and folders of a model's small files, such as config.json and tokenizer.json."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from hf_transformer.credentials import read_beginning
from hf_transformer.errors import LoadError
from hf_transformer.protocol.json_text import JsonLimits, excess_of, parse_unlimited
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types.request import Json

MAX_FILE_BYTES: Final = 2**26
"""Default of --max_model_file_bytes. The largest tokenizer.json of known models has 35 MB."""
MAX_SETTINGS_BYTES: Final = 2**24
"""Size limit of the other JSON files. The largest, with 6,000 added tokens, has 1.2 MB."""
BYTES_PER_VALUE: Final = 16
"""Bytes of a file's limit for each value in JSON, and for each token id; twice as many for a list, object or key, which
take up to 300 bytes of memory. Known vocabularies have as many."""
COUNTS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("num_labels", "_num_labels"), 100_000),
    **dict.fromkeys(("extra_ids", "offset", "num_madeup_words"), 10_000),
    **dict.fromkeys(
        "decoder_layers encoder_layers n_layer n_layers num_decoder_layers num_hidden_layers num_layers".split(), 10_000
    ),
}
"""Limits of numbers for which a library makes an object each. config.json names more than two labels itself."""

VOCABULARY_FILES = tuple(
    "tokenizer.json vocab.txt vocab.json spiece.model spm.model sentencepiece.bpe.model sentencepiece.model"
    " tokenizer.model tiktoken.model tekken.json source.spm bpe.codes prophetnet.tokenizer".split()
)
"""Files that contain a tokenizer's vocabulary. A folder with any of these files has a tokenizer."""

VOCABLESS_CLASSES = frozenset({"ByT5Tokenizer", "CanineTokenizer", "PerceiverTokenizer"})
"""Tokenizers of bytes or characters, without a vocabulary file."""

LABELS_FOLDER = "labels_tokenizer"
"""The folder of a GLiNER bi-encoder's tokenizer for labels, inside the model's folder."""

LABELS_SUFFIX = "_labels"
"""The end of the name of a bi-encoder's model of labels at the predictor, after the name of its model of texts."""

MORE_FILES = tuple(
    "merges.txt vocab.bpe dict.txt target.spm vocab-src.json vocab-tgt.json *.tiktoken generation_config.json"
    " chat_template.jinja chat_template.json additional_chat_templates/*.jinja modules.json sentence_*_config.json"
    " config_sentence_transformers.json artifact.metadata ?_*/config.json 0_*/*.json 0_*/*.txt 0_*/*.model"
    f" {LABELS_FOLDER}/*.json {LABELS_FOLDER}/*.txt {LABELS_FOLDER}/*.model".split()
)
"""Patterns of further files required by the service, transformers or sentence-transformers.

``?_*/`` are modules of sentence-transformers. Its first versions stored the tokenizer in 0_Transformer. GLiNER's
bi-encoders have a second tokenizer.
"""

GLINER = "gliner_config.json"
"""The settings of a GLiNER model, in place of config.json."""

SETTINGS_FILES = ("config.json", GLINER, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Optional settings files. A cached snapshot is complete only if it has all settings files of the repository."""

SMALL_FILES = (*SETTINGS_FILES, *VOCABULARY_FILES, *MORE_FILES)
"""Patterns of all files to download and export, except weights and code."""


def read_file(path: Path, limit: int, flag: str = "") -> bytes:
    """Reads a regular file of at most ``limit`` bytes. Raises LoadError; ``flag`` sets the limit."""
    try:
        content = read_beginning(path, limit + 1)
        if len(content) > limit:
            raise _too_large(path, limit, max(path.stat().st_size, len(content)), flag)
        return content
    except FileNotFoundError:
        raise LoadError(f"{path} is missing") from None
    except OSError as exc:
        raise LoadError(f"{path} can't be read: {exc.strerror}") from exc


def _too_large(path: Path, limit: int, size: int, flag: str) -> LoadError:
    return LoadError(f"{path}: expected at most {limit} bytes{flag and f' ({flag})'}, got {size}")


def check_files(folders: Iterable[Path], limit: int) -> None:
    """Raises LoadError for a file in SMALL_FILES of more than ``limit`` bytes, since transformers may read any."""
    for folder in folders:
        for pattern in SMALL_FILES:
            for path in folder.glob(pattern) if "*" in pattern or "?" in pattern else (folder / pattern,):
                try:
                    status = path.stat()
                except OSError:  # a missing file; reading an unreadable one reports it
                    continue
                if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                    raise LoadError(f"{path}: expected a regular file")
                if status.st_size > limit:
                    raise _too_large(path, limit, status.st_size, "--max_model_file_bytes")


def load_json(path: Path, limit: int = MAX_SETTINGS_BYTES, flag: str = "") -> Json:
    """Reads the value in a JSON file of at most ``limit`` bytes, which ``flag`` sets. Raises LoadError with the file's
    name."""
    content, values = read_file(path, limit, flag), limit // BYTES_PER_VALUE
    if excess := excess_of(content, JsonLimits(parts=values // 2, values=values)):
        raise LoadError(f"{path}: expected {excess[0]}{flag and f' ({flag})'}, got {excess[1]}")
    try:
        return parse_unlimited(content)
    except Malformed as exc:
        raise LoadError(f"{path} is not valid JSON: {exc.hint}") from exc


def read_json(path: Path, *, required: bool, limit: int = MAX_SETTINGS_BYTES, flag: str = "") -> dict[str, Json]:
    """Reads the JSON object in a file; {} for a missing optional file. Raises LoadError with the file's name."""
    if not required and not path.exists():
        return {}
    value = load_json(path, limit, flag)
    if not isinstance(value, dict):
        raise LoadError(f"{path} must hold a JSON object, but holds a {type(value).__name__}")
    return value


def read_counted(path: Path, *, required: bool) -> dict[str, Json]:
    """Reads config.json or tokenizer_config.json as ``read_json`` does. Raises LoadError for a number over COUNTS."""
    settings = read_json(path, required=required)
    remaining: list[Json] = [settings]
    while remaining:
        for name, value in remaining.pop().items():
            if isinstance(value, dict):
                remaining.append(value)
            elif name in COUNTS and isinstance(value, int | float) and abs(value) > COUNTS[name]:
                raise LoadError(f"{path}: {name}: expected at most {COUNTS[name]}, got {value}")
    return settings


def model_config(folder: Path, *, required: bool) -> dict[str, Json]:
    """Reads config.json, or gliner_config.json as the configuration of its encoder with the architecture GLiNER and the
    whole file under "gliner". A config.json beside it is that of an encoder without ``encoder_config``. Raises
    LoadError as ``read_counted`` does."""
    path = folder / GLINER
    if not path.is_file():
        return read_counted(folder / "config.json", required=required)
    settings = read_counted(path, required=True)
    encoder = settings.get("encoder_config")
    if not isinstance(encoder, dict):
        encoder = read_counted(folder / "config.json", required=False)
    shown = {"playground": settings["playground"]} if "playground" in settings else {}
    return {**encoder, "architectures": ["GLiNER"], "gliner": settings, **shown}


def positive(value: Json) -> int | None:
    """A size or length from a file; None for anything but a positive integer."""
    return value if isinstance(value, int) and value > 0 else None


def transformer_folder(folder: Path) -> Path:
    """Folder with config.json, tokenizer and weights.

    It is ``folder`` itself, or the folder of the first module in modules.json, such as 0_Transformer, in the format of
    the first versions of sentence-transformers.
    """
    path = folder / "modules.json"
    if (folder / "config.json").is_file() or not path.is_file():
        return folder
    modules = load_json(path)
    first = modules[0] if isinstance(modules, list) and modules and isinstance(modules[0], dict) else {}
    inner = folder / Path(str(first.get("path", ""))).name
    return inner if (inner / "config.json").is_file() else folder


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder contains the files of a tokenizer."""
    if any((folder / name).is_file() for name in VOCABULARY_FILES) or any(folder.glob("*.tiktoken")):
        return True
    settings = read_json(folder / "tokenizer_config.json", required=False)
    return "auto_map" in settings or settings.get("tokenizer_class") in VOCABLESS_CLASSES
