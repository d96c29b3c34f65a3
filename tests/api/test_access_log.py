from __future__ import annotations

import gc
import logging
import os
import re
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from hf_transformer.api.access_log import AccessLog
from hf_transformer.errors import ConfigError
from hf_transformer.observability.access_format import ATOMS, Exchange, check_format
from hf_transformer.whole_response import WHOLE_RESPONSE

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


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def log() -> Iterator[Lines]:
    handler = Lines()
    logger = logging.getLogger("test.access")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"text/plain"), (b"set-cookie", b"hunter2")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello ", "more_body": True})
    await send({"type": "http.response.body", "body": b"world"})


async def receive() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def request(format: str, app: Any = answer, **scope: Any) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await AccessLog(app, format, logging.getLogger("test.access"))(SCOPE | scope, receive, send)
    return sent


@pytest.mark.parametrize(
    ("atom", "pattern"),
    [
        ("h", r"10\.0\.0\.9:4711"),
        ("client_addr", r"10\.0\.0\.9:4711"),
        ("l", "-"),
        ("u", "-"),
        ("t", r"\[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4}\]"),
        ("r", "POST /v1/models/bert:predict HTTP/1.1"),
        ("R", r"POST /v1/models/bert:predict\?a=1&b=2 HTTP/1.1"),
        ("request_line", r"POST /v1/models/bert:predict\?a=1&b=2 HTTP/1.1"),
        ("m", "POST"),
        ("U", "/v1/models/bert:predict"),
        ("q", "a=1&b=2"),
        ("H", "HTTP/1.1"),
        ("s", "201"),
        ("st", "Created"),
        ("status_code", "201 Created"),
        ("B", "11"),
        ("b", "11"),
        ("f", "http://x/"),
        ("a", "curl/8"),
        ("T", "0"),
        ("M", r"\d+"),
        ("D", r"\d+"),
        ("L", r"0\.\d{6}"),
        ("p", r"<PID>"),
        ("{x-request-id}i", "r1"),
        ("{X-Request-Id}i", "r1"),
        ("{Content-Type}o", "text/plain"),
        ("{absent}i", "-"),
        ("{absent}o", "-"),
        ("{Authorization}i", r"\*\*\*"),
        ("{cookie}i", r"\*\*\*"),
        ("{set-cookie}o", r"\*\*\*"),
    ],
)
async def test_atoms(log: Lines, atom: str, pattern: str) -> None:
    await request(f"<%({atom})s> 100%%")
    pattern = pattern.replace("PID", str(os.getpid()))  # not in the parameters: workers must agree on the ids
    assert len(log.lines) == 1
    assert re.fullmatch(f"<{pattern}> 100%", log.lines[0])


def test_every_atom_has_its_test() -> None:
    tested = {case[0] for case in test_atoms.pytestmark[0].args[1]}  # type: ignore[attr-defined]
    assert set(ATOMS) <= tested


async def test_widths_as_in_percent_formatting(log: Lines) -> None:
    await request("%(s)05d|%(m)6s|")
    assert log.lines == ["00201|  POST|"]


async def test_the_answer_passes_unchanged(log: Lines) -> None:
    through, direct = await request("%(s)s"), []

    async def send(message: Message) -> None:
        direct.append(message)

    await answer(SCOPE, receive, send)
    assert through == direct


async def test_an_application_that_fails(log: Lines) -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await request("%(s)s %(b)s %(B)s", fail)
    assert log.lines == ["500 - 0"]


async def test_an_application_that_fails_midway(log: Lines) -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await request("%(s)s %({content-type}o)s", fail)
    assert log.lines == ["200 -"]


async def test_a_client_that_goes_away(log: Lines) -> None:
    async def give_up(scope: Scope, receive: Receive, send: Send) -> None:
        return

    await request("%(s)s %(st)s", give_up)
    assert log.lines == ["499 -"]


class Ways:
    """What a server has past ASGI's messages, and what it was given while it took it."""

    def __init__(self, takes: bool = True) -> None:
        self._takes = takes
        self.whole: list[Any] = []
        self.in_scope: dict[str, Any] = {WHOLE_RESPONSE: self._send_whole}

    def _send_whole(self, *response: Any) -> bool:
        self.whole += [response] if self._takes else []
        return self._takes


HEADERS = [(b"content-type", b"text/plain"), (b"x-request-id", b"r2")]


async def answer_whole(scope: Scope, receive: Receive, send: Send) -> None:
    scope[WHOLE_RESPONSE](404, HEADERS, b"hello")


ALL_SENT = "%(s)s %(st)s %(B)s %(b)s %({content-length}o)s %({Content-Type}o)s %({absent}o)s"


async def test_a_whole_response_past_asgi(log: Lines) -> None:
    ways = Ways()
    assert await request(ALL_SENT, answer_whole, **ways.in_scope) == []
    assert ways.whole == [(404, HEADERS, b"hello")]  # no length among them: the server adds it
    assert log.lines == ["404 Not Found 5 5 5 text/plain -"]


async def test_what_the_server_did_not_take_was_not_sent(log: Lines) -> None:
    await request(ALL_SENT, answer_whole, **Ways(takes=False).in_scope)
    assert log.lines == ["499 - 0 - - - -"]


@pytest.mark.parametrize("fails", [False, True], ids=["answered", "failed"])
async def test_nothing_is_left_for_the_garbage_collector(log: Lines, fails: bool) -> None:
    left: list[MutableMapping[str, Any]] = []

    async def look(scope: Scope, receive: Receive, send: Send) -> None:
        assert WHOLE_RESPONSE in scope
        left.append(scope)
        await answer_whole(scope, receive, send)
        if fails:
            raise ZeroDivisionError

    gc.collect()
    gc.disable()
    try:
        try:
            await request("%(s)s", look, **Ways().in_scope)
        except ZeroDivisionError:
            assert fails
        assert WHOLE_RESPONSE not in left.pop()
        assert not [one for one in gc.get_objects() if isinstance(one, Exchange)]
    finally:
        gc.enable()
    assert log.lines == ["404"]


async def test_a_request_can_not_forge_a_line(log: Lines) -> None:
    await request(
        '%(r)s %(q)s %(a)s "%(h)s"',
        path="/a\nb\r c",
        query_string=b"a=\x1b[31m",
        headers=[(b"user-agent", b"x\x00y\x85z")],
        client=None,
    )
    assert log.lines == ['POST /a%0Ab%0D%20c HTTP/1.1 a=\\x1b[31m x\\x00y\\x85z "-"']


async def test_other_scopes_pass_without_a_line(log: Lines) -> None:
    seen: list[Scope] = []

    async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    async def send(message: Message) -> None:
        raise AssertionError("nothing is sent")

    scope = {"type": "lifespan"}
    await AccessLog(lifespan, "%(s)s", logging.getLogger("test.access"))(scope, receive, send)
    assert seen == [scope] and seen[0] is scope
    assert log.lines == []


@pytest.mark.parametrize(
    ("format", "problem"),
    [
        ("%(x)s", "unknown atom %(x)s, expected one of h, "),
        ("%(h)s %({PATH}e)s", "unknown atom %({PATH}e)s"),
        ("%(h)d", "expected atoms such as %(h)s, got '%(h)d'"),
        ("%(h", "expected atoms such as %(h)s, got '%(h'"),
        ("%(h)s 100%", "expected atoms such as %(h)s"),
        ("", "expected atoms such as %(h)s, got ''"),
        ("100%%", "expected atoms such as %(h)s, got '100%%'"),
        ("%(h)s %s", "expected atoms such as %(h)s, got '%(h)s %s'"),
        ("%s", "expected atoms such as %(h)s"),
        ("combined", "expected atoms such as %(h)s, got 'combined'"),
    ],
)
def test_formats_that_are_refused_at_the_start(format: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AccessLog(answer, format, logging.getLogger("test.access"))
    assert str(caught.value).startswith(f"--access_log_format: {problem}")
    with pytest.raises(ConfigError, match=r"^SOURCE: "):
        check_format(format, "SOURCE")
