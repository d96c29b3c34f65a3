"""The HTTP client over TLS, under both event loops."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from hf_transformer.predictor.http1_errors import ConnectDeadline
from tests.predictor.fault_server import Connection, scripted
from tests.predictor.http1_calls import GET, body_of, client_of, on_both_loops, post

TLS = Path(__file__).with_name("tls")


def server_context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "localhost.pem", TLS / "localhost.key")
    return context


def client_context() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(TLS / "localhost.pem"))


@on_both_loops
@pytest.mark.parametrize("size", [0, 1, 2**16 + 1, 2**22 + 1])
async def test_bodies(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    numbers: set[int] = set()

    async def script(connection: Connection) -> None:
        while True:
            _, sent = await connection.request()
            numbers.add(connection.number)
            await connection.answer("200 OK", sent)

    async with scripted(script, server_context()) as host, client_of(host, tls=client_context()) as client:
        for _ in range(3):
            assert await body_of(client.request(*post(body))) == body
        view, half = memoryview(body), size // 2
        assert await body_of(client.request(post(body)[0], view[:half], view[half:])) == body
    assert numbers == {0}


@on_both_loops
async def test_a_body_until_the_end() -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 300_000)

    async with scripted(script, server_context()) as host, client_of(host, tls=client_context()) as client:
        assert await body_of(client.request(GET)) == b"x" * 300_000


@on_both_loops
async def test_a_connection_that_ends_is_replaced() -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.answer("200 OK", b"%d" % connection.number)
        await connection.request()

    async with scripted(script, server_context()) as host, client_of(host, tls=client_context()) as client:
        assert await body_of(client.request(GET)) == b"0"
        assert await body_of(client.request(GET)) == b"1"


@on_both_loops
async def test_an_unknown_certificate() -> None:
    async def script(connection: Connection) -> None:
        await connection.request()

    async with scripted(script, server_context()) as host:
        async with client_of(host, tls=ssl.create_default_context()) as client:
            with pytest.raises(ssl.SSLCertVerificationError):
                await client.request(GET)


@on_both_loops
async def test_a_handshake_that_never_ends() -> None:
    async def script(connection: Connection) -> None:
        await connection.until_closed()

    async with scripted(script) as host, client_of(host, 0.05, client_context()) as client:
        with pytest.raises(ConnectDeadline):
            await client.request(GET)


@on_both_loops
async def test_a_cancelled_call() -> None:
    began, closed = asyncio.Event(), asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        began.set()
        await connection.until_closed()
        closed.set()

    async with scripted(script, server_context()) as host, client_of(host, tls=client_context()) as client:
        call = asyncio.create_task(client.request(GET))
        await began.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await closed.wait()
