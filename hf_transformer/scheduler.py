"""Turns instances into batches and back, so that no answer depends on what it shared a batch with.

The unit is one encoding: a request larger than a batch is split, and nobody notices.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from hf_transformer.binding import Binding, OutputBinding, axis_error
from hf_transformer.errors import CallersDeadline, PredictorError, PredictorTimeout
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


@dataclass(frozen=True, slots=True)
class _Work(Generic[Answer]):
    """One batch of a request: its instances, their places in the request, and where their answers go."""

    encodings: Sequence[Encoding]
    indices: Sequence[int]
    decode: Decode[Answer]
    answers: dict[int, Answer]


class Scheduler:
    """Sends encodings to one predictor, at most ``max_batches_in_flight`` batches at a time.

    ``timeout`` is in seconds and bounds a whole request, waiting for a place included; so does the caller's deadline.
    """

    def __init__(
        self, predictor: Predictor, binding: Binding, filling: Filling, *, max_batches_in_flight: int, timeout: float
    ) -> None:
        self._predictor = predictor
        self._binding = binding
        self._filling = filling
        self._output_names = [output.name for output in binding.outputs]
        self._places = asyncio.Semaphore(max_batches_in_flight)
        self._timeout = timeout
        self._limit = f"in {timeout:g} s (--predictor_request_timeout_seconds)"

    async def run(
        self,
        encodings: Sequence[Encoding],
        decode: Decode[Answer],
        context: Context,
        executor: Executor | None = None,
    ) -> list[Answer]:
        """Gives one answer per encoding, in their order.

        ``decode`` runs while the predictor's buffer is held, in ``executor`` if there is one, else on the event loop.
        If one batch fails the others are given up.

        Raises:
            PredictorTimeout: not all answers were there in time.
            RequestError: the first failure of a batch.
        """
        answers: dict[int, Answer] = {}
        batches = plan([len(encoding) for encoding in encodings], self._binding)
        work = [_Work([encodings[index] for index in batch], batch, decode, answers) for batch in batches]
        latest = asyncio.get_running_loop().time() + self._timeout
        callers = context.deadline is not None and context.deadline < latest
        try:
            async with asyncio.timeout_at(context.deadline if callers else latest) as timeout:
                await self._send_all(work, context, executor)
        except TimeoutError as error:
            if not timeout.expired():
                raise
            if callers:
                raise CallersDeadline("no answer before the caller's deadline") from error
            raise PredictorTimeout(
                f"no answer from the predictor {self._limit}, waiting for its turn included"
            ) from error
        return [answers[index] for index in range(len(encodings))]

    async def _send_all(self, work: Sequence[_Work[Answer]], context: Context, executor: Executor | None) -> None:
        if len(work) == 1:
            await self._send(work[0], context, executor)
            return
        try:
            async with asyncio.TaskGroup() as group:
                for one in work:
                    group.create_task(self._send(one, context, executor))
        except* Exception as failures:
            raise failures.exceptions[0] from None

    async def _send(self, work: _Work[Answer], context: Context, executor: Executor | None) -> None:
        async with self._places:
            inputs = pack(work.encodings, self._binding, self._filling)
            async with self._predictor.infer(inputs, self._output_names, context.headers) as outputs:
                started = time.perf_counter()
                if executor is None:
                    self._decode(work, inputs[0].shape, outputs)
                else:
                    loop = asyncio.get_running_loop()
                    await loop.run_in_executor(executor, self._decode, work, inputs[0].shape, outputs)
                context.timings.postprocess += time.perf_counter() - started

    def _decode(self, work: _Work[Answer], shape: tuple[int, ...], outputs: Mapping[str, Tensor]) -> None:
        """Verifies a batch's outputs and hands every instance its own rows."""
        batch_axis = self._binding.batch_axis
        rows, width = shape if batch_axis else (1, shape[0])
        verified = [
            (output, verify(outputs[output.name], output, rows, width, batch_axis)) for output in self._binding.outputs
        ]
        for row, (encoding, index) in enumerate(zip(work.encodings, work.indices, strict=True)):
            length = len(encoding)
            mine = {output.role: self._own_rows(data[row], output, length) for output, data in verified}
            work.answers[index] = work.decode(index, mine)

    def _own_rows(self, array: Array, output: OutputBinding, length: int) -> Array:
        """Leaves the padding out of every tokens axis of one instance's output."""
        for number, axis in enumerate(output.axes):
            if axis.tokens:
                size = array.shape[number]
                place = slice(size - length, size) if self._filling.left else slice(0, length)
                array = array[(slice(None),) * number + (place,)]
        return array
