"""Responses sent piece by piece: the bytes on the connection, clients that don't read or leave, the end."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.integration.server.processes import SECONDS
from tests.integration.server.serving import Client, Gate, client_of, connected_to, post, serving

PART = b"x" * 70_000


class Parts(Gate):
    """Answers with parts, each sent once ``open`` is set; ``sent`` of them were taken by the server."""

    def __init__(self, *parts: bytes, headers: Any = ()) -> None:
        super().__init__()
        self.open.set()
        self._parts = parts
        self._headers = [(b"content-type", b"text/plain"), *headers]
        self.sent = 0
        self.ended = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        try:
            while (await receive()).get("more_body"):
                pass
            await self.respond(send)
        finally:
            self.ended.set()

    async def respond(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        self.waiting.set()
        for part in self._parts:
            await self.open.wait()
            await send({"type": "http.response.body", "body": part, "more_body": True})
            self.sent += 1
        await send({"type": "http.response.body"})


async def streamed(client: Client) -> bytes:
    """Head and chunks of the next response."""
    async with asyncio.timeout(SECONDS):
        return await client.reader.readuntil(b"0\r\n\r\n")


def undated(answer: bytes) -> bytes:
    return re.sub(rb"(date|x-request-id): [^\r]+", rb"\1: some", answer)


async def test_the_bytes_of_a_stream() -> None:
    async with client_of(Parts(b"one", b"", b"\r\n", b"x" * 300)) as client:
        client.send(post(b"text", "Connection: close"))
        head, _, content = undated(await streamed(client)).partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        assert first == b"HTTP/1.1 200 OK"
        expected = [b"content-type: text/plain", b"date: some", b"transfer-encoding: chunked", b"x-request-id: some"]
        assert sorted(lines) == sorted([*expected, b"connection: close"])
        assert content == b"3\r\none\r\n2\r\n\r\n\r\n12c\r\n" + b"x" * 300 + b"\r\n0\r\n\r\n"
        assert await client.rest() == b""


async def test_without_chunks() -> None:
    async with client_of(Parts(b"one", b"two")) as client:
        client.send(post(b"text", "Connection: close", version="1.0"))
        assert (await client.rest()).endswith(b"\r\n\r\nonetwo")


async def test_one_after_the_other_on_one_connection() -> None:
    async with client_of(Parts(b"one", b"two")) as client:
        client.send(post())
        first = undated(await streamed(client))
        client.send(post() * 3)
        assert [undated(await streamed(client)) for _ in range(3)] == [first] * 3


async def test_a_request_that_comes_meanwhile_waits_for_the_end() -> None:
    app = Parts(b"one", b"two")
    app.open.clear()
    async with client_of(app) as client:
        client.send(post())
        await app.waiting.wait()
        client.send(post())
        await asyncio.sleep(0.1)
        app.open.set()
        assert (await client.head()).startswith(b"HTTP/1.1 200")
        first = await streamed(client)
        assert first.count(b"one") == 1 and b"HTTP" not in first
        assert (await streamed(client)).endswith(first)


async def test_a_client_that_does_not_read_is_waited_for() -> None:
    app = Parts(*[PART] * 200)
    async with client_of(app) as client:
        client.send(post())
        await until_full(app)
        await client.head()
        async with asyncio.timeout(SECONDS):
            chunk = b"%x\r\n%b\r\n" % (len(PART), PART)
            for _ in range(200):
                assert await client.reader.readexactly(len(chunk)) == chunk
            assert await client.reader.readexactly(5) == b"0\r\n\r\n"


async def until_full(app: Parts) -> None:
    """Waits until no more parts are taken, which has to come before the last one."""
    async with asyncio.timeout(SECONDS):
        sent = -1
        while sent != app.sent or not sent:
            sent = app.sent
            await asyncio.sleep(0.2)
    assert 0 < sent < 200 and not app.ended.is_set()


async def test_a_client_that_does_not_read_and_leaves_ends_the_waiting() -> None:
    app = Parts(*[PART] * 200)
    async with client_of(app) as client:
        client.send(post())
        await until_full(app)
        client.leave()
        async with asyncio.timeout(SECONDS):
            await app.ended.wait()


async def test_the_end_of_the_server_waits_for_a_stream_and_closes_its_connection() -> None:
    app = Parts(b"one", b"two")
    app.open.clear()
    async with serving(app) as (server, port), connected_to(port) as client:
        client.send(post())
        await app.waiting.wait()
        server.should_exit = True
        await asyncio.sleep(0.3)
        assert not app.ended.is_set()
        app.open.set()
        assert (await client.rest()).endswith(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


class Late(Parts):
    """Begins its response once ``open`` is set."""

    async def respond(self, send: Any) -> None:
        self.waiting.set()
        await self.open.wait()
        await super().respond(send)


async def test_a_stream_that_begins_at_the_end_says_that_the_connection_closes() -> None:
    app = Late(b"one")
    app.open.clear()
    async with serving(app) as (server, port), connected_to(port) as client:
        client.send(post())
        await app.waiting.wait()
        server.should_exit = True
        await asyncio.sleep(0.3)
        app.open.set()
        answer = await client.rest()
        assert answer.count(b"connection: close\r\n") == 1 and answer.endswith(b"3\r\none\r\n0\r\n\r\n")


class Halted(Parts):
    """Begins its response, and goes on once ``open`` is set."""

    async def respond(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await self.open.wait()


async def test_the_server_ends_a_stream_that_takes_longer_than_the_grace() -> None:
    app = Halted()
    app.open.clear()
    async with serving(app, grace=0.2) as (server, port), connected_to(port) as client:
        client.send(post())
        assert b"begun" in await client.reader.readuntil(b"begun")
        server.should_exit = True
        assert b"0\r\n\r\n" not in await client.rest()


class Broken(Parts):
    """Fails, after its first part or before anything."""

    def __init__(self, begun: bool) -> None:
        super().__init__()
        self._begun = begun

    async def respond(self, send: Any) -> None:
        if self._begun:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
        raise ValueError("broken")


@pytest.mark.parametrize("begun", [False, True], ids=["before", "amid"])
async def test_a_stream_that_breaks_is_no_complete_response(begun: bool) -> None:
    async with client_of(Broken(begun)) as client:
        client.send(post())
        answer = await client.rest()
        assert b"0\r\n\r\n" not in answer
        assert answer.endswith(b"3\r\none\r\n") if begun else answer.startswith(b"HTTP/1.1 500")
