"""One batch as tensors: instances become rows of padded inputs, and outputs become each instance's own arrays."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from hf_transformer.core.batch_costs import BatchCosts
from hf_transformer.core.contract import InputSignature, OutputSignature, Signature, axis_error
from hf_transformer.core.queue import BatchLimits
from hf_transformer.errors import PredictorError
from hf_transformer.types.tensors import Array, Tensor
from hf_transformer.types.tokenization import Encoding

Item = TypeVar("Item")


@dataclass(slots=True)
class Packed:
    """One batch for the predictor.

    Args:
        inputs: the tensors to send.
        outputs: the names of the outputs that are wanted.
        sizes: the bytes of each output whose size is known beforehand.
        real: tokens of texts.
        padding: all other tokens.
    """

    inputs: list[Tensor]
    outputs: Sequence[str]
    sizes: Mapping[str, int]
    real: int
    padding: int


class BatchBuilder(ABC, Generic[Item]):
    """How one kind of item becomes batches: which items may share one, and the way to tensors and back.

    ``costs`` learn from all batches that are sent; None where the form has no use for them.
    """

    costs: BatchCosts | None = None

    @abstractmethod
    def bucket(self, item: Item) -> tuple[str, int]:
        """Its group and its length.

        Items of different groups never share a batch. The length is in tokens, at least 1: the limits count it, and
        items of similar lengths share batches.
        """

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
        """Each item's own part of the outputs, by role; the arrays are views.

        Raises:
            PredictorError: before the first item, if the outputs are not what the model has promised.
        """


@dataclass(frozen=True, slots=True)
class PaddingBuckets:
    """The widths in tokens that batches may have: multiples of ``multiple`` (--pad_to_multiple_of), and ``longest``,
    the most that the model takes. A runtime that prepares itself for each new shape then meets few shapes."""

    multiple: int
    longest: int

    def of(self, tokens: int) -> int:
        """The width of a batch whose longest text has so many tokens."""
        width = -(-tokens // self.multiple) * self.multiple
        return width if width <= self.longest else max(tokens, self.longest)


def padding_buckets(multiple: int, longest: int) -> PaddingBuckets | None:
    """None where a batch is as wide as its longest text, so that nothing is rounded."""
    return PaddingBuckets(multiple, longest) if multiple > 1 else None


@dataclass(frozen=True, slots=True)
class PaddingPolicy:
    """How batches are padded.

    Args:
        pad_id: the token id of padded positions.
        left: whether padding comes before the text.
        widths: the widths that batches are padded to; None pads them to their longest text only.
        equal_lengths: whether only texts of one length share a batch, although the model gets a mask.
        counted_id: texts with different counts of this token id never share a batch; None for no such token.
    """

    pad_id: int
    left: bool
    widths: PaddingBuckets | None = None
    equal_lengths: bool = False
    counted_id: int | None = None


class EncodingBatchBuilder(BatchBuilder[Encoding]):
    """Batches of texts, for models that read each text once.

    Args:
        max_tokens, max_output_bytes: bound a batch in addition to the model's configuration.
        more: says whether outputs may have so many bytes all the same; it is asked only where sizes are known
            beforehand.
        costs: bound the padding where texts of different lengths may share a batch and each row costs time.
    """

    def __init__(
        self,
        signature: Signature,
        policy: PaddingPolicy,
        *,
        max_tokens: int = sys.maxsize,
        max_output_bytes: int = sys.maxsize,
        allow_in_shared_memory: Callable[[int], bool] | None = None,
        costs: BatchCosts | None = None,
    ) -> None:
        self._signature = signature
        self._padding = policy
        self._output_names = [output.name for output in signature.outputs]
        self._token_axes = [
            [number for number, axis in enumerate(output.axes) if axis.tokens] for output in signature.outputs
        ]
        padding = signature.length is not None or (signature.masked and not policy.equal_lengths)
        if padding and signature.length is None and signature.max_rows > 1 and signature.exact_rows is None:
            self.costs = costs
        self._limits = BatchLimits(
            max_rows=signature.max_rows,
            max_tokens=max_tokens,
            max_output_bytes=max_output_bytes,
            output_bytes=signature.output_bytes,
            padding=padding,
            fixed_length=signature.length,
            costs=self.costs,
            allow_in_shared_memory=allow_in_shared_memory
            if all(output.row_bytes(1) is not None for output in signature.outputs)
            else None,
        )

    def bucket(self, item: Encoding) -> tuple[str, int]:
        """All share one group, unless a token is counted. The length is the width of a batch of this text alone, so
        that texts which are padded alike count as equally long."""
        size, widths, counted = len(item.ids), self._padding.widths, self._padding.counted_id
        group = "" if counted is None else str(item.ids.count(counted))
        return group, size if widths is None else widths.of(size)

    def limits(self, item: Encoding) -> BatchLimits:
        return self._limits

    def pack(self, items: Sequence[Encoding]) -> Packed:
        """Inputs of [rows, tokens] each, [tokens] for a model without a batch axis."""
        signature, widths = self._signature, self._padding.widths
        lengths = [len(item.ids) for item in items]
        width, real = signature.length or max(lengths), sum(lengths)
        if widths is not None:
            width = widths.of(width)
        rows = signature.exact_rows or len(items)
        fill = self._rectangle if real == rows * width else self._padded
        inputs = []
        for one in signature.inputs:
            data = fill(items, one, rows, width)
            inputs.append(Tensor(one.name, one.datatype, data if signature.batch_axis else data[0]))
        sizes = {}
        for output in signature.outputs:
            size = output.row_bytes(width)
            if size is not None:
                sizes[output.name] = rows * size
        return Packed(inputs, self._output_names, sizes, real, rows * width - real)

    def unpack(
        self, items: Sequence[Encoding], packed: Packed, outputs: Mapping[str, Tensor]
    ) -> Iterator[Mapping[str, Array]]:
        """Arrays without batch axis and padding."""
        signature = self._signature
        shape = packed.inputs[0].data.shape
        rows, width = shape if signature.batch_axis else (1, shape[0])
        found = [
            (output.role, _verified(outputs[output.name], output, rows, width, signature.batch_axis), axes)
            for output, axes in zip(signature.outputs, self._token_axes, strict=True)
        ]
        for row, item in enumerate(items):
            yield {
                role: self._without_padding(data[row], axes, len(item.ids)) if axes else data[row]
                for role, data, axes in found
            }

    def _without_padding(self, array: Array, axes: Sequence[int], length: int) -> Array:
        """One instance's output of so many tokens, without the padding along its tokens ``axes``."""
        for axis in axes:
            size = array.shape[axis]
            place = slice(size - length, size) if self._padding.left else slice(0, length)
            array = array[(slice(None),) * axis + (place,)]
        return array

    def _rectangle(self, items: Sequence[Encoding], one: InputSignature, rows: int, width: int) -> Array:
        """An input without any padding, as of texts that are equally long."""
        if one.role == "attention_mask":
            return np.ones((rows, width), one.dtype)
        return np.array([item.ids if one.role == "input_ids" else item.type_ids for item in items], one.dtype)

    def _padded(self, items: Sequence[Encoding], one: InputSignature, rows: int, width: int) -> Array:
        data = np.full((rows, width), self._padding.pad_id if one.role == "input_ids" else 0, one.dtype)
        for row in range(rows):
            # Rows that only fill up an exact batch repeat its last instance: always a valid input.
            item = items[min(row, len(items) - 1)]
            place = slice(width - len(item), width) if self._padding.left else slice(0, len(item))
            if one.role == "input_ids":
                data[row, place] = item.ids
            elif one.role == "attention_mask":
                data[row, place] = 1
            else:
                data[row, place] = item.type_ids
        return data


def _verified(tensor: Tensor, output: OutputSignature, rows: int, width: int, batch_axis: bool) -> Array:
    """Checks an output against the contract; Triton itself does not check what a model returns.

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
    sizes = [width if axis.tokens else size for axis, size in zip(output.axes, data.shape[1:], strict=False)]
    if data.shape != (rows, *sizes) or len(sizes) != len(output.axes):
        expected = [rows, *[width if axis.tokens else -1 for axis in output.axes]]
        shown = expected if batch_axis else expected[1:]
        raise PredictorError(
            f"the model answered {output.name!r} with the shape {list(tensor.shape)}, expected {shown} (-1 is any size)"
        )
    for axis, size in zip(output.axes, data.shape[1:], strict=True):
        wrong = "" if axis.tokens else axis_error(axis, size)
        if wrong:
            raise PredictorError(f"the model answered {output.name!r} with {wrong}")
    return data
