"""Conversion of instances to padded input tensors, and of output tensors to arrays per instance."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from hf_transformer.core.batch_costs import BatchCosts
from hf_transformer.core.contract import OutputSignature, Signature, axis_error
from hf_transformer.core.queue import BatchLimits
from hf_transformer.errors import PredictorError
from hf_transformer.types.tensors import Array, Tensor
from hf_transformer.types.tokenization import Encoding

Item = TypeVar("Item")


@dataclass(slots=True)
class Packed:
    """One batch for the predictor.

    Args:
        outputs: the names of the outputs to request.
        sizes: bytes by output name, for the outputs of known size.
        real: the number of tokens without padding.
        padding: the number of padding tokens.
    """

    inputs: list[Tensor]
    outputs: Sequence[str]
    sizes: Mapping[str, int]
    real: int
    padding: int


class BatchBuilder(ABC, Generic[Item]):
    """Converts batches of items to tensors and back, and defines the limits of batches.

    ``costs`` learns from all sent batches, and is None if batches don't depend on costs.
    """

    costs: BatchCosts | None = None

    @abstractmethod
    def bucket(self, item: Item) -> tuple[str, int]:
        """Returns an item's group and its positive length in tokens. Items of different groups never share a batch."""

    @abstractmethod
    def limits(self, item: Item) -> BatchLimits:
        """Returns the size limits of a batch of the item's group."""

    @abstractmethod
    def pack(self, items: Sequence[Item]) -> Packed:
        """Converts items to one batch."""

    def pack_cost(self, items: Sequence[Item]) -> int:
        """Returns the cost of ``pack``, in units of the scheduler's INLINE_COST."""
        return 0

    @abstractmethod
    def unpack(
        self, items: Sequence[Item], packed: Packed, outputs: Mapping[str, Tensor]
    ) -> Iterator[Mapping[str, Array]]:
        """Yields each item's outputs by role, as views without padding.

        Raises:
            PredictorError: before the first item, if the outputs break the model's contract.
        """


@dataclass(frozen=True, slots=True)
class PaddingBuckets:
    """Allowed widths of batches in tokens: multiples of ``multiple`` (--pad_to_multiple_of), and ``longest``, the
    model's maximum. Few widths suit a runtime that compiles each new shape."""

    multiple: int
    longest: int

    def of(self, tokens: int) -> int:
        """Returns the width of a batch whose longest text has ``tokens`` tokens."""
        width = -(-tokens // self.multiple) * self.multiple
        return width if width <= self.longest else max(tokens, self.longest)


def padding_buckets(multiple: int, longest: int) -> PaddingBuckets | None:
    """Returns the buckets of --pad_to_multiple_of, or None if ``multiple`` is 1."""
    return PaddingBuckets(multiple, longest) if multiple > 1 else None


@dataclass(frozen=True, slots=True)
class PaddingPolicy:
    """The padding of batches.

    Args:
        left: whether padding precedes the text.
        buckets: the allowed widths of batches; None pads to the longest text.
        equal_lengths: whether only texts of equal length share a batch, although the model has an attention mask.
        counted_id: a token id. Texts with different counts of this token never share a batch.
        hides_tokens: whether encodings may have ``attended``, so that the mask is not only padding.
    """

    pad_id: int
    left: bool
    buckets: PaddingBuckets | None = None
    equal_lengths: bool = False
    counted_id: int | None = None
    hides_tokens: bool = False


class EncodingBatchBuilder(BatchBuilder[Encoding]):
    """Makes batches of texts, one row per text.

    Args:
        max_tokens, max_output_bytes: limits in addition to the model's own.
        allow_in_shared_memory: see BatchLimits; ignored unless the sizes of all outputs are known before the call.
        max_learnt_output_bytes: see BatchLimits.
        costs: learns from all batches, and limits their padding where lengths and the number of rows may vary.
    """

    def __init__(
        self,
        signature: Signature,
        policy: PaddingPolicy,
        *,
        max_tokens: int = sys.maxsize,
        max_output_bytes: int = sys.maxsize,
        max_learnt_output_bytes: int = 0,
        allow_in_shared_memory: Callable[[int], bool] | None = None,
        costs: BatchCosts | None = None,
    ) -> None:
        self._signature = signature
        self._policy = policy
        self._inputs = [(field.name, field.role, field.datatype, field.dtype) for field in signature.inputs]
        self._output_names = [output.name for output in signature.outputs]
        self._token_axes = [
            [number for number, axis in enumerate(output.axes) if axis.tokens] for output in signature.outputs
        ]
        sizes = [output.row_bytes(1) for output in signature.outputs]
        self._known_sizes = [
            (name, size, len(axes))
            for name, size, axes in zip(self._output_names, sizes, self._token_axes, strict=True)
            if size is not None
        ]
        """The outputs of known size: their names, bytes of a row of one token, and numbers of token axes."""
        padding = signature.length is not None or (signature.masked and not policy.equal_lengths)
        self.costs = costs if signature.max_rows > 1 else None
        varies = signature.length is None and signature.exact_rows is None
        self._limits = BatchLimits(
            max_rows=signature.max_rows,
            max_tokens=max_tokens,
            max_output_bytes=max_output_bytes,
            output_bytes=signature.output_bytes,
            padding=padding,
            fixed_length=signature.length,
            costs=self.costs if varies else None,
            allow_in_shared_memory=None if None in sizes else allow_in_shared_memory,
            max_learnt_output_bytes=0 if None in sizes else max_learnt_output_bytes,
        )

    def bucket(self, item: Encoding) -> tuple[str, int]:
        """Groups texts by their count of ``counted_id``, if set. The length is the padded width of the text alone."""
        size, buckets, counted_id = len(item.ids), self._policy.buckets, self._policy.counted_id
        group = "" if counted_id is None else str(item.ids.count(counted_id))
        return group, size if buckets is None else buckets.of(size)

    def limits(self, item: Encoding) -> BatchLimits:
        return self._limits

    def pack(self, items: Sequence[Encoding]) -> Packed:
        """Makes inputs of shape [rows, tokens], or [tokens] for a model without a batch axis."""
        signature, buckets = self._signature, self._policy.buckets
        lengths = [len(item.ids) for item in items]
        width, real = signature.length or max(lengths), sum(lengths)
        if buckets is not None:
            width = buckets.of(width)
        rows = signature.exact_rows or len(items)
        padding = rows * width - real
        if rows > len(items):  # surplus rows of an exact batch repeat the last instance, which is a valid input
            items = [*items, *[items[-1]] * (rows - len(items))]
        inputs = []
        for name, role, datatype, dtype in self._inputs:
            if role != "attention_mask":
                values = self._values(items, role, width, padding)
                data = np.fromiter(values, dtype, rows * width).reshape(rows, width)
            elif padding or self._policy.hides_tokens:
                data = self._mask(items, width).astype(dtype)
            else:
                data = np.empty((rows, width), dtype)
                data.fill(1)
            inputs.append(Tensor(name, datatype, data if signature.batch_axis else data[0]))
        sizes = {name: rows * size * width**axes for name, size, axes in self._known_sizes}
        return Packed(inputs, self._output_names, sizes, real, padding)

    def unpack(
        self, items: Sequence[Encoding], packed: Packed, outputs: Mapping[str, Tensor]
    ) -> Iterator[Mapping[str, Array]]:
        """Yields arrays without the batch axis and without padding."""
        signature = self._signature
        shape = packed.inputs[0].data.shape
        rows, width = shape if signature.batch_axis else (1, shape[0])
        verified = [
            (output.role, _verified(outputs[output.name], output, rows, width, signature.batch_axis), axes)
            for output, axes in zip(signature.outputs, self._token_axes, strict=True)
        ]
        for row, item in enumerate(items):
            yield {
                role: self._without_padding(data[row], axes, len(item.ids)) if axes else data[row]
                for role, data, axes in verified
            }

    def _without_padding(self, array: Array, axes: Sequence[int], length: int) -> Array:
        """Returns one instance's output of ``length`` tokens, without the padding along its token ``axes``."""
        for axis in axes:
            size = array.shape[axis]
            tokens = slice(size - length, size) if self._policy.left else slice(0, length)
            array = array[(slice(None),) * axis + (tokens,)]
        return array

    def _values(self, items: Sequence[Encoding], role: str, width: int, padding: int) -> list[int]:
        """Returns the values of an input other than a mask, row by row."""
        values: list[int] = []
        pad = [self._policy.pad_id if role == "input_ids" else 0] * padding
        for item in items:
            row = item.ids if role == "input_ids" else item.type_ids
            if padding and self._policy.left:
                values += pad[: width - len(row)]
            values += row
            if padding and not self._policy.left:
                values += pad[: width - len(row)]
        return values

    def _mask(self, items: Sequence[Encoding], width: int) -> Array:
        columns, lengths = np.arange(width), np.array([len(item.ids) for item in items])[:, np.newaxis]
        mask: Array = columns >= width - lengths if self._policy.left else columns < lengths
        if self._policy.hides_tokens:
            attended = [len(item.ids) if item.attended is None else item.attended for item in items]
            starts = width - lengths if self._policy.left else 0
            mask &= columns < starts + np.array(attended)[:, np.newaxis]
        return mask


def _verified(tensor: Tensor, output: OutputSignature, rows: int, width: int, batch_axis: bool) -> Array:
    """Checks an output against the contract, since Triton does not. Returns the data with a batch axis, [rows, ...].

    Raises:
        PredictorError: the datatype, the rank or an axis differs from the model's configuration.
    """
    if tensor.datatype != output.datatype:
        raise PredictorError(
            f"the model answered {output.name!r} as {tensor.datatype}, its configuration says {output.datatype}"
        )
    data, axes = tensor.data if batch_axis else tensor.data[np.newaxis], output.axes
    shape = data.shape
    fits = len(shape) == len(axes) + 1 and shape[0] == rows
    for number, axis in enumerate(axes if fits else (), 1):
        if axis.tokens:
            fits = fits and shape[number] == width
        elif wrong := axis_error(axis, shape[number]):
            raise PredictorError(f"the model answered {output.name!r} with {wrong}")
    if not fits:
        expected = [rows, *[width if axis.tokens else -1 for axis in axes]]
        shown = expected if batch_axis else expected[1:]
        raise PredictorError(
            f"the model answered {output.name!r} with the shape {list(tensor.shape)}, expected {shown} (-1 is any size)"
        )
    return data
