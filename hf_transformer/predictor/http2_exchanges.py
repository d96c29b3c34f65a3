"""The requests under way on one HTTP/2 connection, and their answers: frames in, bytes out. No sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from hf_transformer.predictor.http2_errors import GoesAway, Malformed, NotProcessed, StreamReset
from hf_transformer.predictor.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    LARGEST_WINDOW,
    PADDED,
    PING,
    PRIORITIZED,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    WINDOW_UPDATE,
    ErrorCode,
    Setting,
    head,
    headers_frames,
    ping_frame,
    reset_frame,
    window_frame,
)
from hf_transformer.predictor.http2_headers import FIRST_TABLE, LARGEST_BLOCK, NO_TABLE, HeaderReader
from hf_transformer.predictor.http2_reading import (
    Frame,
    parse_goaway,
    parse_number,
    parse_settings,
    without_padding,
)
from hf_transformer.predictor.http2_sending import Sender
from hf_transformer.predictor.http2_stream import Stream, Writer

_JOINED = 2**16
"""Bytes of a body that is copied behind its head, so that both leave in one write."""

_PARTS = 16
"""Frames of one header block."""

IDLE_FRAMES: Final = 10_000
"""Frames that are no part of an answer that may come in a row."""

_UNSENT = 2**20
"""Bytes that wait to be sent; answers to more questions would only add to them."""


class Exchanges:
    """Writes requests, and hands the parts of each answer to its stream. What raises Malformed ends the connection."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._sender = Sender()
        self._headers = HeaderReader()
        self._resize = b""  # stands before our next header block
        self._next = 1
        self._most = LARGEST_WINDOW
        self._block: bytearray | None = None  # the beginning of a header block, of the frame that is described here:
        self._block_stream = self._block_flags = self._block_parts = 0
        self._idle_frames = self._idle_since = 0
        self.streams: dict[int, Stream] = {}
        """Those whose answers are awaited, by number."""
        self.settled = False
        """Whether the server has said what it takes."""
        self.open = True
        """Whether the server takes more requests, now or later."""
        self.parts = 0
        """How many parts of answers have come so far."""
        self.farewell = ""
        """What the server says of the connection's end."""
        self._handlers: Mapping[int, Callable[[int, int, memoryview], None]] = {
            DATA: self._on_nothing,  # an empty one
            HEADERS: self._on_headers,
            CONTINUATION: self._on_continuation,
            RST_STREAM: self._on_reset,
            SETTINGS: self._on_settings,
            PUSH_PROMISE: self._on_push,
            PING: self._on_ping,
            GOAWAY: self._on_goaway,
            WINDOW_UPDATE: self._on_window,
        }

    @property
    def have_room(self) -> bool:
        """Whether a request may be sent now."""
        return self.open and len(self.streams) < self._most

    def start(self, stream: Stream, block: bytes, body: tuple[bytes, ...], widen: int) -> None:
        """Sends a request; see Connection.start."""
        number, self._next = self._next, self._next + 2
        if self._next > LARGEST_WINDOW:
            self.open = False
        stream.id = number
        self.streams[number] = stream
        sender = self._sender
        if self._resize:
            block, self._resize = self._resize + block, b""
        beginning = headers_frames(number, block, sender.largest_frame)
        if widen:
            beginning += window_frame(number, widen)
        size = sum(map(len, body))
        if not sender.fits(size):
            self._writer.write(beginning)
            sender.upload(number, [memoryview(part) for part in body])
            self.send()
        elif size <= _JOINED:
            self._writer.write(b"".join((beginning, head(size, DATA, END_STREAM, number), *body)))
        else:
            for part in (beginning + head(size, DATA, END_STREAM, number), *body):
                self._writer.write(part)

    def widen(self, stream: Stream, increment: int) -> None:
        """Lets the server send so many bytes more of an answer's body."""
        if stream.id in self.streams:
            self._writer.write(window_frame(stream.id, increment))

    def reset(self, stream: Stream, code: int) -> None:
        """Ends a request; nothing more reaches its stream."""
        if self.streams.pop(stream.id, None) is not None:
            self._sender.cancel(stream.id)
            self._writer.write(reset_frame(stream.id, code))

    def send(self) -> None:
        """Sends of the bodies that wait what may be sent now."""
        for part in self._sender.frames(self._writer.may_write):
            self._writer.write(part)

    def take(self, frames: list[Frame]) -> None:
        """Takes frames in the order in which they have come.

        Raises:
            Malformed: the server breaks the rules.
        """
        for kind, flags, number, payload, size in frames:
            if kind == DATA and (size or flags) and self._block is None:
                stream = self.streams.get(number)
                if stream is None:
                    self._on_ended(number)
                    continue
                self.parts += 1
                if flags:
                    self._finish(number)
                stream.on_data(payload, size, bool(flags))
            elif self._block is not None and kind != CONTINUATION:
                raise Malformed(f"a frame of type {kind} stands between the parts of a header block")
            else:
                self._handlers.get(kind, self._on_nothing)(flags, number, payload)

    def take_placed(self, number: int, count: int, end: bool) -> None:
        """Takes note of a part of a body that has come to its place."""
        stream = self.streams[number]
        self.parts += 1
        if end:
            self._finish(number)
        stream.on_placed(count, end)

    def _on_headers(self, flags: int, number: int, payload: memoryview) -> None:
        part = without_padding(flags, payload) if flags & (PADDED | PRIORITIZED) else payload
        if flags & END_HEADERS:
            self._on_block(flags, number, bytes(part))
        else:
            self._block, self._block_stream, self._block_flags, self._block_parts = bytearray(part), number, flags, 1

    def _on_continuation(self, flags: int, number: int, payload: memoryview) -> None:
        if self._block is None or number != self._block_stream:
            raise Malformed("a CONTINUATION frame continues nothing")
        self._block += payload
        self._block_parts += 1
        if len(self._block) > LARGEST_BLOCK or self._block_parts > _PARTS:
            raise Malformed("a header block is too large", ErrorCode.ENHANCE_YOUR_CALM)
        if flags & END_HEADERS:
            block, self._block = bytes(self._block), None
            self._on_block(self._block_flags, number, block)

    def _on_block(self, flags: int, number: int, block: bytes) -> None:
        fields = self._headers.decode(block)  # whoever it is for, since others may build upon it
        stream = self.streams.get(number)
        if stream is None:
            self._on_ended(number)
            return
        self.parts += 1
        stream.started = True
        end = bool(flags & END_STREAM)
        if end:
            self._finish(number)
        stream.on_headers(fields, end)

    def _on_reset(self, flags: int, number: int, payload: memoryview) -> None:
        code = parse_number("RST_STREAM", payload)
        stream = self.streams.pop(number, None)
        if stream is None:
            self._on_ended(number)
            return
        self._sender.cancel(number)
        refused = code == ErrorCode.REFUSED_STREAM
        stream.on_failed(NotProcessed("the server refuses the stream") if refused else StreamReset(code))

    def _on_settings(self, flags: int, number: int, payload: memoryview) -> None:
        if number or (flags & ACK and payload):
            raise Malformed("a SETTINGS frame is for one stream, or an acknowledgment with contents")
        self._on_nothing(flags, 0, payload)
        if flags & ACK:
            return
        settings = parse_settings(payload)
        self._most = settings.get(Setting.MAX_CONCURRENT_STREAMS, self._most)
        if settings.get(Setting.HEADER_TABLE_SIZE, FIRST_TABLE) < FIRST_TABLE:
            self._resize = NO_TABLE  # without which a server may not read on (RFC 9113, 4.3.1)
        self._sender.apply(settings)
        self._answer(SETTINGS_ACK)
        self.settled = True
        self.send()

    def _on_ping(self, flags: int, number: int, payload: memoryview) -> None:
        if number or len(payload) != 8:
            raise Malformed(f"a PING frame has {len(payload)} bytes and is for the stream {number}")
        self._on_nothing(flags, 0, payload)
        if not flags & ACK:
            self._answer(ping_frame(bytes(payload), ACK))

    def _on_goaway(self, flags: int, number: int, payload: memoryview) -> None:
        if number:
            raise Malformed(f"a GOAWAY frame is for the stream {number}")
        last, code, why = parse_goaway(payload)
        self.farewell = f"GOAWAY with error code {code}{': ' if why else ''}{why}"
        self.open = False
        for above in [one for one in self.streams if one > last]:
            stream = self.streams.pop(above)
            self._sender.cancel(above)
            stream.on_failed(GoesAway(f"the server ends the connection: {self.farewell}"))

    def _on_window(self, flags: int, number: int, payload: memoryview) -> None:
        self._sender.widen(number, parse_number("WINDOW_UPDATE", payload) & LARGEST_WINDOW)
        if number and number not in self.streams:
            self._on_ended(number)
        if self._sender.waiting:
            self.send()
        else:
            self._on_nothing(flags, 0, payload)

    def _on_push(self, flags: int, number: int, payload: memoryview) -> None:
        raise Malformed("a PUSH_PROMISE frame comes, although ENABLE_PUSH is 0")

    def _on_nothing(self, flags: int, number: int, payload: memoryview) -> None:
        """A frame that is no part of an answer. Too many in a row are an attack, or a server gone wrong."""
        if self._idle_since != self.parts:
            self._idle_frames, self._idle_since = 0, self.parts
        self._idle_frames += 1
        if self._idle_frames > IDLE_FRAMES:
            why = f"more than {IDLE_FRAMES} frames in a row are no part of an answer"
            raise Malformed(why, ErrorCode.ENHANCE_YOUR_CALM)

    def _answer(self, data: bytes) -> None:
        if self._writer.unsent() > _UNSENT:
            raise Malformed("it asks and does not read the answers", ErrorCode.ENHANCE_YOUR_CALM)
        self._writer.write(data)

    def _on_ended(self, number: int) -> None:
        """For a frame whose stream is not awaited. Raises Malformed if it never was."""
        if number % 2 == 0 or number >= self._next:
            raise Malformed(f"a frame is for the stream {number}, which was never opened")
        self._on_nothing(0, number, memoryview(b""))

    def _finish(self, number: int) -> None:
        """The server has sent everything of a stream. The rest of the request, if there is any, is of no use then."""
        del self.streams[number]
        if self._sender.cancel(number):
            self._writer.write(reset_frame(number, ErrorCode.CANCEL))
