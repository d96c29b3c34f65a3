"""Bodies of REST calls: how large ones are sent without a copy, and received where their tensors are aligned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from hf_transformer.errors import PredictorError
from hf_transformer.protocol import rest as v2_rest
from hf_transformer.protocol.tensors import Malformed

JOINED: Final = 2**16
"""Bytes of what is copied so that it leaves in one piece. Megabytes are sent from where they are: to join 100 MB of
keys and values holds the event loop up for 50 ms."""

_ALIGNMENT = 64
_WORTH_ALIGNING = 16 * 1024
"""Bytes of a body; for less it costs more to find the address than it saves."""

LENGTH_KEY: Final = v2_rest.HEADER_LENGTH.lower()


def pieces(first: bytes, chunks: Sequence[bytes | memoryview]) -> tuple[bytes, Sequence[bytes | memoryview]]:
    """What is to be sent, with large chunks as they are and the small ones between them joined."""
    parts: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = [first]
    for chunk in chunks:
        if len(chunk) <= JOINED:
            small.append(chunk)
            continue
        if small:
            parts.append(b"".join(small))
            small = []
        parts.append(chunk)
    parts.append(b"".join(small))
    return bytes(parts[0]), [part for part in parts[1:] if part]


def aligned_room(size: int, headers: Mapping[str, str]) -> memoryview:
    """The place for a body, chosen so that the first binary tensor behind the JSON header is aligned.

    Over elements at odd addresses an argmax takes numpy more than twice as long.
    """
    if size < _WORTH_ALIGNING:
        return memoryview(bytearray(size))
    try:
        room = np.empty(size + _ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as exc:
        raise PredictorError(f"the predictor's response of {size} bytes does not fit into memory") from exc
    address = room.__array_interface__["data"][0]
    start = -(address + (header_length_of(headers) or 0)) % _ALIGNMENT
    return room.data[start : start + size]


def header_length_of(headers: Mapping[str, str]) -> int | None:
    """Bytes of the JSON header of a body; None where all of it is JSON. Raises PredictorError."""
    try:
        return v2_rest.parse_header_length(headers.get(LENGTH_KEY))
    except Malformed as exc:
        raise PredictorError(f"the predictor's response is malformed: {exc}") from exc
