"""Whole requests, as the codec's pieces make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hf_transformer.protocol.rest import InferCalls
from hf_transformer.protocol.tensors import NOWHERE, Placement
from hf_transformer.types import Tensor


def encoded(
    inputs: Sequence[Tensor],
    outputs: Sequence[str],
    placements: Mapping[str, Placement] = NOWHERE,
    calls: InferCalls | None = None,
) -> tuple[bytes, int]:
    """The body of a request, and the length of its JSON header."""
    header, chunks, length = (calls or InferCalls()).encode(inputs, outputs, placements)
    body = b"".join((header, *chunks))
    assert len(body) == length
    return body, len(header)
