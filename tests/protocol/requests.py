"""Whole requests, as the REST codec's pieces make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hf_transformer.protocol.rest import encode_infer_request
from hf_transformer.protocol.tensors import NOWHERE, Placement
from hf_transformer.types import Tensor


def encoded(
    inputs: Sequence[Tensor], outputs: Sequence[str], placements: Mapping[str, Placement] = NOWHERE
) -> tuple[bytes, int]:
    """The body of a request, and the length of its JSON header."""
    header, chunks = encode_infer_request(inputs, outputs, placements)
    return b"".join((header, *chunks)), len(header)
