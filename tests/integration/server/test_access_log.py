"""The access log's lines over real connections: what was asked, and how much of the answer was sent."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from hf_transformer.api.gateway import GatewaySettings
from hf_transformer.observability.logging import ACCESS_LOGGER
from tests.integration.server.serving import App, serving, whole
from tests.support.polling import SECONDS, until
from tests.support.raw_http import connected_to

FORMAT = "%(R)s %(s)s %(st)s %(B)s %(b)s %({content-length}o)s %({content-type}o)s %({x-request-id}o)s"
ID = b"x-request-id", b"r2"
LARGE = 65537
SETTINGS = GatewaySettings(access_log=FORMAT)
CHUNKS = b"3\r\none\r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\n"


class Logged(App):
    """An application whose paths say how it answers."""

    async def respond(self, scope: Any, receive: Any, send: Any) -> None:
        match scope["path"].split("/")[1:]:
            case ["whole", size]:
                await whole(send, b"x" * int(size), ID)
            case ["late"]:
                await until_left(receive)
                await whole(send, b"nobody reads it", ID)
            case [kind]:
                headers = [(b"content-type", b"text/plain"), ID]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                for part in (b"one", b"two ", b"three"):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                    if kind == "late-parts":
                        await until_left(receive)
                await send({"type": "http.response.body"})


async def until_left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == ACCESS_LOGGER]


@pytest.mark.parametrize(
    ("request_line", "outcome", "body"),
    [
        ("GET /whole/5 HTTP/1.1", "200 OK 5 5 5 text/plain r2", b"xxxxx"),
        ("GET /whole/5?a=1 HTTP/1.0", "200 OK 5 5 5 text/plain r2", b"xxxxx"),
        ("HEAD /whole/5 HTTP/1.1", "200 OK 0 - 5 text/plain r2", b""),
        ("GET /whole/0 HTTP/1.1", "200 OK 0 - 0 text/plain r2", b""),
        (f"GET /whole/{LARGE} HTTP/1.1", f"200 OK {LARGE} {LARGE} {LARGE} text/plain r2", b"x" * LARGE),
        ("GET /parts HTTP/1.1", "200 OK 12 12 - text/plain r2", CHUNKS),
        ("GET /parts HTTP/1.0", "200 OK 12 12 - text/plain r2", b"onetwo three"),
        ("HEAD /parts HTTP/1.1", "200 OK 0 - - text/plain r2", b""),
        # Their clients leave.
        ("GET /late HTTP/1.1", "499 - 0 - - - -", None),
        ("GET /late-parts HTTP/1.1", "200 OK 3 3 - text/plain r2", None),
    ],
)
async def test_the_access_log_has_the_status_and_the_bytes_sent(
    caplog: pytest.LogCaptureFixture, request_line: str, outcome: str, body: bytes | None
) -> None:
    caplog.set_level(logging.INFO, ACCESS_LOGGER)
    app = Logged()
    async with asyncio.timeout(SECONDS), serving(app, settings=SETTINGS) as (_, port), connected_to(port) as client:
        client.send(f"{request_line}\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        if body is None:
            await app.called.wait()
            client.leave()
        else:
            assert (await client.rest()).partition(b"\r\n\r\n")[2] == body
        await until(lambda: lines(caplog))  # the line follows the response
    assert lines(caplog) == [f"{request_line} {outcome}"]
