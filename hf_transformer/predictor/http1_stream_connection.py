"""One connection to an HTTP/1.1 server whose answers are read while they come: one request at a time, never two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

from hf_transformer.predictor.http1_alarm import Alarm

_MOST_UNREAD: Final = 2**17
"""Bytes that may wait for their reader; with more, nothing else is received until he comes."""


class Owner(Protocol):
    """Who keeps connections."""

    def free(self, connection: StreamConnection) -> None:
        """An answer was read whole, and another request may be sent."""

    def gone(self, connection: StreamConnection) -> None:
        """No other request may be sent, ever. Comes once."""


class StreamConnection(Alarm, asyncio.Protocol):
    """What comes is kept as it came, for the reader of the answer that is under way. While ``idle``, whatever comes
    makes the connection useless.

    Attributes:
        unread: what has come and was not taken; whoever takes it resumes a connection that is ``paused``.
        wake: called once, in the moment in which anything comes, the end included.
        ended: whether nothing more comes; ``error`` is why where the connection broke.
        late, aborted: whether it was closed here: because the time was over, or without a word.
        open: whether a request may be sent, when none is under way.
        idle_since: on the loop's clock; kept by the owner.
    """

    __slots__ = (
        "_owner",
        "_transport",
        "aborted",
        "ended",
        "error",
        "idle",
        "idle_since",
        "late",
        "open",
        "paused",
        "unread",
        "wake",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: Owner) -> None:
        super().__init__(loop)
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self.paused = False
        self.unread = b""
        self.wake: Callable[[], object] | None = None
        self.ended = self.late = self.aborted = self.idle = False
        self.error: Exception | None = None
        self.open = True
        self.idle_since = 0.0

    def send(self, request: bytes, deadline: float, wake: Callable[[], object]) -> None:
        """Sends one request; ``deadline``, of the loop's clock, bounds the whole answer."""
        self.idle = False
        self.wake = wake
        self._deadline = deadline
        if self._alarm > deadline:
            self._watch(deadline)
        if self._transport is not None and self.open:
            self._transport.write(request)
        if self.unread or self.ended:  # a server that speaks first
            self._tell()

    def resume(self) -> None:
        """Receives again, since ``unread`` is taken."""
        self.paused = False
        if self._transport is not None and self.open:
            self._transport.resume_reading()

    def leave(self, whole: bool) -> None:
        """The answer is read no further; ``whole`` says that another request may be sent after it, as far as it goes.
        What is there already would pass for that one's answer."""
        self.wake = None
        transport = self._transport
        if not whole or not self.open or self.unread or transport is None or transport.get_write_buffer_size():
            self.abort()
        else:
            self.idle = True
            self._owner.free(self)

    def abort(self) -> None:
        """Closes it, without a further word; a read that is under way fails."""
        self.aborted = True
        self._give_up()
        if self._transport is not None:
            self._transport.abort()

    # What follows is called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.idle:  # nobody has asked for anything
            self.abort()
            return
        if self.unread:
            self.unread += data
            if len(self.unread) > _MOST_UNREAD and not self.paused and self._transport is not None:
                self.paused = True
                self._transport.pause_reading()
        else:
            self.unread = data
        wake, self.wake = self.wake, None
        if wake is not None:
            wake()

    def eof_received(self) -> None:
        """The server has closed its side. Ours is closed by the transport, since None is returned."""
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        if not self.ended:
            self.ended = True
            self.error = error
        self._give_up()
        self._tell()

    def _give_up(self) -> None:
        self._stop_timer()
        if self.open:
            self.open = False
            self._owner.gone(self)

    def _tell(self) -> None:
        wake, self.wake = self.wake, None
        if wake is not None:
            wake()

    def _is_waiting(self) -> bool:
        return not self.idle

    def _expire(self) -> None:
        self.late = True
        self.abort()
