"""CORS (--cors_allow_origin): what a browser is told about pages of other origins.

Source: https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from hf_transformer.api.auth import ApiKeys
from hf_transformer.api.gateway import GatewaySettings
from tests.api.generating import PROMPT, application, bench
from tests.configuring import config, error

APP = "https://app.example.com"
OTHER = "http://localhost:3000"
PREDICT = "/v1/models/gpt2:predict"
CHAT = "/openai/v1/completions"
ASKING = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}


@asynccontextmanager
async def client_of(*origins: str, keys: ApiKeys | None = None) -> AsyncIterator[httpx.AsyncClient]:
    async with bench() as made:
        app = application(made.service, GatewaySettings(origins=origins, keys=keys))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            yield client


def told(response: httpx.Response) -> dict[str, str]:
    """What a response says of CORS."""
    return {
        name.removeprefix("access-control-"): value
        for name, value in response.headers.items()
        if name.startswith("access-control-") or name == "vary"
    }


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeys:
    (tmp_path / "keys").write_text("alpha-key\n")
    return ApiKeys(str(tmp_path / "keys"))


@pytest.mark.parametrize("path", [PREDICT, CHAT, "/v2/models/gpt2", "/no/such/path"])
@pytest.mark.parametrize("keyed", [False, True], ids=["no keys", "keys"])
async def test_a_preflight_needs_no_key(path: str, keyed: bool, keys: ApiKeys) -> None:
    async with client_of(APP, OTHER, keys=keys if keyed else None) as client:
        for origin in (APP, OTHER):
            answer = await client.options(path, headers={"origin": origin, **ASKING})
            assert (answer.status_code, answer.content) == (204, b"")
            assert answer.headers["x-request-id"]
            assert told(answer) == {
                "allow-origin": origin,
                "allow-methods": "GET, POST",
                "allow-headers": "authorization, content-type",
                "expose-headers": "x-request-id, server-timing, retry-after, inference-header-content-length",
                "max-age": "600",
                "vary": "origin",
            }


@pytest.mark.parametrize(
    "lacking", ["origin", "access-control-request-method"], ids=["no origin", "no method that is asked for"]
)
async def test_other_requests_with_options_are_no_preflights(lacking: str) -> None:
    headers = {name: value for name, value in {"origin": APP, **ASKING}.items() if name != lacking}
    async with client_of(APP) as client:
        assert (await client.options(PREDICT, headers=headers)).status_code == 405


STREAM = {"model": "gpt2", "prompt": PROMPT, "stream": True}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (PREDICT, {"instances": [PROMPT]}, 200),
        (PREDICT, {"instances": 7}, 400),
        (CHAT, STREAM, 200),
        ("/no/such/path", {}, 404),
    ],
    ids=["answer", "error", "stream", "no route"],
)
async def test_an_origin_that_is_allowed_may_read_the_answer(path: str, body: object, status: int) -> None:
    async with client_of() as client:
        assert told(await client.post(path, json=body, headers={"origin": APP})) == {}, "by default nothing is said"
    async with client_of(APP) as client:
        assert told(await client.post(path, json=body)) == {}, "this client is no browser"
        answer = await client.post(path, json=body, headers={"origin": APP})
        assert answer.status_code == status
        found = told(answer)
        assert (found["allow-origin"], found["vary"]) == (APP, "origin")
        assert {"x-request-id", "retry-after", "server-timing"} <= set(found["expose-headers"].split(", "))
        assert "allow-credentials" not in found


async def test_without_a_key_the_answer_can_be_read_too(keys: ApiKeys) -> None:
    async with client_of(APP, keys=keys) as client:
        answer = await client.post(PREDICT, json={"instances": [PROMPT]}, headers={"origin": APP})
        assert answer.status_code == 401 and told(answer)["allow-origin"] == APP
        key = {"authorization": "Bearer alpha-key"}
        answer = await client.post(PREDICT, json={"instances": [PROMPT]}, headers={"origin": APP, **key})
        assert answer.status_code == 200 and told(answer)["allow-origin"] == APP


@pytest.mark.parametrize("origin", [OTHER, "http://app.example.com", f"{APP}:8443", f"{APP}.evil.org", "null"])
async def test_other_origins_are_not_allowed(origin: str) -> None:
    async with client_of(APP) as client:
        answer = await client.post(PREDICT, json={"instances": [PROMPT]}, headers={"origin": origin})
        assert answer.status_code == 200 and told(answer) == {"vary": "origin"}
        preflight = await client.options(PREDICT, headers={"origin": origin, **ASKING})
        assert "allow-origin" not in told(preflight)


@pytest.mark.parametrize("origin", [APP, OTHER, "null"])
async def test_any_origin(origin: str) -> None:
    async with client_of("*") as client:
        answer = await client.post(PREDICT, json={"instances": [PROMPT]}, headers={"origin": origin})
        found = told(answer)
        assert found["allow-origin"] == "*" and "vary" not in found
        preflight = await client.options(PREDICT, headers={"origin": origin, **ASKING})
        assert preflight.status_code == 204 and told(preflight)["allow-origin"] == "*"


@pytest.mark.parametrize(
    ("given", "origins"),
    [
        ((), ()),
        (("--cors_allow_origin=*",), ("*",)),
        ((f"--cors_allow_origin={APP},{OTHER}",), (APP, OTHER)),
        (("--cors_allow_origin", APP, OTHER), (APP, OTHER)),
    ],
)
async def test_the_flag(given: tuple[str, ...], origins: tuple[str, ...]) -> None:
    assert config(*given).cors_allow_origin == origins


@pytest.mark.parametrize(
    "wrong",
    [
        "app.example.com",
        "https://*.example.com",
        "https://App.example.com",
        f"{APP}/",
        "",
        f"{APP},{APP}",
    ],
)
async def test_what_is_no_origin_is_refused_at_the_start(wrong: str) -> None:
    said = error(f"--cors_allow_origin={wrong}")
    assert "--cors_allow_origin" in said and "* or origins such as https://app.example.com" in said
