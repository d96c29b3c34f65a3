"""The access log's lines over real connections: what was asked, and how much of the answer was sent."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from hf_transformer.api.gateway import GatewaySettings
from tests.integration.server.processes import SECONDS
from tests.integration.server.serving import Client, Gate, connected_to, serving

LOGGER = "tests.access_log"
FORMAT = "%(R)s %(s)s %(st)s %(B)s %(b)s %({content-length}o)s %({content-type}o)s %({x-request-id}o)s"
HEADERS = [(b"content-type", b"text/plain"), (b"x-request-id", b"r2")]
LARGE = 65537
SETTINGS = GatewaySettings(access_log=FORMAT, logger=logging.getLogger(LOGGER))


class Logged(Gate):
    """An application whose paths say how it answers."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        match scope.get("path"):
            case "/whole":
                await self._whole(send, 200, b"hello")
            case "/nothing":
                await self._whole(send, 200, b"")
            case "/large":
                await self._whole(send, 200, b"x" * LARGE)
            case "/refused":
                await self._whole(send, 422, b"no", (b"set-cookie", b"secret"))
            case "/late":
                await self._until_left(receive)
                await self._whole(send, 200, b"nobody reads it")
            case "/never":
                await self._until_left(receive)
            case "/parts":
                await self._parts(send)
            case "/late-parts":
                await self._parts(send, receive)
            case _:
                await super().__call__(scope, receive, send)

    async def _until_left(self, receive: Any) -> None:
        self.waiting.set()
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _whole(self, send: Any, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
        headers = [*HEADERS, *more, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _parts(self, send: Any, receive: Any = None) -> None:
        """The client leaves behind the first part if there is a ``receive``."""
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        for part in (b"one", b"two ", b"three"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
            if receive is not None:
                await self._until_left(receive)
        await send({"type": "http.response.body"})


async def exchange(caplog: pytest.LogCaptureFixture, request: str, leaves: bool) -> tuple[str, bytes]:
    """The line of one request, and the body of its response."""
    caplog.set_level(logging.INFO, LOGGER)
    app = Logged()
    async with asyncio.timeout(SECONDS), serving(app, settings=SETTINGS) as (_, port), connected_to(port) as client:
        client.send(f"{request}\r\nConnection: close\r\n\r\n".encode())
        answer = await _leave(app, client) if leaves else await client.rest()
        while not (lines := [one.getMessage() for one in caplog.records if one.name == LOGGER]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # it is written behind the answer, and no event announces it
    [line] = lines
    return line, answer.partition(b"\r\n\r\n")[2]


async def _leave(app: Logged, client: Client) -> bytes:
    await app.waiting.wait()
    client.leave()
    return b""


CHUNKS = b"3\r\none\r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("request_line", "said", "body"),
    [
        ("GET /whole HTTP/1.1", "200 OK 5 5 5 text/plain r2", b"hello"),
        ("GET /whole?a=1 HTTP/1.0", "200 OK 5 5 5 text/plain r2", b"hello"),
        ("HEAD /whole HTTP/1.1", "200 OK 0 - 5 text/plain r2", b""),
        ("GET /nothing HTTP/1.1", "200 OK 0 - 0 text/plain r2", b""),
        ("GET /large HTTP/1.1", f"200 OK {LARGE} {LARGE} {LARGE} text/plain r2", b"x" * LARGE),
        ("GET /refused HTTP/1.1", "422 Unprocessable Entity 2 2 2 text/plain r2", b"no"),
        ("GET /parts HTTP/1.1", "200 OK 12 12 - text/plain r2", CHUNKS),
        ("GET /parts HTTP/1.0", "200 OK 12 12 - text/plain r2", b"onetwo three"),
        ("HEAD /parts HTTP/1.1", "200 OK 0 - - text/plain r2", b""),
    ],
)
async def test_the_line_of_a_request(
    caplog: pytest.LogCaptureFixture, request_line: str, said: str, body: bytes
) -> None:
    assert await exchange(caplog, request_line, False) == (f"{request_line} {said}", body)


@pytest.mark.parametrize(
    ("request_line", "said"),
    [
        ("GET /late HTTP/1.1", "499 - 0 - - - -"),
        ("GET /never HTTP/1.1", "499 - 0 - - - -"),
        ("GET /late-parts HTTP/1.1", "200 OK 3 3 - text/plain r2"),
    ],
)
async def test_the_line_of_a_client_that_has_left(
    caplog: pytest.LogCaptureFixture, request_line: str, said: str
) -> None:
    assert await exchange(caplog, request_line, True) == (f"{request_line} {said}", b"")
