"""Requests that come whole, before an application that has a short way for them, and those that do not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from hf_transformer.commands.local_triton import HOST
from hf_transformer.short_way import Begin, Headers, Response
from tests.integration.server.processes import SECONDS, status_of
from tests.integration.server.serving import Gate, serving

TARGET = "/short"


@dataclass(frozen=True, slots=True)
class Taken:
    """One request that came the short way."""

    headers: Headers
    body: bytes
    scheme: str
    response: Response


class Ways(Gate):
    """Answers POST /short on both ways with the way and the body; the short one waits while ``open`` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.short_ways = {TARGET.encode(): self.short}
        self.asked: list[Headers] = []
        self.taken: list[Taken] = []
        self.cancelled = asyncio.Event()
        self.open.set()

    def short(self, headers: Headers) -> Begin:
        def begin(body: bytes, scheme: str, response: Response) -> Callable[[], object]:
            self.taken.append(Taken(headers, body, scheme, response))
            self.waiting.set()
            if self.open.is_set():
                self.answer(-1)
            return self.cancelled.set

        self.asked.append(headers)
        return begin

    def answer(self, index: int) -> None:
        taken = self.taken[index]
        taken.response.whole(200, b"content-type: text/plain\r\n", b"short:" + taken.body)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        answer = b"long:" + body
        length = str(len(answer)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": answer})


def post(body: bytes = b"text", *lines: str, target: str = TARGET, version: str = "1.1") -> bytes:
    head = "".join(f"{line}\r\n" for line in (f"POST {target} HTTP/{version}", "Host: x", *lines))
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


CHUNKED = f"POST {TARGET} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[bytes, bytes]:
        """Head and body of the next answer."""
        async with asyncio.timeout(SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            return head, await self.reader.readexactly(int(length[1]))

    async def rest(self) -> bytes:
        """What comes until the connection is closed."""
        async with asyncio.timeout(SECONDS):
            return await self.reader.read()


@asynccontextmanager
async def client_of(app: Ways, seconds: float = SECONDS, keep_alive: int = 65) -> AsyncIterator[Client]:
    async with serving(app, seconds, keep_alive=keep_alive) as (_, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            yield Client(reader, writer)
        finally:
            writer.close()


async def test_a_whole_request_is_answered_in_one_piece() -> None:
    app = Ways()
    async with client_of(app) as client:
        client.send(post(b"text", "X-Name: Value"))
        head, body = await client.answer()
        assert body == b"short:text"
        lines = head.split(b"\r\n")
        assert lines[0] == b"HTTP/1.1 200 OK" and lines[1].startswith(b"date: ")
        assert lines[2:] == [b"content-type: text/plain", b"content-length: 10", b"", b""]
    [taken] = app.taken
    assert taken.scheme == "http"
    assert list(taken.headers) == [(b"host", b"x"), (b"x-name", b"Value"), (b"content-length", b"4")]


async def test_one_after_the_other_on_one_connection() -> None:
    app = Ways()
    async with client_of(app) as client:
        for number in range(5):
            client.send(post(b"%d" % number))
            assert (await client.answer())[1] == b"short:%d" % number
    assert len(app.taken) == 5


@pytest.mark.parametrize("cut", range(1, len(post()), 7))
async def test_a_request_in_two_pieces_has_all_its_body(cut: int) -> None:
    app = Ways()
    async with client_of(app) as client:
        whole = post()
        client.send(whole[:cut])
        await asyncio.sleep(0.05)  # so that they are two reads
        client.send(whole[cut:])
        assert (await client.answer())[1] == b"short:text"
        client.send(post())
        assert (await client.answer())[1] == b"short:text"


async def test_a_large_body_goes_the_long_way() -> None:
    async with client_of(Ways()) as client:
        client.send(post(b"a" * 2_000_000))
        assert (await client.answer())[1] == b"long:" + b"a" * 2_000_000


async def test_chunks_that_come_together_are_one_body() -> None:
    app = Ways()
    async with client_of(app) as client:
        client.send(CHUNKED + b"2\r\nte\r\n2\r\nxt\r\n0\r\nX-Behind: 1\r\n\r\n")
        assert (await client.answer())[1] == b"short:text"
        assert all(name != b"x-behind" for name, _ in app.taken[0].headers)
        client.send(CHUNKED + b"2\r\nte\r\n")
        await asyncio.sleep(0.05)
        client.send(b"2\r\nxt\r\n0\r\n\r\n")
        assert (await client.answer())[1] == b"long:text"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /short HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PUT /short HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        post(b"", target="/short?a=1"),
        post(b"", target="/other"),
        post(b"", target="/%73hort"),
        post(b"", version="1.0"),
        post(b"", "Connection: upgrade", "Upgrade: websocket"),
    ],
)
async def test_what_is_not_as_usual_goes_the_long_way(request_bytes: bytes) -> None:
    app = Ways()
    async with client_of(app) as client:
        client.send(request_bytes)
        assert (await client.answer())[1] == b"long:"
    assert not app.taken


async def test_a_client_that_waits_to_be_asked_for_the_body_is_asked() -> None:
    async with client_of(Ways()) as client:
        whole = post(b"text", "Expect: 100-continue")
        client.send(whole[:-4])
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        client.send(whole[-4:])
        assert (await client.answer())[1] == b"long:text"


async def test_requests_in_one_write_are_answered_in_their_order_and_one_at_a_time() -> None:
    """What is answered at once would else keep the event loop for as long as there are requests in what was read."""
    app = Ways()
    async with client_of(app) as client:
        client.send(b"".join(post(b"%d" % number) for number in range(20)))
        answers = [(await client.answer())[1] for _ in range(20)]
        assert answers == [b"short:0", *(b"long:%d" % number for number in range(1, 20))]
        assert len(app.taken) == 1


async def test_requests_behind_one_that_is_worked_on_wait_for_it() -> None:
    app = Ways()
    app.open.clear()
    async with client_of(app) as client:
        client.send(post(b"1") + post(b"2") + post(b"3"))
        await app.waiting.wait()
        await asyncio.sleep(0.05)
        app.open.set()
        app.answer(0)
        assert [(await client.answer())[1] for _ in range(3)] == [b"short:1", b"long:2", b"long:3"]
        client.send(post(b"4"))
        assert (await client.answer())[1] == b"short:4"


async def test_connection_close_is_said_and_done() -> None:
    async with client_of(Ways()) as client:
        client.send(post(b"text", "Connection: close"))
        answer = await client.rest()
        assert answer.count(b"connection: close\r\n") == 1 and answer.endswith(b"short:text")


async def test_without_keep_alive_the_connection_is_closed_behind_the_answer() -> None:
    async with client_of(Ways(), keep_alive=0) as client:
        client.send(post())
        assert (await client.rest()).endswith(b"short:text")


async def test_without_keep_alive_a_request_that_came_along_is_answered_before() -> None:
    class Slow(Ways):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0.05)
            await super().__call__(scope, receive, send)

    async with client_of(Slow(), keep_alive=0) as client:
        client.send(post(b"1") + post(b"2"))
        answers = await client.rest()
        assert answers.index(b"short:1") < answers.index(b"long:2")


async def test_an_idle_connection_is_closed() -> None:
    async with client_of(Ways(), keep_alive=1) as client:
        client.send(post())
        assert (await client.answer())[1] == b"short:text"
        assert await client.rest() == b""


async def test_a_body_that_never_comes_whole_is_told_so() -> None:
    app = Ways()
    async with client_of(app, seconds=0.2) as client:
        client.send(post()[:-1])
        assert status_of(await client.rest()) == 408
    assert not app.taken


async def test_a_chunk_that_is_none_is_refused_before_anything_is_done() -> None:
    app = Ways()
    async with client_of(app) as client:
        client.send(CHUNKED + b"2\r\nte\r\nno size\r\n")
        assert status_of(await client.rest()) == 400
    assert not app.taken


async def test_what_is_broken_behind_a_request_does_not_cost_it_its_answer() -> None:
    app = Ways()
    async with client_of(app) as client:
        client.send(post() + b"\0\0\0 no HTTP\r\n\r\n")
        assert (await client.answer())[1] == b"short:text"
        assert status_of(await client.rest()) == 400


async def test_a_second_answer_is_not_sent() -> None:
    app = Ways()
    async with client_of(app) as client:
        client.send(post(b"1"))
        await client.answer()
        app.answer(0)
        client.send(post(b"2"))
        assert (await client.answer())[1] == b"short:2"
