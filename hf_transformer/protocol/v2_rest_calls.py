"""The calls of one model over HTTP: bodies <-> tensors as in v2_rest, where most calls resemble an earlier one.

A request's JSON header says names, datatypes and shapes, and a response's as well. Both are the same, byte for byte,
for batches of one shape; so they are written once, and read and verified once. No sockets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import orjson

from hf_transformer.errors import PredictorError
from hf_transformer.protocol.datatypes import Malformed, raw_view
from hf_transformer.protocol.placements import NOWHERE, Placement
from hf_transformer.protocol.v2_rest import decode_infer_response, encode_infer_header
from hf_transformer.types import NUMPY_DTYPES, Array, Tensor

MOST = 256
"""Headers that are kept, of requests and of responses."""

LONGEST = 4096
"""Bytes of a header that is kept."""


class InferCalls:
    """Writes the requests of one model and reads their responses, as ``decode_infer_response`` would."""

    def __init__(self) -> None:
        self._headers: dict[tuple[object, ...], tuple[bytes, int]] = {}
        self._layouts: dict[bytes, _Layout] = {}

    def encode(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], placements: Mapping[str, Placement] = NOWHERE
    ) -> tuple[bytes, list[bytes | memoryview], int]:
        """The body of a request: its JSON header, see ``encode_infer_header``, what stands behind that, in pieces, and
        the number of bytes of all.

        Pieces of large tensors are views of them, where they are already as they should be: nobody may change those
        before the request is answered.

        Raises:
            PredictorError: an input's data doesn't fit its datatype.
        """
        chunks: list[bytes | memoryview] = []
        told: list[object] = [*outputs, None]
        try:
            for tensor in inputs:
                chunk = raw_view(tensor)
                chunks.append(chunk)
                told += (tensor.name, tensor.datatype, tensor.data.shape, len(chunk))
        except Malformed as exc:
            raise PredictorError(f"the request can't be written: {exc}") from exc
        for name, place in placements.items():
            told += (name, place.region, place.offset, len(place.memory))
        key = tuple(told)
        known = self._headers.get(key)
        if known is None:
            sizes = [len(chunk) for chunk in chunks]
            header = encode_infer_header(inputs, sizes, outputs, placements)
            known = header, len(header) + sum(sizes)
            if len(header) <= LONGEST:
                if len(self._headers) >= MOST:
                    self._headers.clear()
                self._headers[key] = known
        header, length = known
        return header, chunks, length

    def decode(
        self, body: memoryview, header_length: int | None, placements: Mapping[str, Placement] = NOWHERE
    ) -> dict[str, Tensor]:
        """The tensors of a response by name, as views of ``body`` and of their places.

        Raises:
            PredictorError: the body breaks the protocol, or is an error in spite of its status.
        """
        length = len(body) if header_length is None else header_length
        if not 0 <= length <= min(len(body), LONGEST):
            return decode_infer_response(body, header_length, placements)
        header = bytes(body if length == len(body) else body[:length])
        layout = self._layouts.get(header)
        if layout is not None:
            known = layout.tensors(body, placements)
            if known is not None:
                return known
        tensors = decode_infer_response(body, header_length, placements)
        if layout is None and (layout := _layout(header)) is not None:
            if len(self._layouts) >= MOST:
                self._layouts.clear()
            self._layouts[header] = layout
        return tensors


_Entry: TypeAlias = tuple[str, str, np.dtype[Any], tuple[int, ...], int, int | None]
"""Name, datatype (also as numpy's), shape, bytes, and where it begins; see _Layout."""


class _Layout:
    """What a response's header says, once it was found to be right: each tensor's name, datatype, shape and size in
    bytes, and where it begins in the body, None where it has been written to its place in shared memory."""

    __slots__ = ("_entries", "_length")

    def __init__(
        self, entries: Sequence[tuple[str, str, np.dtype[Any], tuple[int, ...], int, int | None]], length: int
    ) -> None:
        self._entries = entries
        self._length = length

    def tensors(self, body: memoryview, placements: Mapping[str, Placement]) -> dict[str, Tensor] | None:
        """The tensors of a body with this header; None where it is not of the right length, or a tensor has no place
        or not enough of it."""
        if len(body) != self._length:
            return None
        tensors = {}
        for name, datatype, dtype, shape, size, start in self._entries:
            if start is not None:
                data: Array = np.ndarray(shape, dtype, body, start)
            else:
                place = placements.get(name)
                if place is None or size > len(place.memory):
                    return None
                data = np.ndarray(shape, dtype, place.memory)
            tensors[name] = Tensor(name, datatype, data)
        return tensors


def _layout(header: bytes) -> _Layout | None:
    """The layout of a response that was decoded with this header; None where its tensors are no plain views of bytes:
    JSON, BOOL, BF16, BYTES and those without elements."""
    entries = []
    start = len(header)
    for entry in orjson.loads(header)["outputs"]:
        name, datatype, shape = entry["name"], entry["datatype"], tuple(entry["shape"])
        size = prod(shape) * (0 if datatype in ("BOOL", "BF16", "BYTES") else NUMPY_DTYPES[datatype].itemsize)
        if not size or "data" in entry:
            return None
        parameters = entry.get("parameters")  # of one that was placed, anything at all
        placed = not (isinstance(parameters, dict) and "binary_data_size" in parameters)
        entries.append((name, datatype, NUMPY_DTYPES[datatype], shape, size, None if placed else start))
        start += 0 if placed else size
    return _Layout(entries, start)
