"""Hosts that requests may have (--allowed_hosts), and those that a playground has by default, against DNS rebinding."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hf_transformer.app.application import build_app
from hf_transformer.commands.loopback import HOST
from tests.integration.server.processes import MODEL_FOLDER, NOBODY
from tests.integration.server.serving import serving
from tests.support.configuring import config, error
from tests.support.raw_http import HOST_LINE, RawHttpClient, connected_to, get

PLAYGROUND = "--enable_playground"
LOCAL = ["localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:8080"]
FOREIGN = ["evil.example", "evil.example:8080", "localhost.evil.example", "evillocalhost", "10.0.0.7", "[::2]", ""]
PROBES = ["/", "/metrics", "/v1/models/bert", "/v2/health/live", "/v2/health/ready", "/v2/models/bert/ready"]


def with_host(host: str, path: str = "/v1/models", method: str = "GET", *lines: str) -> bytes:
    sent = get(path, *lines).replace(HOST_LINE.encode(), f"Host: {host}".encode("latin-1"))
    return sent.replace(b"GET", method.encode(), 1)


@asynccontextmanager
async def client_of(*flags: str) -> AsyncIterator[RawHttpClient]:
    """A client of a service with these flags, whose predictor nobody is."""
    fixed = f"--predictor_host={NOBODY}", f"--model_dir={MODEL_FOLDER}", "--model_name=bert", "--enable_grpc=false"
    async with serving(build_app(config(*fixed, *flags))) as (_, port), connected_to(port) as client:
        yield client


async def status(client: RawHttpClient, sent: bytes) -> int:
    return (await client.response(sent)).status


@pytest.mark.parametrize(
    ("flags", "allowed", "refused"),
    [
        ([], [*LOCAL, *FOREIGN], []),
        ([PLAYGROUND], LOCAL, FOREIGN),
        ([PLAYGROUND, "--host=10.0.0.7"], [*LOCAL, "10.0.0.7", "10.0.0.7:8080"], ["evil.example", "10.0.0.70"]),
        ([PLAYGROUND, "--host=fe80::1"], [*LOCAL, "[fe80::1]:8080"], ["evil.example", "[fe80::2]"]),
        ([PLAYGROUND, "--host=::"], LOCAL, ["[::]", "evil.example"]),
        ([PLAYGROUND, "--allowed_hosts=*"], [*LOCAL, *FOREIGN], []),
        ([PLAYGROUND, "--allowed_hosts=a.example"], ["a.example", "A.example:80"], ["localhost", "b.a.example"]),
        (
            ["--allowed_hosts=*.a.example,[::2]"],
            ["b.a.example", "c.b.A.example.:8080", "[::2]:8080"],
            ["a.example", "ba.example", "a.example.b", "localhost", "127.0.0.1"],
        ),
    ],
    ids=[
        "any",
        "playground",
        "address",
        "IPv6 address",
        "all addresses",
        "any with playground",
        "given",
        "sub-domains",
    ],
)
async def test_only_allowed_hosts_are_answered(flags: list[str], allowed: list[str], refused: list[str]) -> None:
    async with client_of(*flags) as client:
        found = {host: await status(client, with_host(host)) for host in (*allowed, *refused)}
        assert found == dict.fromkeys(allowed, 200) | dict.fromkeys(refused, 400)


async def test_a_refused_host_is_named_with_the_flag_and_counted() -> None:
    async with client_of(PLAYGROUND) as client:
        for path in ("/v1/models", "/no/such/path"):
            response = await client.response(with_host("evil.example:8080" + "0" * 99, path))
            assert response.status == 400 and "x-request-id" in response.headers
            error = response.error
            assert (
                error.startswith("Host: expected one of --allowed_hosts, got 'evil.example:8080") and len(error) < 160
            )
        refused = await client.response(with_host("evil.example", "/openai/v1/models"))
        assert "--allowed_hosts" in json.loads(refused.body)["error"]["message"]
        metrics = await client.response(with_host("localhost", "/metrics"))
        assert b'hf_transformer_requests_total{api="hosts",model_name="",status="400"} 3' in metrics.body


async def test_probes_have_the_address_of_the_pod() -> None:
    """GET and HEAD of the paths that need no key; the files of the page are checked."""
    async with client_of(PLAYGROUND) as client:
        for path in PROBES:
            assert await status(client, with_host("10.0.0.7:8080", path)) != 400, path
            assert await status(client, with_host("10.0.0.7:8080", path, "POST")) == 400, path
        for path in ("/playground", "/openapi.json", "/v1/models/bert/info", "/v2"):
            assert await status(client, with_host("10.0.0.7:8080", path)) == 400, path


async def test_the_host_is_checked_before_keys_and_preflights(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha-key\n")
    asking = "origin: https://evil.example", "access-control-request-method: POST"
    async with client_of(PLAYGROUND, f"--api_keys_file={keys}", "--cors_allow_origin=*") as client:
        preflight = "/v1/models", "OPTIONS", *asking
        assert await status(client, with_host("evil.example")) == 400
        assert await status(client, with_host("evil.example", *preflight)) == 400
        assert await status(client, with_host(HOST)) == 401
        client.send(with_host(HOST, *preflight))
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")


async def test_http_1_0_without_a_host_is_refused_only_by_a_playground() -> None:
    async with client_of() as client:
        client.send(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 200")
    async with client_of(PLAYGROUND) as client:
        client.send(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 400")


def test_allowed_hosts_takes_names_without_ports_and_a_playground_is_local() -> None:
    local = ("localhost", "127.0.0.1", "::1")
    assert config().allowed_hosts == ("*",)
    assert config(PLAYGROUND).allowed_hosts == config(PLAYGROUND, "--host=127.0.0.1").allowed_hosts == local
    assert config(PLAYGROUND, "--host=example").allowed_hosts == (*local, "example")
    assert config(PLAYGROUND, HF_TRANSFORMER_ALLOWED_HOSTS="a.example").allowed_hosts == ("a.example",)
    for given in (("--allowed_hosts=a.example,::1",), ("--allowed_hosts", "a.example", "::1")):
        assert config(*given).allowed_hosts == ("a.example", "::1")
    for wrong in ("", "a.example:80", "127.0.0.1:80", "http://a", "a/b", "*a", "a.*", "a@b", ".a", "bücher.example"):
        said = error(f"--allowed_hosts={wrong}")
        assert "--allowed_hosts" in said and "* or host names without a port" in said
