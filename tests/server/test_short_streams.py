"""Requests on their short way that are answered piece by piece: what goes over the connection, and who waits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hf_transformer.commands.local_triton import HOST
from hf_transformer.short_way import Begin, Headers, Response
from tests.integration.server.processes import SECONDS
from tests.integration.server.serving import serving
from tests.server.test_short_requests import TARGET, Client, client_of, post
from tests.server.test_short_requests import Ways as WholeWays

PART = b"x" * 70_000
LINES = b"content-type: text/plain\r\n"


class Parts(WholeWays):
    """Answers POST /short with parts, on both ways: each is sent as soon as ``open`` is set. On the short way it notes
    what ``part`` said, and whether the client has left."""

    def __init__(self, *parts: bytes) -> None:
        super().__init__()
        self._parts = parts
        self.said: list[bool] = []
        self.ended = asyncio.Event()

    def short(self, headers: Headers) -> Begin:
        def begin(body: bytes, scheme: str, response: Response) -> Callable[[], object]:
            response.hold(asyncio.get_running_loop().create_task(self.work(response)))
            return self.cancelled.set

        return begin

    async def work(self, response: Response) -> None:
        try:
            response.begin(200, LINES)
            self.waiting.set()
            for part in self._parts:
                await self.open.wait()
                self.said.append(bool(part) and response.part(part))
                if not self.said[-1]:
                    await response.send(part)
            response.end()
        finally:
            self.ended.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})


async def streamed(client: Client) -> bytes:
    """Head and chunks of the next answer."""
    async with asyncio.timeout(SECONDS):
        return await client.reader.readuntil(b"0\r\n\r\n")


def undated(answer: bytes) -> bytes:
    return re.sub(rb"date: [^\r]+", b"date: now", answer)


@pytest.mark.parametrize("line", ["X-Name: Value", "Connection: close"])
async def test_the_bytes_are_those_of_asgi(line: str) -> None:
    app = Parts(b"one", b"", b"\r\n", b"x" * 300)
    async with client_of(app) as client:
        client.send(post(b"text", line))
        short = await streamed(client)
        assert app.ended.is_set()
    async with client_of(app) as client:
        client.send(post(b"text", line, target="/other"))
        assert undated(await streamed(client)) == undated(short)
        assert (b"connection: close" in short) == line.startswith("Connection")
        if line.startswith("Connection"):
            assert await client.rest() == b""


async def test_one_after_the_other_on_one_connection() -> None:
    app = Parts(b"one", b"two")
    async with client_of(app) as client:
        client.send(post())
        first = await streamed(client)
        for target in (TARGET, "/other", TARGET):
            client.send(post(target=target))
            assert undated(await streamed(client)) == undated(first)
        client.send(post() + post(target="/other") + post())
        for _ in range(3):
            assert undated(await streamed(client)) == undated(first)


async def test_what_comes_meanwhile_waits_for_the_end() -> None:
    app = Parts(b"one", b"two")
    app.open.clear()
    async with client_of(app) as client:
        client.send(post())
        await app.waiting.wait()
        client.send(post())
        async with asyncio.timeout(SECONDS):
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        app.open.set()
        first = await streamed(client)
        assert first.count(b"one") == 1 and b"HTTP" not in first
        assert (await streamed(client)).endswith(first)


async def test_a_client_that_does_not_read_is_waited_for() -> None:
    app = Parts(*[PART] * 200)
    async with client_of(app) as client:
        client.send(post())
        async with asyncio.timeout(SECONDS):
            while not app.said or app.said[-1]:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            assert app.said[0] and len(app.said) < 200
            await client.reader.readuntil(b"\r\n\r\n")
            chunk = b"%x\r\n%b\r\n" % (len(PART), PART)
            for _ in range(200):
                assert await client.reader.readexactly(len(chunk)) == chunk
            assert await client.reader.readexactly(5) == b"0\r\n\r\n"


async def test_a_client_that_leaves_is_told_of_and_gets_nothing() -> None:
    app = Parts(b"one")
    app.open.clear()
    async with client_of(app) as client:
        client.send(post())
        await app.waiting.wait()
        client.writer.transport.abort()
        async with asyncio.timeout(SECONDS):
            await app.cancelled.wait()
            app.open.set()
            await app.ended.wait()
    assert app.said == [False]


async def test_who_does_not_read_and_leaves_ends_the_waiting() -> None:
    app = Parts(*[PART] * 200)
    async with client_of(app) as client:
        client.send(post())
        async with asyncio.timeout(SECONDS):
            while not app.said or app.said[-1]:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            client.writer.transport.abort()
            await app.ended.wait()


async def test_the_end_of_the_server_waits_for_a_stream_and_closes_its_connection() -> None:
    app = Parts(b"one", b"two")
    app.open.clear()
    async with serving(app, SECONDS) as (server, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        client = Client(reader, writer)
        client.send(post())
        await app.waiting.wait()
        server.should_exit = True
        await asyncio.sleep(0.3)
        assert not app.ended.is_set()
        app.open.set()
        assert (await client.rest()).endswith(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
        writer.close()


class Late(Parts):
    """Begins its answer once ``open`` is set."""

    async def work(self, response: Response) -> None:
        self.waiting.set()
        await self.open.wait()
        await super().work(response)


async def test_a_stream_that_begins_at_the_end_says_that_the_connection_closes() -> None:
    app = Late(b"one")
    app.open.clear()
    async with serving(app, SECONDS) as (server, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        client = Client(reader, writer)
        client.send(post())
        await app.waiting.wait()
        server.should_exit = True
        await asyncio.sleep(0.3)
        app.open.set()
        answer = await client.rest()
        assert answer.count(b"connection: close\r\n") == 1 and answer.endswith(b"3\r\none\r\n0\r\n\r\n")
        writer.close()


class Broken(Parts):
    """Breaks its answer off, after its first part or before anything."""

    def __init__(self, begun: bool) -> None:
        super().__init__()
        self._begun = begun

    def work(self, response: Response) -> Coroutine[Any, Any, None]:
        async def broken() -> None:
            if self._begun:
                response.begin(200, LINES)
                response.part(b"one")
            response.break_off()

        return broken()


@pytest.mark.parametrize("begun", [False, True])
async def test_what_is_broken_off_is_no_complete_answer(begun: bool) -> None:
    async with client_of(Broken(begun)) as client:
        client.send(post())
        answer = await client.rest()
        assert answer.endswith(b"3\r\none\r\n" if begun else b"") and b"0\r\n\r\n" not in answer


class Twice(Parts):
    """Answers whole in the middle of a stream, which only a fault of our own does, and says that it is broken off."""

    async def work(self, response: Response) -> None:
        response.begin(200, LINES)
        response.part(b"one")
        response.whole(500, LINES, b"two")
        response.break_off()


async def test_a_second_answer_breaks_the_first_one_off() -> None:
    async with client_of(Twice()) as client:
        client.send(post())
        answer = await client.rest()
        assert answer.endswith(b"\r\n\r\n3\r\none\r\n") and answer.count(b"HTTP/1.1") == 1


class Kept(Parts):
    """Keeps its response, and sends nothing."""

    async def work(self, response: Response) -> None:
        self.response = response
        self.waiting.set()


@pytest.mark.parametrize("end", [lambda response: response.break_off(), lambda response: response.whole(500, b"", b"")])
async def test_who_is_told_off_is_not_cut_short_by_what_is_given_up(end: Callable[[Response], None]) -> None:
    """Its connection is kept for a while, since it would be reset while the client sends, and the answer lost."""
    app = Kept()
    async with serving(app, SECONDS) as (server, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        client = Client(reader, writer)
        client.send(post())
        await app.waiting.wait()
        client.send(b"no HTTP\r\n\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 400")
        [connection] = server.server_state.connections
        end(app.response)
        assert not connection.transport.is_closing()
        writer.close()


async def test_the_server_ends_a_stream_that_takes_too_long() -> None:
    app = Parts(b"one")
    app.open.clear()
    async with serving(app, SECONDS, grace=0.2) as (server, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(post())
        await app.waiting.wait()
        server.should_exit = True
        async with asyncio.timeout(SECONDS):
            await app.cancelled.wait()
        app.open.set()
        with_nothing_more = await reader.read()
        assert b"0\r\n\r\n" not in with_nothing_more
        writer.close()
