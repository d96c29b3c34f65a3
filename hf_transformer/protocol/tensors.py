"""Tensor elements as bytes, as JSON and as numpy arrays: what both forms of the V2 protocol share.

Everything that comes in is checked before memory is set aside for it: a shape is believed only as far as
there are bytes for it. What does not fit raises Malformed, which outbound codecs turn into PredictorError and
inbound ones into InvalidInput.

Layout (the protocol's binary tensor data extension): elements little-endian and row-major without gaps; BOOL
one byte; BF16 the upper half of a float32; BYTES each element behind its length as an unsigned 32-bit
integer.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from reprlib import Repr
from typing import Any

import numpy as np

from hf_transformer.errors import TooLarge
from hf_transformer.types import NUMPY_DTYPES, Array, Json, Tensor

DATATYPES = frozenset(NUMPY_DTYPES) | {"BF16", "BYTES"}

_MAX_RANK = 32
"""More axes than any model has, and as many as every numpy takes."""

_MAX_ELEMENTS = 2**48
"""Far above any message, and below what overflows an index when multiplied by an element's size."""

_MAX_NAME = 200
"""Characters of a tensor's name, which messages repeat."""

_WORTH_A_VIEW = 4096
"""Bytes of a tensor from which on a view of them is made in less time than a copy."""

_LENGTH = struct.Struct("<I")
_SHORT = Repr()
_SHORT.maxlist = _MAX_RANK
"""Looks only at the outermost levels and the first elements: JSON may be nested deeper than ``repr`` can follow."""
_JSON_TYPES: dict[str, frozenset[type]] = {
    "b": frozenset({bool}),
    "u": frozenset({int}),
    "i": frozenset({int}),
    "f": frozenset({int, float}),
}
"""Which JSON values are elements of which kind of numpy dtype."""

_JSON_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (type(None), "null"),
    (bool, "a boolean"),
    ((int, float), "a number"),
    (str, "a string"),
    (list, "a list"),
    (dict, "an object"),
)


class Malformed(ValueError):
    """Bytes or JSON that break the protocol. The message names the tensor and what was expected."""


def checked_name(name: str) -> str:
    """A tensor's name, once it is sure that messages can repeat it."""
    if len(name) > _MAX_NAME:
        raise Malformed(f"tensor {shorten(name)!r} has a name of {len(name)} characters, more than {_MAX_NAME}")
    return name


def checked_shape(name: str, shape: Json) -> tuple[int, ...]:
    """The shape as a tuple, once it is sure that it is one that an array can have."""
    if type(shape) is not list and (not isinstance(shape, Sequence) or isinstance(shape, str | bytes)):
        raise Malformed(f"tensor {name!r} has no shape, expected a list of integers")
    if len(shape) > _MAX_RANK:
        raise Malformed(f"tensor {name!r} has {len(shape)} axes, more than {_MAX_RANK}")
    for size in shape:
        if type(size) is not int or size < 0:
            raise Malformed(f"tensor {name!r} has the shape {shorten(shape)}, expected integers of at least 0")
    if extent_of(shape) > _MAX_ELEMENTS:
        raise Malformed(f"tensor {name!r} has the absurd shape {shorten(shape)}")
    return tuple(shape)


def extent_of(shape: Sequence[int]) -> int:
    """The product of the axes, of which an empty one counts as if it had one element: rows cost memory, too."""
    extent = 1
    for size in shape:
        if size > 1:
            extent *= size
    return extent


def check_count(name: str, shape: Sequence[int], room: int, most: int) -> None:
    """Refuses more elements than a client may send, before one of them is read.

    Args:
        room: how many elements the tensor's bytes can hold at most.
        most: how many elements are taken (--max_instances and --max_sequences).

    Raises:
        Malformed: there are no bytes for so many elements, or so many rows are empty.
        TooLarge: there are too many.
    """
    extent = extent_of(shape)
    if extent <= most:
        return
    if extent > room or math.prod(shape) == 0:
        raise Malformed(f"tensor {name!r} has the shape {list(shape)}, but there are no bytes for so many elements")
    raise TooLarge(
        f"tensor {name!r} has {extent} elements, at most {most} are taken (the larger of --max_instances and "
        "--max_sequences)"
    )


def checked_datatype(name: str, datatype: Json) -> str:
    """The datatype, once it is sure that it is one of the protocol's."""
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise Malformed(f"tensor {name!r} has the unknown datatype {shorten(datatype)!r}")
    return datatype


def decode_raw(name: str, datatype: str, shape: Sequence[int], data: memoryview) -> Array:
    """An array over ``data``, without a copy except for BOOL, BF16 and BYTES.

    ``datatype`` and ``shape`` come from checked_datatype and checked_shape. BF16 is widened to float32, BYTES
    gives an object array of bytes. The array can't be written to where ``data`` can't.
    """
    if datatype == "BYTES":
        return _object_array(shape, raw_elements(name, shape, data))
    count = math.prod(shape)
    dtype = np.dtype("<u2") if datatype == "BF16" else NUMPY_DTYPES[datatype]
    size = count * dtype.itemsize
    if size != len(data):
        raise Malformed(f"tensor {name!r} has {len(data)} bytes, but {datatype} {list(shape)} takes {size}")
    if count == 0:
        return np.empty(shape, np.float32 if datatype == "BF16" else dtype)
    if datatype == "BOOL":  # any byte but 0 is true; numpy would keep the byte as it is
        truth: Array = np.frombuffer(data, np.uint8) != 0
        return truth.reshape(shape)
    array: Array = np.frombuffer(data, dtype)
    if datatype == "BF16":
        array = (array.astype("<u4") << np.uint32(16)).view("<f4")
    return array.reshape(shape)


def raw_elements(name: str, shape: Sequence[int], data: memoryview) -> list[bytes]:
    """The elements of a raw BYTES tensor. Raises Malformed where they are not as many as the shape takes."""
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


def encode_raw(tensor: Tensor) -> bytes:
    """The elements as bytes; see raw_view."""
    return bytes(raw_view(tensor))


def raw_view(tensor: Tensor) -> bytes | memoryview:
    """The elements as bytes, without a copy of the tensor's own where they are large and already as they should be.

    Integers may be wider or narrower than the datatype says (they are cast), but floats are never cut to
    integers.

    Raises:
        Malformed: the data can't be written as the datatype.
    """
    dtype = NUMPY_DTYPES.get(tensor.datatype)
    if dtype is not None and tensor.data.dtype == dtype and tensor.data.nbytes < _WORTH_A_VIEW:
        return tensor.data.tobytes()
    checked_datatype(tensor.name, tensor.datatype)
    if tensor.datatype == "BYTES":
        written: list[bytes] = []
        for value in tensor.data.flat:
            element = value.encode() if isinstance(value, str) else bytes(value)
            written += (_LENGTH.pack(len(element)), element)
        return b"".join(written)
    target = np.dtype("<f4") if tensor.datatype == "BF16" else NUMPY_DTYPES[tensor.datatype]
    try:
        data = tensor.data.astype(target, order="C", casting="same_kind", copy=False)
    except TypeError as exc:
        message = f"tensor {tensor.name!r} is {tensor.datatype}, its data is {tensor.data.dtype}"
        raise Malformed(message) from exc
    if tensor.datatype == "BF16":
        data = _round_to_bfloat16(data)
    return data.tobytes() if data.nbytes < _WORTH_A_VIEW else data.reshape(-1).view(np.uint8).data


def _round_to_bfloat16(data: Array) -> Array:
    """The upper halves, rounded to the nearest, ties to even; a NaN stays one whatever its lower half is."""
    flat = data.reshape(-1)
    bits = flat.view("<u4").astype("<u8")
    halves: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    halves[np.isnan(flat)] = 0x7FC0
    return halves


def decode_json(name: str, datatype: str, shape: Sequence[int], data: Json) -> Array:
    """The array in a JSON list, flat or nested, row-major. Strings are UTF-8 elements of BYTES."""
    if datatype == "BYTES":
        return _object_array(shape, [element.encode() for element in json_strings(name, shape, data)])
    elements = _flattened(name, shape, data)
    check_sizes_agree(name, shape, len(elements))
    allowed = _JSON_TYPES["f" if datatype == "BF16" else NUMPY_DTYPES[datatype].kind]
    wrong = sorted(kind.__name__ for kind in set(map(type, elements)) - allowed)
    if wrong:
        raise Malformed(f"tensor {name!r} is {datatype}, but its data holds {', '.join(wrong)}")
    return from_elements(name, datatype, shape, elements)


def json_strings(name: str, shape: Sequence[int], data: Json) -> list[str]:
    """The elements of a BYTES tensor in JSON. Raises Malformed where they are no strings, or not as many as the shape
    takes."""
    if type(data) is list and len(data) == math.prod(shape):  # flat, as most clients write them
        for element in data:
            if type(element) is not str:
                break
        else:
            return data
    elements = _flattened(name, shape, data)
    check_sizes_agree(name, shape, len(elements))
    if any(type(element) is not str for element in elements):
        raise Malformed(f"tensor {name!r} is BYTES, so every element of its data is a string")
    return elements


def check_sizes_agree(name: str, shape: Sequence[int], given: int) -> None:
    """Raises Malformed unless so many elements were given as the shape takes."""
    count = math.prod(shape)
    if given != count:
        raise Malformed(f"tensor {name!r} has {given} elements, but {list(shape)} takes {count}")


def from_elements(name: str, datatype: str, shape: Sequence[int], elements: Iterable[Any]) -> Array:
    """The array of a flat list of Python values, as many as the shape takes; BYTES elements are bytes."""
    values = list(elements)
    check_sizes_agree(name, shape, len(values))
    if datatype == "BYTES":
        return _object_array(shape, values)
    dtype = np.dtype("<f4") if datatype == "BF16" else NUMPY_DTYPES[datatype]
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


def _flattened(name: str, shape: Sequence[int], data: Json) -> list[Any]:
    """The elements of a list of lists of ..., which has to have one depth throughout.

    Nothing is looked at, or put together, that is larger than the shape; nor is anything deeper than one more level.
    """
    if not isinstance(data, list):
        raise Malformed(f"the data of tensor {name!r} is {json_kind(data)}, expected a list")
    extent = extent_of(shape)
    elements: list[Any] = data
    _check_extent(name, shape, extent, len(elements))
    depth = 1
    while list in (kinds := set(map(type, elements))):
        if len(kinds) > 1:
            raise Malformed(f"the data of tensor {name!r} mixes lists and elements")
        depth += 1
        if depth > len(shape) + 1:
            raise Malformed(f"the data of tensor {name!r} is nested deeper than its shape {list(shape)}")
        _check_extent(name, shape, extent, sum(map(len, elements)))
        elements = list(chain.from_iterable(elements))
    return elements


def _check_extent(name: str, shape: Sequence[int], extent: int, given: int) -> None:
    """Raises Malformed where one level of the data has more lists or elements than fit the shape."""
    if given > extent:
        raise Malformed(f"tensor {name!r} has {given} elements, but {list(shape)} takes {math.prod(shape)}")


def shorten(value: object, limit: int = 80) -> str:
    """A value as it may stand in an error message."""
    text = value if isinstance(value, str) else _SHORT.repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


def json_kind(value: Json) -> str:
    """What a JSON value is, in words; the value itself stays out of messages where it may be a prompt."""
    for kinds, words in _JSON_KINDS:
        if isinstance(value, kinds):
            return words
    return type(value).__name__


def config_datatype(name: str, data_type: Json) -> str:
    """The protocol's datatype for a configuration's: TYPE_INT64 is INT64, TYPE_STRING is BYTES.

    Raises:
        Malformed: it is none of Triton's.
    """
    if data_type == "TYPE_STRING":
        return "BYTES"
    if isinstance(data_type, str) and data_type.startswith("TYPE_"):
        datatype = data_type.removeprefix("TYPE_")
        if datatype in DATATYPES and datatype != "BYTES":
            return datatype
    raise Malformed(f"tensor {name!r} has the unknown data_type {shorten(data_type)!r}")


def data_type(datatype: str) -> str:
    """A configuration's name for the protocol's datatype: INT64 is TYPE_INT64, BYTES is TYPE_STRING."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


REGION, OFFSET, BYTE_SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one output goes: ``memory`` is the part of the region, from ``offset`` on, that belongs to it."""

    region: str
    offset: int
    memory: memoryview

    @property
    def parameters(self) -> dict[str, str | int]:
        """What the request says of the output."""
        return {REGION: self.region, OFFSET: self.offset, BYTE_SIZE: len(self.memory)}


NOWHERE: Mapping[str, Placement] = {}


def placed_tensor(name: str, datatype: str, shape: Sequence[int], placement: Placement) -> Tensor:
    """A tensor over what the predictor has written, which may be less than there is room for.

    Raises:
        Malformed: the tensor is larger than its place, or of a datatype whose size nobody knows beforehand.
    """
    if datatype == "BYTES":
        raise Malformed(f"tensor {name!r} is BYTES, which shared memory was not asked for")
    itemsize = 2 if datatype == "BF16" else NUMPY_DTYPES[datatype].itemsize
    size = math.prod(shape) * itemsize
    room = len(placement.memory)
    if size > room:
        raise Malformed(f"tensor {name!r} is {datatype} {list(shape)}, {size} bytes, but has room for {room}")
    return Tensor(name, datatype, decode_raw(name, datatype, shape, placement.memory[:size]))
