"""Frames that a server sends (RFC 9113, 4 and 6): bytes -> frames, and what their payloads say. No sockets."""

from __future__ import annotations

import struct
from typing import Final

from hf_transformer.predictor.http2_errors import Malformed, NotHttp2
from hf_transformer.predictor.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    LARGEST_FRAME,
    LARGEST_WINDOW,
    PADDED,
    PRIORITIZED,
    SETTINGS,
    SMALLEST_FRAME,
    ErrorCode,
    Setting,
)

ROOM: Final = 2**16
"""Bytes received at once, unless they go straight to their place."""

LARGEST_CONTROL: Final = 2**15
"""Bytes of any frame's payload but DATA; what we announce as MAX_FRAME_SIZE is for that alone."""


_PRIORITY_BYTES = 5
_SETTING = struct.Struct(">HI")

Frame = tuple[int, int, int, memoryview, int]
"""Type, flags, stream, payload and size of one frame, or of a part of a DATA frame.

The payload stays valid until the next bytes are received. Of DATA it is without padding, the flags are END_STREAM or 0,
and the size is what flow control counts, which is padding too. Frames of unknown types have no payload.
"""


class FrameReader:
    """The frames on one connection, received as asyncio.BufferedProtocol asks for it.

    DATA frames are given in parts, as they come, so that no frame has to fit into the buffer. Once a method has raised,
    the connection is of no use.
    """

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(ROOM))
        self._start = self._end = 0
        self._begun = False
        self._flags = 0
        self._skip = 0  # bytes of padding, or of a frame that nobody knows
        self.stream = 0
        """Of the DATA frame that ``left`` tells of."""
        self.left = 0
        """Bytes of a DATA frame, without padding, that have not come yet."""
        self.data_bytes = 0
        """What flow control counts, of all DATA frames whose head has come; set back by who reads it."""

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == ROOM:
            rest = bytes(self._buffer[self._start :])
            self._buffer[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        return self._buffer[self._end :]

    def placed(self, count: int) -> int:
        """Takes note of ``count`` bytes of DATA that went to their place, not into the buffer; gives the flags."""
        self.left -= count
        return 0 if self.left else self._flags

    def updated(self, count: int) -> list[Frame]:
        """Takes note of ``count`` bytes in the buffer; gives the frames among them.

        Raises:
            NotHttp2: it does not begin with SETTINGS, as every server does.
            Malformed: a frame is too large, or its padding is.
        """
        self._end += count
        if not self._begun:
            self._check_beginning()
        frames: list[Frame] = []
        if self.left or self._skip:
            self._go_on(frames)
        start, end, buffer = self._start, self._end, self._buffer
        while end - start >= HEAD_BYTES:
            high, low, kind, flags, stream = HEAD.unpack_from(buffer, start)
            length = high << 8 | low
            stop = start + HEAD_BYTES + length
            if kind == DATA and stop <= end and not flags & PADDED:
                self.data_bytes += length
                payload = buffer[start + HEAD_BYTES : stop]
                frames.append((DATA, flags & END_STREAM, stream & LARGEST_WINDOW, payload, length))
                start = stop
            elif DATA < kind <= CONTINUATION:
                if length > LARGEST_CONTROL:
                    why = f"a frame of type {kind} has {length} bytes, the limit is {LARGEST_CONTROL}"
                    raise Malformed(why, ErrorCode.FRAME_SIZE_ERROR)
                if stop > end:
                    break
                frames.append((kind, flags, stream & LARGEST_WINDOW, buffer[start + HEAD_BYTES : stop], 0))
                start = stop
            else:
                self._start = start
                if not self._begin(frames, kind, length, flags, stream & LARGEST_WINDOW):
                    return frames
                start = self._start
        self._start = start
        return frames

    def _begin(self, frames: list[Frame], kind: int, length: int, flags: int, stream: int) -> bool:
        """Begins a frame that comes in parts, or has padding, or that nobody knows; False where more has to come."""
        start = self._start + HEAD_BYTES
        if kind != DATA:
            self._start, self._skip = start, length
            frames.append((kind, 0, stream, self._buffer[:0], 0))
        elif not flags & PADDED:
            self._start, self.left = start, length
        else:
            if length == 0:
                raise Malformed("a DATA frame has no room for its padding", ErrorCode.FRAME_SIZE_ERROR)
            if start == self._end:
                return False
            padding = self._buffer[start]
            if padding >= length:
                raise Malformed(f"a DATA frame of {length} bytes has {padding} bytes of padding")
            self._start, self.left, self._skip = start + 1, length - 1 - padding, padding
            # The padding's size goes first, in a part of its own: the bytes may go straight to their place.
            frames.append((DATA, 0 if self.left else flags & END_STREAM, stream, self._buffer[:0], padding + 1))
        if kind == DATA:
            self.data_bytes += length
            self._flags, self.stream = flags & END_STREAM, stream
        self._go_on(frames)
        return not (self.left or self._skip)

    def _go_on(self, frames: list[Frame]) -> None:
        """Takes what has come of such a frame."""
        here = min(self.left, self._end - self._start)
        if here:
            stop = self._start + here
            flags = self.placed(here)
            frames.append((DATA, flags, self.stream, self._buffer[self._start : stop], here))
            self._start = stop
        if not self.left:
            skipped = min(self._skip, self._end - self._start)
            self._start += skipped
            self._skip -= skipped

    def _check_beginning(self) -> None:
        if self._end < HEAD_BYTES:
            return
        _, _, kind, flags, stream = HEAD.unpack_from(self._buffer)
        if (kind, flags & ACK, stream) != (SETTINGS, 0, 0):
            raise NotHttp2(f"it begins with {bytes(self._buffer[: min(self._end, 40)])!r}")
        self._begun = True


def without_padding(flags: int, payload: memoryview) -> memoryview:
    """The header block in the payload of HEADERS, which may have padding and a priority.

    Raises:
        Malformed: they do not fit.
    """
    padding = 0
    if flags & PADDED:
        if not payload:
            raise Malformed("a HEADERS frame has no room for its padding", ErrorCode.FRAME_SIZE_ERROR)
        padding, payload = payload[0], payload[1:]
    if flags & PRIORITIZED:
        if len(payload) < _PRIORITY_BYTES:
            raise Malformed("a HEADERS frame has no room for its priority", ErrorCode.FRAME_SIZE_ERROR)
        payload = payload[_PRIORITY_BYTES:]
    if padding > len(payload):
        raise Malformed(f"a HEADERS frame has {padding} bytes of padding, and {len(payload)} in all")
    return payload[: len(payload) - padding]


def parse_settings(payload: memoryview) -> dict[int, int]:
    """What the server says about itself. Raises Malformed for what no server may say."""
    if len(payload) % _SETTING.size:
        raise Malformed(f"a SETTINGS frame has {len(payload)} bytes", ErrorCode.FRAME_SIZE_ERROR)
    values = dict(_SETTING.iter_unpack(payload))
    if values.get(Setting.ENABLE_PUSH, 0) > 1:
        raise Malformed(f"ENABLE_PUSH is {values[Setting.ENABLE_PUSH]}")
    window = values.get(Setting.INITIAL_WINDOW_SIZE, 0)
    if window > LARGEST_WINDOW:
        raise Malformed(f"INITIAL_WINDOW_SIZE is {window}", ErrorCode.FLOW_CONTROL_ERROR)
    largest = values.get(Setting.MAX_FRAME_SIZE, SMALLEST_FRAME)
    if not SMALLEST_FRAME <= largest <= LARGEST_FRAME:
        raise Malformed(f"MAX_FRAME_SIZE is {largest}")
    return values


def parse_number(name: str, payload: memoryview) -> int:
    """The 31 or 32 bits that RST_STREAM and WINDOW_UPDATE consist of. Raises Malformed for another length."""
    if len(payload) != 4:
        raise Malformed(f"a {name} frame has {len(payload)} bytes, expected 4", ErrorCode.FRAME_SIZE_ERROR)
    return int.from_bytes(payload)


def parse_goaway(payload: memoryview) -> tuple[int, int, str]:
    """The last stream that the server knows, why it ends the connection, and what it says of it."""
    if len(payload) < 8:
        raise Malformed(f"a GOAWAY frame has {len(payload)} bytes", ErrorCode.FRAME_SIZE_ERROR)
    last, code = struct.unpack_from(">II", payload)
    return last & LARGEST_WINDOW, code, bytes(payload[8:200]).decode("utf-8", "replace")
