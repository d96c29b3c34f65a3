"""The access log: what a line says of a request, and that there is one however it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from hf_transformer.api.base import error_json
from hf_transformer.api.gateway import Gateway, GatewaySettings, Handler, Router
from hf_transformer.errors import ConfigError
from hf_transformer.observability.access_log import Exchange, check_format
from hf_transformer.observability.metrics import Metrics
from hf_transformer.server.asgi import AsgiApplication
from hf_transformer.types import Request, Response, Stream
from tests.api.plain_request import PlainRequest

LOGGER = logging.getLogger("test.access")
SCOPE: dict[str, Any] = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "scheme": "http",
    "root_path": "",
    "path": "/v1/models/bert:predict",
    "query_string": b"a=1&b=2",
    "client": ("10.0.0.9", 4711),
    "headers": [
        (b"user-agent", b"curl/8"),
        (b"referer", b"http://x/"),
        (b"authorization", b"Bearer hunter2"),
        (b"cookie", b"session=hunter2"),
        (b"x-request-id", b"r1"),
    ],
}
HEADERS = [(b"content-type", b"text/plain"), (b"set-cookie", b"hunter2")]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines so far; the same list all the time."""
    caplog.set_level(logging.INFO, LOGGER.name)
    lines: list[str] = []
    caplog.handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    return lines


async def answer(request: Request) -> Stream:
    async def parts() -> AsyncGenerator[bytes, None]:
        yield b"world"

    return Stream(201, b"hello ", parts(), list(HEADERS))


async def answer_whole(request: Request) -> Response:
    return Response(404, b"hello", list(HEADERS))


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("no other scope is expected")


def gateway(format: str, handler: Handler = answer) -> Gateway:
    settings = GatewaySettings(access_log=format, logger=LOGGER)
    return Gateway(Router([], []), handler, (), lambda path: error_json, Metrics("m"), settings)


async def request(format: str, handler: Handler = answer, leaves: bool = False, **scope: Any) -> list[Message]:
    """What is sent of the answer to a request."""
    sent: list[Message] = []
    came: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]
    if leaves:
        came.append({"type": "http.disconnect"})

    async def receive() -> Message:
        await asyncio.sleep(0)
        if not came:
            await asyncio.Event().wait()
        return came.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await AsgiApplication(gateway(format, handler), nothing)(SCOPE | scope, receive, send)
    return sent


ATOMS = {
    **dict.fromkeys(("h", "client_addr"), r"10\.0\.0\.9:4711"),
    **dict.fromkeys(("l", "u", "{absent}i", "{absent}o"), "-"),
    **dict.fromkeys(("R", "request_line"), r"POST /v1/models/bert:predict\?a=1&b=2 HTTP/1.1"),
    **dict.fromkeys(("B", "b"), "11"),
    **dict.fromkeys(("M", "D"), r"\d+"),
    **dict.fromkeys(("{x-request-id}i", "{X-Request-Id}i"), "r1"),
    **dict.fromkeys(("{Authorization}i", "{cookie}i", "{set-cookie}o"), r"\*\*\*"),
    "t": r"\[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\]",
    "r": "POST /v1/models/bert:predict HTTP/1.1",
    "m": "POST",
    "U": "/v1/models/bert:predict",
    "q": "a=1&b=2",
    "H": "HTTP/1.1",
    "s": "201",
    "st": "Created",
    "status_code": "201 Created",
    "f": "http://x/",
    "a": "curl/8",
    "T": "0",
    "L": r"0\.\d{6}",
    "p": f"<{os.getpid()}>",
    "{Content-Type}o": "text/plain",
}


async def test_every_atom(log: list[str]) -> None:
    assert set(Exchange(SCOPE).atoms()) <= ATOMS.keys()
    for atom, pattern in ATOMS.items():
        await request(f"<%({atom})s> 100%%")
        assert re.fullmatch(f"<{pattern}> 100%", log.pop()), atom
        assert not log


async def test_an_application_that_fails_is_answered(log: list[str]) -> None:
    async def fail(request: Request) -> Response:
        raise ZeroDivisionError

    start, body = await request("%(s)s %(B)s", fail)
    assert start["status"] == 500 and (b"x-request-id", b"r1") in start["headers"]
    assert body["body"] == b'{"error":"internal error; the log has it under r1"}'
    assert log[-1] == f"500 {len(body['body'])}"


async def test_a_client_that_goes_away(log: list[str]) -> None:
    async def wait(request: Request) -> Response:
        await asyncio.Event().wait()
        raise AssertionError("it went on")

    assert await request("%(s)s %(st)s %(B)s %(b)s %({content-type}o)s", wait, leaves=True) == []
    assert log == ["499 - 0 - -"]


async def test_a_whole_response(log: list[str]) -> None:
    format = "%(s)s %(st)s %(B)s %(b)s %({content-length}o)s %({Content-Type}o)s %({absent}o)s"
    start, body = await request(format, answer_whole)
    assert (b"content-length", b"5") in start["headers"] and body["body"] == b"hello"
    assert log == ["404 Not Found 5 5 5 text/plain -"]


async def test_what_the_server_refuses_has_a_line_too(log: list[str]) -> None:
    refusing, refused = gateway("%(s)s %(m)s %(B)s %(h)s"), PlainRequest()
    found = refusing.refuse(refused, 431, "too long")
    refusing.finished(refused, found, len(found.body))
    assert log == [f"431 POST {len(found.body)} 10.0.0.9:4711"]


async def test_the_address_behind_a_proxy_that_is_trusted(log: list[str]) -> None:
    for client in ("127.0.0.1", "10.0.0.9"):
        await request("%(h)s", client=(client, 4711), headers=[(b"x-forwarded-for", b"1.2.3.4")])
    assert log == ["1.2.3.4:0", "10.0.0.9:4711"]


async def test_a_request_can_not_forge_a_line(log: list[str]) -> None:
    odd: dict[str, Any] = {
        "path": "/a\nb\r c",
        "query_string": b"a=\x1b[31m",
        "headers": [(b"user-agent", b"x\x00y\x85z")],
    }
    await request('%(r)s %(q)s %(a)s "%(h)s"', **odd, client=None)
    assert log == ['POST /a%0Ab%0D%20c HTTP/1.1 a=\\x1b[31m x\\x00y\\x85z "-"']


@pytest.mark.parametrize(
    ("format", "problem"),
    [
        ("%(x)s", "unknown atom %(x)s, expected one of h, "),
        ("%(h)s %({PATH}e)s", "unknown atom %({PATH}e)s"),
        ("%(h)d", "expected atoms such as %(h)s, got '%(h)d'"),
        ("%(h", "expected atoms such as %(h)s, got '%(h'"),
        ("%(h)s 100%", "expected atoms such as %(h)s"),
        ("%(h)s %s", "expected atoms such as %(h)s, got '%(h)s %s'"),
        ("combined", "expected atoms such as %(h)s, got 'combined'"),
    ],
)
def test_formats_that_are_refused_at_the_start(format: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        gateway(format)
    assert str(caught.value).startswith(f"--access_log_format: {problem}")
    with pytest.raises(ConfigError, match=r"^SOURCE: "):
        check_format(format, "SOURCE")
