"""The gateway around every request: request ids, CORS (--cors_allow_origin) and the access log.

Source: https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from hf_transformer.api.auth import ApiKeys
from hf_transformer.api.errors import error_json
from hf_transformer.api.gateway import Gateway, GatewaySettings, Handler, Router
from hf_transformer.errors import ConfigError
from hf_transformer.observability.access_log import AccessRecord, check_format
from hf_transformer.observability.logging import ACCESS_LOGGER
from hf_transformer.observability.metrics import Metrics
from hf_transformer.server.asgi import AsgiApplication
from hf_transformer.types.http import Request, Response, Stream
from tests.api.generating import PROMPT, Exchange, application, client_of, served_model
from tests.api.plain_request import PlainRequest
from tests.support.configuring import config, error

# Ids


async def answered(request: Request) -> Response:
    """A response whose body is the request's id."""
    return Response(200, request.id.encode(), [])


GATEWAY = Gateway(Router([], []), answered, (), lambda path: error_json, Metrics(), GatewaySettings())


async def ids(client_id: str | None) -> tuple[str, str]:
    """The request ids of the endpoint and of the response."""
    fields = [] if client_id is None else [(b"x-request-id", client_id.encode("latin-1"))]
    answer = await GATEWAY.handle(PlainRequest(fields=fields))
    assert isinstance(answer, Response)
    [(name, sent_id), nosniff] = answer.headers
    assert name == b"x-request-id" and nosniff == (b"x-content-type-options", b"nosniff")
    return answer.body.decode(), sent_id.decode("latin-1")


async def test_valid_request_ids_are_kept_and_others_replaced() -> None:
    for kept in ("caller-17", "a,b", "x" * 256, "\xe9", "<script>", "~"):
        assert await ids(kept) == (kept, kept)
    for replaced in ("", "x" * 257, "a b", "a, preprocess_ms: 0", "a\xa0b", "a\tb", "a\x7f", "a\x85b", "\x9b31m", None):
        (inside, told), (another, _) = await ids(replaced), await ids(replaced)
        assert re.fullmatch("[0-9a-f]{32}", inside) and told == inside != another


async def test_a_refused_request_keeps_its_id() -> None:
    answer = GATEWAY.refuse(PlainRequest(fields=[(b"x-request-id", b"caller-17")]), 431, "too long")
    assert (b"x-request-id", b"caller-17") in answer.headers and answer.body == b'{"error":"too long"}'


# Pages of other origins

APP = "https://app.example.com"
OTHER = "http://localhost:3000"
PREDICT = "/v1/models/gpt2:predict"
COMPLETIONS = "/openai/v1/completions"
ASKING = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}
BODY = {"instances": [PROMPT]}


@asynccontextmanager
async def allowing(*origins: str, keys: ApiKeys | None = None) -> AsyncIterator[httpx.AsyncClient]:
    settings = GatewaySettings(origins=origins, keys=keys)
    async with served_model() as made, client_of(application(made.service, settings)) as client:
        yield client


def cors_of(response: httpx.Response) -> dict[str, str]:
    """The CORS headers of a response, without their prefix."""
    return {
        name.removeprefix("access-control-"): value
        for name, value in response.headers.items()
        if name.startswith("access-control-") or name == "vary"
    }


@pytest.mark.parametrize("keyed", [False, True], ids=["no keys", "keys"])
async def test_a_preflight_is_answered_without_a_key(keyed: bool, keys: ApiKeys) -> None:
    async with allowing(APP, OTHER, keys=keys if keyed else None) as client:
        for path in (PREDICT, COMPLETIONS, "/v2/models/gpt2", "/no/such/path"):
            for origin in (APP, OTHER):
                answer = await client.options(path, headers={"origin": origin, **ASKING})
                assert (answer.status_code, answer.content) == (204, b"")
                assert answer.headers["x-request-id"]
                assert cors_of(answer) == {
                    "allow-origin": origin,
                    "allow-methods": "GET, POST",
                    "allow-headers": "authorization, content-type",
                    "expose-headers": "x-request-id, server-timing, retry-after, inference-header-content-length, "
                    "x-ignored-parameters",
                    "max-age": "600",
                    "vary": "origin",
                }


@pytest.mark.parametrize("lacking", ["origin", "access-control-request-method"])
async def test_options_without_cors_headers_is_no_preflight(lacking: str) -> None:
    headers = {name: value for name, value in {"origin": APP, **ASKING}.items() if name != lacking}
    async with allowing(APP) as client:
        assert (await client.options(PREDICT, headers=headers)).status_code == 405


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (PREDICT, BODY, 200),
        (PREDICT, {"instances": 7}, 400),
        (COMPLETIONS, {"model": "gpt2", "prompt": PROMPT, "stream": True}, 200),
        ("/no/such/path", {}, 404),
    ],
    ids=["answer", "error", "stream", "no route"],
)
async def test_responses_to_an_allowed_origin_have_cors_headers(path: str, body: object, status: int) -> None:
    async with allowing() as client:
        assert cors_of(await client.post(path, json=body, headers={"origin": APP})) == {}, "by default nothing is said"
    async with allowing(APP) as client:
        assert cors_of(await client.post(path, json=body)) == {}, "this client is no browser"
        answer = await client.post(path, json=body, headers={"origin": APP})
        assert answer.status_code == status
        cors = cors_of(answer)
        assert (cors["allow-origin"], cors["vary"]) == (APP, "origin")
        assert {"x-request-id", "retry-after", "server-timing"} <= set(cors["expose-headers"].split(", "))
        assert "allow-credentials" not in cors


async def test_a_401_has_cors_headers(keys: ApiKeys) -> None:
    async with allowing(APP, keys=keys) as client:
        for key, status in (({}, 401), ({"authorization": "Bearer alpha-key"}, 200)):
            answer = await client.post(PREDICT, json=BODY, headers={"origin": APP, **key})
            assert answer.status_code == status and cors_of(answer)["allow-origin"] == APP


async def test_other_origins_get_no_cors_headers_unless_all_are_allowed() -> None:
    forbidden = [OTHER, "http://app.example.com", f"{APP}:8443", f"{APP}.evil.org", "null"]
    async with allowing(APP) as client, allowing("*") as open_client:
        for origin in forbidden:
            answer = await client.post(PREDICT, json=BODY, headers={"origin": origin})
            assert answer.status_code == 200 and cors_of(answer) == {"vary": "origin"}
            preflight = await client.options(PREDICT, headers={"origin": origin, **ASKING})
            assert "allow-origin" not in cors_of(preflight)
        for origin in (APP, *forbidden):
            cors = cors_of(await open_client.post(PREDICT, json=BODY, headers={"origin": origin}))
            assert cors["allow-origin"] == "*" and "vary" not in cors
            preflight = await open_client.options(PREDICT, headers={"origin": origin, **ASKING})
            assert preflight.status_code == 204 and cors_of(preflight)["allow-origin"] == "*"


def test_cors_allow_origin_takes_origins_or_a_star() -> None:
    assert config().cors_allow_origin == ()
    assert config("--cors_allow_origin=*").cors_allow_origin == ("*",)
    for given in ((f"--cors_allow_origin={APP},{OTHER}",), ("--cors_allow_origin", APP, OTHER)):
        assert config(*given).cors_allow_origin == (APP, OTHER)
    upper, star = "https://App.example.com", "https://*.example.com"
    for wrong in ("app.example.com", star, upper, f"{APP}/", "", f"{APP},{APP}"):
        said = error(f"--cors_allow_origin={wrong}")
        assert "--cors_allow_origin" in said and "* or origins such as https://app.example.com" in said


# The access log


LOGGER = logging.getLogger(ACCESS_LOGGER)
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
def log() -> Iterator[list[str]]:
    """The logged lines."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    LOGGER.setLevel(logging.INFO)
    LOGGER.addHandler(handler)
    yield lines
    LOGGER.removeHandler(handler)


async def answer(request: Request) -> Stream:
    async def parts() -> AsyncGenerator[bytes, None]:
        yield b"world"

    return Stream(201, b"hello ", parts(), list(HEADERS))


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("no other scope is expected")


def gateway(format: str, handler: Handler = answer) -> Gateway:
    settings = GatewaySettings(access_log=format)
    return Gateway(Router([], []), handler, (), lambda path: error_json, Metrics(), settings)


async def request(format: str, handler: Handler = answer, **scope: Any) -> tuple[int, dict[str, str], bytes]:
    """The status, headers and body of a response."""
    async with Exchange(AsgiApplication(gateway(format, handler), nothing), "", b"", scope=SCOPE | scope) as asked:
        return *await asked.head(), await asked.rest()


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


async def test_every_atom_of_the_access_log_is_rendered(log: list[str]) -> None:
    assert set(AccessRecord(SCOPE).atoms()) <= ATOMS.keys()
    for atom, pattern in ATOMS.items():
        await request(f"<%({atom})s> 100%%")
        assert re.fullmatch(f"<{pattern}> 100%", log.pop()), atom
        assert not log


async def test_a_failed_application_is_answered_and_logged_as_500(log: list[str]) -> None:
    async def fail(request: Request) -> Response:
        raise ZeroDivisionError

    status, headers, body = await request("%(s)s %(B)s", fail)
    assert status == 500 and headers["x-request-id"] == "r1"
    assert body == b'{"error":"internal error; the log has it under r1"}'
    assert log == [f"500 {len(body)}"]


async def test_a_disconnected_client_is_logged_as_499(log: list[str]) -> None:
    async def wait(request: Request) -> Response:
        await asyncio.Event().wait()
        raise AssertionError("it went on")

    waiting = gateway("%(s)s %(st)s %(B)s %(b)s %({content-type}o)s", wait)
    async with Exchange(AsgiApplication(waiting, nothing), "", b"", scope=SCOPE) as asked:
        await asyncio.sleep(0)
    assert asked.offered == 0
    assert log == ["499 - 0 - -"]


async def test_a_request_refused_by_the_server_is_logged(log: list[str]) -> None:
    refusing, refused = gateway("%(s)s %(m)s %(B)s %(h)s"), PlainRequest()
    found = refusing.refuse(refused, 431, "too long")
    refusing.finished(refused, found, len(found.body))
    assert log == [f"431 POST {len(found.body)} 10.0.0.9:4711"]


async def test_the_log_has_the_client_of_a_trusted_proxy(log: list[str]) -> None:
    for client in ("127.0.0.1", "10.0.0.9"):
        await request("%(h)s", client=(client, 4711), headers=[(b"x-forwarded-for", b"1.2.3.4")])
    assert log == ["1.2.3.4:0", "10.0.0.9:4711"]


@pytest.mark.parametrize(
    ("forwarded", "shown"),
    [
        (b"1.2.3.4, 5.6.7.8", "5.6.7.8:0"),
        (b"1.2.3.4:80", "1.2.3.4:80"),
        (b"[2001:db8::1]:443", "2001:db8::1:443"),
        (b'x" 200 "GET / HTTP/1.1', "127.0.0.1:4711"),
        (b"1.2.3.4\x1b[31m", "127.0.0.1:4711"),
        (b"host.example.com", "127.0.0.1:4711"),
        (b'fe80::1%" 200 "', "127.0.0.1:4711"),
        (b"1.2.3.4 - admin", "127.0.0.1:4711"),
        (b"\xb2.1.1.1", "127.0.0.1:4711"),
        (b"1" * 5000, "127.0.0.1:4711"),
        (b"", "127.0.0.1:4711"),
    ],
    ids=str,
)
async def test_only_addresses_of_a_proxy_are_logged(log: list[str], forwarded: bytes, shown: str) -> None:
    await request("%(h)s", client=("127.0.0.1", 4711), headers=[(b"x-forwarded-for", forwarded)])
    assert log == [shown]


async def test_a_quote_ends_no_field_of_the_log(log: list[str]) -> None:
    odd: dict[str, Any] = {
        "path": '/a" 200',
        "query_string": b'b="c\\',
        "headers": [(b"user-agent", b'x" 200 "y'), (b"referer", b'\\"')],
    }
    await request('"%(R)s" "%(f)s" "%(a)s" "%({user-agent}i)s"', **odd, client=None)
    assert log == ['"POST /a%22%20200?b=\\x22c\\x5c HTTP/1.1" "\\x5c\\x22" "x\\x22 200 \\x22y" "x\\x22 200 \\x22y"']


async def test_control_characters_are_escaped_in_the_log(log: list[str]) -> None:
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
def test_invalid_log_formats_are_refused(format: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        gateway(format)
    assert str(caught.value).startswith(f"--access_log_format: {problem}")
    with pytest.raises(ConfigError, match=r"^SOURCE: "):
        check_format(format, "SOURCE")
