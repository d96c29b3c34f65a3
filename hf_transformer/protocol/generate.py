"""Triton's generate extension: tensors as plain JSON values by name, streams of server-sent events. No sockets.

A request is an object with a value for each input. A response has a value for each output, and keys such as
``model_name``. A value is one element, or a flat list of none or several. Triton derives the shape from the model's
configuration: the innermost free axis holds all elements, other free axes have the length 1.

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
from hf_transformer.types.tensors import NUMPY_DTYPES, Array, Tensor

_MAX_EVENT_LINES = 10_000
"""The maximum number of data lines in one event. Each takes 40 bytes of overhead; Triton's events have one line."""
_LINE_END = re.compile(rb"\r\n|\n|\r")


def encode_generate_request(inputs: Sequence[Tensor]) -> bytes:
    """The body of a request. Raises Unwritable for FP16, BF16 and bytes that are not UTF-8: JSON can't hold them."""
    return orjson.dumps({tensor.name: _json(tensor) for tensor in inputs})


def _json(tensor: Tensor) -> Json:
    if tensor.datatype in ("FP16", "BF16"):
        raise Unwritable(tensor.name, "a datatype that JSON can hold", tensor.datatype)
    values = tensor.data.reshape(-1).tolist()
    if tensor.datatype == "BYTES":
        try:
            values = [value if isinstance(value, str) else bytes(value).decode() for value in values]
        except UnicodeDecodeError as exc:
            raise Unwritable(tensor.name, "text in UTF-8") from exc
    return values[0] if len(values) == 1 else values


def decode_generate_response(body: bytes, outputs: Collection[str]) -> tuple[str, dict[str, Tensor]]:
    """The response's error, empty without one, and the tensors of ``outputs``; an empty ``outputs`` means all.

    Every tensor has one axis, and the datatype INT64, FP64, BOOL or BYTES, since JSON does not carry the model's.
    Raises Malformed for a response of another form.
    """
    response = json_object(parse_answer(body))
    if "error" in response and "error" not in outputs:
        error = response["error"]
        return (error if isinstance(error, str) else shorten(error, 500)) or "''", {}
    names = outputs or response.keys() - {"id", "model_name", "model_version"}
    return "", {name: _tensor(name, response[name]) for name in names if name in response}


def _tensor(name: str, value: Json) -> Tensor:
    if isinstance(value, str):  # a token
        text: Array = np.empty(1, np.object_)
        text.fill(value.encode())
        return Tensor(name, "BYTES", text)
    values = value if isinstance(value, list) else [value]
    kinds = set(map(type, values))
    if kinds <= {str}:
        data = np.empty(len(values), np.object_)
        data[:] = [text.encode() for text in values]
        return Tensor(name, "BYTES", data)
    try:
        for datatype, accepted in (("BOOL", {bool}), ("INT64", {int}), ("FP64", {int, float})):
            if kinds <= accepted:
                return Tensor(name, datatype, np.array(values, NUMPY_DTYPES[datatype]))
    except OverflowError as exc:
        raise Malformed(shorten(name), "numbers of at most 64 bits") from exc
    raise Malformed(shorten(name), "an element, or a flat list of elements of one type", describe(value))


class EventReader:
    """Parses one stream of server-sent events (WHATWG HTML, 9.2.6), in pieces of any size.

    Each event has at most ``limit`` bytes of data. Names, ids and comments are skipped. A byte order mark, which Triton
    never sends, is not removed.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that these bytes complete. LF joins the data lines of one event.

        An empty line completes an event, the stream's end does not. Raises Malformed for an event over the limit.
        """
        buffer = self._rest
        search_from = max(0, len(buffer) - 1)  # don't search the same bytes twice, but a CR may get its LF
        buffer += data
        events: list[bytes] = []
        position = 0
        for end in _LINE_END.finditer(buffer, search_from):
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
        if len(self._data) > _MAX_EVENT_LINES:
            raise Malformed("body", f"events of at most {_MAX_EVENT_LINES} lines")
        if self._size + len(self._rest) > self._limit:
            limit = f"events of at most {self._limit} bytes (--max_predictor_event_bytes)"
            raise Malformed("body", limit)
        return events
