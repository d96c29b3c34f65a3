"""The arithmetic of the tasks: vectorised, on views of the predictor's buffer, in float32."""

from __future__ import annotations

from math import isfinite

import numpy as np

from hf_transformer.errors import PredictorError
from hf_transformer.types.tensors import Array

BLOCKS, MIN_BLOCKED_SCORES = 64, 4096
"""The number of blocks in ``top_k``, and the number of scores from which blocks pay."""


def softmax(logits: Array) -> Array:
    """exp(x) / sum(exp(x)) over the last axis, shifted by the maximum so that exp can't overflow.

    Args:
        logits: floats of any precision, [..., N].

    Returns:
        float32 probabilities, [..., N].
    """
    shifted = logits.astype(np.float32)
    shifted -= shifted.max(axis=-1, keepdims=True)
    np.exp(shifted, out=shifted)
    shifted /= shifted.sum(axis=-1, keepdims=True)
    return shifted


def sigmoid(logits: Array) -> Array:
    """1 / (1 + exp(-x)) of each element, in a form whose exp can't overflow.

    Args:
        logits: floats of any precision and shape.

    Returns:
        float32 probabilities of the same shape.
    """
    values = logits.astype(np.float32)
    small = np.exp(-np.abs(values))
    probabilities: Array = np.where(values >= 0, np.float32(1), small) / (1 + small)
    return probabilities


def softmax_at(logits: Array, indices: Array) -> Array:
    """``softmax(logits)[indices]`` of one row [N], for a few indices [K]: float32 [K]."""
    shifted = logits.astype(np.float32)
    shifted -= shifted.max()
    np.exp(shifted, out=shifted)
    probabilities: Array = shifted[indices] / shifted.sum()
    return probabilities


def top_k(scores: Array, k: int) -> Array:
    """Indices of the ``k`` highest of ``scores`` [N], the highest first; all of them if k is larger than N.

    Equal scores come in the order of their indices.
    """
    size = scores.shape[-1]
    if k >= size:
        return np.argsort(-scores, kind="stable")
    if k <= BLOCKS // 2 and size >= MIN_BLOCKED_SCORES:
        # Ten times as fast as partitioning all scores. The k highest maxima of blocks are scores themselves, so no
        # score below them is among the k highest.
        maxima = scores[: size - size % BLOCKS].reshape(BLOCKS, -1).max(axis=1)
        least = np.partition(maxima, -k)[-k]
    else:
        least = np.partition(scores, -k)[-k]
    best = np.flatnonzero(scores >= least)
    return best[np.argsort(-scores[best], kind="stable")[:k]]


def require_numbers(logits: Array) -> None:
    """Raises PredictorError if a row of ``logits`` [R, N] has NaN or +inf, or only -inf.

    argmax takes such an element for the best class, and softmax turns the whole row into NaN. A single -inf is
    legitimate: the logit of a banned token.
    """
    require_finite(logits.max(axis=-1))


def argmax(logits: Array) -> int:
    """The index of the highest of ``logits`` [N], the first of equal ones.

    Raises PredictorError in the cases of ``require_numbers``.
    """
    # No second pass: numpy's argmax treats NaN as the highest, and +inf or only -inf make the highest infinite.
    index = int(logits.argmax())
    if not isfinite(logits[index]):
        require_finite(logits[index])
    return index


def require_finite(maxima: Array) -> None:
    """Does the work of ``require_numbers`` for the maxima [R] of rows; the maximum of a row with NaN is NaN."""
    if not np.isfinite(maxima).all():
        raise PredictorError("the model answered with logits that are not finite numbers (NaN or infinite)")
