"""Quantization of vectors to bytes or bits.

The result of a text depends on this text alone. sentence-transformers' quantize_embeddings also derives the ranges of
int8 and uint8 from the batch, which a service can't do, since a text would have another answer in each batch.

Source: sentence_transformers/util/quantization.py of sentence-transformers 6.2.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hf_transformer.types.tensors import Array

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
"""The values of the parameter ``precision``."""
BITS = ("binary", "ubinary")
"""The precisions with a bit per component."""
BYTES = ("int8", "uint8")
"""The precisions with a byte per component."""
DATATYPES: Mapping[str, str] = {
    "float32": "FP32",
    "int8": "INT8",
    "uint8": "UINT8",
    "binary": "INT8",
    "ubinary": "UINT8",
}
"""The protocol's datatype of each precision."""
STEP = np.float32(2 / 255)
"""The width of the 256 intervals of [-1, 1]."""


def quantize(vectors: Array, precision: str, *, zero: bool = False) -> Array:
    """Quantizes a vector [D] or vectors [N, D].

    int8 and uint8 divide the range [-1, 1] of a unit vector's components into 255 steps: floor((x + 1) / step), from 0
    to 255, for int8 less 128. These are the values of sentence-transformers for ``ranges`` of -1 and 1. binary and
    ubinary pack a bit per component, the first component into the highest bit, and fill the last byte of each row with
    zeros; for binary less 128.

    Args:
        vectors: float32; unit vectors for int8 and uint8, since components outside [-1, 1] are clipped.
        precision: one of PRECISIONS.
        zero: whether a component of 0 sets its bit. False is the rule of sentence-transformers (x > 0), true that of
            vLLM's Cohere route (x >= 0).

    Returns:
        int8, uint8 or float32: [D] or [N, D], for bits [ceil(D / 8)] or [N, ceil(D / 8)].
    """
    if precision in BITS:
        packed: Array = np.packbits(vectors >= 0 if zero else vectors > 0, axis=-1)
        return packed if precision == "ubinary" else signed(packed)
    if precision in BYTES:
        levels = np.clip(np.floor((vectors + np.float32(1)) / STEP), 0, 255).astype(np.uint8)
        return levels if precision == "uint8" else signed(levels)
    return vectors


def signed(levels: Array) -> Array:
    """Shifts uint8 from 0..255 to int8 from -128..127."""
    shifted: Array = (levels.astype(np.int16) - 128).astype(np.int8)
    return shifted
