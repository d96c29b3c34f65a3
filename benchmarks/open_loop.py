"""A load generator on one event loop with raw sockets: at a fixed rate (open loop), or paced by answers (closed loop).

An overload is an open loop, because users do not wait for each other. A request takes an idle connection, or opens
one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from hf_transformer.commands.loopback import HOST

POLL_SECONDS: Final = 0.005
"""Interval of checks for due requests."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: its bytes, and the expected body of the answer. Outcomes are counted by ``kind``."""

    kind: str
    wire: bytes
    answer: bytes


def ask(kind: str, path: str, body: bytes, answer: bytes = b"") -> Ask:
    """A POST request."""
    lines = (f"POST {path} HTTP/1.1", "host: bench", "content-type: application/json", f"content-length: {len(body)}")
    return Ask(kind, "\r\n".join((*lines, "", "")).encode() + body, answer)


@dataclass(slots=True)
class Outcome:
    """The outcomes of requests of one kind. Latencies are in seconds from the moment when a request is due.

    Attributes:
        right: latencies of correct answers.
        in_time: number of correct answers during the load.
        refused: number of answers with 429.
        wrong: number of answers with 200 and a wrong body.
        lost: number of connections closed without an answer.
        gave_up: number of clients that lost patience, ``not_connected`` of them without a connection.
        failed: number of answers with other statuses.
    """

    sent: int = 0
    right: list[float] = field(default_factory=list)
    in_time: int = 0
    refused: int = 0
    wrong: int = 0
    lost: int = 0
    gave_up: int = 0
    not_connected: int = 0
    failed: int = 0


class HttpClientProtocol(asyncio.Protocol):
    """A connection with one request at a time and Content-Length in responses."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.open = True
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def ask(self, wire: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Send a request; the future gets status and body, or ConnectionResetError."""
        self._answer = asyncio.get_running_loop().create_future()
        if self.open:
            self.transport.write(wire)
        else:
            self._answer.set_exception(ConnectionResetError())
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found or len(rest) < int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]):
            return
        self._buffer = b""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((int(head[9:12]), rest))

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError())


class Clients:
    """Sends requests to one port and counts their outcomes.

    Args:
        port: port of HOST.
        patience: seconds until a client gives up and closes its connection.
        poll: seconds between two checks for due requests.
        seed: of the moments and the order of requests.
    """

    def __init__(self, port: int, patience: float, *, poll: float = POLL_SECONDS, seed: int = 3) -> None:
        self._port = port
        self._patience = patience
        self._poll = poll
        self._seed = seed
        self._idle: list[HttpClientProtocol] = []
        self._end = 0.0
        self.outcomes: dict[str, Outcome] = {}

    async def offer(self, requests: Sequence[Ask], rate: float, seconds: float) -> float:
        """Sends ``rate`` requests a second on average, waits for all of them and returns the actual rate.

        Moments and order are random, because a regular order of small and large requests would bias the limits.
        """
        chance = random.Random(self._seed)
        running: set[asyncio.Task[None]] = set()
        start, count = time.perf_counter(), 0
        due, self._end = start, start + seconds
        while (now := time.perf_counter()) < self._end:
            while due <= now:
                task = asyncio.create_task(self._one(chance.choice(requests), due))
                running.add(task)
                task.add_done_callback(running.discard)
                count += 1
                due += chance.expovariate(rate)
            await asyncio.sleep(self._poll)
        sending = time.perf_counter() - start
        while running:
            await asyncio.wait(set(running))
        return count / sending

    async def ask_in_turn(self, requests: Sequence[Ask], clients: int, seconds: float) -> None:
        """Runs ``clients`` that each send one request after the other."""
        end = self._end = time.perf_counter() + seconds

        async def client(number: int) -> None:
            while time.perf_counter() < end:
                await self._one(requests[number % len(requests)], time.perf_counter())
                number += clients

        await asyncio.gather(*map(client, range(clients)))

    async def _one(self, request: Ask, due: float) -> None:
        outcome = self.outcomes.setdefault(request.kind, Outcome())
        outcome.sent += 1
        connection: HttpClientProtocol | None = None
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
            now = time.perf_counter()
            if status == 200 and body == request.answer:
                outcome.right.append(now - due)
                outcome.in_time += now < self._end
            outcome.wrong += status == 200 and body != request.answer
            outcome.refused += status == 429
            outcome.failed += status not in (200, 429)
            self._idle.append(connection)
            return
        if connection is not None:
            connection.transport.abort()

    async def _connection(self) -> HttpClientProtocol:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
        _, connection = await asyncio.get_running_loop().create_connection(HttpClientProtocol, HOST, self._port)
        return connection

    async def close(self) -> None:
        """Closes the idle connections."""
        for connection in self._idle:
            connection.transport.close()
        await asyncio.sleep(0)
