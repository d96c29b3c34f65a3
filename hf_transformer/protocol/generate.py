"""Triton's generate extension: tensors as plain JSON values by their names. No sockets.

A request is an object with a value for each input, a response one for each output, beside ``model_name`` and the like.
A value is an element, or a flat list of more or fewer than one: Triton makes the shape from the model's configuration,
the innermost free axis being as long as it takes and the other free ones 1.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import orjson

from hf_transformer.by_identity import ByIdentity
from hf_transformer.errors import PredictorError
from hf_transformer.protocol.tensors import Malformed, json_kind, shorten
from hf_transformer.types import Array, Json, Tensor

JSON_CANT: Final = frozenset({"FP16", "BF16"})
"""Datatypes that Triton reads and writes as raw bytes alone."""

KEPT_MEMBERS: Final = 256
"""Tensors whose JSON is kept."""

LONGEST_MEMBER: Final = 1024
"""Bytes of JSON that is kept."""

_RESERVED: Final = frozenset({"id", "model_name", "model_version"})
"""What stands in a response beside its outputs."""

_BEYOND: Final = 2**63
"""The least number that is no INT64; JSON's parser gives none below."""

_INT64, _OBJECT = np.dtype(np.int64), np.dtype(np.object_)
_array, _empty = np.array, np.empty


class GenerateEncoder:
    """Writes the bodies of one model's requests. A value that nobody can change is written once: most of a request's
    tensors are the very same as the last one's."""

    def __init__(self) -> None:
        self._kept = ByIdentity[bytes](KEPT_MEMBERS)

    def encode(self, inputs: Sequence[Tensor]) -> bytes:
        """The body of a request.

        Raises:
            PredictorError: an input can't travel as JSON: it is of FP16 or BF16, or its bytes are no text.
        """
        kept = self._kept
        return b"{%s}" % b",".join([kept.get(id(tensor)) or self._member(tensor) for tensor in inputs])

    def _member(self, tensor: Tensor) -> bytes:
        """One of the body's members: a name and a value."""
        data = tensor.data
        value = data.item() if data.size == 1 else None
        # A text takes half the time so; of a request it is what is new.
        member = orjson.dumps({tensor.name: value if type(value) is str else _json(tensor)})[1:-1]
        if value is not None and not data.flags.writeable and len(member) <= LONGEST_MEMBER:
            self._kept.keep(tensor, member)
        return member


def _json(tensor: Tensor) -> Json:
    if tensor.datatype in JSON_CANT:
        raise PredictorError(
            f"the request can't be written: tensor {tensor.name!r} is {tensor.datatype}, which JSON has no form for"
        )
    values = tensor.data.reshape(-1).tolist()
    if tensor.datatype == "BYTES":
        try:
            values = [value if isinstance(value, str) else bytes(value).decode() for value in values]
        except UnicodeDecodeError as exc:
            raise PredictorError(f"the request can't be written: tensor {tensor.name!r} is no text in UTF-8") from exc
    return values[0] if len(values) == 1 else values


def decode_generate_response(body: bytes, outputs: Collection[str]) -> tuple[str, dict[str, Tensor]]:
    """The error that a response is, empty if it is none, and those of ``outputs`` that it has; all where none is named.

    Every tensor has one axis, and is INT64, FP64, BOOL or BYTES, whatever it was before it became JSON.

    Raises:
        PredictorError: it is no such response.
    """
    try:
        response = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise PredictorError(f"the predictor's response is malformed: not JSON: {exc}") from exc
    if not isinstance(response, dict):
        raise PredictorError(f"the predictor's response is malformed: {json_kind(response)} is not a JSON object")
    if "error" in response and "error" not in outputs:
        error = response["error"]
        return (error if isinstance(error, str) and error else repr(error)), {}
    tensors = {}
    for name in outputs or response.keys() - _RESERVED:
        if name in response:
            value = response[name]
            # A text or a number, as nearly all outputs of streams are; ``_tensor`` takes up to three times as long.
            if type(value) is str:
                data = _empty(1, _OBJECT)
                data[0] = value.encode()
                tensors[name] = Tensor(name, "BYTES", data)
            elif type(value) is int and value < _BEYOND:
                tensors[name] = Tensor(name, "INT64", _array((value,), _INT64))
            else:
                tensors[name] = _tensor(name, value)
    return "", tensors


def _tensor(name: str, value: Json) -> Tensor:
    values = value if isinstance(value, list) else [value]
    kinds = {type(values[0])} if len(values) == 1 else set(map(type, values))
    if kinds <= {str}:
        return Tensor(name, "BYTES", _objects([text.encode() for text in values]))
    try:
        if kinds == {bool}:
            return Tensor(name, "BOOL", np.array(values, np.bool_))
        if kinds == {int}:
            return Tensor(name, "INT64", np.array(values, np.int64))
        if kinds <= {int, float}:
            return Tensor(name, "FP64", np.array(values, np.float64))
    except OverflowError as exc:
        raise PredictorError(f"the predictor's response is malformed: {name!r} holds a number beyond 64 bits") from exc
    raise PredictorError(
        f"the predictor's response is malformed: {shorten(name)!r} is {json_kind(value)}, "
        "expected an element, or a flat list of one kind"
    )


def _objects(values: Sequence[Any]) -> Array:
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array


_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_ONE_EVENT: Final = re.compile(rb"data: ([^\r\n]*)\n\n")
"""What comes at a time from a server that streams as it goes: read in a third of the time."""
_BOM: Final = b"\xef\xbb\xbf"


class EventReader:
    """The events of one stream. Only their data is of interest: names, ids and comments are read past."""

    _rest = b""
    _size = 0
    _begun = False

    def __init__(self, limit: int) -> None:
        """limit: the most bytes of one event."""
        self._limit = limit
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete with these bytes; several data lines of one are joined by LF.

        An event is complete at its empty line. What the stream ends without one is no event, as the standard has it.

        Raises:
            Malformed: an event is larger than the limit.
        """
        if not self._rest and not self._data:
            match = _ONE_EVENT.fullmatch(data)
            if match is not None and len(data) <= self._limit:
                self._begun = True
                return [match[1]]
        buffer = self._rest + data if self._rest else data
        if not self._begun:
            if _BOM.startswith(buffer[:3]) and len(buffer) < 3:
                self._rest = buffer
                return []
            buffer = buffer.removeprefix(_BOM)
            self._begun = True
        events: list[bytes] = []
        position = 0
        for end in _LINE_END.finditer(buffer):
            if end.end() == len(buffer) and buffer.endswith(b"\r"):
                break  # its LF may come with the next bytes
            self._take(buffer[position : end.start()], events)
            position = end.end()
        self._rest = buffer[position:]
        if self._size + len(self._rest) > self._limit:
            raise Malformed(f"an event of its stream has more than {self._limit} bytes")
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        """One line without its end."""
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
            self._data, self._size = [], 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._size += len(value)
