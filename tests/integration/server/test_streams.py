"""Responses sent piece by piece, and what becomes of any response when the server ends."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.integration.server.serving import App, Echo, body_of, client_of, serving
from tests.support.polling import SECONDS
from tests.support.raw_http import RawHttpClient, connected_to, post, responses_in

PART = b"x" * 70_000


class ChunkedApp(App):
    """Answers with parts, behind the first ``at_once`` of which it waits; ``sent`` of them were taken by the server."""

    def __init__(self, *parts: bytes, at_once: int = 0, breaks: bool = False) -> None:
        super().__init__()
        self._parts = parts
        self._at_once = at_once
        self._breaks = breaks
        self.sent = 0

    async def respond(self, scope: Any, receive: Any, send: Any) -> None:
        await body_of(receive)
        for number, part in enumerate(self._parts):
            if number == self._at_once:
                await self.open.wait()
            if not number:
                headers = [(b"content-type", b"text/plain")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": part, "more_body": True})
            self.sent += 1
        if self._breaks:
            raise ValueError("broken")
        await send({"type": "http.response.body"})


def undated(answer: bytes) -> bytes:
    return re.sub(rb"(date|x-request-id): [^\r]+", rb"\1: some", answer)


async def test_a_stream_is_sent_in_chunks_with_our_headers() -> None:
    async with client_of(ChunkedApp(b"one", b"", b"\r\n", b"x" * 300)) as client:
        client.send(post(b"text", "Connection: close"))
        head, _, content = undated(await client.rest()).partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        assert first == b"HTTP/1.1 200 OK"
        expected = [b"content-type: text/plain", b"date: some", b"transfer-encoding: chunked", b"x-request-id: some"]
        expected += [b"x-content-type-options: nosniff", b"connection: close"]
        assert sorted(lines) == sorted(expected)
        assert content == b"3\r\none\r\n2\r\n\r\n\r\n12c\r\n" + b"x" * 300 + b"\r\n0\r\n\r\n"


async def test_requests_that_come_meanwhile_wait_for_the_end() -> None:
    app = ChunkedApp(b"one", b"two", at_once=1)
    app.open.clear()
    async with client_of(app) as client:
        client.send(post())
        assert (await client.until(b"one\r\n")).startswith(b"HTTP/1.1 200")
        client.send(post() * 3)
        await asyncio.sleep(0.1)
        app.open.set()
        assert await client.until(b"0\r\n\r\n") == b"3\r\ntwo\r\n0\r\n\r\n"
        found = {undated(await client.until(b"0\r\n\r\n")) for _ in range(3)}
        assert len(found) == 1 and found.pop().endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


@pytest.mark.parametrize("leaves", [False, True], ids=["reads on", "leaves"])
async def test_a_client_that_does_not_read_is_waited_for(leaves: bool) -> None:
    app = ChunkedApp(*[PART] * 200)
    async with client_of(app) as client, asyncio.timeout(SECONDS):
        client.send(post())
        sent = -1
        while sent != app.sent or not sent:  # until no more parts are taken, which has to come before the last one
            sent = app.sent
            await asyncio.sleep(0.2)
        assert 0 < sent < 200 and not app.ended.is_set()
        if leaves:
            client.leave()
        else:
            await all_parts(client)
        await app.ended.wait()


async def all_parts(client: RawHttpClient) -> None:
    await client.until(b"\r\n\r\n")
    chunk = b"%x\r\n%b\r\n" % (len(PART), PART)
    for _ in range(200):
        assert await client.reader.readexactly(len(chunk)) == chunk
    assert await client.reader.readexactly(5) == b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("app", "begin", "end"),
    [
        (ChunkedApp(breaks=True), b"HTTP/1.1 500", b""),
        (ChunkedApp(b"one", breaks=True), b"HTTP/1.1 200", b"3\r\none\r\n"),
    ],
    ids=["before", "amid"],
)
async def test_a_stream_that_breaks_is_no_complete_response(app: ChunkedApp, begin: bytes, end: bytes) -> None:
    async with client_of(app) as client:
        client.send(post())
        answer = await client.rest()
        assert b"0\r\n\r\n" not in answer
        assert answer.startswith(begin) and answer.endswith(end)


IN_FLIGHT = {
    "a request": (Echo, post(b"text"), b"", 1, b"echo:text"),
    "a body on its way": (Echo, post(b"text")[:-4], b"text", 1, b"echo:text"),
    "a stream that begins then": (lambda: ChunkedApp(b"one"), post(), b"", 1, b"\r\n\r\n3\r\none\r\n0\r\n\r\n"),
    "a stream": (lambda: ChunkedApp(b"one", b"two", at_once=1), post(), b"", 0, b"\r\n3\r\ntwo\r\n0\r\n\r\n"),
}
"""An application, what its client sends before and after the server's end has begun, how often the response says that
the connection closes, and how it ends."""


@pytest.mark.parametrize(("make", "sent", "later", "closes", "end"), IN_FLIGHT.values(), ids=IN_FLIGHT)
async def test_the_end_of_the_server_waits_for_requests_in_flight(
    make: Any, sent: bytes, later: bytes, closes: int, end: bytes
) -> None:
    app = make()
    app.open.clear()
    async with serving(app) as (server, port), connected_to(port) as client:
        client.send(sent)
        await app.called.wait()
        begun = b"" if closes else await client.until(b"one\r\n")
        server.should_exit = True
        await asyncio.sleep(0.3)
        assert not app.ended.is_set()
        app.open.set()
        client.send(later)
        answer = begun + await client.rest()
        assert answer.count(b"connection: close\r\n") == closes and answer.endswith(end)


async def test_the_server_ends_what_takes_longer_than_the_grace() -> None:
    """A stream is broken off, a body that does not come is refused."""
    for app, sent in ((ChunkedApp(b"one", b"two", at_once=1), post()), (Echo(), post(b"text")[:-4])):
        app.open.clear()
        async with serving(app, grace=0.2) as (server, port), connected_to(port) as client:
            client.send(sent)
            await app.called.wait()
            if isinstance(app, ChunkedApp):
                await client.until(b"one\r\n")
            server.should_exit = True
            answer = await client.rest()
            if isinstance(app, ChunkedApp):
                assert answer == b""
            else:
                assert [one.status for one in responses_in(answer)] == [503]
