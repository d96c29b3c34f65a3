"""Names, readers and folders of a model's small files, such as config.json and tokenizer.json."""

from __future__ import annotations

from pathlib import Path

import orjson

from hf_transformer.errors import LoadError
from hf_transformer.types.request import Json

VOCABULARY_FILES = tuple(
    "tokenizer.json vocab.txt vocab.json spiece.model spm.model sentencepiece.bpe.model sentencepiece.model"
    " tokenizer.model tiktoken.model tekken.json source.spm bpe.codes prophetnet.tokenizer".split()
)
"""Files that contain a tokenizer's vocabulary. A folder with any of these files has a tokenizer."""

VOCABLESS_CLASSES = frozenset({"ByT5Tokenizer", "CanineTokenizer", "PerceiverTokenizer"})
"""Tokenizers of bytes or characters, without a vocabulary file."""

MORE_FILES = tuple(
    "merges.txt vocab.bpe dict.txt target.spm vocab-src.json vocab-tgt.json *.tiktoken generation_config.json"
    " chat_template.jinja chat_template.json additional_chat_templates/*.jinja modules.json sentence_*_config.json"
    " config_sentence_transformers.json artifact.metadata ?_*/config.json 0_*/*.json 0_*/*.txt 0_*/*.model".split()
)
"""Patterns of further files required by the service, transformers or sentence-transformers.

``?_*/`` are modules of sentence-transformers. Its first versions stored the tokenizer in 0_Transformer.
"""

SETTINGS_FILES = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Optional settings files. A cached snapshot is complete only if it has all settings files of the repository."""

SMALL_FILES = (*SETTINGS_FILES, *VOCABULARY_FILES, *MORE_FILES)
"""Patterns of all files to download and export, except weights and code."""


def load_json(path: Path) -> Json:
    """Reads the value in a JSON file. Raises LoadError with the file's name."""
    try:
        return orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise LoadError(f"{path} is missing") from None
    except OSError as exc:
        raise LoadError(f"{path} can't be read: {exc.strerror}") from exc
    except orjson.JSONDecodeError as exc:
        raise LoadError(f"{path} is not valid JSON: {exc}") from exc


def read_json(path: Path, *, required: bool) -> dict[str, Json]:
    """Reads the JSON object in a file; {} for a missing optional file. Raises LoadError with the file's name."""
    if not required and not path.exists():
        return {}
    value = load_json(path)
    if not isinstance(value, dict):
        raise LoadError(f"{path} must hold a JSON object, but holds a {type(value).__name__}")
    return value


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
