"""Reader of a model folder's settings for sparse vectors and for vectors of tokens.

    SparseEncoder           modules.json: Transformer or MLMTransformer, then SpladePooling, or Pooling and
                            SparseAutoEncoder; max_active_dims in config_sentence_transformers.json
    MultiVectorEncoder      modules.json: Transformer with query_length, document_length and query_expansion, Dense,
                            MultiVectorMask, Normalize
    PyLate                  config_sentence_transformers.json: query_prefix, document_prefix, query_length,
                            document_length, do_query_expansion, attend_to_expansion_tokens, skiplist_words
    ColBERT v2              config.json with the architecture HF_ColBERT, and artifact.metadata

FlagEmbedding's sparse_linear.pt and colbert_linear.pt need no settings. They are part of an exported model, whose
output names say so.

Source: sparse_encoder/modules and multi_vector_encoder/model.py of sentence-transformers 6.2, pylate/models/colbert.py.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from pathlib import Path

from hf_transformer.errors import LoadError
from hf_transformer.tasks.multi_vector import DOCUMENT, QUERY, LateInteraction, QueryExpansion
from hf_transformer.tasks.sparse import ACTIVATIONS, SparsePooling
from hf_transformer.tokenizer.files import positive, read_json
from hf_transformer.types.request import Json

Modules = Sequence[tuple[str, str]]
"""The kind and folder of each module."""
MAX_QUERY_LENGTH = 8192
"""Limit of the tokens to which each query is filled up. Known models have 32 to 512."""
PYLATE_KEYS = (
    *("query_prefix", "document_prefix", "query_length", "document_length", "skiplist_words"),
    *("do_query_expansion", "attend_to_expansion_tokens"),
)
"""Keys of config_sentence_transformers.json that only PyLate writes."""
METADATA = "artifact.metadata"
SPARSE_MODULES = ("Transformer", "MLMTransformer", "SpladePooling", "Pooling", "Normalize", "SparseAutoEncoder")
MULTI_VECTOR_MODULES = ("Transformer", "Dense", "MultiVectorMask", "Normalize", "HierarchicalTokenPooling")


def read_sparse(folder: Path, settings: Mapping[str, Json], modules: Modules) -> SparsePooling:
    """Reads the folder of a SparseEncoder.

    Raises:
        LoadError: an invalid file, an unknown pooling, or a module that can't be served, such as Router.
    """
    kinds = _known(folder, modules, SPARSE_MODULES)
    most = settings.get("max_active_dims")
    if most is None and "SparseAutoEncoder" in kinds:
        most = read_json(folder / kinds["SparseAutoEncoder"] / "config.json", required=True).get("k")
    path = folder / kinds.get("SpladePooling", "") / "config.json"
    pooling = read_json(path, required=False) if "SpladePooling" in kinds else {}
    strategy, activation = pooling.get("pooling_strategy", "max"), pooling.get("activation_function", "relu")
    for name, value, known in (
        ("pooling_strategy", strategy, ("max", "sum")),
        ("activation_function", activation, tuple(ACTIVATIONS)),
    ):
        if value not in known:
            raise LoadError(f"{path}: {name} is {value!r}, expected one of {', '.join(known)}")
    if not {"SpladePooling", "SparseAutoEncoder"} & kinds.keys():
        raise LoadError(f"{folder / 'modules.json'}: expected SpladePooling or SparseAutoEncoder in a SparseEncoder")
    return SparsePooling(
        strategy=strategy,
        activation=activation,
        max_active=positive(most),
        normalize="Normalize" in kinds and "SpladePooling" in kinds,
        inside="SparseAutoEncoder" if "SparseAutoEncoder" in kinds else None,
    )


def is_late_interaction(settings: Mapping[str, Json]) -> bool:
    """Whether config_sentence_transformers.json belongs to a MultiVectorEncoder or a model of PyLate."""
    model_type = settings.get("model_type")
    if model_type in ("MultiVectorEncoder", "ColBERT"):
        return True
    return model_type in (None, "SentenceTransformer") and any(key in settings for key in PYLATE_KEYS)


def read_late_interaction(
    folder: Path, settings: Mapping[str, Json], modules: Modules, transformer: Mapping[str, Json]
) -> LateInteraction:
    """Reads the folder of a MultiVectorEncoder or of PyLate. ``transformer`` has the settings of the first module.

    Raises:
        LoadError: an invalid file, or a module that can't be served.
    """
    if settings.get("model_type") != "MultiVectorEncoder":
        return _read_pylate(folder, settings, modules)
    kinds = _known(folder, modules, MULTI_VECTOR_MODULES)
    if "HierarchicalTokenPooling" in kinds:
        path = folder / kinds["HierarchicalTokenPooling"] / "config.json"
        factor = read_json(path, required=True).get("pool_factor", 1)
        if isinstance(factor, int | float) and factor > 1:
            raise LoadError(f"{path}: pool_factor is {factor}; clustered vectors of tokens can't be served, expected 1")
    mask = read_json(folder / kinds.get("MultiVectorMask", "") / "config.json", required=False)
    expansion, tasks = transformer.get("query_expansion"), mask.get("skiplist_tasks")
    lengths = {QUERY: transformer.get("query_length"), DOCUMENT: transformer.get("document_length")}
    if isinstance(expansion, dict):
        length, longest = int(expansion.get("length") or 32), lengths[QUERY]
        if expansion.get("strategy") == "fixed":
            lengths[QUERY] = length
        elif isinstance(longest, int):
            lengths[QUERY] = max(length, longest)
    return LateInteraction(
        lengths={kind: length for kind, length in lengths.items() if isinstance(length, int)},
        expansion=_expansion(expansion) if isinstance(expansion, dict) else None,
        skiplist=_words(mask.get("skiplist_words") or []) if "MultiVectorMask" in kinds else (),
        skiplist_types=(tasks,) if isinstance(tasks, str) else tuple(map(str, tasks or (DOCUMENT,))),
        kept_ids=tuple(mask.get("keep_only_token_ids") or ()) if "MultiVectorMask" in kinds else (),
        normalize="Normalize" in kinds,
        size=_size(folder, modules),
    )


def _read_pylate(folder: Path, settings: Mapping[str, Json], modules: Modules) -> LateInteraction:
    """Reads PyLate's keys. Absent keys have PyLate's defaults."""
    expands = settings.get("do_query_expansion") is not False
    query, document = settings.get("query_length") or 32, settings.get("document_length") or 180
    skiplist = settings.get("skiplist_words")
    prefixes = {QUERY: settings.get("query_prefix", "[Q] "), DOCUMENT: settings.get("document_prefix", "[D] ")}
    return LateInteraction(
        markers={kind: str(prefix) for kind, prefix in prefixes.items() if prefix},
        lengths={QUERY: int(query), DOCUMENT: int(document)},
        expansion=_expansion({"length": query, "attend": settings.get("attend_to_expansion_tokens")})
        if expands
        else None,
        skiplist=tuple(string.punctuation) if skiplist is None else _words(skiplist),
        size=_size(folder, modules),
    )


def read_colbert(folder: Path) -> LateInteraction | None:
    """Reads a checkpoint of the original ColBERT. Returns None for other folders.

    Raises LoadError for an invalid file.
    """
    config = read_json(folder / "config.json", required=False)
    if "HF_ColBERT" not in (config.get("architectures") or ()):
        return None
    metadata = read_json(folder / METADATA, required=False)
    query, document = metadata.get("query_maxlen") or 32, metadata.get("doc_maxlen")
    return LateInteraction(
        markers={
            QUERY: str(metadata.get("query_token_id") or "[unused0]"),
            DOCUMENT: str(metadata.get("doc_token_id") or "[unused1]"),
        },
        lengths={QUERY: query, **({DOCUMENT: document} if isinstance(document, int) else {})},
        expansion=_expansion({"length": query, "attend": metadata.get("attend_to_mask_tokens")}),
        skiplist=tuple(string.punctuation) if metadata.get("mask_punctuation", True) else (),
        size=positive(metadata.get("dim")),
    )


def without_markers(prompts: Mapping[str, str], late: LateInteraction) -> Mapping[str, str]:
    """Prompts without a marker at their start, since the service inserts markers as tokens."""
    return {name: text.removeprefix(late.markers.get(name, "")) for name, text in prompts.items()}


def _expansion(settings: Mapping[str, Json]) -> QueryExpansion:
    """Raises LoadError for a length to which no query can be filled up."""
    length, token = settings.get("length") or 32, settings.get("token")
    if not isinstance(length, int) or length > MAX_QUERY_LENGTH:
        raise LoadError(f"query expansion: expected at most {MAX_QUERY_LENGTH} tokens, got {length!r:.40}")
    return QueryExpansion(
        length=int(length), attend=bool(settings.get("attend")), token=None if token is None else str(token)
    )


def _words(words: Json) -> tuple[str, ...]:
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise LoadError("skiplist_words: expected a list of strings")
    return tuple(words)


def _known(folder: Path, modules: Modules, known: Sequence[str]) -> dict[str, str]:
    """The folders of modules by kind. Raises LoadError for a kind outside ``known``."""
    for kind, _ in modules:
        if kind not in known:
            raise LoadError(
                f"{folder / 'modules.json'}: the module {kind} can't be served, expected {', '.join(known)}"
            )
    return dict(reversed(modules))


def _size(folder: Path, modules: Modules) -> int | None:
    """The number of components after the last projection, if the files say it."""
    last = dict(modules).get("Dense")
    return positive(read_json(folder / last / "config.json", required=False).get("out_features")) if last else None
