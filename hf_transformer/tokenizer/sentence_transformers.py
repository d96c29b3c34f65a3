"""Reader of the sentence-transformers files of a model folder: pooling, normalization, prompts.

    modules.json                            the modules and their folders, in order
    <folder of Pooling>/config.json         the pooling modes
    sentence_bert_config.json               max_seq_length, do_lower_case
    config_sentence_transformers.json       model_type, prompts, default_prompt_name, truncate_dim,
                                            similarity_fn_name

The last part of a module's type is its kind. Versions 2 to 5 write sentence_transformers.models.Pooling, and version 6
writes sentence_transformers.sentence_transformer.modules.pooling.Pooling. representation_files.py reads the folders of
models for sparse vectors and for vectors of tokens.

Source: sentence_transformers/base/model.py, base/modules/transformer.py and sentence_transformer/modules/pooling.py of
sentence-transformers 6.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from hf_transformer.errors import LoadError
from hf_transformer.tasks.base import CrossEncoder, SentenceTransformers
from hf_transformer.tasks.multi_vector import LateInteraction
from hf_transformer.tasks.similarity import MAX_SIM
from hf_transformer.tokenizer.files import load_json, positive, read_json
from hf_transformer.tokenizer.representation_files import (
    is_late_interaction,
    read_colbert,
    read_late_interaction,
    read_sparse,
    without_markers,
)
from hf_transformer.types.request import Json

POOLING_FLAGS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Flags in Pooling's config.json before version 6, in the order of concatenating their results."""

TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Possible files for the settings of the first module. The first non-empty file applies."""
SETTINGS = "config_sentence_transformers.json"
TOKEN_NEUTRAL_ARGUMENTS = ("padding", "return_tensors")
"""Tokenizer arguments that don't affect the tokens of a text."""
EMBEDDING = "sentence_embedding"
"""Key of a text's vector in module_input_name."""
LOGIT_SCORE = "LogitScore"
"""The module that makes a score of a causal model's logits."""
WEIGHTLESS = ("Transformer", "Pooling", "Normalize", "Dropout")
"""Modules without weights besides the model itself. Dropout has no effect on inference."""


def read_sentence_transformers(folder: Path) -> SentenceTransformers | None:
    """Reads the files of a folder. Returns None for folders of other libraries, and for models for reranking.

    Raises:
        LoadError: a file is invalid, or names an unknown pooling mode, default prompt or module.
    """
    path = folder / "modules.json"
    if not path.is_file():
        late = read_colbert(folder)
        return SentenceTransformers(late_interaction=late, max_seq_length=_longest(late)) if late else None
    settings = read_json(folder / SETTINGS, required=False)
    modules = read_modules(path)
    folders = dict(reversed(modules))
    transformer = read_transformer(folder / folders.get("Transformer", folders.get("MLMTransformer", "")))
    late_interaction, model_type = is_late_interaction(settings), settings.get("model_type", "SentenceTransformer")
    if not late_interaction and model_type not in ("SentenceTransformer", "SparseEncoder"):
        return None
    name = settings.get("similarity_fn_name")
    files = SentenceTransformers(
        prompts=_prompts(folder / SETTINGS, settings),
        default_prompt_name=settings.get("default_prompt_name"),
        max_seq_length=_max_seq_length(transformer),
        lower_case=transformer.get("do_lower_case") is True,
    )
    if late_interaction:
        late = read_late_interaction(folder, settings, modules, transformer)
        return replace(
            files,
            prompts=without_markers(files.prompts, late),
            # PyLate replaces the module's length by its own.
            max_seq_length=_longest(late) if late.markers else files.max_seq_length,
            # Older files of PyLate have the function of the model before its training.
            similarity=name if name in MAX_SIM else "maxsim",
            late_interaction=late,
        )
    if model_type == "SparseEncoder":
        return replace(files, similarity=str(name or "dot"), sparse=read_sparse(folder, settings, modules))
    return _with_pooling(replace(files, similarity=str(name or "cosine")), folder, settings, modules)


def _with_pooling(
    files: SentenceTransformers, folder: Path, settings: Mapping[str, Json], modules: Sequence[tuple[str, str]]
) -> SentenceTransformers:
    """Adds what the modules after a SentenceTransformer's model do."""
    folders = dict(reversed(modules))
    pooling_path = folder / folders.get("Pooling", "") / "config.json"
    pooling = read_json(pooling_path, required=False) if "Pooling" in folders else {}
    return replace(
        files,
        pooling=_modes(pooling_path, pooling),
        normalize=_normalizes(folder, modules),
        include_prompt=pooling.get("include_prompt", True) is not False,
        truncate_dim=positive(settings.get("truncate_dim")),
        inside=_inside(modules),
    )


def _longest(late: LateInteraction) -> int | None:
    """The limit of both input types together, if each has one."""
    return max(late.lengths.values()) if len(late.lengths) == 2 else None


def read_cross_encoder(folder: Path) -> CrossEncoder:
    """Reads the settings of a CrossEncoder, in the format of version 6. Other folders have only the activation
    function.

    Raises:
        LoadError: a file is invalid, or names an unknown default prompt.
    """
    settings = read_json(folder / SETTINGS, required=False)
    name = settings.get("activation_fn")
    activation = str(name) if name else None
    if settings.get("model_type") != "CrossEncoder":
        return CrossEncoder(activation)
    read_transformer(folder)
    prompts = _prompts(folder / SETTINGS, settings)
    path = folder / "modules.json"
    kinds = [kind for kind, _ in read_modules(path)] if path.is_file() else []
    inside = next((kind for kind in reversed(kinds) if kind not in ("Transformer", LOGIT_SCORE)), None)
    return CrossEncoder(activation, prompts, settings.get("default_prompt_name"), inside)


def read_transformer(folder: Path) -> Mapping[str, Json]:
    """Reads the settings of the Transformer module.

    Raises LoadError for two settings of version 6: tokenizer arguments that affect tokens, and a model without text
    input.
    """
    files = ((folder / name, read_json(folder / name, required=False)) for name in TRANSFORMER_FILES)
    path, settings = next((file for file in files if file[1]), (folder, {}))
    calls = settings.get("processing_kwargs")
    for kind in ("common", "text"):
        arguments = calls.get(kind) if isinstance(calls, dict) else None
        changing = [name for name in arguments or {} if name not in TOKEN_NEUTRAL_ARGUMENTS]
        if changing:
            raise LoadError(f"{path}: processing_kwargs.{kind} has {changing[0]}, which this service can't apply")
    modalities = settings.get("modality_config")
    if isinstance(modalities, dict) and modalities and "text" not in modalities:
        raise LoadError(f"{path}: modality_config has {', '.join(modalities)}, expected text, which this service sends")
    return settings


def read_modules(path: Path) -> list[tuple[str, str]]:
    """Reads the kind and folder of each module. Raises LoadError for a folder outside the model's folder."""
    modules = load_json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise LoadError(f"{path}: expected a list of modules")
    entries = [(str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))) for module in modules]
    for kind, folder in entries:
        if PurePosixPath(folder).is_absolute() or ".." in PurePosixPath(folder).parts:
            raise LoadError(f"{path}: the path of {kind}, {folder!r}, leads out of the model folder")
    return entries


def _inside(modules: Sequence[tuple[str, str]]) -> str | None:
    """Last module that the exported model must contain: a module with weights; "pooling" if the folder has no Pooling
    module."""
    kinds = [kind for kind, _ in modules]
    weights = [kind for kind in kinds if kind not in WEIGHTLESS]
    if weights:
        return weights[-1]
    return None if "Pooling" in kinds else "pooling"


def _normalizes(folder: Path, modules: Sequence[tuple[str, str]]) -> bool:
    """Whether a Normalize module applies to the text's vector, rather than to token vectors."""
    return any(
        read_json(folder / path / "config.json", required=False).get("module_input_name", EMBEDDING) == EMBEDDING
        for kind, path in modules
        if kind == "Normalize"
    )


def _modes(path: Path, pooling: Mapping[str, Json]) -> tuple[str, ...]:
    """Enabled pooling modes. Since version 6, pooling_mode lists them. The default is mean."""
    named = pooling.get("pooling_mode")
    if isinstance(named, str):
        modes: tuple[str, ...] = (named,)
    elif isinstance(named, list) and named:
        modes = tuple(map(str, named))
    else:
        modes = tuple(mode for flag, mode in POOLING_FLAGS.items() if pooling.get(flag)) or ("mean",)
    unknown = [mode for mode in modes if mode not in POOLING_FLAGS.values()]
    if unknown:
        known = ", ".join(POOLING_FLAGS.values())
        raise LoadError(f"{path}: the pooling mode {unknown[0]!r} is unknown, expected one of {known}")
    return modes


def _prompts(path: Path, settings: Mapping[str, Json]) -> Mapping[str, str]:
    """Reads the prompts by name. Raises LoadError if the default prompt is missing."""
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(text is None or isinstance(text, str) for text in prompts.values()):
        raise LoadError(f"{path}: expected prompts to be texts by name")
    prompts = {str(name): text or "" for name, text in prompts.items()}
    default = settings.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise LoadError(f"{path}: default_prompt_name is {default!r}, prompts has {', '.join(prompts) or 'none'}")
    return prompts


def _max_seq_length(transformer: Mapping[str, Any]) -> int | None:
    """Limit in tokens, in the format before version 6; None if unset. Version 6 moved it to tokenizer_config.json."""
    for name in ("processor_kwargs", "tokenizer_args"):
        arguments = transformer.get(name)
        if isinstance(arguments, dict) and isinstance(arguments.get("model_max_length"), int):
            return int(arguments["model_max_length"])
    return positive(transformer.get("max_seq_length"))
