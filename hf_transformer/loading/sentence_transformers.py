"""What the sentence-transformers files of a model folder say: pooling, normalization, prompts.

    modules.json                            the modules and their folders, in order
    <folder of Pooling>/config.json         the pooling modes
    sentence_bert_config.json               max_seq_length
    config_sentence_transformers.json       prompts, default_prompt_name

Source: sentence_transformers/SentenceTransformer.py and models/Pooling.py of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson

from hf_transformer.errors import LoadError
from hf_transformer.tasks.base import SentenceTransformers
from hf_transformer.types import Json

POOLING_FLAGS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Switches of Pooling's config.json, in the order in which their results are joined."""

KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")


def read_sentence_transformers(folder: Path) -> SentenceTransformers | None:
    """Reads the files; None where the folder has no modules.json.

    Raises:
        LoadError: a file is broken, or names a module that changes embeddings and is not known here (Dense, CNN, ...).
    """
    path = folder / "modules.json"
    if not path.is_file():
        return None
    modules = _read(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise LoadError(f"{path}: expected a list of modules")
    kinds = {str(module.get("type", "")).rpartition(".")[2]: str(module.get("path", "")) for module in modules}
    unknown = [kind for kind in kinds if kind not in KNOWN_MODULES]
    if unknown:
        raise LoadError(
            f"{path}: the module {unknown[0]} is not known here ({', '.join(KNOWN_MODULES)} are); export it as a part "
            "of the model, with an output sentence_embedding, and take it out of modules.json"
        )
    settings = _read_if_there(folder / "config_sentence_transformers.json")
    transformer = _read_if_there(folder / kinds.get("Transformer", "") / "sentence_bert_config.json")
    pooling = _read_if_there(folder / kinds["Pooling"] / "config.json") if "Pooling" in kinds else {}
    length = transformer.get("max_seq_length")
    return SentenceTransformers(
        pooling=_modes(pooling),
        normalize="Normalize" in kinds,
        prompts={str(name): str(text) for name, text in (settings.get("prompts") or {}).items()},
        default_prompt_name=settings.get("default_prompt_name"),
        include_prompt=pooling.get("include_prompt", True) is not False,
        max_seq_length=length if isinstance(length, int) and length > 0 else None,
    )


def _modes(pooling: Mapping[str, Json]) -> tuple[str, ...]:
    """The modes that are on; newer files name one in pooling_mode, and mean is the default."""
    named = pooling.get("pooling_mode")
    if isinstance(named, str):
        return (named,)
    if isinstance(named, list) and named:
        return tuple(map(str, named))
    return tuple(mode for flag, mode in POOLING_FLAGS.items() if pooling.get(flag)) or ("mean",)


def _read_if_there(path: Path) -> Mapping[str, Json]:
    content = _read(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise LoadError(f"{path}: expected a JSON object")
    return content


def _read(path: Path) -> Json:
    try:
        return orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as exc:
        raise LoadError(f"{path} can't be read: {exc}") from exc
