"""Instances and predictions as tensors, for the open inference protocol (V2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import orjson

from hf_transformer.errors import InvalidInput
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array, Tensor, TensorSpec, Texts

OUTPUT = "output-0"
"""KServe's name of the tensor with the predictions."""
FREE = -1
"""An axis of any size in a specification."""


@dataclass(frozen=True, slots=True)
class Field:
    """One part of an instance: a string, or with ``many`` a list of strings.

    As a tensor it is BYTES [instances, 1] or [instances], or [instances, strings], under its name or one of
    ``other_names``.
    """

    name: str
    other_names: tuple[str, ...] = ()
    many: bool = False
    optional: bool = False

    @property
    def spec(self) -> TensorSpec:
        """The tensor that holds it. The second axis is there for clients that take the first one for the batch and
        have to send something of a known shape for each instance."""
        return TensorSpec(self.name, "BYTES", (FREE, FREE if self.many else 1), self.optional)


TEXT = Field("text", ("input-0", "input_0", "input", "inputs", "instances", "text_input", "INPUT0"))
"""The only text of an instance, with the names that clients of KServe and Triton use."""


def read_instances(inputs: Mapping[str, Tensor | Texts], fields: Sequence[Field]) -> list[Json]:
    """The instances in a request's input tensors.

    An input with one row, or a list without the axis of instances, holds for all instances. An instance with nothing
    but the first field is the string itself, any other an object with a key per field. The only input may have any
    name if one field is required.

    Raises:
        InvalidInput: an input is unknown, missing, not BYTES, or of a shape that does not fit.
    """
    columns: dict[str, list[Json]] = {}
    required = [field for field in fields if not field.optional]
    only = required[0] if len(required) == 1 and len(inputs) == 1 else None
    for name, tensor in inputs.items():
        field = _find(name, fields, only if isinstance(tensor, Texts) else None)
        if field.name in columns:
            raise InvalidInput.of(f"inputs: {field.name!r} comes twice, once as {name!r}")
        columns[field.name] = _read_column(tensor, field)
    for field in required:
        if field.name not in columns:
            given = ", ".join(map(repr, inputs)) or "none"
            raise InvalidInput.of(f"inputs: {field.name!r} is missing, expected {_expected(fields)}, got {given}")
    first = fields[0]
    if len(columns) == 1 and first.name in columns and not first.many:
        return columns[first.name]
    rows = max(map(len, columns.values()), default=0)
    for name, column in columns.items():
        if len(column) not in (1, rows):
            raise InvalidInput.of(f"inputs: {name!r} has {len(column)} rows where another input has {rows}")
    whole = {name: column * rows if len(column) == 1 else column for name, column in columns.items()}
    return [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]


def _find(name: str, fields: Sequence[Field], otherwise: Field | None) -> Field:
    """The field of this name, or ``otherwise``."""
    for field in fields:
        if name == field.name or name in field.other_names:
            return field
    if otherwise is not None:
        return otherwise
    raise InvalidInput.of(f"inputs: {name[:100]!r} is unknown, expected {_expected(fields)}")


def _expected(fields: Sequence[Field]) -> str:
    return ", ".join(f"{field.name!r} (optional)" if field.optional else repr(field.name) for field in fields)


def _read_column(tensor: Tensor | Texts, field: Field) -> list[Json]:
    """One field of all instances: strings, or lists of strings."""
    if not isinstance(tensor, Texts):
        raise InvalidInput.of(f"inputs: {tensor.name!r} is {tensor.datatype}, expected BYTES (text in UTF-8)")
    shape, texts = tensor.shape, tensor.texts
    if field.many:
        if len(shape) == 1:
            return [texts]
        if len(shape) != 2:
            raise _wrong_shape(tensor, "[instances, strings], or [strings] for all instances")
        rows, strings = shape
        return [texts[row * strings : (row + 1) * strings] for row in range(rows)]
    # Triton's models with a batch axis have texts of shape [instances, 1].
    if len(shape) > 2 or (len(shape) == 2 and shape[1] != 1):
        raise _wrong_shape(tensor, "[instances] or [instances, 1]")
    return texts


def _wrong_shape(tensor: Texts, expected: str) -> InvalidInput:
    return InvalidInput.of(f"inputs: {tensor.name!r} has the shape {list(tensor.shape)}, expected {expected}")


def json_tensor(predictions: Sequence[Json]) -> Tensor:
    """``output-0`` BYTES [instances], each prediction as JSON text."""
    return bytes_tensor([orjson.dumps(one, option=orjson.OPT_SERIALIZE_NUMPY) for one in predictions])


def bytes_tensor(elements: Sequence[bytes]) -> Tensor:
    """``output-0`` BYTES [instances]."""
    data = np.empty(len(elements), np.object_)
    data[:] = elements
    return Tensor(OUTPUT, "BYTES", data)


def ragged_tensor(rows: Sequence[Array], datatype: str, filling: float) -> Tensor:
    """``output-0`` of arrays [tokens, ...] of different lengths: [instances, 1, tokens, ...], the rest is ``filling``.

    The second axis has one element, as in KServe's token classification.
    """
    longest = max(map(len, rows))
    data = np.full((len(rows), 1, longest, *rows[0].shape[1:]), filling, rows[0].dtype)
    for place, row in zip(data, rows, strict=True):
        place[0, : len(row)] = row
    return Tensor(OUTPUT, datatype, data)


def ragged_json_tensor(predictions: Sequence[Sequence[Json]]) -> Tensor:
    """``output-0`` of a list of values, or of lists of equal length, for each instance, as KServe has them.

    BYTES [instances, values] or [instances, values, columns]: each element as JSON text, ``null`` behind the last one
    of a shorter list.
    """
    first = predictions[0][0]
    columns = (len(first),) if isinstance(first, list) else ()
    data = np.full((len(predictions), max(map(len, predictions)), *columns), b"null", np.object_)
    for place, values in zip(data, predictions, strict=True):
        for number, value in enumerate(values):
            place[number] = [orjson.dumps(one) for one in value] if columns else orjson.dumps(value)
    return Tensor(OUTPUT, "BYTES", data)
