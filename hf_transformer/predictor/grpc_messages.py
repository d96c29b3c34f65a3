"""gRPC's messages in the body of an answer: a flag, the length in four bytes, and the message. No sockets."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from hf_transformer.predictor.grpc_status import RpcError, Status

PREFIX_BYTES: Final = 5
_PREFIX = struct.Struct(">BI")

LARGE: Final = 2**14
"""Bytes of a message that stays where it was received. A shorter one is copied into ``bytes``."""

_ALIGNMENT = 64

Message = bytes | memoryview


def prefixed(message: bytes) -> tuple[bytes, ...]:
    """An uncompressed message as the parts of a request's body, none of them empty."""
    prefix = _PREFIX.pack(0, len(message))
    return (prefix, message) if message else (prefix,)


class MessageReader:
    """The messages of one answer. Once a method has raised, it is of no use."""

    def __init__(self, limit: int) -> None:
        """limit: the most bytes a message may have."""
        self._limit = limit
        self._prefix = b""  # as much as has come of it
        self._body: memoryview | None = None  # of a message that is not whole
        self._filled = 0

    @property
    def missing(self) -> int:
        """Bytes that are to come of a message that has begun, as far as its length is known."""
        return 0 if self._body is None else len(self._body) - self._filled

    @property
    def between(self) -> bool:
        """Whether every message that has begun is whole."""
        return self._body is None and not self._prefix

    def feed(self, data: memoryview) -> list[Message]:
        """Takes the next bytes; gives the messages that are whole then.

        Raises:
            RpcError: a message is compressed, or too large.
        """
        messages: list[Message] = []
        position = 0
        if self._body is not None:
            position = self._fill(data, messages)
        elif self._prefix:
            data, self._prefix = memoryview(self._prefix + data), b""
        end = len(data)
        while end - position >= PREFIX_BYTES:
            flag, length = _PREFIX.unpack_from(data, position)
            if flag or length > self._limit:
                raise self._refusal(flag, length)
            position += PREFIX_BYTES
            if length <= end - position:
                messages.append(bytes(data[position : position + length]))
                position += length
            else:
                self._body, self._filled = _place(length), 0
                position += self._fill(data[position:], messages)
        if position < end:
            self._prefix = bytes(data[position:])
        return messages

    def room(self) -> memoryview | None:
        """Where the rest of a message goes that has begun; never empty."""
        return None if self._body is None else self._body[self._filled :]

    def placed(self, count: int) -> Message | None:
        """Takes note of so many bytes there; gives the message when it is whole."""
        self._filled += count
        if self._body is None or self.missing:
            return None
        message, self._body = self._body, None
        return message if len(message) >= LARGE else bytes(message)

    def _fill(self, data: memoryview, messages: list[Message]) -> int:
        """Copies what belongs to the message that has begun; gives how many bytes that are."""
        count = min(self.missing, len(data))
        if self._body is not None:
            self._body[self._filled : self._filled + count] = data[:count]
        message = self.placed(count)
        if message is not None:
            messages.append(message)
        return count

    def _refusal(self, flag: int, length: int) -> RpcError:
        if length > self._limit:
            return RpcError(
                Status.RESOURCE_EXHAUSTED,
                f"CLIENT: Received message larger than max ({length} vs. {self._limit})",
                settled=True,
            )
        why = "a message is compressed, although identity is all that was offered" if flag == 1 else f"the flag {flag}"
        return RpcError(Status.INTERNAL, f"the answer breaks the rules of gRPC: {why}")


def _place(length: int) -> memoryview:
    """The place for a message, chosen so that its end is aligned.

    There end the raw contents of the last output, the field with the highest number, which are thus aligned too: over
    elements at odd addresses an argmax takes numpy more than twice as long. No memory is touched for bytes that do not
    come.

    Raises:
        RpcError: it does not fit into memory.
    """
    if length < LARGE:
        return memoryview(bytearray(length))
    try:
        room = np.empty(length + _ALIGNMENT, np.uint8)
    except MemoryError as exc:
        raise RpcError(
            Status.RESOURCE_EXHAUSTED, f"a message of {length} bytes does not fit into memory", settled=True
        ) from exc
    start = -(room.__array_interface__["data"][0] + length) % _ALIGNMENT
    return room.data[start : start + length]
