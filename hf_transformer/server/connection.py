"""One HTTP connection: uvicorn's, with limits for what its client sends and how long it takes to.

A request that comes in one piece, as nearly all do, pays two comparisons. There is no timer for any of them: a sweeper
looks at all connections once in a while and notes which of them have been in one state for too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)

from hf_transformer.server.http10 import Unchunked
from hf_transformer.server.short_requests import ShortWayProtocol
from hf_transformer.whole_response import WHOLE_RESPONSE

LINGER = 1.0
"""Seconds in which a client that is refused may go on sending: a connection that is closed under it would be reset, and
the answer lost with it."""
REFUSED_AT_MOST = 256
"""Connections over the limit that are told so; more are closed without a word."""

JOINED = 2**16
"""Bytes of a body that is copied behind its head, so that both leave in one write."""
AT_ONCE = 500
"""Connections that are looked at without a pause, about a millisecond."""

SWEEPS = 10
"""Looks at a connection within the time that it has."""
LONGEST, SHORTEST = 5.0, 0.05
"""Seconds between two sweeps at most and at least."""

SILENT, SENDING, NOT_TAKING = "silent", "sending", "not taking"


class HeadTooLarge(Exception):
    """The client was told so."""


class State(NamedTuple):
    """What a connection waits for from its client, since a request (told by ``scope``) or before the first one.

    ``unsent`` bytes wait for the client to take them.
    """

    kind: str
    scope: object
    unsent: int = 0

    def is_still(self, before: State) -> bool:
        """Whether nothing has happened since ``before``; scopes are compared by identity."""
        return self.kind == before.kind and self.scope is before.scope and self.unsent == before.unsent


class Flow(FlowControl):
    """Reads no further while requests that were read already wait for their turn.

    uvicorn goes on reading with each of them: a client that sends thousands at a time, and reads no answer, would have
    them all in memory.
    """

    def __init__(self, transport: asyncio.Transport, waiting: Collection[object]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


class Connection(ShortWayProtocol):
    """uvicorn makes one for each connection."""

    def __init__(self, config: Any, *args: Any, **options: Any) -> None:
        super().__init__(config, *args, **options)
        self._ours = config
        self._limits = config.client_limits
        self._most = self._limits.header_bytes
        self._head = 0
        self._trailers = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self.flow = Flow(transport, self.pipeline)
        if self._ours.ending:
            # Since its TLS handshake began. It has asked nothing, so it is told nothing, and nothing waits for it.
            transport.close()
            return
        over = len(self.connections) - self._limits.connections
        if over > REFUSED_AT_MOST:
            transport.abort()
        elif over > 0:
            limit = self._limits.connections
            self.refuse(503, f"{limit} connections are open, as many as --max_connections allows; try again")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        # Keys of our own: an ASGI scope may have any, though uvicorn's type for one names only the usual ones.
        self.running = cycle
        cycle.scope[WHOLE_RESPONSE] = partial(self._send_whole, cycle)  # type: ignore[typeddict-unknown-key]
        super()._start_asgi_task(cycle, Unchunked(app, cycle) if cycle.scope["http_version"] == "1.0" else app)

    def _send_whole(
        self, cycle: RequestResponseCycle, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> bool:
        """What the cycle's ``send`` does, for a whole response in one write; see whole_response."""
        if cycle.disconnected:
            return True
        if cycle.response_started or self.flow.write_paused or len(body) > JOINED or cycle.scope["method"] == "HEAD":
            return False
        said = False
        parts = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            if HEADER_VALUE_RE.search(value):
                return False  # the usual way says what is wrong
            parts += (name, b": ", value, b"\r\n")
            if name == b"connection" and b"close" in value.lower():  # the server's own, at its end
                cycle.keep_alive = False
                said = True
        if not cycle.keep_alive and not said:
            parts.append(b"connection: close\r\n")
        parts += (b"content-length: %d\r\n\r\n" % len(body), body)
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        self.transport.write(b"".join(parts))
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        return True

    def on_message_begin(self) -> None:
        self._trailers = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Fields behind a chunked body are read and forgotten: nothing here looks at them, and a proxy may have."""
        if not self.on_short_way and (self.cycle is None or self.cycle.scope is not self.scope):
            super().on_header(name, value)
            return
        self._trailers += len(name) + len(value)
        if self._trailers > self._most:
            self._refuse_head()
            raise HeadTooLarge  # ends the parser: it would go on with this request, and with those behind it

    def connection_lost(self, exc: Exception | None) -> None:
        self.let_go()  # the application counts who leaves in the middle of a request
        self._abandon()
        super().connection_lost(exc)

    def _abandon(self) -> None:
        """Nobody waits for answers any more. Of requests that came one behind the other uvicorn tells the last one
        only: the one that is worked on would go on, and write to a connection that is closed or has been answered."""
        for cycle in (self.running, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                if isinstance(cycle, RequestResponseCycle):
                    cycle.waiting_for_100_continue = False  # it would be asked for its body all the same
                cycle.message_event.set()
        self.pipeline.clear()

    def parse(self, data: bytes) -> None:
        """Keeps the limits of a head; one that is known has kept them."""
        if len(data) > self._most and not self._has_short_head(data):
            self._refuse_head()
            return
        if self._refused:
            return
        before = self.scope
        super().parse(data)
        cycle = self.cycle
        if cycle is None or cycle.scope is not self.scope:
            if self.scope is before:
                self._head += len(data)
            else:  # whole requests may come before it in the same piece
                self._head = 0 if b"\r\n\r\n" in data else len(data)
            if self._head > self._most:
                self._refuse_head()
        elif self._head:
            self._head = 0

    def _has_short_head(self, data: bytes) -> bool:
        """Whether a large piece can be taken: it goes on with a body, or its head ends soon enough."""
        if not self.in_head and self.cycle is not None and self.cycle.more_body:
            return True  # also behind the answer: a body that was refused may still come
        return data.find(b"\r\n\r\n", 0, self._most) >= 0

    def _refuse_head(self) -> None:
        self.refuse(431, f"the first line and the headers have more than {self._most} bytes (--max_header_bytes)")

    @property
    def in_head(self) -> bool:
        """Whether a request has begun whose headers are not all there, or that is held until its body is."""
        return self.scope is not None and (self.cycle is None or self.cycle.scope is not self.scope)

    def state(self) -> State | None:
        """What is waited for from the client, None while it waits for us."""
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            return State(NOT_TAKING, self.scope, unsent)
        running = self.running
        if running is not None and not running.response_complete:
            # It waits for its answer, whatever it has sent of the next request by now.
            return State(SENDING, self.scope) if running.more_body and not self.flow.read_paused else None
        if self.in_head:
            return State(SENDING, self.scope)
        # After an answer uvicorn has a timer of its own, until a byte comes that begins no request.
        return State(SILENT, self.scope) if self.timeout_keep_alive_task is None else None

    def expire(self, state: State) -> None:
        """The client has taken too long."""
        if state.kind == NOT_TAKING:
            self.transport.abort()
        elif state.kind == SILENT or (not self.in_head and self.cycle.response_started):
            self.transport.close()
        else:
            seconds = self._limits.seconds
            self.refuse(408, f"the request was not sent whole within {seconds:g} s (--client_timeout_seconds)")

    def break_off(self) -> None:
        """The server ends, and can't wait any longer."""
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.refuse(503, "the service is shutting down")

    def refuse(self, status: int, message: str) -> None:
        """Answers before the application does, or instead of it, and closes the connection."""
        if self._refused or self.transport.is_closing():
            return
        self.let_go()
        self._refused = True
        running = self.running
        if running is not None and running.response_started and not running.response_complete:
            self.transport.abort()  # in the middle of another answer
            return
        self._abandon()
        body = orjson.dumps({"error": message})
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *([(b"retry-after", b"1")] if status == 503 else ()),
            (b"connection", b"close"),
        ]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + body)
        if self.transport.can_write_eof():  # not with TLS
            self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.close)

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers with where it can't read a request."""
        self.refuse(400, msg)

    def shutdown(self) -> None:
        """The server ends: an idle connection is closed, a request of which a part is there may still come whole."""
        if not self.in_head:
            super().shutdown()


class Sweeper:
    """Ends the connections whose clients take too long.

    Args:
        connections: those that are open.
        seconds: for sending a request once it has begun, and for taking some of an answer.
        idle_seconds: for beginning a request. 0 means that none is kept open after an answer, and not that a new one
            is closed at once: it has ``seconds``.
    """

    def __init__(self, connections: Collection[Any], seconds: float, idle_seconds: float) -> None:
        self._connections = connections
        self._limits = {SENDING: seconds, NOT_TAKING: seconds, SILENT: idle_seconds or seconds}
        self.period = max(SHORTEST, min(LONGEST, min(self._limits.values()) / SWEEPS))
        """Seconds between two sweeps."""
        self._seen: dict[Connection, tuple[State, float]] = {}

    def sweep(self, now: float) -> Iterator[None]:
        """Looks at all connections, AT_ONCE at a time, so that others may do something in between.

        Args:
            now: the time in seconds.
        """
        seen: dict[Connection, tuple[State, float]] = {}
        for number, connection in enumerate(list(self._connections), 1):
            if not number % AT_ONCE:
                yield
            # It may have been closed since the sweep began.
            state = connection.state() if connection in self._connections else None
            if state is None:
                continue
            before = self._seen.get(connection)
            since = before[1] if before is not None and state.is_still(before[0]) else now
            if now - since > self._limits[state.kind]:
                connection.expire(state)
            else:
                seen[connection] = state, since
        self._seen = seen
