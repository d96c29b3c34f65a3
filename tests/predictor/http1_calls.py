"""What the tests of the HTTP client share."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Any

import pytest
import uvloop

from hf_transformer.predictor.address import Address
from hf_transformer.predictor.http1 import Http1Client
from hf_transformer.predictor.http1_parser import Answer
from tests.predictor.fault_server import HOST, Connection

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
LARGEST = 2**25

LARGE = 2**24
"""Bytes that no socket's buffers take in without being read."""

PARTS = [
    b"H",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab",
]
"""Beginnings of answers."""

LOOPS = [asyncio.SelectorEventLoop, uvloop.new_event_loop]


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test under asyncio's own event loop, and under uvloop."""

    @functools.wraps(test)
    def both(loop_factory: Callable[[], asyncio.AbstractEventLoop], **arguments: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60):
                await test(**arguments)

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(bounded())

    signature = inspect.signature(test)
    own = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    both.__signature__ = signature.replace(parameters=[*signature.parameters.values(), own])  # type: ignore[attr-defined]
    parametrized: Callable[..., None] = pytest.mark.parametrize("loop_factory", LOOPS, ids=["asyncio", "uvloop"])(both)
    return parametrized


def room(size: int, headers: Mapping[str, str]) -> memoryview:
    return memoryview(bytearray(size))


@asynccontextmanager
async def client_of(host: str, seconds: float = 50.0, tls: SSLContext | None = None) -> AsyncIterator[Http1Client]:
    """A client for host:port."""
    name = "localhost" if tls is not None else HOST
    address = Address(name, int(host.rpartition(":")[2]), tls is not None)
    client = Http1Client(address, tls, seconds, room, LARGEST)
    try:
        yield client
    finally:
        await client.close()


async def body_of(answer: Awaitable[Answer]) -> bytes:
    return bytes((await answer).body)


def post(body: bytes) -> tuple[bytes, bytes]:
    return b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body), body


async def until(condition: Callable[[], bool]) -> None:
    """Lets the event loop turn until something is so; the test's own time limit ends it."""
    for _ in iter(condition, True):
        await asyncio.sleep(0)


async def echo(connection: Connection) -> None:
    """Answers every request with its body."""
    while True:
        await connection.answer("200 OK", (await connection.request())[1])
