"""One input of a generative model: which values it can hold, and the tensors of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from hf_transformer.types import NUMPY_DTYPES, Tensor, TensorSpec

_EXPORTED: Final[Mapping[type, str]] = {str: "TYPE_STRING", bool: "BOOL", float: "FP32"}
"""Datatypes that values of Python go into; whole numbers into INT32."""

_FLOAT_BITS: Final[Mapping[str, int]] = {"BF16": 8, "FP16": 11, "FP32": 24, "FP64": 53}
"""Binary digits of a float's mantissa: as large are the whole numbers that it has all of (IEEE 754; bfloat16 has the
exponent of FP32)."""

_JSON_BITS: Final = 63
"""Of the largest whole numbers that JSON says to everybody."""


class ModelInput:
    """One input of a model; ``batched`` says that Triton puts a batch axis in front of its shape."""

    def __init__(self, spec: TensorSpec, batched: bool) -> None:
        self.name = spec.name
        self.optional = spec.optional
        self.datatype = spec.datatype
        self.dims = (1, *spec.shape) if batched else spec.shape
        self._fixed = math.prod(size for size in self.dims if size >= 0)
        self.free = self._fixed == 1 and any(size < 0 for size in self.dims)
        """Whether it takes any number of elements."""
        self._shape = self._usual_shape()

    def tensor(self, values: Any) -> Tensor:
        """A tensor of a value or a flat list. Raises ValueError for so many that do not fit the shape, and
        OverflowError as ``number`` does."""
        if isinstance(values, (int, float)):
            return self.number(values)
        return self.text(values) if isinstance(values, str) else self.row(values)

    def row(self, values: Sequence[int]) -> Tensor:
        """A tensor of a flat list. Raises ValueError as ``tensor`` does."""
        data = np.array(values, self._dtype)
        shape = self._shape if self.free else self.shape(len(data))
        return Tensor(self.name, self.datatype, data.reshape(shape))

    def text(self, value: str) -> Tensor:
        """A tensor of one text."""
        return Tensor(self.name, self.datatype, np.array((value,), np.object_).reshape(self._shape))

    def number(self, value: float) -> Tensor:
        """A tensor of one number.

        Raises:
            OverflowError: a whole number that is not among those that its datatype holds.
        """
        if type(value) is int and not self.least <= value <= self.most:
            raise OverflowError(f"{value} is not in {self.least} to {self.most}")
        return Tensor(self.name, self.datatype, np.full(self.shape(1), value, self._dtype))

    def shape(self, count: int) -> tuple[int, ...]:
        """The shape of so many elements: the innermost free axis is as long as it takes, other free ones are 1.

        Raises:
            ValueError: none has so many.
        """
        rest, over = divmod(count, self._fixed) if self._fixed else (0, count)
        free = [axis for axis, size in enumerate(self.dims) if size < 0]
        if over or (not free and rest != 1):
            raise ValueError(f"{count} elements do not fit into {list(self.dims)}")
        return tuple((rest if axis == free[-1] else 1) if size < 0 else size for axis, size in enumerate(self.dims))

    def _usual_shape(self) -> tuple[int, ...]:
        """What numpy makes the shape of any number of elements of, where they fit, else that of one."""
        last = max((axis for axis, size in enumerate(self.dims) if size < 0), default=-1)
        return tuple((-1 if axis == last else 1) if size < 0 else size for axis, size in enumerate(self.dims))

    @cached_property
    def _dtype(self) -> np.dtype[Any]:
        if self.datatype == "BYTES":
            return np.dtype(np.object_)
        return np.dtype(np.float32) if self.datatype == "BF16" else NUMPY_DTYPES[self.datatype]

    @cached_property
    def most(self) -> int:
        """The largest whole number that it holds, of floats the last one up to which they have all; at most 2**63 - 1,
        so that JSON can say it."""
        dtype = self._dtype
        bits = 1 if dtype.kind == "b" else dtype.itemsize * 8 - (dtype.kind == "i")
        return (1 << min(_JSON_BITS, _FLOAT_BITS.get(self.datatype, bits))) - 1

    @cached_property
    def least(self) -> int:
        """The smallest whole number that it holds."""
        return 0 if self._dtype.kind in "bu" else -self.most - 1

    def holds(self, value: str | int | Sequence[int]) -> bool:
        """Whether its datatype has a value, or all of a list: unsigned ones have no -1."""
        texts = self._dtype.kind == "O"
        if isinstance(value, str) or texts:
            return isinstance(value, str) and texts
        return all(self.least <= one <= self.most for one in ([value] if isinstance(value, int) else value))

    def value_problems(self, value: str | int | Sequence[int], meaning: str) -> list[str]:
        """What keeps it from holding a value, or a list of some; ``meaning`` says what it is."""
        count = 1 if isinstance(value, str | int) else len(value)
        try:
            self.shape(count)
        except ValueError:
            many = "one value goes" if count == 1 else f"{count} values go"
            return [f"Its input {self.name!r} has the dims {list(self.dims)}; {many} there."]
        if self.holds(value):
            return []
        expected = _EXPORTED.get(type(value), "INT32")
        return [f"Its input {self.name!r} is {self.datatype}, which can't hold {meaning}; export it as {expected}."]

    def scalar_problems(self, kind: type[bool] | type[int] | type[float]) -> list[str]:
        """What keeps it from holding one value of a kind: true or false, whole numbers, or any."""
        try:
            self.shape(1)
        except ValueError:
            return [f"Its input {self.name!r} has the dims {list(self.dims)}; one value goes there."]
        if self._dtype.kind in _KINDS[kind]:
            return []
        return [f"Its input {self.name!r} is {self.datatype}; export it as {_EXPORTED.get(kind, 'INT32')}."]

    def text_problems(self) -> list[str]:
        """What keeps it from holding one text."""
        try:
            self.shape(1)
        except ValueError:
            return [f"Its input {self.name!r} has the dims {list(self.dims)}; one text goes there."]
        return [] if self.datatype == "BYTES" else [f"Its input {self.name!r} is {self.datatype}; text is TYPE_STRING."]


_KINDS: Final[Mapping[type, str]] = {bool: "biuf", int: "iuf", float: "f"}
"""numpy's kinds of datatypes that hold values of Python."""
