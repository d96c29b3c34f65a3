"""A model's small files: their names, reading them, and the folder that holds them."""

from __future__ import annotations

from pathlib import Path

import orjson

from hf_transformer.errors import LoadError
from hf_transformer.types.request import Json

VOCABULARY_FILES = tuple(
    "tokenizer.json vocab.txt vocab.json spiece.model spm.model sentencepiece.bpe.model sentencepiece.model"
    " tokenizer.model tiktoken.model tekken.json source.spm bpe.codes prophetnet.tokenizer".split()
)
"""Vocabulary files. A folder with one of them has a tokenizer."""

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
