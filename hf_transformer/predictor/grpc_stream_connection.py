"""A connection for streamed gRPC calls: a reader of HTTP/2 for all streams, without a task or a thread for each.

h2 keeps the state of HTTP/2: settings, headers, resets, pings. DATA frames, which carry the tokens, never reach it:
this module splits them and controls the flow of received data (RFC 9113, 5.2 and 6.1). It also reads GOAWAY: h2 ends
the connection there, but gRPC servers first finish the streams that they have accepted.

A stream's unread messages take at most MAX_UNREAD_BYTES, then the server gets no further credit.

A call that its reader gives up is cancelled at the server in a pause of its messages: Triton before 25.06 can crash
when a call is cancelled while the model sends (issues 7368 and 8034), most often as it ends. docs/reliability.md has
measurements.

Sources: RFC 9113; https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from grpc import StatusCode

from hf_transformer.predictor.grpc_status import HTTP_STATUSES, RESETS, CallFailed, status_of

logger = logging.getLogger(__name__)

MAX_UNREAD_BYTES: Final = 2**18
"""Complete, unread messages of a stream, beyond which its server may send no more."""
WINDOW_BYTES: Final = 2**17
"""Bytes that a server may send on a stream ahead of credit."""
CONNECTION_WINDOW_BYTES: Final = 2**24
MAX_FRAME_BYTES: Final = 2**14
"""The largest frame that we accept, HTTP/2's default."""
MAX_UNSENT_BYTES: Final = 2**20
"""Answers to a server's control frames that it does not read."""
MAX_PINGS: Final = 2
"""Pings without data in between. gRPC servers such as Triton close a connection with too_many_pings at the fourth."""
MAX_METADATA_BYTES: Final = 2**16
"""The largest metadata of a response. gRPC's default of 16 KiB would hide a backend's traceback."""
MAX_FRAMES: Final = 1000
FRAMES_PER_CALL: Final = 10
FRAMES_PER_DATA: Final = 2
"""The frames other than DATA that a server may send: at most so many at once, and so many more for each call, and for
each DATA frame in either direction. h2 takes some 30 us for each, so a flood of them would stop the event loop."""
MAX_CALLS: Final = 2**29
"""Calls of one connection, of which each takes an id. Its ids end at 2**31."""

_DATA, _SETTINGS, _GOAWAY = 0, 4, 7
_END_STREAM, _PADDED = 1, 8
_HEAD_BYTES: Final = 9
_PREFIX_BYTES: Final = 5
"""The head of a frame, and the prefix of a gRPC message: whether it is compressed, and its length."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of all connections.

    Attributes:
        authority: the value of ``:authority``.
        timeout: the limit of one call in seconds.
        max_send, max_receive: the largest message in bytes, -1 for no limit.
        ping_seconds, pong_seconds: the silence before a ping, and the time for its answer.
        idle_seconds: the time without a call after which a connection closes.
        max_unanswered, silent_seconds: see ``StreamConnection.check_silence``.
        pause_seconds, linger_seconds: see ``StreamCall.cancel``.
    """

    authority: str
    timeout: float
    max_send: int
    max_receive: int
    ping_seconds: float
    pong_seconds: float
    idle_seconds: float
    max_unanswered: int
    silent_seconds: float
    pause_seconds: float
    linger_seconds: float


class StreamCall:
    """One call. ``read`` returns its messages in order; ``cancel`` gives it up, and ``read`` must not follow."""

    __slots__ = (
        "_end",
        "_failure",
        "_last_moment",
        "_leaving",
        "_limit",
        "_messages",
        "_partial",
        "_uncredited",
        "_unread",
        "_waiter",
        "connection",
        "id",
    )

    def __init__(self, connection: StreamConnection, number: int) -> None:
        self.connection = connection
        self.id = number
        limit = connection.settings.max_receive
        self._limit = sys.maxsize if limit < 0 else limit
        self._messages: deque[bytes] = deque()
        self._partial = bytearray()  # the beginning of a message
        self._unread = 0  # bytes of _messages
        self._uncredited = 0  # received bytes for which the server got no credit yet
        self._waiter: asyncio.Future[None] | None = None
        self._leaving: asyncio.TimerHandle | None = None  # of a call that was given up
        self._last_moment = 0.0  # of its timer, in the loop's time
        self._end = False
        self._failure: CallFailed | None = None

    async def read(self) -> bytes | None:
        """The next message; None at the end. Raises CallFailed after the messages of a call that fails."""
        messages = self._messages
        while not messages:
            if self._end:
                if self._failure is not None:
                    raise self._failure
                return None
            self._waiter = self.connection.loop.create_future()
            await self._waiter
        message = messages.popleft()
        self._unread -= len(message)
        if self._uncredited >= WINDOW_BYTES // 2 and self._unread < MAX_UNREAD_BYTES and not self._end:
            self._credit()
        return message

    def cancel(self) -> None:
        """Gives the call up: drops its further messages, and cancels it at the server unless it ends by itself.

        The cancellation follows the next message, after a pause of ``pause_seconds``. It comes after ``linger_seconds``
        at the latest. Does nothing after the call's end.
        """
        if not self._end and self._leaving is None:
            loop, settings = self.connection.loop, self.connection.settings
            self._messages.clear()
            self._unread = 0
            if self._uncredited >= WINDOW_BYTES // 2:
                self._credit()
            self._last_moment = loop.time() + settings.linger_seconds
            self._leaving = loop.call_at(self._last_moment, self._reset)

    def _reset(self) -> None:
        self.connection.reset(self)
        self.finish(None)

    def feed(self, data: bytes, size: int) -> None:
        """Takes the payload of a DATA frame, without padding. ``size`` is what counts for flow control."""
        length = len(data) - _PREFIX_BYTES
        if self._leaving is not None:
            self._leaving.cancel()
            loop, pause = self.connection.loop, self.connection.settings.pause_seconds
            self._leaving = loop.call_at(min(loop.time() + pause, self._last_moment), self._reset)
        elif 0 <= length <= self._limit and not self._partial and data[:5] == b"\0" + length.to_bytes(4):
            self._messages.append(data[5:])  # a frame is a message
            self._unread += length
        else:
            self._partial += data
            self._split()
        self._uncredited += size
        if self._uncredited > WINDOW_BYTES:
            raise h2.exceptions.FlowControlError("a stream has sent more than its window")
        if self._uncredited >= WINDOW_BYTES // 2 and self._unread < MAX_UNREAD_BYTES and not self._end:
            self._credit()
        if self._messages:
            self._wake()

    def _split(self) -> None:
        """Takes the complete messages from ``_partial``."""
        data, start = self._partial, 0
        while len(data) - start >= _PREFIX_BYTES:
            length = int.from_bytes(data[start + 1 : start + 5])
            if data[start]:
                self._fail(StatusCode.INTERNAL, "a message is compressed, although identity was asked for")
                return
            if length > self._limit:
                message = f"CLIENT: Received message larger than max ({length} vs. {self._limit})"
                self._fail(StatusCode.RESOURCE_EXHAUSTED, message)
                return
            end = start + _PREFIX_BYTES + length
            if len(data) < end:
                break
            self._messages.append(bytes(data[start + 5 : end]))
            self._unread += length
            start = end
        del data[:start]

    def _fail(self, status: StatusCode, details: str) -> None:
        self.connection.reset(self)
        self.finish(CallFailed(status, details))

    def _credit(self) -> None:
        self.connection.credit(self.id, self._uncredited)
        self._uncredited = 0

    def finish(self, failure: CallFailed | None) -> None:
        """Ends the call; messages that have arrived can still be read."""
        if not self._end:
            self._end, self._failure = True, failure
            self._partial.clear()
            if self._leaving is not None:
                self._leaving.cancel()
            self.connection.forget(self)
            self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class StreamConnection(asyncio.Protocol):
    """A connection with any number of calls. ``on_retire`` is called when it takes no further ones, ``on_lost`` when it
    is closed.

    Attributes:
        calls: the open calls by stream id.
        ready: done when the server's settings have arrived; its exception is CallFailed.
        lost: done when the socket is closed; None before it is open.
    """

    def __init__(
        self,
        settings: StreamSettings,
        on_retire: Callable[[StreamConnection], None],
        on_lost: Callable[[StreamConnection], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.calls: dict[int, StreamCall] = {}
        self.ready: asyncio.Future[None] = self.loop.create_future()
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())  # nobody may wait for it
        self.lost: asyncio.Future[None] | None = None
        self._on_retire, self._on_lost = on_retire, on_lost
        self._transport: asyncio.Transport | None = None
        # metadata_of has already checked the headers.
        config = h2.config.H2Configuration(header_encoding=None, validate_outbound_headers=False)
        self._h2 = h2.connection.H2Connection(config)
        ours, codes = self._h2.local_settings, h2.settings.SettingCodes
        ours[codes.ENABLE_PUSH], ours[codes.INITIAL_WINDOW_SIZE] = 0, WINDOW_BYTES
        ours[codes.MAX_HEADER_LIST_SIZE] = MAX_METADATA_BYTES
        ours.acknowledge()
        self._buffer = b""  # the beginning of a frame
        self._received = 0  # bytes of DATA for which the server got no credit of the connection
        self._unsent: dict[int, memoryview] = {}
        """The rest of requests that wait for credit."""
        self._allowed = MAX_FRAMES
        self._is_paused = self._is_retired = False
        self._made = 0
        self._unanswered = 0
        """Calls started since the last frame from the server."""
        self._silent_since = 0.0
        self._reads = self._reads_before = self._pings = self._idle_ticks = 0
        self._ticker: asyncio.TimerHandle | None = None

    # Calls

    @property
    def has_room(self) -> bool:
        """Whether it takes a further call."""
        limit = min(self._h2.remote_settings.max_concurrent_streams, MAX_CALLS - self._made)
        return not self._is_retired and self._transport is not None and len(self.calls) < limit

    def check_silence(self, on_silence: Callable[[], None]) -> None:
        """Pings a server from which the last calls have had no frame for longer than a ping would take.

        ``on_silence`` is called if that has no answer either. After a malformed frame, all later frames may be taken
        for the rest of it.
        """
        settings, now = self.settings, self.loop.time()
        silence = min(settings.silent_seconds, settings.timeout)
        if self._unanswered >= settings.max_unanswered and now - self._silent_since > silence:
            self._unanswered = 0
            self._ping(on_silence)

    def start(self, headers: Sequence[tuple[str, str]], message: bytes) -> StreamCall:
        """Sends a request."""
        if not self._unanswered:
            self._silent_since = self.loop.time()
        self._unanswered += 1
        self._made += 1
        self._idle_ticks = 0
        self._allow(FRAMES_PER_CALL)
        number = self._h2.get_next_available_stream_id()
        self._h2.send_headers(number, headers)
        call = self.calls[number] = StreamCall(self, number)
        self._unsent[number] = memoryview(b"\0" + len(message).to_bytes(4) + message)
        self._send(number)
        return call

    def _send(self, number: int) -> None:
        """Sends as much of a request as the server's credit and the socket allow."""
        rest = self._unsent.pop(number)
        while rest:
            size = min(len(rest), self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)
            if not size or self._is_paused:
                self._unsent[number] = rest
                break
            self._h2.send_data(number, bytes(rest[:size]), end_stream=size == len(rest))
            rest = rest[size:]
            self._allow(FRAMES_PER_DATA)
            self._flush()
        self._flush()

    def _send_all(self) -> None:
        for number in list(self._unsent):
            self._send(number)

    def _allow(self, frames: int) -> None:
        self._allowed = min(self._allowed + frames, MAX_FRAMES)

    def reset(self, call: StreamCall) -> None:
        """Tells the server that a call has ended."""
        with suppress(h2.exceptions.ProtocolError):  # it has ended there, too
            self._h2.reset_stream(call.id, h2.errors.ErrorCodes.CANCEL)
            self._flush()

    def credit(self, number: int, size: int) -> None:
        """Lets the server send ``size`` more bytes on a stream, or with 0 on the connection."""
        if self._transport is not None:
            self._transport.write(b"\0\0\4\x08\0" + number.to_bytes(4) + size.to_bytes(4))

    def forget(self, call: StreamCall) -> None:
        self.calls.pop(call.id, None)
        self._unsent.pop(call.id, None)
        if self._is_retired and not self.calls:
            self.close()

    def retire(self) -> None:
        """Takes no further calls, and closes when the open ones have ended."""
        if not self._is_retired:
            self._is_retired = True
            self._on_retire(self)
            if not self.calls:
                self.close()

    def close(self, failure: CallFailed | None = None) -> None:
        """Closes the connection. Open calls fail with ``failure``."""
        transport, self._transport, self._is_retired = self._transport, None, True
        if transport is not None:
            if self._ticker is not None:
                self._ticker.cancel()
            self._on_retire(self)
            transport.abort() if failure is not None else transport.close()
        if failure is not None:
            for call in list(self.calls.values()):
                call.finish(failure)
            if not self.ready.done():
                self.ready.set_exception(CallFailed(failure.code(), f"failed to connect: {failure}"))

    def _break(self, details: str, status: StatusCode = StatusCode.UNAVAILABLE) -> None:
        self.close(CallFailed(status, details))

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None:
            self._transport.write(data)

    # Silence

    def _tick(self) -> None:
        """Pings a server that says nothing during a call, and closes a connection without calls."""
        settings = self.settings
        self._ticker = self.loop.call_later(settings.ping_seconds, self._tick)
        if not self.calls:
            self._idle_ticks += 1
            if self._idle_ticks * settings.ping_seconds >= settings.idle_seconds:
                self.retire()
        elif self._reads != self._reads_before:
            self._reads_before = self._reads
        elif self._pings < MAX_PINGS:
            self._pings += 1
            self._ping(lambda: self._break("ping timeout"))

    def _ping(self, on_silence: Callable[[], None]) -> None:
        """Sends a ping, and calls ``on_silence`` if no frame arrives in time."""
        reads = self._reads

        def check() -> None:
            if self._reads == reads and self._transport is not None:
                on_silence()

        self._h2.ping(b"silence?")
        self._flush()
        self.loop.call_later(min(self.settings.pong_seconds, self.settings.timeout), check)

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.lost = cast(asyncio.Transport, transport), self.loop.create_future()
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self._break("the TLS handshake did not agree on h2 (ALPN)")
            return
        self._h2.initiate_connection()
        self._flush()
        self.credit(0, CONNECTION_WINDOW_BYTES - 65_535)
        self._ticker = self.loop.call_later(self.settings.ping_seconds, self._tick)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._send_all()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "Socket closed" if exc is None else f"Socket closed ({getattr(exc, 'strerror', None) or exc})"
        self._break(reason)
        self._on_lost(self)
        if self.lost is not None and not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        try:
            self._buffer = self._frames(self._buffer + data if self._buffer else data)
        except (h2.exceptions.ProtocolError, ValueError) as error:  # hpack's and hyperframe's are ValueErrors
            self._flush()
            self._break(f"Failed parsing HTTP/2: {error}")
        except Exception:
            logger.exception("frames of the predictor failed by a fault of the service")
            self._break("Failed parsing HTTP/2")

    def _frames(self, data: bytes) -> bytes:
        """Handles all complete frames, and returns the rest. Raises ProtocolError."""
        start, end, calls = 0, len(data), self.calls
        while end - start >= _HEAD_BYTES:
            size = data[start] << 16 | data[start + 1] << 8 | data[start + 2]
            kind, flags, body = data[start + 3], data[start + 4], start + _HEAD_BYTES
            if not self.ready.done() and (kind != _SETTINGS or flags):
                raise h2.exceptions.ProtocolError(f"Expected SETTINGS frame as the first frame, got {data[:40]!r}")
            if size > MAX_FRAME_BYTES:
                raise h2.exceptions.ProtocolError(f"Frame size {size} is larger than max frame size {MAX_FRAME_BYTES}")
            stop = body + size
            if stop > end:
                break
            number = int.from_bytes(data[start + 5 : body]) & 0x7FFF_FFFF
            if kind == _DATA:
                self._received += size
                if self._received >= CONNECTION_WINDOW_BYTES // 2:
                    self.credit(0, self._received)
                    self._received = 0
                call = calls.get(number)
                if call is not None:  # else it has ended here
                    self._pings = 0
                    self._allow(FRAMES_PER_DATA)
                    call.feed(_unpadded(data[body:stop]) if flags & _PADDED else data[body:stop], size)
                    if flags & _END_STREAM:
                        self.reset(call)  # for h2, which has not seen the end
                        call.finish(status_of({}))
            elif kind == _GOAWAY:
                self._go_away(data[body:stop])
            else:
                self._control(data[start:stop])
            start = stop
        if start:  # bytes alone may be swallowed by a malformed frame
            self._unanswered = 0
            self._reads += 1
        return data[start:]

    def _go_away(self, payload: bytes) -> None:
        """Retires the connection. The server did not process the calls after its last one."""
        last, code = int.from_bytes(payload[:4]) & 0x7FFF_FFFF, int.from_bytes(payload[4:8])
        text = payload[8:200].decode("utf-8", "replace")
        details = f"GOAWAY received; Error code: {code}; Debug Text: {text}"
        for call in [call for call in self.calls.values() if call.id > last]:
            call.finish(CallFailed(StatusCode.UNAVAILABLE, details))
        self.retire()

    def _control(self, frame: bytes) -> None:
        """Passes any other frame to h2."""
        self._allowed -= 1
        if self._allowed < 0:
            raise h2.exceptions.ProtocolError("too many frames without data")
        for event in self._h2.receive_data(frame):
            match event:
                case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                    self._metadata(event.stream_id, dict(event.headers), event.stream_ended is not None)
                case h2.events.StreamReset():
                    if event.remote_reset and (call := self.calls.get(event.stream_id)) is not None:
                        status = RESETS.get(event.error_code, StatusCode.INTERNAL)
                        details = f"Received RST_STREAM with error code {int(event.error_code)}"
                        call.finish(CallFailed(status, details))
                case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                    if not self.ready.done():
                        self.ready.set_result(None)
                    self._send_all()
        self._flush()
        if self._transport is not None and self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            raise h2.exceptions.ProtocolError("the server does not read the answers to its frames")

    def _metadata(self, number: int, metadata: Mapping[bytes, bytes], is_end: bool) -> None:
        """Takes the head of a response or its trailers."""
        call, http = self.calls.get(number), metadata.get(b":status", b"200")
        if call is None:
            return
        self._pings = 0
        if http != b"200":
            self.reset(call)
            status = HTTP_STATUSES.get(http, StatusCode.UNKNOWN)
            call.finish(CallFailed(status, f"Received http2 header with status: {http.decode('latin-1')}"))
        elif is_end:
            if number in self._unsent:  # the server does not need the rest of the request
                self.reset(call)
            call.finish(status_of(metadata))


def _unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise h2.exceptions.ProtocolError("a DATA frame has more padding than bytes")
    return payload[1 : len(payload) - payload[0]]
