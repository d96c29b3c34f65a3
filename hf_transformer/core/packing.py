"""One batch as tensors, and back: how instances become rows of padded inputs, and outputs rows of each instance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from hf_transformer.core.batch_costs import BatchCosts
from hf_transformer.core.queue import BatchLimits
from hf_transformer.core.signature import Binding, InputBinding, OutputBinding, Widths, axis_error
from hf_transformer.errors import PredictorError
from hf_transformer.types import NUMPY_DTYPES, Array, Encoding, Tensor

Item = TypeVar("Item")

MOST_KEPT = 1024
"""Tokens of a batch whose mask, of ones alone, is kept for others of its shape: 2 MiB for all of them."""

MOST_SHAPES = 4096
"""Shapes of batches of which it is kept what follows from them."""


@dataclass(slots=True)
class Packed:
    """One batch for the predictor: its inputs, the names of the outputs that are wanted, the bytes of those whose size
    is known beforehand, and how many tokens of it are of a text and how many are padding."""

    inputs: list[Tensor]
    outputs: Sequence[str]
    sizes: Mapping[str, int]
    real: int
    padding: int


class Form(ABC, Generic[Item]):
    """How one kind of item becomes batches: what may share one, and how it is tensors and back.

    ``costs`` learn from all batches that are sent, where the form has a use for that.
    """

    costs: BatchCosts | None = None

    @abstractmethod
    def length(self, item: Item) -> int:
        """Its size in tokens, at least 1: what ``limits`` count, and items near to each other in it share batches."""

    @abstractmethod
    def group(self, item: Item) -> str:
        """Items of different groups never share a batch."""

    @abstractmethod
    def limits(self, item: Item) -> BatchLimits:
        """How large a batch of its group may be."""

    @abstractmethod
    def pack(self, items: Sequence[Item]) -> Packed:
        """The items as one batch."""

    def pack_cost(self, items: Sequence[Item]) -> int:
        """How long ``pack`` takes, in the units of the scheduler's INLINE_COST."""
        return 0

    @abstractmethod
    def unpack(
        self, items: Sequence[Item], packed: Packed, outputs: Mapping[str, Tensor]
    ) -> Iterator[Mapping[str, Array]]:
        """Each item's own part of the outputs, by role: views of them.

        Raises:
            PredictorError: before it gives the first one, if the outputs are not what the model has promised.
        """


@dataclass(frozen=True, slots=True)
class Filling:
    """What goes into padded positions, and on which side of the text they are. ``widths`` has batches padded further
    than to their longest text; None where they are not, and where the model has one length for all."""

    pad_id: int
    left: bool
    widths: Widths | None = None


class EncodingForm(Form[Encoding]):
    """Batches of texts, for models that read each of them once.

    ``max_tokens`` and ``max_output_bytes`` bound a batch beside what the model's configuration says; ``more`` says
    whether its outputs may have so many bytes all the same, and is asked where their sizes are known beforehand.
    ``costs`` bound it too where texts of different lengths may share one and each row costs time; elsewhere they are of
    no use.
    """

    def __init__(
        self,
        binding: Binding,
        filling: Filling,
        *,
        max_tokens: int,
        max_output_bytes: int,
        more: Callable[[int], bool] | None = None,
        costs: BatchCosts | None = None,
    ) -> None:
        self._binding = binding
        self._filling = filling
        self._widths = filling.widths
        self._output_names = [output.name for output in binding.outputs]
        self._has_token_axes = any(axis.tokens for output in binding.outputs for axis in output.axes)
        self._sizes = lru_cache(maxsize=MOST_SHAPES)(self._sizes_of)
        self._promised: set[tuple[object, ...]] = set()
        """What has been verified of outputs: batches have the same few shapes again and again."""
        if binding.masked and binding.length is None and binding.max_rows > 1 and binding.exact_rows is None:
            self.costs = costs
        self._limits = BatchLimits(
            max_rows=binding.max_rows,
            max_tokens=max_tokens,
            max_output_bytes=max_output_bytes,
            output_bytes=lru_cache(maxsize=4096)(binding.output_bytes),
            padding=binding.masked or binding.length is not None,
            fixed_length=binding.length,
            costs=self.costs,
            more=more if all(output.row_bytes(1) is not None for output in binding.outputs) else None,
        )

    def length(self, item: Encoding) -> int:
        """That of its batch where it is alone there: texts that are padded to one width count as equally long."""
        size, widths = len(item.ids), self._widths
        return size if widths is None else widths.of(size)

    def group(self, item: Encoding) -> str:
        return ""

    def limits(self, item: Encoding) -> BatchLimits:
        return self._limits

    def pack(self, items: Sequence[Encoding]) -> Packed:
        rows, width, real = _extent(items, self._binding, self._widths)
        inputs = _inputs(items, self._binding, self._filling, rows, width, real)
        return Packed(inputs, self._output_names, self._sizes(rows, width), real, rows * width - real)

    def unpack(
        self, items: Sequence[Encoding], packed: Packed, outputs: Mapping[str, Tensor]
    ) -> Iterator[Mapping[str, Array]]:
        rows, width = self._shape(packed.inputs)
        wanted = self._binding.outputs
        verified = [self._verified(outputs[output.name], output, rows, width) for output in wanted]
        if self._has_token_axes:
            for row, item in enumerate(items):
                length = len(item.ids)
                yield {
                    output.role: own_rows(data[row], output, length, self._filling)
                    for output, data in zip(wanted, verified, strict=True)
                }
        elif len(wanted) == 1:
            role, [data] = wanted[0].role, verified
            for row in range(len(items)):
                yield {role: data[row]}
        else:
            for row in range(len(items)):
                yield {output.role: data[row] for output, data in zip(wanted, verified, strict=True)}

    def _shape(self, inputs: Sequence[Tensor]) -> tuple[int, int]:
        """Rows and tokens of a batch."""
        shape = inputs[0].data.shape
        return (shape[0], shape[1]) if self._binding.batch_axis else (1, shape[0])

    def _sizes_of(self, rows: int, width: int) -> Mapping[str, int]:
        """Bytes of the outputs of a batch, of those whose size is known beforehand."""
        sizes = {output.name: output.row_bytes(width) for output in self._binding.outputs}
        return {name: rows * size for name, size in sizes.items() if size is not None}

    def _verified(self, tensor: Tensor, output: OutputBinding, rows: int, width: int) -> Array:
        """``verify``, once for each shape that comes."""
        seen = (output.name, tensor.datatype, tensor.data.shape, rows, width)
        if seen in self._promised:
            return tensor.data if self._binding.batch_axis else tensor.data[np.newaxis]
        data = verify(tensor, output, rows, width, self._binding.batch_axis)
        if len(self._promised) >= MOST_SHAPES:
            self._promised.clear()
        self._promised.add(seen)
        return data


def pack(encodings: Sequence[Encoding], binding: Binding, filling: Filling) -> list[Tensor]:
    """The input tensors of one batch: [rows, tokens] each, [tokens] for a model without a batch axis."""
    return _inputs(encodings, binding, filling, *_extent(encodings, binding, filling.widths))


def _extent(encodings: Sequence[Encoding], binding: Binding, widths: Widths | None) -> tuple[int, int, int]:
    """Rows and tokens of a batch, and how many of its tokens are of a text."""
    lengths = [len(encoding.ids) for encoding in encodings]
    width = binding.length or max(lengths)
    if widths is not None:
        width = widths.of(width)
    return binding.exact_rows or len(lengths), width, sum(lengths)


def _inputs(
    encodings: Sequence[Encoding], binding: Binding, filling: Filling, rows: int, width: int, real: int
) -> list[Tensor]:
    tensors = []
    for one in binding.inputs:
        if real == rows * width:
            data = _without_padding(encodings, one, width)
        else:
            data = _padded(encodings, one, filling, rows, width)
        tensors.append(Tensor(one.name, one.datatype, data if binding.batch_axis else data[0]))
    return tensors


def _padded(encodings: Sequence[Encoding], one: InputBinding, filling: Filling, rows: int, width: int) -> Array:
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
    return data


def _without_padding(encodings: Sequence[Encoding], one: InputBinding, width: int) -> Array:
    """An input of texts that are equally long, as those in a batch usually are: a third of the time."""
    if one.role == "input_ids":
        return np.array([encoding.ids for encoding in encodings], one.dtype)
    if one.role != "attention_mask":
        return np.array([encoding.type_ids for encoding in encodings], one.dtype)
    make = _kept_ones if len(encodings) * width <= MOST_KEPT else _ones
    return make(len(encodings), width, one.datatype)


def _ones(rows: int, width: int, datatype: str) -> Array:
    """A mask that hides nothing, for reading alone."""
    mask = np.empty((rows, width), NUMPY_DTYPES[datatype])
    mask.fill(1)  # np.ones takes three times as long for a few tokens
    mask.flags.writeable = False
    return mask


_kept_ones = lru_cache(maxsize=256)(_ones)


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


def refuse_nan(array: Array, name: str) -> None:
    """Raises PredictorError where an output holds NaN, whatever the task would look at."""
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise PredictorError(f"the model answered {name!r} with NaN")
