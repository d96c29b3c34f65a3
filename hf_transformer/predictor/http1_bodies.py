"""Bodies whose length shows only at their end: chunked ones (RFC 9112, 7.1), and those that end with the connection."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from hf_transformer.predictor.http1_errors import AnswerTooLarge, MalformedAnswer

LINE_LIMIT: Final = 4096
"""Bytes of a line with the size of a chunk, its extensions included."""

TRAILER_LIMIT: Final = 2**16
"""Bytes of all trailer fields together."""

_END: Final = b"0\r\n\r\n"
"""How nearly every chunked body ends."""

_SHORT: Final = 512
"""Bytes of a chunk, its framing included, that ``usual`` knows no more."""


def _line_before(size: int) -> bytes:
    """The line before the data of a chunk that has so many bytes in all; one that is too long to fit where none has."""
    lines = [b"%x\r\n" % (size - 4 - digits) for digits in (1, 2, 3) if size > 4 + digits]
    return next((line for line in lines if len(line) + int(line, 16) + 2 == size), b"0" * (size + 1))


_BEFORE: Final = [_line_before(size) for size in range(_SHORT)]

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n\0]*)?\r\n")


class UntilClose:
    """A body that ends where the server closes the connection."""

    __slots__ = ("_limit", "data")

    complete: Final = False

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> int:
        """Takes all of ``data``; gives its length. Raises AnswerTooLarge."""
        _check(len(self.data) + len(data), self._limit)
        self.data += data
        return len(data)

    def take(self) -> bytes:
        """The data that has come since it was taken last; the limit holds for what is there, not for all."""
        data, self.data = bytes(self.data), bytearray()
        return data


class OfLength:
    """A body whose length is known beforehand."""

    __slots__ = ("_left", "complete", "data")

    def __init__(self, length: int) -> None:
        self.data = b""
        self.complete = not length
        self._left = length

    def feed(self, data: bytes) -> int:
        """Takes the next bytes; gives how many belong to the body: all, unless it is complete."""
        part = data[: self._left]
        self.data += part
        self._left -= len(part)
        self.complete = not self._left
        return len(part)

    def take(self) -> bytes:
        """The data that has come since it was taken last."""
        data, self.data = self.data, b""
        return data


class _Expected(Enum):
    SIZE = auto()
    DATA = auto()
    END_OF_DATA = auto()
    TRAILER = auto()


class ChunkedBody:
    """A chunked body. Extensions and trailer fields are read past: none is defined that a caller would need."""

    # How it begins. Of a stream as it usually is little of this is ever set.
    complete = False
    _between = True  # whether a chunk begins next, and there is no data; never by mistake
    _expected = _Expected.SIZE
    _left = 0
    _line = b""
    _trailers = 0

    def __init__(self, limit: int) -> None:
        """limit: the most bytes of data."""
        self.data = bytearray()
        self._limit = limit
        self._short = limit if limit < _SHORT else _SHORT

    def usual(self, data: bytes) -> bytes:
        """The data of one chunk, where ``data`` is that and nothing else; none where it has to be fed, as longer ones
        do. Of a stream nearly every read is one such chunk."""
        size = len(data)
        if size < self._short and self._between and data.endswith(b"\r\n"):
            before = _BEFORE[size]
            if data.startswith(before):
                return data[len(before) : -2]
        return b""

    def feed(self, data: bytes) -> int:
        """Takes the next bytes, cut anywhere; gives how many belong to the body: all, unless it is complete.

        Raises:
            MalformedAnswer: the framing is broken or over a limit.
            AnswerTooLarge: there is more data than allowed.
        """
        if self._between and data.endswith(_END):  # of a stream the end, alone or behind the last chunk
            rest = data[: -len(_END)]
            if not rest or (chunk := self.usual(rest)):
                if rest:
                    self.data += chunk
                self.complete, self._between, self._expected = True, False, _Expected.TRAILER
                return len(data)
        self._between = False
        position = self._take_whole(data)
        while position < len(data) and not self.complete:
            if self._expected is _Expected.DATA:
                part = data[position : position + self._left]
                self.data += part
                self._left -= len(part)
                if self._left == 0:
                    self._expected = _Expected.END_OF_DATA
            else:
                part = data[position : data.find(b"\n", position) + 1 or len(data)]
                self._take(part)
            position += len(part)
        return position

    def take(self) -> bytes:
        """The data that has come since it was taken last; the limit holds for what is there, not for all."""
        data, self.data = bytes(self.data), bytearray()
        self._between = self._expected is _Expected.SIZE and not self._line
        return data

    def _take_whole(self, data: bytes) -> int:
        """Takes the chunks at the beginning that are there whole, as all of a stream's are, in less than half the
        time; gives where the rest begins."""
        position = 0
        while self._expected is _Expected.SIZE and not self._line:
            match = _SIZE.match(data, position, position + LINE_LIMIT)
            size = int(match[1], 16) if match is not None else 0
            if match is None or not size or data[match.end() + size : match.end() + size + 2] != b"\r\n":
                break
            _check(len(self.data) + size, self._limit)
            self.data += data[match.end() : match.end() + size]
            position = match.end() + size + 2
        if self._expected is _Expected.SIZE and not self._line and data.startswith(_END, position):
            self.complete, self._expected = True, _Expected.TRAILER
            position += len(_END)
        return position

    def _take(self, part: bytes) -> None:
        """The next part of a line, or the last, which ends with LF."""
        self._line += part
        if self._expected is _Expected.END_OF_DATA and not b"\r\n".startswith(self._line):
            raise MalformedAnswer("a chunk is longer than its size says")
        limit = TRAILER_LIMIT - self._trailers if self._expected is _Expected.TRAILER else LINE_LIMIT
        if len(self._line) > limit:
            raise MalformedAnswer(f"a line of its chunked body has more than {limit} bytes")
        if self._line.endswith(b"\n"):
            line, self._line = self._line, b""
            self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        if self._expected is _Expected.END_OF_DATA:
            self._expected = _Expected.SIZE
        elif self._expected is _Expected.SIZE:
            self._begin_chunk(line)
        elif not line.endswith(b"\r\n"):
            raise MalformedAnswer("a trailer field does not end with CR LF")
        else:
            self._trailers += len(line)
            self.complete = line == b"\r\n"

    def _begin_chunk(self, line: bytes) -> None:
        match = _SIZE.fullmatch(line)
        if match is None:
            raise MalformedAnswer(f"{line[:80]!r} is no size of a chunk")
        self._left = int(match[1], 16)
        _check(len(self.data) + self._left, self._limit)
        self._expected = _Expected.DATA if self._left else _Expected.TRAILER


def _check(size: int, limit: int) -> None:
    if size > limit:
        raise AnswerTooLarge(f"it has {size} bytes or more, the limit is {limit}")
