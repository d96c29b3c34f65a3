"""What a model folder holds: which files make it one with a tokenizer, and how its JSON is read."""

from __future__ import annotations

from pathlib import Path

import orjson

from hf_transformer.errors import LoadError
from hf_transformer.types import Json

VOCABULARY_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "tokenizer.model",
    "tiktoken.model",
    "tekken.json",
    "source.spm",
    "bpe.codes",
    "prophetnet.tokenizer",
)
"""Each of these makes a folder one that holds a tokenizer."""

VOCABLESS_CLASSES = frozenset({"ByT5Tokenizer", "CanineTokenizer", "PerceiverTokenizer"})
"""Tokenizers that work on bytes or characters and have no vocabulary file."""

SETTINGS_FILES = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Read whenever they exist, so a cached snapshot is complete only with those of them that the repository has."""


def read_json(path: Path, *, required: bool) -> dict[str, Json]:
    """The JSON object in a file; {} for a missing file that is not required. Raises LoadError naming the file."""
    try:
        value = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        if required:
            raise LoadError(f"{path} is missing") from None
        return {}
    except OSError as exc:
        raise LoadError(f"{path} can't be read: {exc.strerror}") from exc
    except orjson.JSONDecodeError as exc:
        raise LoadError(f"{path} is not valid JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise LoadError(f"{path} must hold a JSON object, but holds a {type(value).__name__}")
    return value


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has a file that a tokenizer can be built from."""
    if any((folder / name).is_file() for name in VOCABULARY_FILES) or any(folder.glob("*.tiktoken")):
        return True
    settings = read_json(folder / "tokenizer_config.json", required=False)
    return "auto_map" in settings or settings.get("tokenizer_class") in VOCABLESS_CLASSES
