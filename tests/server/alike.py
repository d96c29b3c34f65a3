"""Connections as in scripted.py, compared where one of them holds requests and the other one leaves all to the parser.

The ways of the application differ in what they say of themselves, and in when they take over what the server says at
its end; that is left out here. All else has to be the same: what the application gets, in which order it is answered,
and what the sweeper and the end of the server see between any two reads.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

from hf_transformer.server.connection import SILENT, Connection, State
from hf_transformer.server.known_heads import KnownHeads
from hf_transformer.short_way import Begin, Headers, Response
from tests.server.scripted import ANSWER, DATE, END, PAUSE, Site, Unread, Wire, turns
from tests.server.test_short_requests import Ways

BODY_BYTES = 3000
"""That a request may have."""
LEAVE, REFUSE = "leave", "refuse"
"""What may happen too: the client leaves, and is told off."""


class Alike(Ways):
    """Has requests on the long way wait as those on the short one do, and notes both once they are whole."""

    def __init__(self) -> None:
        super().__init__()
        self.whole: list[tuple[list[tuple[bytes, bytes]], bytes]] = []
        self.gone = 0
        """Requests that the application has heard of, and whose clients left before they were whole."""
        self._late: list[asyncio.Event] = []

    def short(self, headers: Headers) -> Begin:
        way = super().short(headers)

        def begin(body: bytes, scheme: str, response: Response) -> Callable[[], object]:
            self.whole.append((list(headers), body))
            return way(body, scheme, response)

        return begin

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, complete = b"", False

        async def waiting() -> Any:
            nonlocal body, complete
            message = await receive()
            body += message.get("body", b"")
            if message["type"] == "http.disconnect":
                self.gone += not complete
            elif not message["more_body"]:
                complete = True
                self.whole.append((list(scope["headers"]), body))
                if not self.open.is_set():
                    self._late.append(asyncio.Event())
                    await self._late[-1].wait()
            return message

        await super().__call__(scope, waiting, send)

    def answer_all(self) -> None:
        """Answers what is not answered, on both ways."""
        for index in range(len(self.taken)):
            self.answer(index)
        while self._late:
            self._late.pop().set()


class AlikeSite(Site):
    """A server whose short and long ways answer alike."""

    app: Alike

    def new_app(self) -> Alike:
        return Alike()

    async def run(self, steps: Sequence[bytes | str]) -> Wire:
        self.app.whole.clear()
        connection, wire = self.connect()
        before = state_of(connection)
        for step in steps:
            if wire.closing:
                break
            self._do(step, connection)
            await turns()
            if step in (LEAVE, REFUSE):
                break
            state = state_of(connection)
            self.views.append(view_of(connection, state, before))
            before = state
        else:
            connection.resume_writing()
            await self._answer(len(steps) + 8)
            connection.connection_lost(None)
        await self._answer(1)
        return wire

    def _do(self, step: bytes | str, connection: Connection) -> None:
        if isinstance(step, bytes):
            connection.data_received(step)
        elif step == ANSWER:
            self.app.answer_all()
        elif step == END:  # what the server does then
            self.state.default_headers = [DATE, (b"connection", b"close")]
            connection.shutdown()
        elif step == LEAVE:
            connection.transport.close()
            connection.connection_lost(None)
        elif step == REFUSE:
            connection.refuse(503, "no")
        else:
            (connection.pause_writing if step == PAUSE else connection.resume_writing)()

    async def _answer(self, times: int) -> None:
        for _ in range(times):
            self.app.answer_all()
            await turns()


def state_of(connection: Connection) -> State | None:
    """What the sweeper sees, also where it leaves an idle connection to uvicorn's timer."""
    state, running = connection.state(), connection.running
    if state is None and (running is None or running.response_complete):
        return State(SILENT, connection.scope)
    return state


def view_of(connection: Connection, state: State | None, before: State | None) -> tuple[object, ...]:
    """What the sweeper, its clock and the end of the server have of a connection."""
    idle = connection.cycle is None or connection.cycle.response_complete
    return (
        None if state is None else (state.kind, state.unsent),
        state is not None and before is not None and state.is_still(before),
        not connection.in_head and idle,  # it would be closed at the end
        connection.flow.read_paused,
        len(connection.pipeline),
    )


def alike(written: bytes) -> tuple[bytes, int]:
    """Answers without what tells the ways, and how many of them are the last ones."""
    rest = re.sub(rb"content-type: text/plain\r\n|connection: close\r\n", b"", written)
    rest = re.sub(rb"content-length: \d+\r\n\r\n(short|long):", b"\r\n", rest)
    return rest, written.count(b"connection: close\r\n")


async def compared_alike(
    taught: Sequence[bytes], steps: Sequence[bytes | str], *, late: bool = False, keep_alive: int = 65
) -> AlikeSite:
    """The server that holds requests, and what it did, the same as one that leaves all to the parser."""
    holding = AlikeSite(KnownHeads(), late=late, keep_alive=keep_alive, body_bytes=BODY_BYTES)
    other = AlikeSite(KnownHeads(0), late=late, keep_alive=keep_alive)
    other.known.plain = Unread()
    wires = []
    for site in (holding, other):
        await site.teach(*taught)
        wires.append(await site.run(steps))
    assert alike(wires[0].written) == alike(wires[1].written)
    assert wires[0].closing == wires[1].closing
    assert holding.app.whole == other.app.whole
    assert holding.app.gone == other.app.gone
    assert holding.views == other.views
    assert holding.state.total_requests == other.state.total_requests
    return holding
