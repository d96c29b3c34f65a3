"""Tensor elements as bytes, as JSON and as numpy arrays: what both forms of the V2 protocol share.

Sizes are validated before memory is allocated: a shape counts only as far as there are bytes for it. Anything else
raises Malformed, which becomes PredictorError in the transports to the predictor and InvalidInput in the APIs.

Layout (the protocol's binary tensor data extension): elements little-endian and row-major without gaps; BOOL one byte;
BF16 the upper half of a float32; BYTES each element behind its length as an unsigned 32-bit integer.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from reprlib import Repr
from typing import Any

import numpy as np

from hf_transformer.errors import ESCAPES, TooLarge, describe
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import NUMPY_DTYPES, Array, Tensor

_AS_VALUES = {**NUMPY_DTYPES, "BF16": np.dtype("<f4")}
_AS_BYTES = {**NUMPY_DTYPES, "BF16": np.dtype("<u2")}
"""The numpy types of elements: as values, and as they travel. BYTES has none."""

DATATYPES = frozenset(_AS_VALUES) | {"BYTES"}

_MAX_RANK = 32
"""More axes than any model has, and as many as every numpy takes."""
_MAX_ELEMENTS = 2**48
"""Far above any message, and below what overflows an index when multiplied by an element's size."""
_MAX_NAME = 200
"""Characters of a tensor's name, which messages repeat."""
_WORTH_A_VIEW = 4096
"""Bytes of a tensor from which on making a view is faster than copying."""
_LENGTH = struct.Struct("<I")
_SHORT = Repr()
_SHORT.maxlist = _MAX_RANK
"""Looks only at the outermost levels and the first elements: JSON may be nested deeper than ``repr`` can follow."""
_JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}
"""The types of JSON values that are elements of each kind of numpy dtype."""


class Malformed(ValueError):
    """Bytes or JSON that break the protocol. The message names the tensor and what was expected."""


class Unwritable(Malformed):
    """A tensor whose data can't be written as its datatype."""


# Names, shapes and datatypes


def checked_name(name: str) -> str:
    """The name of a tensor. Raises Malformed for one that is too long to repeat in messages."""
    if len(name) > _MAX_NAME:
        raise Malformed(f"tensor {shorten(name)!r} has a name of {len(name)} characters, more than {_MAX_NAME}")
    return name


def checked_shape(name: str, shape: Json) -> tuple[int, ...]:
    """The shape as a tuple. Raises Malformed for anything that no array can have."""
    if not isinstance(shape, list):
        raise Malformed(f"tensor {name!r} has no shape, expected a list of integers")
    if len(shape) > _MAX_RANK:
        raise Malformed(f"tensor {name!r} has {len(shape)} axes, more than {_MAX_RANK}")
    if shape and (set(map(type, shape)) != {int} or min(shape) < 0):
        raise Malformed(f"tensor {name!r} has the shape {shorten(shape)}, expected integers of at least 0")
    if extent_of(shape) > _MAX_ELEMENTS:
        raise Malformed(f"tensor {name!r} has the absurd shape {shorten(shape)}")
    return tuple(shape)


def checked_datatype(name: str, datatype: Json) -> str:
    """The datatype. Raises Malformed for one that is not the protocol's."""
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise Malformed(f"tensor {name!r} has the unknown datatype {shorten(datatype)!r}")
    return datatype


# Bounds


def extent_of(shape: Sequence[int]) -> int:
    """The product of the axes, where an empty axis counts as one element: empty rows cost memory, too."""
    return math.prod(shape) or math.prod([size or 1 for size in shape])


def check_count(name: str, shape: Sequence[int], room: int, most: int) -> None:
    """Refuses more elements than a client may send, before any element is read.

    ``room`` is the number of elements that the tensor's bytes can hold at most. Raises TooLarge for more than ``most``,
    and Malformed instead if the bytes have no room for so many, or the rows are empty.
    """
    extent = extent_of(shape)
    if extent <= most:
        return
    if extent > room or math.prod(shape) == 0:
        raise Malformed(f"tensor {name!r} has the shape {list(shape)}, but there are no bytes for so many elements")
    raise TooLarge.of(
        f"tensor {name!r} has {extent} elements, at most {most} are taken (the larger of --max_instances and "
        "--max_sequences)"
    )


def check_sizes_agree(name: str, shape: Sequence[int], given: int) -> None:
    """Raises Malformed unless the number of elements is that of the shape."""
    count = math.prod(shape)
    if given != count:
        raise Malformed(f"tensor {name!r} has {given} elements, but {list(shape)} takes {count}")


# Elements as bytes


def decode_raw(name: str, datatype: str, shape: Sequence[int], data: memoryview) -> Array:
    """An array over ``data``, without a copy except for BOOL, BF16 and BYTES.

    ``datatype`` and ``shape`` come from checked_datatype and checked_shape. BF16 is widened to float32, BYTES gives an
    object array of bytes. The array is read-only where ``data`` is. Raises Malformed unless the bytes fit the shape.
    """
    dtype = _AS_BYTES.get(datatype)
    if dtype is None:
        return _object_array(shape, raw_elements(name, shape, data))
    size = math.prod(shape) * dtype.itemsize
    if size != len(data):
        raise Malformed(f"tensor {name!r} has {len(data)} bytes, but {datatype} {list(shape)} takes {size}")
    array: Array = np.ndarray(shape, dtype, data)
    if datatype == "BOOL":  # any byte but 0 is true; numpy would keep the byte as it is
        array = array.view(np.uint8) != 0
    elif datatype == "BF16":
        array = (array.astype("<u4") << np.uint32(16)).view("<f4")
    return array


def raw_elements(name: str, shape: Sequence[int], data: memoryview) -> list[bytes]:
    """The elements of a raw BYTES tensor. Raises Malformed unless their number is that of the shape."""
    count = math.prod(shape)
    if count * _LENGTH.size > len(data):
        raise Malformed(f"tensor {name!r} has {len(data)} bytes, too few for BYTES {list(shape)}")
    elements = []
    position = 0
    for index in range(count):
        start = position + _LENGTH.size
        if start > len(data):
            raise Malformed(f"tensor {name!r} ends before element {index} of {count}")
        position = start + _LENGTH.unpack_from(data, position)[0]
        if position > len(data):
            raise Malformed(f"tensor {name!r} ends within element {index} of {count}")
        elements.append(bytes(data[start:position]))
    if position != len(data):
        raise Malformed(f"tensor {name!r} has {len(data) - position} bytes behind its {count} elements")
    return elements


def raw_view(tensor: Tensor) -> bytes | memoryview:
    """The elements as bytes; a view of the tensor's own memory where that is large and laid out like the bytes.

    Integers may be wider or narrower than the datatype (they are cast), but floats are never cut to integers: data
    that can't be written as the datatype raises Unwritable.
    """
    data = tensor.data
    if data.dtype is not NUMPY_DTYPES.get(tensor.datatype):
        if tensor.datatype == "BYTES":
            return _framed(data)
        try:
            data = data.astype(_AS_VALUES[tensor.datatype], casting="same_kind")
        except (KeyError, TypeError) as exc:
            raise Unwritable(f"tensor {tensor.name!r} is {tensor.datatype}, its data is {data.dtype}") from exc
        if tensor.datatype == "BF16":
            data = _round_to_bfloat16(data)
    return data.tobytes() if data.nbytes < _WORTH_A_VIEW else np.ascontiguousarray(data).reshape(-1).view(np.uint8).data


def _framed(elements: Array) -> bytes:
    """The elements of a BYTES tensor, each behind its length."""
    written: list[bytes] = []
    for value in elements.flat:
        element = value.encode() if isinstance(value, str) else bytes(value)
        written += (_LENGTH.pack(len(element)), element)
    return b"".join(written)


def _round_to_bfloat16(data: Array) -> Array:
    """The upper halves, rounded to the nearest, ties to even; a NaN stays one whatever its lower half is."""
    flat = data.reshape(-1)
    bits = flat.view("<u4").astype("<u8")
    halves: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    halves[np.isnan(flat)] = 0x7FC0
    return halves


# Elements as JSON and as Python values


def decode_json(name: str, datatype: str, shape: Sequence[int], data: Json) -> Array:
    """The array in a JSON list, flat or nested, row-major. Strings are UTF-8 elements of BYTES.

    Raises Malformed for elements of another datatype, or if the shape takes more or fewer of them.
    """
    if datatype == "BYTES":
        return _object_array(shape, [element.encode() for element in json_strings(name, shape, data)])
    elements, kinds = _flattened(name, shape, data)
    wrong = sorted(kind.__name__ for kind in kinds - _JSON_TYPES[_AS_VALUES[datatype].kind])
    if wrong:
        raise Malformed(f"tensor {name!r} is {datatype}, but its data holds {', '.join(wrong)}")
    return from_elements(name, datatype, shape, elements)


def json_strings(name: str, shape: Sequence[int], data: Json) -> list[str]:
    """The elements of a BYTES tensor in JSON. Raises Malformed unless all are strings, as many as the shape takes."""
    elements, kinds = _flattened(name, shape, data)
    if not kinds <= {str}:
        raise Malformed(f"tensor {name!r} is BYTES, so every element of its data is a string")
    return elements


def from_elements(name: str, datatype: str, shape: Sequence[int], elements: Iterable[Any]) -> Array:
    """The array of a flat list of Python values; BYTES elements are bytes.

    Raises Malformed for a number that doesn't fit the datatype, or if the shape takes more or fewer elements.
    """
    values = list(elements)
    check_sizes_agree(name, shape, len(values))
    if datatype == "BYTES":
        return _object_array(shape, values)
    dtype = _AS_VALUES[datatype]
    if dtype.kind in "iu" and values:  # some versions of numpy only warn, and wrap around
        limits = np.iinfo(dtype)
        if min(values) < limits.min or max(values) > limits.max:
            raise Malformed(f"tensor {name!r} holds a number that does not fit {datatype}")
    try:
        with np.errstate(over="ignore"):  # what is too large for the type is infinite in it
            return np.array(values, dtype).reshape(shape)
    except OverflowError as exc:
        raise Malformed(f"tensor {name!r} holds a number that does not fit {datatype}") from exc


def _object_array(shape: Sequence[int], values: Sequence[bytes]) -> Array:
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array.reshape(shape)


def _flattened(name: str, shape: Sequence[int], data: Json) -> tuple[list[Any], set[type]]:
    """The elements of nested lists of one depth, as many as the shape takes, and their types.

    A level that is larger than the shape, or deeper than it by more than one, is refused before it is read.
    """
    if not isinstance(data, list):
        raise Malformed(f"the data of tensor {name!r} is {describe(data)}, expected a list")
    elements: list[Any] = data
    kinds: set[type] = set()
    count, most = len(elements), extent_of(shape)
    depth = 1
    while count <= most and list in (kinds := set(map(type, elements))):
        if len(kinds) > 1:
            raise Malformed(f"the data of tensor {name!r} mixes lists and elements")
        depth += 1
        if depth > len(shape) + 1:
            raise Malformed(f"the data of tensor {name!r} is nested deeper than its shape {list(shape)}")
        count = sum(map(len, elements))
        if count <= most:
            elements = list(chain.from_iterable(elements))
    check_sizes_agree(name, shape, count)
    return elements, kinds


def shorten(value: object, limit: int = 80) -> str:
    """A value, cut to the length that it may have in an error message, with control characters as escapes."""
    text = value if isinstance(value, str) else _SHORT.repr(value)
    return (text if len(text) <= limit else text[:limit] + "...").translate(ESCAPES)


# Outputs in shared memory

COPIED = 2**18
"""Bytes of an output in shared memory up to which it is copied. That takes 18 us, where looking at the file's size
takes 1; four times as much takes 80 us, and 16 times as much 2 ms."""
REGION, OFFSET, BYTE_SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"


@dataclass(frozen=True, slots=True)
class Placement:
    """The place in shared memory that the predictor writes one output to, instead of into its response.

    ``memory`` is the part of the region, from ``offset`` on, that belongs to the output. ``file`` is the descriptor of
    the region's file: another process that writes it can also cut it, and a read of mapped memory behind its end would
    end the process (SIGBUS). Three parameters of the requested output name the place; the response then has the
    output's name, datatype and shape, and nothing else.

    Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_shared_memory.md
    """

    region: str
    offset: int
    memory: memoryview
    file: int | None = None

    def read(self, size: int) -> memoryview:
        """The first ``size`` bytes. Few are copied, by a call that can't fail in this way; of more it is checked that
        they are there, and a file that is cut after that is not found out.

        Raises Malformed where the file is shorter.
        """
        if self.file is None:
            return self.memory[:size]
        if size <= COPIED:
            copied = os.pread(self.file, size, self.offset)
            if len(copied) == size:
                return memoryview(copied)
        elif os.fstat(self.file).st_size >= self.offset + size:
            return self.memory[:size]
        raise Malformed(f"the shared memory {self.region} was cut: {size} bytes at {self.offset} are not there")

    @property
    def parameters(self) -> dict[str, str | int]:
        """The parameters of the requested output."""
        return {REGION: self.region, OFFSET: self.offset, BYTE_SIZE: len(self.memory)}


NOWHERE: Mapping[str, Placement] = {}


def placed_tensor(name: str, datatype: str, shape: Sequence[int], placement: Placement) -> Tensor:
    """A tensor over the bytes that the predictor has written, which may be fewer than the place holds.

    Raises Malformed for a tensor that is larger than its place, or of BYTES, which have no fixed size.
    """
    if datatype == "BYTES":
        raise Malformed(f"tensor {name!r} is BYTES, which shared memory was not asked for")
    size = math.prod(shape) * _AS_BYTES[datatype].itemsize
    room = len(placement.memory)
    if size > room:
        raise Malformed(f"tensor {name!r} is {datatype} {list(shape)}, {size} bytes, but has room for {room}")
    return Tensor(name, datatype, decode_raw(name, datatype, shape, placement.read(size)))
