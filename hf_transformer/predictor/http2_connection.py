"""One connection to an HTTP/2 server: many requests at a time."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from contextlib import suppress
from typing import Final, Protocol, cast

from hf_transformer.predictor.http2_errors import Disconnected, Http2Error, Malformed, NoAnswer
from hf_transformer.predictor.http2_exchanges import Exchanges
from hf_transformer.predictor.http2_frames import (
    FIRST_WINDOW,
    LARGEST_FRAME,
    LARGEST_WINDOW,
    PREFACE,
    ErrorCode,
    Setting,
    goaway_frame,
    ping_frame,
    settings_frame,
    window_frame,
)
from hf_transformer.predictor.http2_headers import LARGEST_BLOCK
from hf_transformer.predictor.http2_keepalive import ANSWER_SECONDS, Keepalive
from hf_transformer.predictor.http2_reading import FrameReader
from hf_transformer.predictor.http2_stream import Stream

WIDE: Final = LARGEST_WINDOW - FIRST_WINDOW
"""What opens a window as wide as it can be."""

_OURS = settings_frame(
    {
        Setting.HEADER_TABLE_SIZE: 0,
        Setting.ENABLE_PUSH: 0,
        Setting.MAX_FRAME_SIZE: LARGEST_FRAME,
        Setting.MAX_HEADER_LIST_SIZE: LARGEST_BLOCK,
    }
)
_DIRECT = 2**15
"""Bytes that are still to come of a frame and worth to be received where they stay."""

_JOINED = 2**13
"""Bytes of a write that waits for others, when several calls are under way: for small ones a write costs more than the
rest of what is done here."""

_CLOSING_SECONDS = 1.0

_UNACKNOWLEDGED_MS = 20_000
"""For which what was sent may stay without TCP's acknowledgment, as in gRPC's own clients. Else Linux tries for 15
minutes, and a new call waits for a machine that is gone where pings have become rare."""


class Owner(Protocol):
    """Who keeps connections."""

    def lost(self, connection: Connection) -> None:
        """No other request may be sent, ever."""

    def ended(self, connection: Connection) -> None:
        """Its socket is closed. Comes after ``lost``."""


class Connection(asyncio.BufferedProtocol):
    """Sends requests and hands each part of an answer to its stream as it comes.

    What all answers together may have sent is not limited, so that a reader that is slow holds up no other.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: Owner) -> None:
        self._loop = loop
        self._owner = owner
        self._transport: asyncio.Transport
        self._exchanges: Exchanges
        self._reader = FrameReader()
        self._place: memoryview | None = None  # for the next bytes, of the body of the reader's stream
        self._may_write = True
        self._pending: list[bytes | memoryview] = []
        self._keepalive = Keepalive(loop, self._ping, self._hangs, self._progress)
        self._open = self._closed = False
        self.ready: asyncio.Future[None] = loop.create_future()
        """Done when the server has said what it takes; fails with Http2Error where it does not."""

    @property
    def has_room(self) -> bool:
        """Whether a request may be sent now."""
        return self._open and self._exchanges.have_room

    @property
    def idle(self) -> bool:
        """Whether no answer is awaited."""
        return not self._exchanges.streams

    @property
    def protocol(self) -> str | None:
        """What was agreed upon in TLS (ALPN); None if nothing was, or there is no TLS."""
        secured: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        return None if secured is None else secured.selected_alpn_protocol()

    @property
    def streams(self) -> list[Stream]:
        """Those whose answers are awaited."""
        return list(self._exchanges.streams.values())

    @property
    def heard(self) -> float:
        """When the server last sent anything, on the loop's clock."""
        return self._keepalive.heard

    def start(self, stream: Stream, block: bytes, body: tuple[bytes, ...], widen: int = 0) -> None:
        """Sends a request; only where the connection ``has_room``.

        block: its header block.
        body: in parts, none of them empty.
        widen: opens the window for the answer's body, which has 64 KiB, by so many bytes.
        """
        self._exchanges.start(stream, block, body, widen)
        self._keepalive.watch()

    def widen(self, stream: Stream, increment: int) -> None:
        """Lets the server send so many bytes more of an answer's body."""
        self._exchanges.widen(stream, increment)

    def reset(self, stream: Stream, code: int = ErrorCode.CANCEL) -> None:
        """Ends a request whose answer is not awaited any longer; nothing more reaches the stream."""
        self._exchanges.reset(stream, code)
        self._look_after()

    def abort(self) -> None:
        """Closes the connection without a further word; calls under way fail."""
        self._close(Disconnected("the connection was closed here"))

    # What an Exchanges writes to.

    def write(self, data: bytes | memoryview, /) -> None:
        if len(data) > _JOINED:
            self._flush()
            self._transport.write(data)
        elif self._pending:
            self._pending.append(data)
        elif len(self._exchanges.streams) > 1:
            self._pending.append(data)
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def _flush(self) -> None:
        """Sends what several calls have written in one turn of the event loop."""
        if self._pending:
            pending, self._pending = self._pending, []
            if not self._closed:
                self._transport.write(b"".join(pending))

    def may_write(self) -> bool:
        return self._may_write

    def unsent(self) -> int:
        return self._transport.get_write_buffer_size()

    # What follows is called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._exchanges = Exchanges(self)
        if sys.platform == "linux":
            with suppress(OSError):
                raw: socket.socket = transport.get_extra_info("socket")
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        self._transport.write(PREFACE + _OURS + window_frame(0, WIDE))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._place is not None:
            if self._reader.stream in self._exchanges.streams:
                return self._place
            self._place = None  # nobody awaits it any longer
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._closed:
            return
        self._keepalive.heard = self._loop.time()
        reader, exchanges = self._reader, self._exchanges
        try:
            if self._place is None:
                exchanges.take(reader.updated(nbytes))
            else:
                flags = reader.placed(nbytes)
                exchanges.take_placed(reader.stream, nbytes, bool(flags))
            if reader.left >= _DIRECT or self._place is not None:
                self._place = self._place_for(reader.left)
            if reader.data_bytes > WIDE // 2:
                self._transport.write(window_frame(0, reader.data_bytes))
                reader.data_bytes = 0
        except Exception as exc:  # an event loop would only log it
            self._close(exc)
        else:
            self._look_after()

    def eof_received(self) -> None:
        """The server has closed its side. Ours is closed by the transport, since None is returned."""
        self._close(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._close(exc)
        self._owner.ended(self)

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        if not self._closed:
            self._exchanges.send()

    # How it goes on, and ends.

    def _place_for(self, left: int) -> memoryview | None:
        """Where the next bytes of a frame go, of which so many are still to come; None is the reader's buffer."""
        stream = self._exchanges.streams.get(self._reader.stream) if left else None
        room = stream.room() if stream is not None else None
        return None if room is None else room[:left]

    def _look_after(self) -> None:
        """What may have changed with frames that came, or a request that ended."""
        exchanges = self._exchanges
        if self._open and exchanges.open:
            return
        if not exchanges.open:
            self._lose()
            if not exchanges.streams:
                self._close(None)
        elif exchanges.settled and not self._closed:
            self._open = True
            if not self.ready.done():  # or cancelled
                self.ready.set_result(None)

    def _progress(self) -> int | None:
        """For the keepalive: how much has come of all answers; None where none is awaited."""
        return self._exchanges.parts if self._exchanges.streams else None

    def _ping(self) -> None:
        self._transport.write(ping_frame(b"\0" * 8))

    def _hangs(self) -> None:
        self._close(TimeoutError(f"it has answered no ping in {ANSWER_SECONDS:g} s"))

    def _lose(self) -> None:
        if self._open:
            self._open = False
            self._owner.lost(self)

    def _close(self, error: Exception | None) -> None:
        """Ends everything. ``error`` is what has happened, None where the server has closed the connection."""
        if self._closed:
            return
        self._closed = True
        self._lose()
        self._keepalive.stop()
        if isinstance(error, Malformed):
            self._transport.write(b"".join((*self._pending, goaway_frame(error.code, str(error)))))
            self._transport.close()
            self._loop.call_later(_CLOSING_SECONDS, self._transport.abort)
        else:
            self._transport.abort()
        streams, self._exchanges.streams = self._exchanges.streams, {}
        for stream in streams.values():
            stream.on_failed(self._fault(error, stream.started))
        if not self.ready.done():
            self.ready.set_exception(self._fault(error, False))
            self.ready.exception()  # it may be that nobody waits for it

    def _fault(self, error: Exception | None, started: bool) -> Exception:
        """What the connection's end means for one stream."""
        if isinstance(error, Http2Error):
            return error
        kind, where = (Disconnected, "in the middle of its answer") if started else (NoAnswer, "without an answer")
        farewell = f" after {self._exchanges.farewell}" if self._exchanges.farewell else ""
        if error is None:
            return kind(f"it closed the connection {where}{farewell}")
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        fault = kind(f"{reason} ({where}{farewell})")
        fault.__cause__ = error
        return fault
