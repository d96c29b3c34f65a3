"""The access log of responses that leave past ASGI, over real connections: it says what it says of messages."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from hf_transformer.api.access_log import AccessLog
from hf_transformer.commands.local_triton import HOST
from hf_transformer.server.connection import JOINED
from hf_transformer.whole_response import WHOLE_RESPONSE
from tests.integration.server.serving import Gate, serving

SECONDS = 20.0
LOGGER = "tests.logged_ways"
FORMAT = "%(R)s %(s)s %(st)s %(B)s %(b)s %({content-length}o)s %({content-type}o)s %({x-request-id}o)s"
HEADERS = [(b"content-type", b"text/plain"), (b"x-request-id", b"r2")]

pytestmark = pytest.mark.asyncio


class Logged(Gate):
    """An application with an access log: its paths say how it answers, ``past`` whether past ASGI where it can.

    ``taken`` is what the server's ways said.
    """

    def __init__(self, past: bool) -> None:
        super().__init__()
        self._past = past
        self._log = AccessLog(self._answer, FORMAT, logging.getLogger(LOGGER))
        self.taken: list[bool] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._log(scope, receive, send)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        match scope.get("path"):
            case "/whole":
                await self._whole(scope, send, 200, b"hello")
            case "/nothing":
                await self._whole(scope, send, 200, b"")
            case "/large":
                await self._whole(scope, send, 200, b"x" * (JOINED + 1))
            case "/refused":
                await self._whole(scope, send, 422, b"no", (b"set-cookie", b"secret"))
            case "/wrong":
                await self._whole(scope, send, 200, b"hello", (b"x-wrong", b"a\nb"))
            case "/late":
                self.waiting.set()
                while (await receive())["type"] != "http.disconnect":
                    pass
                await self._whole(scope, send, 200, b"nobody reads it")
            case "/never":
                self.waiting.set()
                while (await receive())["type"] != "http.disconnect":
                    pass
            case _:
                await super().__call__(scope, receive, send)

    async def _whole(self, scope: Any, send: Any, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
        headers = [*HEADERS, *more]
        if self._past:
            self.taken.append(scope[WHOLE_RESPONSE](status, headers, body))
            if self.taken[-1]:
                return
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def exchange(
    caplog: pytest.LogCaptureFixture, request: str, past: bool, leaves: bool
) -> tuple[str, list[bytes], bytes, list[bool]]:
    """The line of one request, the lines of its answer's head, its body, and what was taken past ASGI."""
    caplog.set_level(logging.INFO, LOGGER)
    caplog.clear()
    app = Logged(past)
    async with asyncio.timeout(SECONDS), serving(app, SECONDS) as (_, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(f"{request}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        if leaves:
            await app.waiting.wait()
            writer.transport.abort()
        else:
            answer = await reader.read(-1)
            writer.close()
        while not (lines := [one.getMessage() for one in caplog.records if one.name == LOGGER]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # it is written behind the answer, and nothing tells of it
    [line] = lines
    head, _, body = answer.partition(b"\r\n\r\n")
    return line, sorted(one for one in head.split(b"\r\n") if not one.startswith(b"date:")), body, app.taken


@pytest.mark.parametrize(
    ("request_line", "said", "taken"),
    [
        ("GET /whole HTTP/1.1", "200 OK 5 5 5 text/plain r2", [True]),
        ("GET /whole?a=1 HTTP/1.0", "200 OK 5 5 5 text/plain r2", [True]),
        ("HEAD /whole HTTP/1.1", "200 OK 5 5 5 text/plain r2", [False]),
        ("GET /nothing HTTP/1.1", "200 OK 0 - 0 text/plain r2", [True]),
        ("GET /large HTTP/1.1", "200 OK 65537 65537 65537 text/plain r2", [False]),
        ("GET /refused HTTP/1.1", "422 Unprocessable Entity 2 2 2 text/plain r2", [True]),
        ("GET /wrong HTTP/1.1", "200 OK 0 - 5 text/plain r2", [False]),
    ],
)
async def test_the_line_is_that_of_messages(
    caplog: pytest.LogCaptureFixture, request_line: str, said: str, taken: list[bool]
) -> None:
    *past, ways = await exchange(caplog, request_line, True, False)
    *usual, no_ways = await exchange(caplog, request_line, False, False)
    assert past == usual
    assert past[0] == f"{request_line} {said}"
    assert (ways, no_ways) == (taken, [])


@pytest.mark.parametrize(
    ("request_line", "said", "taken"),
    [
        ("GET /late HTTP/1.1", "200 OK 15 15 15 text/plain r2", [True]),
        ("GET /never HTTP/1.1", "499 - 0 - - - -", []),
    ],
)
async def test_the_line_of_a_client_that_has_gone_is_that_of_messages(
    caplog: pytest.LogCaptureFixture, request_line: str, said: str, taken: list[bool]
) -> None:
    line, *_, ways = await exchange(caplog, request_line, True, True)
    assert line == (await exchange(caplog, request_line, False, True))[0] == f"{request_line} {said}"
    assert ways == taken
