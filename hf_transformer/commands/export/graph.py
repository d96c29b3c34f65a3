"""What is written: which inputs and outputs a model has, and which axes of them are free. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BATCH, SEQUENCE, DECODED, MASKS = "batch", "sequence", "decoder_sequence", "masks"
"""Free axes, by the names that they have in an ONNX file."""

Axis = str | int


@dataclass(frozen=True, slots=True)
class Output:
    """An output: its axes, free ones by name, and its datatype as Triton calls it (INT64, FP32, FP16)."""

    name: str
    axes: tuple[Axis, ...]
    datatype: str


@dataclass(frozen=True, slots=True)
class Graph:
    """``module``, a torch.nn.Module, takes ``inputs``, INT64 [batch, sequence] each, and gives ``outputs``."""

    module: Any
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.inputs)} -> {', '.join(output.name for output in self.outputs)}"

    def axes_of(self, name: str) -> tuple[Axis, ...]:
        """The axes of an input or output."""
        for output in self.outputs:
            if output.name == name:
                return output.axes
        return (BATCH, DECODED if name == "decoder_input_ids" else SEQUENCE)

    @property
    def free_axes(self) -> dict[str, dict[int, str]]:
        """The free axes of every input and output, as torch.onnx.export wants them."""
        names: Sequence[str] = (*self.inputs, *(output.name for output in self.outputs))
        return {
            name: {number: axis for number, axis in enumerate(self.axes_of(name)) if isinstance(axis, str)}
            for name in names
        }
