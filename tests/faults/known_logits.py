"""Logits that are a function of the token ids alone: the model of the fault suite computes them, and its clients too.

Runs in Triton's environment as well: numpy 1 and 2, nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_WEIGHTS = np.arange(1, 513, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
_MIXERS = np.arange(1, 65, dtype=np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F) | np.uint64(1)
_SHIFT = np.uint64(40)
"""Leaves 24 bits, which FP32 holds exactly."""


def known_logits(ids: Any, mask: Any, version: int, labels: int) -> Any:
    """FP32 [B, labels] of whole numbers below 2**24, from token ids INT64 [B, S], their mask and a model version.

    Every id and its place count, padding does not: an answer to another text, or to a cut or shifted one, has other
    numbers.
    """
    kept = np.where(mask != 0, ids + 1, 0).astype(np.uint64)
    sums = (kept * _WEIGHTS[: ids.shape[1]]).sum(axis=1, dtype=np.uint64)
    sums = sums ^ (sums >> np.uint64(29)) ^ np.full_like(sums, version).astype(np.uint64)
    return ((sums[:, np.newaxis] * _MIXERS[:labels]) >> _SHIFT).astype(np.float32)
