"""Vectorized float32 arithmetic for tasks, on views of the predictor's buffer."""

from __future__ import annotations

from math import isfinite

import numpy as np

from hf_transformer.errors import PredictorError
from hf_transformer.types.tensors import Array

BLOCKS, MIN_BLOCKED_SCORES = 64, 4096
"""The number of blocks in ``top_k``, and the minimum number of scores for blocks."""


def softmax(logits: Array) -> Array:
    """exp(x) / sum(exp(x)) over the last axis in float32, shifted by the maximum to prevent overflow."""
    shifted = logits.astype(np.float32)
    shifted -= shifted.max(axis=-1, keepdims=True)
    np.exp(shifted, out=shifted)
    shifted /= shifted.sum(axis=-1, keepdims=True)
    return shifted


def sigmoid(logits: Array) -> Array:
    """1 / (1 + exp(-x)) of each element in float32, without overflow."""
    values = logits.astype(np.float32)
    small = np.exp(-np.abs(values))
    probabilities: Array = np.where(values >= 0, np.float32(1), small) / (1 + small)
    return probabilities


def softmax_at(logits: Array, indices: Array) -> Array:
    """``softmax(logits)[indices]``, float32 [K], of a row [N] at a few indices [K]."""
    shifted = logits.astype(np.float32)
    shifted -= shifted.max()
    np.exp(shifted, out=shifted)
    probabilities: Array = shifted[indices] / shifted.sum()
    return probabilities


def top_k(scores: Array, k: int) -> Array:
    """Indices of the ``k`` highest ``scores`` [N] in descending order of scores; all indices if k exceeds N.

    The indices of equal scores are in ascending order.
    """
    size = scores.shape[-1]
    if k >= size:
        return np.argsort(-scores, kind="stable")
    if k <= BLOCKS // 2 and size >= MIN_BLOCKED_SCORES:
        # Ten times as fast as partitioning all scores. The k highest block maxima are scores too, so lower scores
        # can't be among the k highest.
        maxima = scores[: size - size % BLOCKS].reshape(BLOCKS, -1).max(axis=1)
        least = np.partition(maxima, -k)[-k]
    else:
        least = np.partition(scores, -k)[-k]
    best = np.flatnonzero(scores >= least)
    return best[np.argsort(-scores[best], kind="stable")[:k]]


def require_numbers(logits: Array) -> None:
    """Raises PredictorError if a row of ``logits`` [R, N] contains NaN or +inf, or only -inf.

    In such a row, argmax would return a wrong class and softmax NaN. -inf is valid as the logit of a banned token.
    """
    require_finite(logits.max(axis=-1))


def argmax(logits: Array) -> int:
    """The first index of the maximum of ``logits`` [N]. Raises PredictorError, as ``require_numbers`` does."""
    # No second pass is necessary: argmax returns the index of a NaN, and in other invalid rows the maximum is infinite.
    index = int(logits.argmax())
    if not isfinite(logits[index]):
        require_finite(logits[index])
    return index


def require_finite(maxima: Array) -> None:
    """Implements ``require_numbers`` for the maxima [R] of rows; the maximum of a row with NaN is NaN."""
    if not np.isfinite(maxima).all():
        raise PredictorError("the model answered with logits that are not finite numbers (NaN or infinite)")
