"""Parts of a body that are sent past ASGI: as its messages would have sent them, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hf_transformer.commands.local_triton import HOST
from hf_transformer.whole_response import SEND_PART
from tests.integration.server.serving import Gate, serving

SECONDS = 20.0
START = {"type": "http.response.start", "status": 200, "headers": []}
PART = b"x" * 70_000

pytestmark = pytest.mark.asyncio


class Parts(Gate):
    """Sends what a test says, by the one way or by the other; ``taken`` is what the server's way said."""

    def __init__(self, *parts: bytes, headers: Any = (), past: bool = True) -> None:
        super().__init__()
        self._parts = parts
        self._headers = list(headers)
        self._past = past
        self.taken: list[bool] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        send_part = scope[SEND_PART]
        self.taken.append(send_part(b"too early"))
        await send({**START, "headers": self._headers})
        for part in self._parts:
            if self._past:
                self.taken.append(send_part(part))
            if not self._past or not self.taken[-1]:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})
        self.taken.append(send_part(b"too late"))
        self.waiting.set()


async def answer_of(app: Parts, version: str = "1.1") -> bytes:
    async with serving(app, SECONDS) as (_, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(f"GET /parts HTTP/{version}\r\nConnection: close\r\n\r\n".encode())
        async with asyncio.timeout(SECONDS):
            answer = await reader.read(-1)
            await app.waiting.wait()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"date:")) + b"\n" + body


async def test_the_bytes_are_those_of_the_messages() -> None:
    parts = (b"one", b"\r\n", b"x" * 300)
    past, usual = Parts(*parts), Parts(*parts, past=False)
    assert await answer_of(past) == await answer_of(usual)
    assert past.taken == [False, True, True, True, False]


@pytest.mark.parametrize(
    ("version", "headers"),
    [("1.0", []), ("1.1", [(b"content-length", b"6")])],
    ids=["no chunks in HTTP/1.0", "a body of known length"],
)
async def test_what_has_no_chunks_goes_the_usual_way(version: str, headers: Any) -> None:
    app = Parts(b"one", b"two", headers=headers)
    assert (await answer_of(app, version)).endswith(b"\nonetwo")
    assert app.taken == [False] * 4


async def test_a_client_that_does_not_read_is_waited_for_in_the_usual_way() -> None:
    app = Parts(*[PART] * 200)
    async with serving(app, SECONDS) as (_, port):
        reader, writer = await asyncio.open_connection(HOST, port, limit=2**16)
        writer.write(b"GET /parts HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(SECONDS):
            while len(app.taken) < 2 or app.taken[-1]:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
            assert app.taken[1] and len(app.taken) < 200
            await reader.readuntil(b"\r\n\r\n")
            chunk = b"%x\r\n%b\r\n" % (len(PART), PART)
            for _ in range(200):
                assert await reader.readexactly(len(chunk)) == chunk
            assert await reader.readexactly(5) == b"0\r\n\r\n"
        writer.close()


async def test_nothing_is_sent_to_a_client_that_has_gone() -> None:
    app = Parts(b"one", *[PART] * 200)
    async with serving(app, SECONDS) as (_, port):
        _, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"GET /parts HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.transport.abort()
        async with asyncio.timeout(SECONDS):
            await app.waiting.wait()
    assert app.taken[-2] is False  # the last part
