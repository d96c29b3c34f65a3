"""Turns instances into batches and back, so that no answer depends on what it shared a batch with.

The unit is one encoding, never one request: a request larger than a batch is split, and nobody notices.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from hf_transformer.contract import Binding, OutputBinding, axis_error
from hf_transformer.errors import PredictorError
from hf_transformer.predictors.base import Predictor
from hf_transformer.types import Array, Context, Encoding, Tensor

Answer = TypeVar("Answer")
Decode = Callable[[int, Mapping[str, Array]], Answer]
"""Called with an instance's index and its own rows of the outputs, by role; what it gives is the answer."""


def plan(lengths: Sequence[int], binding: Binding) -> list[list[int]]:
    """Groups instances into batches.

    Without an attention mask only instances of equal length share a batch (unless the model's length is fixed, so
    that its input is padded anyway). With one, neighbours in order of length do, as long as no more than half of
    the batch would be padding.

    Args:
        lengths: tokens of each instance.
        binding: how large a batch may be, and whether it may be padded.

    Returns:
        Indices into ``lengths``; every index once.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    batches: list[list[int]] = []
    tokens = 0
    for index in order:
        length = lengths[index]
        if batches and len(batches[-1]) < binding.max_rows:
            batch = batches[-1]
            same = length == lengths[batch[-1]]
            little_padding = length * (len(batch) + 1) <= 2 * (tokens + length)
            if same or binding.length is not None or (binding.masked and little_padding):
                batch.append(index)
                tokens += length
                continue
        batches.append([index])
        tokens = length
    return batches


@dataclass(frozen=True, slots=True)
class Filling:
    """What goes into padded positions, and on which side of the text they are."""

    pad_id: int
    left: bool


def pack(encodings: Sequence[Encoding], binding: Binding, filling: Filling) -> list[Tensor]:
    """The input tensors of one batch: [rows, tokens] each, [tokens] for a model without a batch axis."""
    rows = binding.exact_rows or len(encodings)
    width = binding.length or max(len(encoding) for encoding in encodings)
    tensors = []
    for one in binding.inputs:
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


class Scheduler:
    """Sends encodings to one predictor, at most ``max_batches_in_flight`` batches at a time."""

    def __init__(self, predictor: Predictor, binding: Binding, filling: Filling, *, max_batches_in_flight: int) -> None:
        self._predictor = predictor
        self._binding = binding
        self._filling = filling
        self._output_names = [output.name for output in binding.outputs]
        self._places = asyncio.Semaphore(max_batches_in_flight)

    async def run(self, encodings: Sequence[Encoding], decode: Decode[Answer], context: Context) -> list[Answer]:
        """Gives one answer per encoding, in their order.

        ``decode`` runs while the predictor's buffer is held. If one batch fails the others are given up.

        Raises:
            RequestError: the first failure of a batch.
        """
        answers: dict[int, Answer] = {}
        batches = plan([len(encoding) for encoding in encodings], self._binding)
        if len(batches) == 1:
            await self._send(batches[0], encodings, decode, context, answers)
        else:
            try:
                async with asyncio.TaskGroup() as group:
                    for batch in batches:
                        group.create_task(self._send(batch, encodings, decode, context, answers))
            except* Exception as failures:
                raise failures.exceptions[0] from None
        return [answers[index] for index in range(len(encodings))]

    async def _send(
        self,
        batch: Sequence[int],
        encodings: Sequence[Encoding],
        decode: Decode[Answer],
        context: Context,
        answers: dict[int, Answer],
    ) -> None:
        async with self._places:
            inputs = pack([encodings[index] for index in batch], self._binding, self._filling)
            async with self._predictor.infer(inputs, self._output_names, context.headers) as outputs:
                started = time.perf_counter()
                shape = inputs[0].shape
                rows, width = shape if self._binding.batch_axis else (1, shape[0])
                data = {
                    output.role: (output, verify(outputs[output.name], output, rows, width, self._binding.batch_axis))
                    for output in self._binding.outputs
                }
                for row, index in enumerate(batch):
                    length = len(encodings[index])
                    mine = {role: self._own_rows(array[row], output, length) for role, (output, array) in data.items()}
                    answers[index] = decode(index, mine)
                context.timings.postprocess += time.perf_counter() - started

    def _own_rows(self, array: Array, output: OutputBinding, length: int) -> Array:
        """Leaves the padding out of every tokens axis of one instance's output."""
        for number, axis in enumerate(output.axes):
            if axis.tokens:
                size = array.shape[number]
                place = slice(size - length, size) if self._filling.left else slice(0, length)
                array = array[(slice(None),) * number + (place,)]
        return array
