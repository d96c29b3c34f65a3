"""Triton's generate extension: tensors as plain JSON values by their names. No sockets.

A request is an object with a value for each input, a response one for each output, beside ``model_name`` and the like.
A value is an element, or a flat list of more or fewer than one: Triton makes the shape from the model's configuration,
the innermost free axis being as long as it takes and the other free ones 1.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import orjson

from hf_transformer.by_identity import ByIdentity
from hf_transformer.errors import PredictorError
from hf_transformer.protocol.datatypes import json_kind, shorten
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
