"""Pooling of a text's token vectors to a single float32 vector.

The formulas are those of sentence-transformers' sentence_transformer/modules/pooling.py and base/modules/normalize.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hf_transformer.errors import PredictorError
from hf_transformer.tasks.base import Axis
from hf_transformer.tasks.declaration import BATCH, SEQUENCE, ExportHead
from hf_transformer.types.tensors import Array

ENCODER = ExportHead("AutoModel", {"last_hidden_state": (BATCH, SEQUENCE, "hidden_size")})
HIDDEN_SIZE_KEYS = ("hidden_size", "dim", "d_model", "n_embd")
"""Keys of config.json for the size of a token vector: BERT and most models, DistilBERT, T5 and BART, GPT-2."""
DEFAULT_HIDDEN_SIZE = 1024
"""The estimated vector size if config.json has no size; affects only limits."""


def hidden_size(model_config: Mapping[str, Any]) -> int | None:
    """The size of a token vector in config.json, if any."""
    sizes = (model_config.get(key) for key in HIDDEN_SIZE_KEYS)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def hidden_axis(model_config: Mapping[str, Any]) -> Axis:
    """The hidden axis. Its size distinguishes hidden states from logits."""
    size = hidden_size(model_config)
    if size is None:
        return Axis(name="hidden")
    why = f"config.json says that a token's vector has {size} (is the output logits, or another model's)"
    return Axis(name="hidden", minimum=size, maximum=size, why=why)


def pool(rows: Array, modes: Sequence[str], skip: int = 0) -> Array:
    """Pools a text's token vectors to a single vector.

    Args:
        rows: floats [tokens, hidden] of any precision, with special tokens and without padding.
        modes: keys of POOLING, at least one, in the order of concatenation.
        skip: the number of leading (prompt) tokens to omit, less than ``tokens``.

    Returns:
        float32 [modes * hidden], a new array.
    """
    rows = rows.astype(np.float32, copy=False)
    return np.concatenate([POOLING[mode](rows, skip) for mode in modes])


def span_means(rows: Array, spans: Sequence[range]) -> Array:
    """Means of ranges of tokens, float32 [spans, hidden], from rows [tokens, hidden].

    The time does not depend on the lengths of the ranges, which may overlap. Each range has at least one token.
    """
    sums = np.zeros((len(rows) + 1, rows.shape[1]))  # float64: differences of sums in float32 would lose digits
    np.cumsum(rows, axis=0, dtype=np.float64, out=sums[1:])
    starts, ends = np.array([span.start for span in spans], np.int64), np.array([span.stop for span in spans], np.int64)
    means: Array = (sums[ends] - sums[starts]) / (ends - starts)[:, np.newaxis]
    return means.astype(np.float32)


def unit(vector: Array) -> Array:
    """Normalizes a vector to an L2 norm of 1: x / max(||x||, 1e-12)."""
    normalized: Array = vector / np.maximum(np.sqrt(vector @ vector), np.float32(1e-12))
    return normalized


def require_finite_vectors(vectors: Array) -> None:
    """Raises PredictorError if a component is NaN or infinite."""
    if not np.isfinite(vectors).all():
        raise PredictorError("the model answered with a vector that has NaN or infinite components")


def _mean(rows: Array, skip: int) -> Array:
    mean: Array = rows[skip:].sum(axis=0) / np.float32(len(rows) - skip)
    return mean


def _mean_sqrt_len(rows: Array, skip: int) -> Array:
    mean: Array = rows[skip:].sum(axis=0) / np.sqrt(np.float32(len(rows) - skip))
    return mean


def _weighted_mean(rows: Array, skip: int) -> Array:
    # The weights are positions in the whole text, including the prompt.
    weights = np.arange(skip + 1, len(rows) + 1, dtype=np.float32)
    mean: Array = (rows[skip:] * weights[:, np.newaxis]).sum(axis=0) / weights.sum()
    return mean


POOLING: Mapping[str, Callable[[Array, int], Array]] = {
    "cls": lambda rows, skip: rows[skip],
    "max": lambda rows, skip: rows[skip:].max(axis=0),
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": lambda rows, skip: rows[-1],
}
"""The pooling modes of sentence-transformers: functions of [tokens, hidden] and ``skip``, with the result [hidden]."""
