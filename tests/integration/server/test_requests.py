"""Requests as clients send them: whole, cut, in chunks, one behind the other, broken; what the client gets for each."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.integration.server.processes import SECONDS, status_of
from tests.integration.server.serving import CHUNKED, Client, Echo, client_of, connected_to, post, serving

WHOLE = post()
HEAD = WHOLE[:-4]
PAUSE = 0.05
"""Seconds after which more bytes are another read of the server's."""


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


async def bodies_of(client: Client, number: int) -> list[bytes]:
    return [(await client.answer())[1] for _ in range(number)]


async def test_the_bytes_of_a_response_and_what_the_application_gets() -> None:
    app = Echo()
    async with client_of(app) as client:
        client.send(post(b"text", "X-Name: Value"))
        head, body = await client.answer()
        assert body == b"echo:text"
        lines = head.split(b"\r\n")
        assert lines[0] == b"HTTP/1.1 200 OK" and lines[1].startswith(b"date: ")
        assert lines[2] == b"content-type: text/plain" and lines[3].startswith(b"x-request-id: ")
        assert lines[4:] == [b"content-length: 9", b"", b""]
    [scope] = app.scopes
    assert scope["scheme"] == "http"
    assert list(scope["headers"]) == [(b"host", b"x"), (b"x-name", b"Value"), (b"content-length", b"4")]


async def test_requests_behind_one_that_is_worked_on_wait_for_it() -> None:
    app = Echo()
    app.open.clear()
    async with client_of(app) as client:
        client.send(post(b"1") + post(b"2") + post(b"3"))
        await app.waiting.wait()
        await asyncio.sleep(PAUSE)
        assert app.bodies == [b"1"]
        app.open.set()
        assert await bodies_of(client, 3) == [b"echo:1", b"echo:2", b"echo:3"]
        client.send(post(b"4"))
        assert (await client.answer())[1] == b"echo:4"


async def test_without_keep_alive_the_connection_is_closed_behind_the_response() -> None:
    async with client_of(Echo(), keep_alive=0) as client:
        client.send(WHOLE)
        assert (await client.rest()).endswith(b"echo:text")


async def test_without_keep_alive_a_request_that_came_along_is_answered_before() -> None:
    class Slow(Echo):
        async def answer(self, send: Any, answer: bytes) -> None:
            await asyncio.sleep(PAUSE)
            await super().answer(send, answer)

    async with client_of(Slow(), keep_alive=0) as client:
        client.send(post(b"1") + post(b"2"))
        answers = await client.rest()
        assert answers.index(b"echo:1") < answers.index(b"echo:2")


async def test_a_body_that_comes_byte_by_byte_is_408_too() -> None:
    app = Echo()
    async with client_of(app, seconds=0.3) as client:
        client.send(WHOLE)
        assert (await client.answer())[1] == b"echo:text"
        client.send(HEAD)
        began = time.monotonic()
        for _ in range(3):
            await asyncio.sleep(PAUSE)
            client.send(b"a")
        answer = await client.rest()
        assert status_of(answer) == 408 and answer.count(b"HTTP/1.1") == 1 and time.monotonic() - began > 0.3
    assert app.bodies == [b"text"]


async def test_fields_behind_a_body_count_for_their_own_request_only() -> None:
    whole = CHUNKED + b"2\r\nte\r\n0\r\n" + fields(5) + b"\r\n"
    async with client_of(Echo()) as client:
        for times in (1, 1, 3):
            client.send(times * whole)
            assert await bodies_of(client, times) == [b"echo:te"] * times


def fields(number: int) -> bytes:
    """So many of about 1,000 bytes; the server takes 8,192 bytes of a request's fields."""
    return b"".join(b"X-%d: %s\r\n" % (one, b"a" * 1000) for one in range(number))


async def test_a_body_that_came_unasked_is_not_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    async with client_of(Echo()) as client:
        client.send(post(b"text", "Expect: 100-continue") + b"no HTTP\r\n\r\n")
        answer = await client.rest()
        assert status_of(answer) == 200 and answer.count(b"HTTP/1.1") == 2 and b"HTTP/1.1 400" in answer
    assert not errors(caplog)


async def test_the_application_hears_of_a_client_that_leaves() -> None:
    app = Echo()
    app.open.clear()
    async with client_of(app) as client:
        client.send(WHOLE)
        await app.waiting.wait()
        assert not app.left.is_set()
        client.leave()
        async with asyncio.timeout(SECONDS):
            await app.left.wait()


async def test_a_client_that_leaves_after_its_response_ends_nothing() -> None:
    app = Echo()
    async with client_of(app) as client:
        client.send(WHOLE)
        await client.answer()
    assert not app.left.is_set()


async def test_a_request_in_flight_is_answered_when_the_server_ends() -> None:
    app = Echo()
    app.open.clear()
    async with serving(app) as (server, port), connected_to(port) as client:
        client.send(WHOLE)
        await app.waiting.wait()
        server.should_exit = True
        await asyncio.sleep(0.3)
        app.open.set()
        answer = await client.rest()
        assert answer.count(b"connection: close\r\n") == 1 and answer.endswith(b"echo:text")


async def test_a_request_whose_body_is_on_its_way_when_the_server_ends_is_answered() -> None:
    async with serving(Echo()) as (server, port), connected_to(port) as client:
        client.send(HEAD)
        await asyncio.sleep(0.1)
        server.should_exit = True
        await asyncio.sleep(0.3)
        client.send(b"text")
        answer = await client.rest()
        assert answer.count(b"connection: close\r\n") == 1 and answer.endswith(b"echo:text")


async def test_a_request_whose_body_does_not_come_until_the_end_of_the_grace_is_503() -> None:
    async with serving(Echo(), grace=0.2) as (server, port), connected_to(port) as client:
        client.send(HEAD)
        await asyncio.sleep(0.1)
        server.should_exit = True
        answer = await client.rest()
        assert status_of(answer) == 503 and answer.count(b"HTTP/1.1") == 1
