"""Tensor elements as bytes, as JSON and as numpy arrays, for both forms of the V2 protocol.

Sizes are validated against the available bytes before memory is allocated. Any violation raises Malformed, whose path
is relative to the tensor. The transports to the predictor turn it into PredictorError, the APIs into InvalidInput.

Layout (the protocol's binary tensor data extension): elements are little-endian and row-major, without gaps. BOOL is
one byte, BF16 the upper half of a float32. Each BYTES element follows its length, an unsigned 32-bit integer.
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

from hf_transformer.errors import ESCAPES, FieldDetails, TooLarge, describe
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import NUMPY_DTYPES, Array, Tensor

_VALUE_DTYPES = {**NUMPY_DTYPES, "BF16": np.dtype("<f4")}
"""The numpy dtype of each datatype's values in memory. BYTES has none."""
_WIRE_DTYPES = {**NUMPY_DTYPES, "BF16": np.dtype("<u2")}
"""The numpy dtype of each datatype's elements in a message. BYTES has none."""
DATATYPES = frozenset(_VALUE_DTYPES) | {"BYTES"}

_MAX_RANK = 32
"""The maximum number of axes: more than any model has, and the limit of numpy 1."""
_MAX_ELEMENTS = 2**48
"""The maximum number of elements, far more than in any message. It prevents overflows of an index times an element's
size."""
_MAX_NAME_CHARACTERS = 200
"""The maximum length of a tensor's name, since messages repeat it."""
_MIN_VIEW_BYTES = 4096
"""The minimum size of a tensor for which a view is faster than a copy."""
_LENGTH = struct.Struct("<I")
_SHORT = Repr()
_SHORT.maxlist = _MAX_RANK
"""Formats only the outermost levels and the first elements, since JSON may be nested too deeply for ``repr``."""
_JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}}
"""The Python types of JSON values that each kind of numpy dtype accepts."""


class Malformed(FieldDetails, ValueError):
    """Bytes or JSON break the protocol. An API answers with ``InvalidInput(*error.args)``."""


class Unwritable(Malformed):
    """A value has no form in the protocol, such as a tensor's data that does not fit its datatype."""


# Names, shapes and datatypes


def checked_name(name: str) -> str:
    """The same name. Raises Malformed for a name that is too long to repeat in messages."""
    if len(name) > _MAX_NAME_CHARACTERS:
        raise Malformed("name", f"at most {_MAX_NAME_CHARACTERS} characters", str(len(name)))
    return name


def checked_shape(shape: Json) -> tuple[int, ...]:
    """The shape as a tuple. Raises Malformed for a shape that is impossible for an array."""
    if not isinstance(shape, list):
        raise Malformed("shape", "a list of integers", describe(shape))
    if len(shape) > _MAX_RANK:
        raise Malformed("shape", f"at most {_MAX_RANK} axes", str(len(shape)))
    for size in shape:
        if type(size) is not int or size < 0:
            raise Malformed("shape", "integers of at least 0", shorten(shape))
    if extent_of(shape) > _MAX_ELEMENTS:
        raise Malformed("shape", f"at most {_MAX_ELEMENTS} elements", shorten(shape))
    return tuple(shape)


def checked_datatype(datatype: Json) -> str:
    """The same datatype. Raises Malformed for one that the protocol does not define."""
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise Malformed("datatype", f"one of {', '.join(sorted(DATATYPES))}", describe(datatype, quote=True))
    return datatype


# Numbers of elements


def extent_of(shape: Sequence[int]) -> int:
    """The product of the axes, with an empty axis as one element, because empty rows cost memory, too."""
    return math.prod(shape) or math.prod([size or 1 for size in shape])


def check_extent(shape: Sequence[int], capacity: int, limit: int) -> None:
    """Checks a client's shape before any element is parsed.

    ``capacity`` is the maximum number of elements in the tensor's bytes. A shape over ``limit`` raises TooLarge, or
    Malformed if it exceeds ``capacity`` too or its rows are empty.
    """
    extent = extent_of(shape)
    if extent <= limit:
        return
    if extent > capacity or math.prod(shape) == 0:
        raise Malformed("shape", "no more elements than the data has", str(list(shape)))
    raise TooLarge(
        "shape", f"at most {limit} elements (the larger of --max_instances and --max_sequences)", str(extent)
    )


def check_element_count(shape: Sequence[int], count: int) -> None:
    """Raises Malformed unless ``count`` is the number of elements of the shape."""
    if count != math.prod(shape):
        raise Malformed("data", f"{math.prod(shape)} elements for the shape {list(shape)}", str(count))


# Elements as bytes


def decode_raw(datatype: str, shape: Sequence[int], data: bytes | memoryview) -> Array:
    """An array over ``data``, without a copy except for BOOL, BF16 and BYTES.

    ``datatype`` and ``shape`` are results of checked_datatype and checked_shape. BF16 is widened to float32, BYTES
    becomes an object array of bytes. The array is read-only if ``data`` is. Raises Malformed unless the bytes fit the
    shape.
    """
    dtype = _WIRE_DTYPES.get(datatype)
    if dtype is None:
        return _object_array(shape, raw_elements(shape, data))
    size = math.prod(shape) * dtype.itemsize
    if size != len(data):
        raise Malformed("data", f"{size} bytes for {datatype} {list(shape)}", str(len(data)))
    array: Array = np.ndarray(shape, dtype, data)
    if datatype == "BOOL":  # any byte but 0 is true; numpy would keep the byte as it is
        array = array.view(np.uint8) != 0
    elif datatype == "BF16":
        array = (array.astype("<u4") << np.uint32(16)).view("<f4")
    return array


def raw_elements(shape: Sequence[int], data: bytes | memoryview) -> list[bytes]:
    """The elements of a raw BYTES tensor. Raises Malformed if their number contradicts the shape."""
    count = math.prod(shape)
    if count == 1 and len(data) >= _LENGTH.size and _LENGTH.unpack_from(data)[0] == len(data) - _LENGTH.size:
        return [bytes(data[_LENGTH.size :])]
    if count * _LENGTH.size > len(data):
        raise _bad_elements(count, f"{len(data)} bytes in all")
    elements = []
    position = 0
    for index in range(count):
        start = position + _LENGTH.size
        if start > len(data):
            raise _bad_elements(count, f"an end before element {index}")
        position = start + _LENGTH.unpack_from(data, position)[0]
        if position > len(data):
            raise _bad_elements(count, f"an end within element {index}")
        elements.append(bytes(data[start:position]))
    if position != len(data):
        raise _bad_elements(count, f"{len(data) - position} further bytes")
    return elements


def _bad_elements(count: int, got: str) -> Malformed:
    return Malformed("data", f"{count} BYTES elements, each behind its length in {_LENGTH.size} bytes", got)


def raw_view(tensor: Tensor) -> bytes | memoryview:
    """The elements as bytes; a view of the tensor's memory if that is large and has the protocol's layout.

    Integers are cast to the datatype's width; floats never become integers. Raises Unwritable for data that does not
    fit the datatype.
    """
    data = tensor.data
    if data.dtype is not NUMPY_DTYPES.get(tensor.datatype):
        if tensor.datatype == "BYTES":
            return _with_lengths(data)
        try:
            data = data.astype(_VALUE_DTYPES[tensor.datatype], casting="same_kind")
        except (KeyError, TypeError) as exc:
            raise Unwritable(tensor.name, f"data that {tensor.datatype} can hold", str(data.dtype)) from exc
        if tensor.datatype == "BF16":
            data = _round_to_bfloat16(data)
    return (
        data.tobytes() if data.nbytes < _MIN_VIEW_BYTES else np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
    )


def _with_lengths(elements: Array) -> bytes:
    """The elements of a BYTES tensor, each after its length."""
    chunks: list[bytes] = []
    for value in elements.flat:
        element = value.encode() if isinstance(value, str) else bytes(value)
        chunks += (_LENGTH.pack(len(element)), element)
    return b"".join(chunks)


def _round_to_bfloat16(data: Array) -> Array:
    """The upper halves, rounded to the nearest, ties to even. Every NaN stays a NaN."""
    flat = data.reshape(-1)
    bits = flat.view("<u4").astype("<u8")
    halves: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    halves[np.isnan(flat)] = 0x7FC0
    return halves


# Elements as JSON and as Python values


def decode_json(datatype: str, shape: Sequence[int], data: Json) -> Array:
    """The array in a JSON list, flat or nested, row-major. Strings become UTF-8 elements of BYTES.

    Raises Malformed for elements of another datatype, or if their number contradicts the shape.
    """
    if datatype == "BYTES":
        return _object_array(shape, [element.encode() for element in json_strings(shape, data)])
    elements, kinds = _flatten(shape, data)
    _check_types(kinds, _JSON_TYPES[_VALUE_DTYPES[datatype].kind], f"elements of {datatype}")
    return from_elements(datatype, shape, elements)


def json_strings(shape: Sequence[int], data: Json) -> list[str]:
    """The elements of a BYTES tensor in JSON. Raises Malformed unless all are strings and their number fits the
    shape."""
    elements, kinds = _flatten(shape, data)
    _check_types(kinds, {str}, "strings, which BYTES are in JSON")
    return elements


def _check_types(kinds: set[type], allowed: set[type], expected: str) -> None:
    if not kinds <= allowed:
        raise Malformed("data", expected, ", ".join(sorted(kind.__name__ for kind in kinds - allowed)))


def from_elements(datatype: str, shape: Sequence[int], elements: Iterable[Any]) -> Array:
    """The array of a flat list of Python values; BYTES elements are bytes.

    Raises Malformed for a number that doesn't fit the datatype, or if the number of elements contradicts the shape.
    """
    values = list(elements)
    check_element_count(shape, len(values))
    if datatype == "BYTES":
        return _object_array(shape, values)
    dtype = _VALUE_DTYPES[datatype]
    try:
        if dtype.kind in "iu" and values:  # some versions of numpy only warn, and wrap around
            limits = np.iinfo(dtype)
            if min(values) < limits.min or max(values) > limits.max:
                raise OverflowError
        with np.errstate(over="ignore"):  # a number beyond a float type becomes infinite
            return np.array(values, dtype).reshape(shape)
    except OverflowError as exc:
        raise Malformed("data", f"numbers that fit {datatype}") from exc


def _object_array(shape: Sequence[int], values: Sequence[bytes]) -> Array:
    if len(values) == 1:  # a token; half a microsecond, instead of two
        single: Array = np.empty(shape, np.object_)
        single.fill(values[0])
        return single
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array.reshape(shape)


def _flatten(shape: Sequence[int], data: Json) -> tuple[list[Any], set[type]]:
    """The elements of a flat list, or of lists nested to a uniform depth, and the set of their types.

    Raises Malformed if their number contradicts the shape. Stops at a level with too many elements, or deeper than the
    shape by more than one.
    """
    if not isinstance(data, list):
        raise Malformed("data", "a list", describe(data))
    elements: list[Any] = data
    kinds: set[type] = set()
    count, limit = len(elements), extent_of(shape)
    depth = 1
    while count <= limit and list in (kinds := set(map(type, elements))):
        if len(kinds) > 1:
            raise Malformed("data", "all elements at one depth", "lists and elements in one list")
        depth += 1
        if depth > len(shape) + 1:
            raise Malformed("data", f"lists no deeper than the shape {list(shape)}", f"a depth of {depth} or more")
        count = sum(map(len, elements))
        if count <= limit:
            elements = list(chain.from_iterable(elements))
    check_element_count(shape, count)
    return elements, kinds


def shorten(value: object, limit: int = 80) -> str:
    """A value as text for a message: at most ``limit`` characters, with control characters escaped."""
    text = value if isinstance(value, str) else _SHORT.repr(value)
    return (text if len(text) <= limit else text[:limit] + "...").translate(ESCAPES)


# Outputs in shared memory

MAX_COPIED_BYTES = 2**18
"""The largest output in shared memory that is copied, which takes 18 us. Checking the file's size instead takes 1 us. A
copy of 1 MiB takes 80 us, one of 4 MiB 2 ms."""
REGION, OFFSET, BYTE_SIZE = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"


@dataclass(frozen=True, slots=True)
class Placement:
    """The location in shared memory to which the predictor writes one output, instead of its response.

    Three parameters of the requested output name the location. The response then has only the output's name, datatype
    and shape.

    Attributes:
        region: the name of the region at the predictor.
        offset: the position in the region, in bytes.
        memory: the output's part of the region, from ``offset`` on.
        file: the descriptor of the region's file. Another process can truncate that file; reading mapped memory after
            its end would then end this process (SIGBUS).

    Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_shared_memory.md
    """

    region: str
    offset: int
    memory: memoryview
    file: int | None = None

    def read(self, size: int) -> memoryview:
        """The first ``size`` bytes. Raises Malformed if the file is shorter.

        Small outputs are copied by a system call, which can't raise SIGBUS. For large ones only the file's size is
        checked, so a later truncation goes unnoticed.
        """
        if self.file is None:
            return self.memory[:size]
        if size <= MAX_COPIED_BYTES:
            copied = os.pread(self.file, size, self.offset)
            if len(copied) == size:
                return memoryview(copied)
        elif os.fstat(self.file).st_size >= self.offset + size:
            return self.memory[:size]
        raise Malformed("data", f"{size} bytes at {self.offset} of the shared memory {self.region}", "a truncated file")

    @property
    def parameters(self) -> dict[str, str | int]:
        """The parameters of the requested output."""
        return {REGION: self.region, OFFSET: self.offset, BYTE_SIZE: len(self.memory)}


NO_PLACEMENTS: Mapping[str, Placement] = {}


def placed_tensor(name: str, datatype: str, shape: Sequence[int], placement: Placement) -> Tensor:
    """A tensor over the bytes that the predictor has written, which may be fewer than the placement's.

    Raises Malformed for a tensor that is larger than its placement, and for BYTES, which have no fixed size.
    """
    if datatype == "BYTES":
        raise Malformed("datatype", "a datatype of fixed size in shared memory", datatype)
    size = math.prod(shape) * _WIRE_DTYPES[datatype].itemsize
    if size > len(placement.memory):
        expected = f"at most {len(placement.memory)} bytes in shared memory"
        raise Malformed("shape", expected, f"{size} bytes for {datatype} {list(shape)}")
    return Tensor(name, datatype, decode_raw(datatype, shape, placement.read(size)))
