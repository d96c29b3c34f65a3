"""Frames of HTTP/2 (RFC 9113, 4 and 6): what is sent, as bytes. No sockets."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITIZED: Final = 0x20

HEAD_BYTES: Final = 9
HEAD: Final = struct.Struct(">HBBBI")
"""A frame's head: the upper 16 and the lower 8 bits of its length, its type, its flags and its stream."""

SMALLEST_FRAME: Final = 2**14
"""Bytes of a frame that every side has to take; also the limit before any is announced."""
LARGEST_FRAME: Final = 2**24 - 1
LARGEST_WINDOW: Final = 2**31 - 1
FIRST_WINDOW: Final = 2**16 - 1
"""Bytes that may be sent before any window is announced, of a stream and of a connection."""


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (RFC 9113, 7). A server may send others."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Setting(IntEnum):
    """What one side tells the other about itself (RFC 9113, 6.5.2)."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


def head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """The nine bytes before a payload of ``length`` bytes."""
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream)


def headers_frames(stream: int, block: bytes, largest: int) -> bytes:
    """A header block as one HEADERS frame, and CONTINUATION frames where it is larger than ``largest``."""
    if len(block) <= largest:
        return head(len(block), HEADERS, END_HEADERS, stream) + block
    frames = bytearray()
    for start in range(0, len(block), largest):
        part = block[start : start + largest]
        flags = END_HEADERS if start + largest >= len(block) else 0
        frames += head(len(part), CONTINUATION if start else HEADERS, flags, stream) + part
    return bytes(frames)


def settings_frame(values: Mapping[Setting, int]) -> bytes:
    """What we tell the server about ourselves."""
    payload = b"".join(struct.pack(">HI", setting, value) for setting, value in values.items())
    return head(len(payload), SETTINGS, 0, 0) + payload


SETTINGS_ACK: Final = head(0, SETTINGS, ACK, 0)


def ping_frame(data: bytes, flags: int = 0) -> bytes:
    """``data`` has eight bytes."""
    return head(8, PING, flags, 0) + data


def window_frame(stream: int, increment: int) -> bytes:
    """So many bytes more may be sent to us; on the whole connection where ``stream`` is 0."""
    return HEAD.pack(0, 4, WINDOW_UPDATE, 0, stream) + increment.to_bytes(4)


def reset_frame(stream: int, code: int) -> bytes:
    """Ends a stream."""
    return HEAD.pack(0, 4, RST_STREAM, 0, stream) + code.to_bytes(4)


def goaway_frame(code: int, why: str) -> bytes:
    """Ends the connection. The server has opened no stream, so the last one that we know is 0."""
    debug = why.encode()[:200]
    return head(8 + len(debug), GOAWAY, 0, 0) + struct.pack(">II", 0, code) + debug
