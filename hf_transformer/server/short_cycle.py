"""One request on its short way, and the response to it; see hf_transformer/short_way.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_transformer.server.short_requests import ShortWayProtocol


class ShortRequest:
    """A request on its short way, where uvicorn has a RequestResponseCycle; what it and others look at is here."""

    __slots__ = (
        "_connection",
        "cancel",
        "disconnected",
        "keep_alive",
        "response_complete",
        "response_started",
    )

    more_body = False

    def __init__(self, connection: ShortWayProtocol, keep_alive: bool) -> None:
        self._connection = connection
        self.keep_alive = keep_alive
        self.disconnected = self.response_started = self.response_complete = False
        self.cancel: Callable[[], object] | None = None

    @property
    def scope(self) -> object:
        """What tells it from other requests."""
        return self

    @property
    def message_event(self) -> ShortRequest:
        """What uvicorn sets when something has happened to a request."""
        return self

    def set(self) -> None:
        """Of all that may happen, only that the client has gone is of interest."""
        if self.disconnected and self.cancel is not None:
            self.cancel()

    def whole(self, status: int, lines: bytes, body: bytes) -> None:
        """Sends the response in one write. Closes the connection where another one has begun: only a fault of our own
        comes here then, and its client must not take what there is for all."""
        if self.disconnected or self.response_started:
            self.break_off()
            return
        self.response_started = self.response_complete = True
        self.cancel = None
        self._connection.send_response(self, status, lines, body)

    def hold(self, task: asyncio.Task[None]) -> None:
        """Has the server wait for a task, as it does for those of ASGI."""
        tasks = self._connection.tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def begin(self, status: int, lines: bytes, body: bytes = b"") -> bool:
        """Sends the head of a response in chunks, and the first chunk in the same write, unless it is empty or the
        client does not read."""
        if self.disconnected:
            return False
        self.response_started = True
        connection = self._connection
        paused = connection.flow.write_paused
        connection.begin_response(self, status, lines, b"" if paused else body)
        return not paused

    def part(self, body: bytes) -> bool:
        """Sends a chunk at once, or not at all."""
        connection = self._connection
        if self.disconnected or connection.flow.write_paused:
            return False
        connection.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True

    async def send(self, body: bytes) -> None:
        """Sends a chunk, unless it is empty, as soon as the client reads."""
        flow = self._connection.flow
        if flow.write_paused and not self.disconnected:
            await flow.drain()
        if body:
            self.part(body)

    def end(self, *parts: bytes) -> None:
        """Sends the last chunks and ends them, in one write."""
        if self.disconnected or self.response_complete:
            return
        self.response_complete = True
        self.cancel = None
        self._connection.end_response(self, b"".join([b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part]))

    def break_off(self) -> None:
        """Closes the connection in the middle of a response, or before it. One whose client was told off instead is
        closed by whoever did that."""
        if not (self.disconnected or self.response_complete):
            self._connection.transport.close()
