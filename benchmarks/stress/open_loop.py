"""Load from one event loop over raw sockets: at a fixed rate whatever is answered (open), or as answers come (closed).

An open loop is what an overload is: users do not wait for each other. A request takes a connection that is idle, or
opens another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from hf_transformer.commands.local_triton import HOST

STEP = 0.005
"""Seconds between two looks at what is due."""


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes to send, and the body that must come back."""

    kind: str
    wire: bytes
    answer: bytes


def request_of(kind: str, path: str, body: bytes, answer: bytes) -> Request:
    """A POST."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return Request(kind, head.encode() + body, answer)


@dataclass(slots=True)
class Outcome:
    """What became of the requests of one kind. Latencies are in seconds, from the moment a request was due; ``in_time``
    counts the right answers that came while the load went on; ``not_connected`` are those who gave up before the
    service had taken their connection."""

    sent: int = 0
    right: list[float] = field(default_factory=list)
    in_time: int = 0
    refused: list[float] = field(default_factory=list)
    wrong: int = 0
    lost: int = 0
    gave_up: int = 0
    not_connected: int = 0
    other: dict[int, int] = field(default_factory=dict)

    @property
    def accepted(self) -> int:
        """All that was not refused."""
        return self.sent - len(self.refused)


class Connection(asyncio.Protocol):
    """One request at a time; the answer is found by its Content-Length."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.open = True
        self.head = b""
        """Of the last answer, in lower case."""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop has a class of its own

    def ask(self, wire: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Status and body, or ConnectionResetError."""
        self._answer = asyncio.get_running_loop().create_future()
        if self.open:
            self.transport.write(wire)
        else:
            self._answer.set_exception(ConnectionResetError())
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        self.head = head.lower()
        length = int(self.header(b"content-length"))
        if len(rest) < length:
            return
        self._buffer = b""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((int(head[9:12]), rest))

    def header(self, name: bytes) -> bytes:
        """A header of the last answer. Raises IndexError where it has none."""
        return self.head.split(b"\r\n" + name + b":", 1)[1].partition(b"\r\n")[0].strip()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError())


class Generator:
    """Sends requests to one port and keeps count. ``patience`` is when a client gives up and closes its connection."""

    def __init__(self, port: int, patience: float) -> None:
        self._port = port
        self._patience = patience
        self._idle: list[Connection] = []
        self._running: set[asyncio.Task[None]] = set()
        self.outcomes: dict[str, Outcome] = {}
        self.connections = 0
        self._end = 0.0

    async def offer(self, requests: Sequence[Request], rate: float, seconds: float) -> float:
        """Sends ``rate`` requests a second on average, until all have ended; gives the rate that was reached.

        Moments and order are random: in turn, small and large requests would meet the limits in a pattern.
        """
        chance = random.Random(3)
        start, count = time.perf_counter(), 0
        due, self._end = start, start + seconds
        while (now := time.perf_counter()) < self._end:
            while due <= now:
                task = asyncio.create_task(self._one(chance.choice(requests), due))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                count += 1
                due += chance.expovariate(rate)
            await asyncio.sleep(STEP)
        sending = time.perf_counter() - start
        while self._running:
            await asyncio.wait(set(self._running))
        return count / sending

    async def ask_in_turn(self, requests: Sequence[Request], clients: int, seconds: float) -> None:
        """So many clients, each with one request after the other."""
        end = self._end = time.perf_counter() + seconds

        async def client(first: int) -> None:
            number = first
            while time.perf_counter() < end:
                await self._one(requests[number % len(requests)], time.perf_counter())
                number += clients

        await asyncio.gather(*map(client, range(clients)))

    async def _one(self, request: Request, due: float) -> None:
        outcome = self.outcomes.setdefault(request.kind, Outcome())
        outcome.sent += 1
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self._patience):
                connection = await self._connection()
                status, body = await connection.ask(request.wire)
        except TimeoutError:
            outcome.gave_up += 1
            outcome.not_connected += connection is None
        except OSError:
            outcome.lost += 1
        else:
            self._count(outcome, status, body == request.answer, time.perf_counter() - due)
            self._idle.append(connection)
            return
        if connection is not None:
            connection.transport.abort()

    def _count(self, outcome: Outcome, status: int, right: bool, seconds: float) -> None:
        if status == 200 and right:
            outcome.right.append(seconds)
            outcome.in_time += time.perf_counter() < self._end
        elif status == 200:
            outcome.wrong += 1
        elif status == 429:
            outcome.refused.append(seconds)
        else:
            outcome.other[status] = outcome.other.get(status, 0) + 1

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
        self.connections += 1
        _, connection = await asyncio.get_running_loop().create_connection(Connection, HOST, self._port)
        return connection

    async def close(self) -> None:
        """Closes what is open."""
        for connection in self._idle:
            connection.transport.close()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
