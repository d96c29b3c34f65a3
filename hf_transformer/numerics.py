"""The arithmetic of the tasks: vectorised, on views of the predictor's buffer, in float32."""

from __future__ import annotations

import numpy as np

from hf_transformer.errors import PredictorError
from hf_transformer.types import Array


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


def top_k(scores: Array, k: int) -> Array:
    """Indices of the ``k`` highest of ``scores`` [N], the highest first; all of them if k is larger than N."""
    if k >= scores.shape[-1]:
        return np.argsort(-scores, kind="stable")
    best = np.argpartition(scores, -k)[-k:]
    return best[np.argsort(-scores[best], kind="stable")]


def require_numbers(logits: Array) -> None:
    """Raises PredictorError where a row of ``logits`` [R, N] has NaN or +inf, or nothing but -inf.

    argmax would call such an element the best class, and softmax would turn the whole row into NaN. A single -inf is a
    legitimate logit: that of a banned token.
    """
    # max() of a row is NaN as soon as one element is.
    if not np.isfinite(logits.max(axis=-1)).all():
        raise PredictorError("the model answered with logits that are not finite numbers (NaN or infinite)")
