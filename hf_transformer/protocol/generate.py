"""Triton's generate extension: tensors as plain JSON values by name, streams of server-sent events. No sockets.

A request is an object with a value for each input, a response one for each output, beside ``model_name`` and the like.
A value is an element, or a flat list of more or fewer than one: Triton makes the shape from the model's configuration,
the innermost free axis being as long as it takes and the other free ones 1.

Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np
import orjson

from hf_transformer.errors import describe
from hf_transformer.protocol.json_text import json_object, parse_answer
from hf_transformer.protocol.tensors import Malformed, Unwritable, shorten
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import NUMPY_DTYPES, Tensor

_MOST_LINES = 10_000
"""Of data in one event. Each takes 40 bytes more than it has; Triton's events have one."""
_LINE_END = re.compile(rb"\r\n|\n|\r")


def encode_generate_request(inputs: Sequence[Tensor]) -> bytes:
    """The body of a request. Raises Unwritable for FP16, BF16 and bytes that are not UTF-8: JSON has no form."""
    return orjson.dumps({tensor.name: _json(tensor) for tensor in inputs})


def _json(tensor: Tensor) -> Json:
    if tensor.datatype in ("FP16", "BF16"):
        raise Unwritable(f"tensor {tensor.name!r} is {tensor.datatype}, which JSON has no form for")
    values = tensor.data.reshape(-1).tolist()
    if tensor.datatype == "BYTES":
        try:
            values = [value if isinstance(value, str) else bytes(value).decode() for value in values]
        except UnicodeDecodeError as exc:
            raise Unwritable(f"tensor {tensor.name!r} is no text in UTF-8") from exc
    return values[0] if len(values) == 1 else values


def decode_generate_response(body: bytes, outputs: Collection[str]) -> tuple[str, dict[str, Tensor]]:
    """The response's error, empty if there is none, and its tensors: those of ``outputs`` that it has, or all of them
    if ``outputs`` is empty.

    Every tensor has one axis and is INT64, FP64, BOOL or BYTES, whatever it was before it became JSON. Raises Malformed
    for anything but such a response.
    """
    response = json_object(parse_answer(body))
    if "error" in response and "error" not in outputs:
        error = response["error"]
        return (error if isinstance(error, str) else shorten(error, 500)) or "''", {}
    names = outputs or response.keys() - {"id", "model_name", "model_version"}
    return "", {name: _tensor(name, response[name]) for name in names if name in response}


def _tensor(name: str, value: Json) -> Tensor:
    values = value if isinstance(value, list) else [value]
    kinds = set(map(type, values))
    if kinds <= {str}:
        data = np.empty(len(values), np.object_)
        data[:] = [text.encode() for text in values]
        return Tensor(name, "BYTES", data)
    try:
        for datatype, taken in (("BOOL", {bool}), ("INT64", {int}), ("FP64", {int, float})):
            if kinds <= taken:
                return Tensor(name, datatype, np.array(values, NUMPY_DTYPES[datatype]))
    except OverflowError as exc:
        raise Malformed(f"{name!r} holds a number beyond 64 bits") from exc
    raise Malformed(f"{shorten(name)!r} is {describe(value)}, expected an element, or a flat list of one kind")


class EventReader:
    """Server-sent events (WHATWG HTML, 9.2.6): bytes, cut anywhere, -> the data of each event of one stream, which has
    ``limit`` bytes at most.

    Names, ids and comments are skipped. The stream begins without a byte order mark, as Triton's do.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that these bytes complete; several data lines of one event are joined by LF.

        An empty line completes an event, the stream's end does not. Raises Malformed for one larger than the limit.
        """
        buffer = self._rest
        begin = max(0, len(buffer) - 1)  # a line's end is not looked for twice, but CR may get its LF
        buffer += data
        events: list[bytes] = []
        position = 0
        for end in _LINE_END.finditer(buffer, begin):
            if end.end() == len(buffer) and buffer.endswith(b"\r"):
                break  # its LF may come with the next bytes
            line = bytes(buffer[position : end.start()])
            position = end.end()
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
                self._size += len(self._data[-1])
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data, self._size = [], 0
        if position:
            self._rest = buffer[position:]
        if len(self._data) > _MOST_LINES:
            raise Malformed(f"an event of its stream has more than {_MOST_LINES} lines")
        if self._size + len(self._rest) > self._limit:
            raise Malformed(f"an event of its stream has more than {self._limit} bytes")
        return events
