"""Idle connections that the server is closing while a request leaves; under both event loops."""

from __future__ import annotations

import asyncio

import pytest

from hf_transformer.predictor.http1_errors import NoAnswer
from tests.predictor.fault_server import Connection, scripted
from tests.predictor.http1_calls import GET, body_of, client_of, on_both_loops, post

CLOSING = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\nConnection: close\r\n\r\nidle"


@on_both_loops
@pytest.mark.parametrize("body", [b"", b"ab", bytes(2**20)], ids=len)
async def test_a_408_that_crosses_a_request_is_not_its_answer(body: bytes) -> None:
    requests: list[int] = []

    async def script(connection: Connection) -> None:
        requests.append(connection.number)
        assert (await connection.request())[1] == body
        await connection.answer("200 OK", b"right")
        if connection.number == 0:
            await connection.reader.read(1)  # as if it had been sent before: nobody has read the request
            await connection.send(CLOSING)

    async with scripted(script) as host, client_of(host) as client:
        for _ in range(2):
            assert await body_of(client.request(*post(body))) == b"right"
    assert requests == [0, 1]


@on_both_loops
async def test_a_request_that_may_not_be_sent_twice_fails() -> None:
    async def script(connection: Connection) -> None:
        assert connection.number == 0
        await connection.request()
        await connection.answer("200 OK")
        await connection.request()
        await connection.send(CLOSING)

    async with scripted(script) as host, client_of(host) as client:
        await client.request(GET)
        with pytest.raises(NoAnswer, match=r"idle connection \(408\)"):
            await client.request(GET, resend=False)


@on_both_loops
async def test_a_408_on_a_new_connection_is_the_answer() -> None:
    async def script(connection: Connection) -> None:
        assert connection.number == 0
        await connection.request()
        await connection.send(CLOSING)

    async with scripted(script) as host, client_of(host) as client:
        assert (await client.request(GET)).status == 408


@on_both_loops
async def test_a_400_that_crosses_a_request_is_not_its_answer() -> None:
    requests: list[int] = []

    async def script(connection: Connection) -> None:
        requests.append(connection.number)
        await connection.request()
        await connection.answer("200 OK", b"right")
        if connection.number == 0:
            await connection.reader.read(1)
            await connection.send(CLOSING.replace(b"408 Request Timeout", b"400 Bad Request"))

    async with scripted(script) as host, client_of(host) as client:
        for _ in range(2):
            assert await body_of(client.request(GET)) == b"right"
    assert requests == [0, 1]


@on_both_loops
@pytest.mark.parametrize("resend", [True, False])
async def test_a_request_that_is_wrong_is_told_so(resend: bool) -> None:
    """The second time at the latest."""

    async def script(connection: Connection) -> None:
        if connection.number == 0:
            await connection.request()
            await connection.answer("200 OK")
        await connection.request()
        await connection.send(CLOSING.replace(b"408 Request Timeout", b"400 Bad Request"))

    async with scripted(script) as host, client_of(host) as client:
        await client.request(GET)
        assert (await client.request(GET, resend=resend)).status == 400


@on_both_loops
async def test_a_503_of_a_proxy_that_ends_is_the_answer() -> None:
    async def script(connection: Connection) -> None:
        assert connection.number == 0
        await connection.request()
        await connection.answer("200 OK")
        await connection.request()
        await connection.send(CLOSING.replace(b"408 Request Timeout", b"503 Service Unavailable"))

    async with scripted(script) as host, client_of(host) as client:
        assert [(await client.request(GET)).status for _ in range(2)] == [200, 503]


@on_both_loops
async def test_a_408_that_leaves_the_connection_open_is_the_answer() -> None:
    async def script(connection: Connection) -> None:
        assert connection.number == 0
        for status in ("200 OK", "408 Request Timeout", "200 OK"):
            await connection.request()
            await connection.answer(status)

    async with scripted(script) as host, client_of(host) as client:
        assert [(await client.request(GET)).status for _ in range(3)] == [200, 408, 200]


@on_both_loops
async def test_a_fresh_connection_is_a_new_one() -> None:
    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.answer("200 OK", b"%d" % connection.number)

    async with scripted(script) as host, client_of(host) as client:
        numbers = [await body_of(client.request(GET, fresh=fresh)) for fresh in (False, False, True)]
        assert numbers == [b"0", b"0", b"1"]
        assert client.idle == 2


@on_both_loops
async def test_an_answer_that_nobody_has_asked_for_ends_an_idle_connection() -> None:
    ended = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.answer("200 OK", b"%d" % connection.number)
        if connection.number == 0:
            await connection.send(CLOSING)
            await connection.until_closed()
            ended.set()

    async with scripted(script) as host, client_of(host) as client:
        assert await body_of(client.request(GET)) == b"0"
        await ended.wait()
        assert await body_of(client.request(GET)) == b"1"
