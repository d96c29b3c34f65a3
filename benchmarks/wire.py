"""Cheap peers for HTTP measurements: a client without sockets, and a server with one answer."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import uvloop

from hf_transformer.commands.loopback import HOST

CONNECTIONS: Final = 32
Reads = Sequence[Sequence[bytes]]
"""Requests in rotation, each as the pieces that the server reads."""


class AnswerCounter:
    """Counts answers up to ``limit``."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.answered = 0
        self.over = asyncio.get_running_loop().create_future()


class Wire(asyncio.Transport):
    """A transport whose client sends its next request on an answer."""

    def __init__(self, reads: Reads, load: AnswerCounter, protocol: Any) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self._reads = reads
        self._load = load
        self._next = 0
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        protocol.connection_made(self)

    def send(self, part: int = 0) -> None:
        """Passes the next piece to the server."""
        reads = self._reads[self._next % len(self._reads)]
        self._protocol.data_received(reads[part])
        if part + 1 < len(reads):
            self._loop.call_soon(self.send, part + 1)

    def write(self, data: Any) -> None:
        if not data.startswith(b"HTTP/1.1 "):
            return  # a separately written body
        if not data.startswith(b"HTTP/1.1 200 "):
            raise ValueError(data)
        load = self._load
        load.answered += 1
        self._next += 1
        if load.answered < load.limit:
            self._loop.call_soon(self.send)
        elif not load.over.done():
            load.over.set_result(None)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        """Does nothing: there is no socket."""


async def cpu_per_request(make: Callable[[], Any], reads: Reads, requests: int) -> float:
    """CPU seconds of this process per request, with one in flight on each of CONNECTIONS.

    ``make`` makes the protocol of one connection.
    """
    load = AnswerCounter(requests)
    wires = [Wire(reads, load, make()) for _ in range(CONNECTIONS)]
    began = time.process_time()
    for wire in wires:
        wire.send()
    await load.over
    spent = time.process_time() - began
    await asyncio.sleep(0.05)  # until the last answers are written
    return spent / requests


@contextmanager
def canned_server(end: bytes, answer: bytes) -> Iterator[int]:
    """Runs a process that answers each request with ``answer``, and yields its port. ``end`` ends each request."""
    listening = socket.create_server((HOST, 0))
    child = multiprocessing.get_context("spawn").Process(target=_serve, args=(listening, end, answer), daemon=True)
    child.start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        child.kill()
        listening.close()


def _serve(listening: socket.socket, end: bytes, answer: bytes) -> None:
    class Canned(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport, self.last = transport, b""

        def data_received(self, data: bytes) -> None:
            self.last = self.last[-len(end) :] + data
            if self.last.endswith(end):
                self.transport.write(answer)

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Canned, sock=listening)
        await server.serve_forever()

    uvloop.run(serve())
