"""One batch as tensors, and back: how instances become rows of padded inputs, and outputs rows of each instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hf_transformer.binding import Binding, InputBinding, OutputBinding, axis_error
from hf_transformer.errors import PredictorError
from hf_transformer.types import Array, Encoding, Tensor


@dataclass(frozen=True, slots=True)
class Filling:
    """What goes into padded positions, and on which side of the text they are."""

    pad_id: int
    left: bool


def pack(encodings: Sequence[Encoding], binding: Binding, filling: Filling) -> list[Tensor]:
    """The input tensors of one batch: [rows, tokens] each, [tokens] for a model without a batch axis."""
    rows = binding.exact_rows or len(encodings)
    width = binding.length or max(len(encoding) for encoding in encodings)
    full = rows == len(encodings) and all(len(encoding.ids) == width for encoding in encodings)
    tensors = []
    for one in binding.inputs:
        if full:
            data = _without_padding(encodings, one, width)
            tensors.append(Tensor(one.name, one.datatype, data if binding.batch_axis else data[0]))
            continue
        data = np.full((rows, width), filling.pad_id if one.role == "input_ids" else 0, one.dtype)
        for row in range(rows):
            # Rows that only fill up an exact batch repeat its last instance: always a valid input.
            encoding = encodings[min(row, len(encodings) - 1)]
            place = slice(width - len(encoding), width) if filling.left else slice(0, len(encoding))
            if one.role == "input_ids":
                data[row, place] = encoding.ids
            elif one.role == "attention_mask":
                data[row, place] = 1
            else:
                data[row, place] = encoding.type_ids
        tensors.append(Tensor(one.name, one.datatype, data if binding.batch_axis else data[0]))
    return tensors


def _without_padding(encodings: Sequence[Encoding], one: InputBinding, width: int) -> Array:
    """An input of texts that are equally long, as those in a batch usually are: a third of the time."""
    if one.role == "attention_mask":
        return np.ones((len(encodings), width), one.dtype)
    if one.role == "input_ids":
        return np.array([encoding.ids for encoding in encodings], one.dtype)
    return np.array([encoding.type_ids for encoding in encodings], one.dtype)


def verify(tensor: Tensor, output: OutputBinding, rows: int, width: int, batch_axis: bool) -> Array:
    """Checks a response's tensor against the contract; Triton itself does not check what a model returns.

    Returns:
        The data with a batch axis, [rows, ...].

    Raises:
        PredictorError: the datatype, the rank or an axis is not what the model's configuration promised.
    """
    if tensor.datatype != output.datatype:
        raise PredictorError(
            f"the model answered {output.name!r} as {tensor.datatype}, its configuration says {output.datatype}"
        )
    data = tensor.data if batch_axis else tensor.data[np.newaxis]
    expected = [rows, *(width if axis.tokens else -1 for axis in output.axes)]
    fits = len(data.shape) == len(expected) and all(
        want in (-1, size) for want, size in zip(expected, data.shape, strict=True)
    )
    if not fits:
        shown = expected if batch_axis else expected[1:]
        raise PredictorError(
            f"the model answered {output.name!r} with the shape {list(tensor.shape)}, expected {shown} (-1 is any size)"
        )
    for axis, size in zip(output.axes, data.shape[1:], strict=True):
        wrong = "" if axis.tokens else axis_error(axis, size)
        if wrong:
            raise PredictorError(f"the model answered {output.name!r} with {wrong}")
    return data


def own_rows(array: Array, output: OutputBinding, length: int, filling: Filling) -> Array:
    """Leaves the padding out of every tokens axis of one instance's output.

    Args:
        array: the instance's row, without the batch axis.
        length: the instance's tokens.
    """
    for number, axis in enumerate(output.axes):
        if axis.tokens:
            size = array.shape[number]
            place = slice(size - length, size) if filling.left else slice(0, length)
            array = array[(slice(None),) * number + (place,)]
    return array
