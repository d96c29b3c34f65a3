"""How one model is asked: what ``contract.bind`` found out, and the scheduler goes by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hf_transformer.tasks.base import Axis
from hf_transformer.types import NUMPY_DTYPES


@dataclass(frozen=True, slots=True)
class InputBinding:
    """A model input: its name there, which of INPUT_ROLES goes into it, and the datatype to send."""

    name: str
    role: str
    datatype: str

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The same datatype, as numpy has it."""
        return NUMPY_DTYPES[self.datatype]


@dataclass(frozen=True, slots=True)
class OutputBinding:
    """A model output: its name there, the role that reads it, its datatype, and its axes per instance.

    ``sizes`` are those of the axes as the model's configuration has them, -1 where it leaves one free.
    """

    name: str
    role: str
    datatype: str
    axes: tuple[Axis, ...]
    sizes: tuple[int, ...] = ()

    def row_bytes(self, width: int, *, guess: bool = False) -> int | None:
        """Bytes of one instance's output in a batch of ``width`` tokens.

        None where a free axis leaves it open, unless ``guess`` takes the least that the axis may have.
        """
        total = 2 if self.datatype == "BF16" else NUMPY_DTYPES[self.datatype].itemsize
        for axis, size in zip(self.axes, self.sizes or (-1,) * len(self.axes), strict=True):
            if axis.tokens:
                size = width
            elif size < 0:
                if not guess:
                    return None
                size = axis.minimum
            total *= size
        return total


@dataclass(frozen=True, slots=True)
class Binding:
    """How batches are built for one model, and what its outputs must look like.

    ``max_rows`` instances go into one batch. With ``exact_rows`` a batch always has that many (the rest is filling).
    Without ``batch_axis`` tensors have no batch dimension at all. ``length`` is the sequence length that the model
    insists on, None if it is free. ``masked`` says that an attention mask goes along, so padding can't change answers.
    """

    inputs: tuple[InputBinding, ...]
    outputs: tuple[OutputBinding, ...]
    max_rows: int
    exact_rows: int | None
    batch_axis: bool
    length: int | None
    masked: bool

    def output_bytes(self, width: int) -> int:
        """Bytes of all outputs of one instance in a batch of ``width`` tokens, a lower bound where axes are free."""
        return sum(output.row_bytes(width, guess=True) or 0 for output in self.outputs)


@dataclass(frozen=True, slots=True)
class Widths:
    """The widths in tokens that batches may have: multiples of ``multiple`` (--pad_to_multiple_of), and ``longest``,
    the most that the model takes. Runtimes that prepare themselves anew for each shape have few to prepare for."""

    multiple: int
    longest: int

    def of(self, tokens: int) -> int:
        """The width of a batch whose longest text has so many tokens."""
        width = -(-tokens // self.multiple) * self.multiple
        return width if width <= self.longest else max(tokens, self.longest)


def widths_of(multiple: int, longest: int) -> Widths | None:
    """None where a batch is as wide as its longest text, so that nothing is to be rounded."""
    return Widths(multiple, longest) if multiple > 1 else None


def axis_error(axis: Axis, size: int) -> str:
    """Why ``size`` can't be the size of ``axis``; empty if it can."""
    if axis.minimum <= size and (axis.maximum is None or size <= axis.maximum):
        return ""
    return f"{size} along {axis.name}, but {axis.why or f'expected at least {axis.minimum}'}"
