"""Sparse vectors: weights of tokens of the vocabulary.

SPLADE derives them from a masked language model's logits, BGE-M3 from a learned weight per token of the text.

Source: sentence_transformers/sparse_encoder/modules/splade_pooling.py of sentence-transformers 6.2, and
_process_token_weights in FlagEmbedding/inference/embedder/encoder_only/m3.py of FlagEmbedding 1.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hf_transformer.tasks.numerics import top_k
from hf_transformer.types.tensors import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class SparsePooling:
    """The settings of a SparseEncoder folder.

    Attributes:
        strategy: "max" or "sum" over the tokens (SpladePooling's pooling_strategy).
        activation: a key of ACTIVATIONS (SpladePooling's activation_function).
        max_active: the maximum number of weights; the highest ones remain. None keeps all.
        normalize: whether a Normalize module follows.
        inside: a module with weights (SparseAutoEncoder) that only the model itself can apply, so that the model's
            output is the sparse vector.
    """

    strategy: str = "max"
    activation: str = "relu"
    max_active: int | None = None
    normalize: bool = False
    inside: str | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """A sparse vector: int64 ``indices`` [N] in ascending order, each once, and positive float32 ``values`` [N]."""

    indices: Array
    values: Array

    def answer(self) -> dict[str, Array]:
        """The form of an answer."""
        return {"indices": self.indices, "values": self.values}


def _log1p(values: Array) -> Array:
    return np.log1p(np.maximum(values, 0))


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "relu": _log1p,
    "log1p_relu": lambda values: np.log1p(_log1p(values)),
}
"""The activation functions by their name in sentence-transformers, each followed by log(1 + x). All of them preserve
the order of values."""


def splade(logits: Array, pooling: SparsePooling) -> Array:
    """Pools a text's logits [tokens, vocabulary], special tokens included, to weights, float32 [vocabulary]."""
    activation = ACTIVATIONS[pooling.activation]
    if pooling.strategy == "sum":
        summed = np.zeros(logits.shape[1], np.float32)
        for row in logits:  # one at a time, since copies of all logits take gigabytes
            summed += activation(row.astype(np.float32))
        return summed
    # The activation preserves the order, so one row suffices for it.
    if logits.dtype == np.float32:
        return activation(logits.max(axis=0))
    highest_logits = np.full(logits.shape[1], -np.inf, np.float32)
    for row in logits:  # numpy compares FP16 four times as slowly as it converts it
        np.maximum(highest_logits, row, out=highest_logits, dtype=np.float32)
    return activation(highest_logits)


def nonzero(weights: Array) -> Weights:
    """Converts weights [vocabulary] to the sparse form, without weights of zero or below."""
    indices = np.flatnonzero(weights > 0)
    return Weights(indices, weights[indices].astype(np.float32))


def lexical(weights: Array, ids: Sequence[int], dropped: Array) -> Weights:
    """Merges a weight per token [tokens] to a weight per id, the maximum, as BGE-M3 does.

    Args:
        weights: floats; values of zero or below count as no weight.
        ids: the ids of the tokens.
        dropped: the ids of special tokens [S], which have no weight.
    """
    numbers = np.array(ids, np.int64)
    kept = (weights > 0) & ~np.isin(numbers, dropped)
    return merge([Weights(numbers[kept], weights[kept].astype(np.float32))], "max")


def merge(parts: Sequence[Weights], strategy: str) -> Weights:
    """Merges weights, such as those of a text's windows, with the maximum or the sum for equal indices."""
    if len(parts) == 1 and strategy == "sum":
        return parts[0]
    indices, inverse = np.unique(np.concatenate([part.indices for part in parts]), return_inverse=True)
    values = np.zeros(len(indices), np.float32)
    combine = np.add if strategy == "sum" else np.maximum
    combine.at(values, inverse, np.concatenate([part.values for part in parts]))
    return Weights(indices, values)


def highest(weights: Weights, count: int | None) -> Weights:
    """The ``count`` highest weights; all for None."""
    if count is None or count >= len(weights.values):
        return weights
    best = np.sort(top_k(weights.values, count))
    return Weights(weights.indices[best], weights.values[best])


def unit_weights(weights: Weights) -> Weights:
    """Scales weights to an L2 norm of 1. Weights without any index stay empty."""
    norm = np.sqrt(weights.values @ weights.values)
    return Weights(weights.indices, weights.values / np.maximum(norm, np.float32(1e-12)))
