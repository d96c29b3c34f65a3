"""Connections whose reads a test makes up, before an application that has a short way: no sockets, no luck."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from uvicorn.server import ServerState

from hf_transformer.commands.local_triton import HOST
from hf_transformer.server.connection import Connection, State
from hf_transformer.server.known_heads import KnownHeads
from hf_transformer.server.plain_heads import PlainHeads
from hf_transformer.server.settings import ClientLimits, ServerConfig
from tests.server.test_short_requests import Ways

TURNS = 10
"""Turns of the event loop in which an application that waits for nothing has answered."""
DATE = (b"date", b"Sat, 21 Nov 2026 22:00:00 GMT")
ANSWER, PAUSE, RESUME, END = "answer", "pause", "resume", "end"
"""What may happen but reads: the short requests are answered, the client takes nothing, takes something again, the
server ends."""


class Unread(PlainHeads):
    """Leaves every head to the parser."""

    def read(self, data: bytes, longest: int, held: int = 0) -> None:
        """Nothing is read."""


class Wire(asyncio.Transport):
    """Keeps what is written until it is closed, and counts the writes.

    Args:
        tls: whether it says that it is encrypted.
    """

    def __init__(self, *, tls: bool = False) -> None:
        super().__init__()
        self.written = b""
        self.writes = 0
        self.closing = False
        self._tls = tls

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": (HOST, 1), "sockname": (HOST, 2), "sslcontext": self._tls}.get(name, default)

    def write(self, data: Any) -> None:
        if not self.closing:
            self.written += data
            self.writes += 1

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Whoever makes up the reads may go on: what is in the kernel's hands may come all the same."""

    def resume_reading(self) -> None:
        """See above."""

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closing = True

    abort = close


class Site:
    """A server of ``app`` for one connection after the other.

    Args:
        known: the heads that it knows.
        late: whether requests on the short way are answered at ANSWER only.
        tls: whether the connections are encrypted.
        body_bytes: that a request may have, for what is held of one; with none nothing is.
    """

    def __init__(
        self, known: KnownHeads, *, late: bool = False, keep_alive: int = 65, tls: bool = False, body_bytes: int = 0
    ) -> None:
        self.app = self.new_app()
        self.late = late
        self.known = known
        self.tls = tls
        self.views: list[tuple[object, ...]] = []
        """How connections stood after each step of a run; see view_of."""
        self.state = ServerState()
        self.state.default_headers = [DATE]
        limits = ClientLimits(connections=9, header_bytes=4096, body_bytes=body_bytes, seconds=60, idle_seconds=60)
        self.config = ServerConfig(
            lambda: self.app,
            limits=limits,
            grace=1,
            certificate=None,
            clean_up=bool,
            http=Connection,
            timeout_keep_alive=keep_alive,
            proxy_headers=False,
        )
        self.config.load()
        self.config.known_heads = known

    def new_app(self) -> Ways:
        """The application."""
        return Ways()

    def connect(self) -> tuple[Connection, Wire]:
        connection, wire = Connection(self.config, self.state, {}), Wire(tls=self.tls)
        connection.connection_made(wire)
        return connection, wire

    async def teach(self, *requests: bytes) -> None:
        """Sends each often enough that its head is known, if it may be; answers are of no interest."""
        self.app.open.set()
        for request in requests:
            for _ in range(2):
                connection, _ = self.connect()
                connection.data_received(request)
                await turns()
                connection.connection_lost(None)
        await turns()
        self.app.asked.clear()
        self.app.taken.clear()
        if self.late:
            self.app.open.clear()

    async def run(self, steps: Sequence[bytes | str]) -> Wire:
        """One connection, with these reads and events."""
        connection, wire = self.connect()
        before = connection.state()
        for step in steps:
            if wire.closing:
                break
            if isinstance(step, bytes):
                connection.data_received(step)
            elif step == ANSWER:
                self.answer()
            elif step == END:
                self.state.default_headers = [DATE, (b"connection", b"close")]
            else:
                (connection.pause_writing if step == PAUSE else connection.resume_writing)()
            await turns()
            state = connection.state()
            self.views.append(view_of(connection, state, before))
            before = state
        connection.resume_writing()
        for _ in range(len(steps)):
            self.answer()
            await turns()
        connection.connection_lost(None)
        await turns()
        return wire

    def answer(self) -> None:
        """Answers what is not answered."""
        for index in range(len(self.app.taken)):
            self.app.answer(index)

    @property
    def hits(self) -> int:
        """Requests whose heads were known."""
        return len(self.app.taken) - len(self.app.asked)


def view_of(connection: Connection, state: State | None, before: State | None) -> tuple[object, ...]:
    """What the sweeper, its clock, uvicorn's timer and the end of the server have of a connection."""
    return (
        None if state is None else (state.kind, state.unsent),
        state is not None and before is not None and state.is_still(before),
        connection.timeout_keep_alive_task is None,
        connection.in_head,
        connection.flow.read_paused,
        len(connection.pipeline),
    )


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def compared(
    taught: Sequence[bytes],
    steps: Sequence[bytes | str],
    *,
    late: bool = False,
    keep_alive: int = 65,
    tls: bool = False,
) -> tuple[int, Wire]:
    """Hits, and what was written, the same as by a server that knows no heads and reads none by itself."""
    sites = [Site(known, late=late, keep_alive=keep_alive, tls=tls) for known in (KnownHeads(), KnownHeads(0))]
    sites[1].known.plain = Unread()
    wires = []
    for site in sites:
        await site.teach(*taught)
        wires.append(await site.run(steps))
    knowing, other = sites
    assert other.hits == 0 and not len(other.known)
    assert wires[0].written == wires[1].written
    assert wires[0].closing == wires[1].closing
    for site in sites:
        assert all(one.scheme == ("https" if tls else "http") for one in site.app.taken)
    took = [[(list(one.headers), one.body) for one in site.app.taken] for site in sites]
    assert took[0] == took[1]
    assert knowing.views == other.views
    assert knowing.state.total_requests == other.state.total_requests
    return knowing.hits, wires[0]
