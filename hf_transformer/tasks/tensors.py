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
"""KServe's name for the tensor of predictions."""
FREE = -1
"""The size of a dynamic axis in a TensorSpec."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an instance: a string, or a list of strings if ``many``.

    The corresponding tensor is BYTES [instances, 1], [instances] or, if ``many``, [instances, strings]. Its name is
    ``name`` or any of ``other_names``.
    """

    name: str
    other_names: tuple[str, ...] = ()
    many: bool = False
    optional: bool = False

    @property
    def spec(self) -> TensorSpec:
        """The tensor of this field. The second axis suits clients that need a shape per instance."""
        return TensorSpec(self.name, "BYTES", (FREE, FREE if self.many else 1), self.optional)


TEXT = Field("text", ("input-0", "input_0", "input", "inputs", "instances", "text_input", "INPUT0"))
"""The single text of an instance, with the input names of KServe's and Triton's clients."""


def read_instances(inputs: Mapping[str, Tensor | Texts], fields: Sequence[Field]) -> list[Json]:
    """Converts a request's input tensors to instances: strings if only the first field is present, else objects.

    An input with a single row, or a list [strings], applies to all instances. If only one field is required, the only
    input of a request may have any name.

    Raises:
        InvalidInput: an input is unknown, missing, duplicate, not BYTES, or of a wrong shape.
    """
    columns: dict[str, list[Json]] = {}
    required = [field for field in fields if not field.optional]
    only = required[0] if len(required) == 1 and len(inputs) == 1 else None
    for index, (name, tensor) in enumerate(inputs.items()):
        field = _find(name, fields) or (only if isinstance(tensor, Texts) else None)
        if field is None:
            raise InvalidInput(("inputs", index, "name"), f"one of {_names(fields)}", repr(name[:100]))
        if field.name in columns:
            raise InvalidInput(("inputs", index, "name"), f"one input for {field.name!r}", f"another one, {name!r}")
        columns[field.name] = _read_column(tensor, field, index)
    for field in required:
        if field.name not in columns:
            got = ", ".join(map(repr, inputs)) or "none"
            raise InvalidInput("inputs", _names(fields), got, f"{field.name!r} is missing")
    first = fields[0]
    if len(columns) == 1 and first.name in columns and not first.many:
        return columns[first.name]
    rows = max(map(len, columns.values()), default=0)
    for index, (name, column) in enumerate(columns.items()):
        if len(column) not in (1, rows):
            expected = f"1 row of {name!r}, or {rows} as in another input"
            raise InvalidInput(("inputs", index, "shape"), expected, str(len(column)))
    whole = {name: column * rows if len(column) == 1 else column for name, column in columns.items()}
    return [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]


def _find(name: str, fields: Sequence[Field]) -> Field | None:
    for field in fields:
        if name == field.name or name in field.other_names:
            return field
    return None


def _names(fields: Sequence[Field]) -> str:
    return ", ".join(f"{field.name!r} (optional)" if field.optional else repr(field.name) for field in fields)


def _read_column(tensor: Tensor | Texts, field: Field, index: int) -> list[Json]:
    """Reads a field of all instances. ``index`` is the position of the input, for errors."""
    if not isinstance(tensor, Texts):
        expected = f"BYTES (text in UTF-8) for {tensor.name!r}"
        raise InvalidInput(("inputs", index, "datatype"), expected, tensor.datatype)
    shape, texts = tensor.shape, tensor.texts
    if field.many and len(shape) == 1:
        return [texts]
    if field.many and len(shape) == 2:
        rows, strings = shape
        return [texts[row * strings : (row + 1) * strings] for row in range(rows)]
    # Triton models with a batch axis have texts of shape [instances, 1].
    if not field.many and (len(shape) < 2 or (len(shape) == 2 and shape[1] == 1)):
        return texts
    expected = "[instances, strings] or [strings]" if field.many else "[instances] or [instances, 1]"
    raise InvalidInput(("inputs", index, "shape"), f"{expected} for {tensor.name!r}", str(list(shape)))


def json_tensor(predictions: Sequence[Json]) -> Tensor:
    """Builds ``output-0`` BYTES [instances] of JSON texts."""
    return bytes_tensor([_json(prediction) for prediction in predictions])


def bytes_tensor(elements: Sequence[bytes]) -> Tensor:
    """Builds ``output-0`` BYTES [instances]."""
    data = np.empty(len(elements), np.object_)
    data[:] = elements
    return Tensor(OUTPUT, "BYTES", data)


def ragged_tensor(rows: Sequence[Array], datatype: str, padding: float) -> Tensor:
    """Pads arrays [tokens, ...] to ``output-0`` [instances, 1, tokens, ...], as KServe's token classification does."""
    longest = max(map(len, rows))
    data = np.full((len(rows), 1, longest, *rows[0].shape[1:]), padding, rows[0].dtype)
    for padded, row in zip(data, rows, strict=True):
        padded[0, : len(row)] = row
    return Tensor(OUTPUT, datatype, data)


def ragged_json_tensor(predictions: Sequence[Sequence[Json]]) -> Tensor:
    """Builds ``output-0`` from a list of values per instance, as KServe does; pads shorter lists with ``null``.

    The tensor is BYTES [instances, values] of JSON texts, or [instances, values, columns] if the values are lists.
    """
    first = predictions[0][0]
    columns = (len(first),) if isinstance(first, list) else ()
    data = np.full((len(predictions), max(map(len, predictions)), *columns), b"null", np.object_)
    for padded, values in zip(data, predictions, strict=True):
        for index, value in enumerate(values):
            padded[index] = [_json(element) for element in value] if columns else _json(value)
    return Tensor(OUTPUT, "BYTES", data)


def _json(value: Json) -> bytes:
    """The JSON of a value, copied: orjson's own object keeps at least 4 kB."""
    return bytes(memoryview(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)))
