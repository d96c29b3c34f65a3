"""A serialized protobuf message, field by field: what is large is read and written without the message's class.

The format is a key (field number << 3 | wire type) as a varint, then the value; the order of different fields is free.
Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hf_transformer.protocol.datatypes import Malformed

_VARINT, _FIXED64, DELIMITED, _FIXED32 = 0, 1, 2, 5


def with_field(message: bytes, number: int, values: Iterable[bytes | memoryview]) -> bytes:
    """A message with a bytes field put behind it, which may occur any number of times; each value is copied once."""
    chunks: list[bytes | memoryview] = [message]
    for value in values:
        chunks += (_encoded_varint(number << 3 | DELIMITED), _encoded_varint(len(value)), value)
    return b"".join(chunks)


def _encoded_varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def split_field(body: memoryview, number: int) -> tuple[bytes, list[memoryview]]:
    """Takes one bytes field out of a serialized message without parsing the rest.

    Gives the message without the field, and a view for each occurrence of it.

    Raises:
        Malformed: the bytes are not a message.
    """
    views: list[memoryview] = []
    rest: list[memoryview] = []
    for part in parts(body):
        if part.key == number << 3 | DELIMITED:
            views.append(part.value)
        else:
            rest.append(part.whole)
    return b"".join(rest), views


class Part(NamedTuple):
    """One field of a serialized message: its key (number << 3 | wire type), its value's bytes, and all of its bytes."""

    key: int
    value: memoryview
    whole: memoryview


def parts(body: memoryview) -> Iterator[Part]:
    """The fields of a serialized message, one after the other.

    Raises:
        Malformed: the bytes are not a message.
    """
    position = 0
    while position < len(body):
        start = position
        key, position = _varint(body, position)
        wire_type = key & 7
        value = position
        if wire_type == _VARINT:
            _, position = _varint(body, position)
        elif wire_type == DELIMITED:
            length, value = _varint(body, position)
            position = value + length
        elif wire_type in (_FIXED64, _FIXED32):
            position += 8 if wire_type == _FIXED64 else 4
        else:  # groups, which nobody has used since proto3, and the two types that do not exist
            raise Malformed(f"not a protobuf message: wire type {wire_type}")
        if position > len(body):
            raise Malformed("the protobuf message is cut off")
        yield Part(key, body[value:position], body[start:position])


def _varint(body: memoryview, position: int) -> tuple[int, int]:
    """The number at this position, at most 64 bits in ten bytes, and the position behind it."""
    number = shift = 0
    for index in range(position, min(position + 10, len(body))):
        byte = body[index]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, index + 1
        shift += 7
    raise Malformed("not a protobuf message: a number does not end")
