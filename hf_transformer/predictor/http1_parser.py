"""Answers of an HTTP/1.1 server (RFC 9112): bytes -> objects. No sockets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from hf_transformer.predictor.http1_bodies import ChunkedBody, UntilClose
from hf_transformer.predictor.http1_errors import (
    AnswerTooLarge,
    Disconnected,
    MalformedAnswer,
    NoAnswer,
    NotHttp,
)

HEAD_LIMIT: Final = 2**16
"""Bytes of a status line and its header fields."""

_FIRST_ROOM = 2**14
"""Bytes of the buffer for the head. A short answer fits in whole, and then costs one read."""

_WIDE_ROOM = 2**16
"""Bytes read at once of a body of unknown length."""

_BEGINNING = b"HTTP/1."
_END_OF_HEAD = b"\r\n\r\n"
_STATUS_LINE = re.compile(r"HTTP/1\.([0-9]) ([1-9][0-9]{2})(?: [^\r\n\0]*)?")
_FIELD = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([^\r\n\0]*)")

_MOST_HEADS, _LONGEST_HEAD = 256, 1024
"""Heads that are kept, and bytes of one."""

Room = Callable[[int, Mapping[str, str]], memoryview]
"""Gives the place for a body of so many bytes, whose answer has these header fields. A short one that came along with
its head needs none. What it raises reaches the caller of the request."""


@dataclass(slots=True)
class Answer:
    """One answer. Field names are lower-case; the values of a repeated field are joined by commas."""

    status: int
    headers: Mapping[str, str]
    body: memoryview


@dataclass(slots=True)
class Head:
    """What stands before a body. ``length`` is in bytes; None: chunked, or until the connection is closed."""

    status: int
    headers: Mapping[str, str]
    length: int | None
    chunked: bool
    keep_alive: bool


def parse_head(raw: bytes) -> Head:
    """A head without the empty line that ends it.

    Raises:
        NotHttp: it does not begin as HTTP/1 does.
        MalformedAnswer: it is not certain where the body ends, or a line is no header field.
    """
    first, *lines = raw.decode("latin-1").split("\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        if not raw.startswith(_BEGINNING):
            raise NotHttp(f"it begins with {raw[:40]!r}")
        raise MalformedAnswer(f"the status line is {first[:80]!r}")
    status = int(match[2])
    headers: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise MalformedAnswer(f"{line[:80]!r} is no header field")
        name, value = field[1].lower(), field[2].strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    length, chunked = _framing(status, match[1], headers)
    keep_alive = (length is not None or chunked) and _keeps_alive(match[1], headers)
    return Head(status, MappingProxyType(headers), length, chunked, keep_alive)


def _framing(status: int, minor: str, headers: Mapping[str, str]) -> tuple[int | None, bool]:
    """Length of the body, and whether it is chunked (RFC 9112, 6.3)."""
    if status < 200 or status in (204, 304):
        return 0, False
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None:
        # Two readers of one such answer may see two ends of it, which is how answers are smuggled.
        if length is not None:
            raise MalformedAnswer("it has both Content-Length and Transfer-Encoding")
        if coding.lower() != "chunked" or minor == "0":
            raise MalformedAnswer(f"the Transfer-Encoding is {coding[:80]!r}, in HTTP/1.{minor}")
        return None, True
    if length is None:
        return None, False
    values = {value.strip(" \t") for value in length.split(",")}
    value = values.pop()
    if values or not (value.isascii() and value.isdigit()):
        raise MalformedAnswer(f"the Content-Length is {length[:80]!r}")
    if len(value) > 19:
        raise AnswerTooLarge("it has more bytes than fit into memory")
    return int(value), False


def _keeps_alive(minor: str, headers: Mapping[str, str]) -> bool:
    connection = headers.get("connection")
    if connection is None:
        return minor != "0"
    options = {option.strip(" \t") for option in connection.lower().split(",")}
    return "close" not in options and (minor != "0" or "keep-alive" in options)


class Heads:
    """The heads of a server's answers. They are often the same, byte for byte, and then parsed once."""

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}

    def parsed(self, raw: bytes) -> Head:
        """``parse_head``; nobody may change what it gives."""
        head = self._known.get(raw)
        if head is None:
            head = parse_head(raw)
            if len(raw) <= _LONGEST_HEAD:
                if len(self._known) >= _MOST_HEADS:
                    self._known.clear()
                self._known[raw] = head
        return head


class AnswerReader:
    """The answers on one connection, one after another, received where they stay.

    ``get_buffer`` and ``updated`` are what asyncio.BufferedProtocol asks for: heads are received into a small buffer
    and a body of known length straight into its place, but for the part that came along with the head. Interim
    answers (1xx) are skipped. Once one of the methods has raised, the connection is of no use.
    """

    def __init__(self, room: Room, limit: int, heads: Heads | None = None) -> None:
        """room: makes the place for a body; limit: the most bytes a body may have; heads: of the same server, None for
        its own."""
        self._room = room
        self._limit = limit
        self._small = bytearray(_FIRST_ROOM)
        self._view = memoryview(self._small)
        self._wide = memoryview(b"")
        self._heads = heads or Heads()
        self._last_raw = b""
        """The last head, with the empty line that ends it."""
        self._last_head = Head(0, {}, 0, False, False)
        self._filled = self._searched = self._position = 0
        self._body: memoryview | None = None
        self._gathering: ChunkedBody | UntilClose | None = None
        self.begin()

    def begin(self) -> None:
        """Makes ready for the answer to a new request, which is not sent before the last one's answer was whole."""
        self.started = False
        """Whether a byte has come."""
        self.keep_alive = False
        """Whether the connection may be used again, once the answer is there."""

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._body is not None:
            return self._body[self._position :]
        if not self._filled and self._gathering is None:
            return self._view
        return self._view[self._filled :] if self._gathering is None else self._wide

    def updated(self, count: int) -> Answer | None:
        """Takes note of ``count`` bytes in the buffer; gives the answer when it is whole.

        Raises:
            Http1Error: NotHttp, MalformedAnswer or AnswerTooLarge.
        """
        self.started = True
        if self._body is not None:
            self._position += count
            return self._answer(self._body) if self._position == len(self._body) else None
        if self._gathering is not None:
            return self._gather(self._gathering, bytes(self._wide[:count]))
        self._filled += count
        while True:
            last = self._last_raw
            if last and self._filled >= len(last) and self._small.startswith(last):
                head, end = self._last_head, len(last)
            else:
                end = self._small.find(_END_OF_HEAD, max(0, self._searched - 3), self._filled) + 4
                if end < 4:
                    self._await_more()
                    return None
                raw = bytes(self._view[:end])
                head = self._last_head = self._heads.parsed(raw[:-4])
                self._last_raw = raw
            if head.status >= 200:
                return self._begin_body(head, end)
            if head.status == 101:
                raise MalformedAnswer("it changes to another protocol, which was not asked for")
            left = self._small[end : self._filled]
            self._small[: len(left)] = left
            self._filled, self._searched = len(left), 0

    def end(self) -> Answer:
        """The server will send no more; gives the answer if that is how it ends.

        Raises:
            Disconnected: the answer is not whole.
        """
        if isinstance(self._gathering, UntilClose):
            return self._gathered(self._gathering)
        raise self.cut_off()

    def cut_off(self, cause: Exception | None = None) -> Disconnected:
        """The error that describes a connection that ends here: closed by the server, or by ``cause``."""
        kind, where = (Disconnected, "in the middle of its answer") if self.started else (NoAnswer, "without an answer")
        if cause is None:
            return kind(f"it closed the connection {where}")
        error = kind(f"{getattr(cause, 'strerror', None) or cause or type(cause).__name__} ({where})")
        error.__cause__ = cause
        return error

    def _await_more(self) -> None:
        """Checks the beginning of a head and sees to it that there is room for more."""
        known = min(self._filled, len(_BEGINNING))
        if self._small[:known] != _BEGINNING[:known]:
            raise NotHttp(f"it begins with {bytes(self._view[: min(self._filled, 40)])!r}")
        if self._small.count(b"\n", 0, self._filled) != self._small.count(b"\r\n", 0, self._filled):
            raise MalformedAnswer("a line of its head does not end with CR LF")
        if self._filled >= HEAD_LIMIT:
            raise MalformedAnswer(f"its head has more than {HEAD_LIMIT} bytes")
        self._searched = self._filled
        if self._filled == len(self._small):
            self._small = self._small + bytearray(min(self._filled, HEAD_LIMIT - self._filled))
            self._view = memoryview(self._small)

    def _begin_body(self, head: Head, start: int) -> Answer | None:
        """The body begins at ``start`` of the small buffer."""
        self.keep_alive = head.keep_alive
        length, filled = head.length, self._filled
        if length is None:
            self._wide = self._wide or memoryview(bytearray(_WIDE_ROOM))
            self._gathering = ChunkedBody(self._limit) if head.chunked else UntilClose(self._limit)
            return self._gather(self._gathering, bytes(self._view[start:filled]))
        if length > self._limit:
            raise AnswerTooLarge(f"it has {length} bytes, the limit is {self._limit}")
        end = start + length
        if end <= filled:
            self.keep_alive = head.keep_alive and end == filled
            return self._answer(memoryview(self._small[start:end]))
        body = self._room(length, head.headers)
        here = filled - start
        body[:here] = self._view[start:filled]
        self._body, self._position = body, here
        return None

    def _gather(self, gathering: ChunkedBody | UntilClose, data: bytes) -> Answer | None:
        used = gathering.feed(data)
        if not gathering.complete:
            return None
        self.keep_alive = self.keep_alive and used == len(data)
        return self._gathered(gathering)

    def _gathered(self, gathering: ChunkedBody | UntilClose) -> Answer:
        body = self._room(len(gathering.data), self._last_head.headers)
        body[:] = gathering.data
        return self._answer(body)

    def _answer(self, body: memoryview) -> Answer:
        self._filled = self._searched = 0
        self._body = self._gathering = None
        return Answer(self._last_head.status, self._last_head.headers, body)
