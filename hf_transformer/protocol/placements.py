"""Outputs that the predictor writes into shared memory instead of into its response. No sockets, no files.

Both forms of the V2 protocol name the place by three parameters of the requested output. The response has the output's
name, datatype and shape, and nothing else.

Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_shared_memory.md
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hf_transformer.protocol.datatypes import Malformed, decode_raw
from hf_transformer.types import NUMPY_DTYPES, Tensor

REGION, OFFSET, BYTE_SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one output goes: ``memory`` is the part of the region, from ``offset`` on, that belongs to it."""

    region: str
    offset: int
    memory: memoryview

    @property
    def parameters(self) -> dict[str, str | int]:
        """What the request says of the output."""
        return {REGION: self.region, OFFSET: self.offset, BYTE_SIZE: len(self.memory)}


NOWHERE: Mapping[str, Placement] = {}


def placed_tensor(name: str, datatype: str, shape: Sequence[int], placement: Placement) -> Tensor:
    """A tensor over what the predictor has written, which may be less than there is room for.

    Raises:
        Malformed: the tensor is larger than its place, or of a datatype whose size nobody knows beforehand.
    """
    if datatype == "BYTES":
        raise Malformed(f"tensor {name!r} is BYTES, which shared memory was not asked for")
    itemsize = 2 if datatype == "BF16" else NUMPY_DTYPES[datatype].itemsize
    size = math.prod(shape) * itemsize
    room = len(placement.memory)
    if size > room:
        raise Malformed(f"tensor {name!r} is {datatype} {list(shape)}, {size} bytes, but has room for {room}")
    return Tensor(name, datatype, decode_raw(name, datatype, shape, placement.memory[:size]))
