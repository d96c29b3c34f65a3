"""Fetching of images: real TLS connections to a server that answers as a test says, and refusals before any."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

import pytest

from hf_transformer.errors import FieldError, InvalidInput, TooLarge
from hf_transformer.generation.image_fetch import _is_public, fetch_image
from hf_transformer.generation.images import ImageLimits
from tests.predictor.fault_server import TLS
from tests.support.images import png

PATH = ("url",)
DATA = png()


@asynccontextmanager
async def answering(answer: bytes, seconds: float = 0.0) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that sends ``answer`` to each request and closes the connection. Yields its port and the requests."""
    context, requests = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), list[bytes]()
    context.load_cert_chain(TLS / "localhost.pem", TLS / "localhost.key")

    async def accept(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        requests.append(await source.readuntil(b"\r\n\r\n"))
        await asyncio.sleep(seconds)
        sink.write(answer)
        sink.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1], requests


@pytest.fixture(autouse=True)
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "localhost.pem"))


def response(body: bytes = DATA, head: str = "", status: str = "200 OK") -> bytes:
    length = "" if "chunked" in head or head == "none" else f"content-length: {len(body)}\r\n"
    return f"HTTP/1.1 {status}\r\n{length}{'' if head == 'none' else head}\r\n".encode() + body


def limits(port: int, **more: object) -> ImageLimits:
    return ImageLimits(hosts=(f"127.0.0.1:{port}", f"localhost:{port}"), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(response(), id="length"),
        pytest.param(response(head="none"), id="end of the connection"),
        pytest.param(
            response(b"%x\r\n%b\r\n0\r\n\r\n" % (len(DATA), DATA), "transfer-encoding: chunked\r\n"), id="chunks"
        ),
    ],
)
async def test_a_file_of_an_allowed_address_is_fetched(answer: bytes) -> None:
    async with answering(answer) as (port, requests):
        assert await fetch_image(f"https://127.0.0.1:{port}/a%20b/c.png?size=1&d=%2F", limits(port), PATH) == DATA
    head = requests[0].decode().split("\r\n")
    assert head[0] == "GET /a%20b/c.png?size=1&d=%2F HTTP/1.1" and f"Host: 127.0.0.1:{port}" in head
    assert not any(line.lower().startswith(("authorization", "cookie", "x-request-id")) for line in head)


@pytest.mark.parametrize(
    ("answer", "got"),
    [
        pytest.param(response(b"", "location: https://127.0.0.1/\r\n", "302 Found"), "the status 302", id="redirect"),
        pytest.param(response(status="404 Not Found"), "the status 404", id="missing"),
        pytest.param(response(status="206 Partial Content"), "the status 206", id="part"),
        pytest.param(response()[:-5], "a part of it", id="cut off"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000, "a head that is too long", id="long head"),
        pytest.param(b"220 mail.example.com ESMTP\r\n", "HttpParser", id="another protocol"),
        pytest.param(b"", "a part of it", id="nothing"),
    ],
)
async def test_another_answer_is_an_error_of_the_field(answer: bytes, got: str) -> None:
    async with answering(answer) as (port, requests):
        with pytest.raises(InvalidInput) as caught:
            await fetch_image(f"https://127.0.0.1:{port}/", limits(port), PATH)
    assert len(requests) == 1 and caught.value.path == PATH and got in str(caught.value)


@pytest.mark.parametrize("head", ["", "none"], ids=["length", "no length"])
async def test_a_large_file_is_given_up(head: str) -> None:
    async with answering(response(bytes(3 * 10**6), head)) as (port, _):
        with pytest.raises(TooLarge, match="--max_image_bytes"):
            await fetch_image(f"https://127.0.0.1:{port}/", limits(port, file_bytes=10**5), PATH)


async def test_a_certificate_of_another_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    async with answering(response()) as (port, requests):
        with pytest.raises(InvalidInput, match="SSLCertVerificationError"):
            await fetch_image(f"https://127.0.0.1:{port}/", limits(port), PATH)
    assert requests == []


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "localhost."])
async def test_a_name_of_a_private_address_is_refused_though_it_is_in_the_list(name: str) -> None:
    async with answering(response()) as (port, requests):
        with pytest.raises(InvalidInput, match="a host with public addresses, got a private address"):
            await fetch_image(f"https://{name}:{port}/", limits(port), PATH)
    assert requests == []


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "https://127.0.0.1/",
        "https://127.0.0.2:{port}/",
        "https://127.1:{port}/",
        "https://2130706433:{port}/",
        "https://0x7f.0.0.1:{port}/",
        "https://[::ffff:127.0.0.1]:{port}/",
        "https://127.0.0.1:{port}@example.com/",
        "https://user:pass@127.0.0.1:{port}/",
        "https://example.com#@127.0.0.1:{port}/",
        "https://example.com\\@127.0.0.1:{port}/",
        "https://127.0.0.1.nip.io:{port}/",
        "https://127.0.0.1:{port}/a b",
        "https://127.0.0.1:{port}/\r\nHost: evil",
        "https://127.0.0.1:{port}/\u00e9",
        "https://127.0.0.1:99999/",
        "https:///a.png",
        "//127.0.0.1:{port}/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:{port}/",
        "javascript:alert(1)",
        "https://127.0.0.1:{port}/" + "a" * 5000,
    ],
)
async def test_other_urls_are_refused_before_any_connection(url: str) -> None:
    async with answering(response()) as (port, requests):
        with pytest.raises(FieldError) as caught:
            await fetch_image(url.format(port=port), limits(port), PATH)
    assert requests == [] and caught.value.path == PATH


async def test_without_hosts_nothing_is_fetched() -> None:
    with pytest.raises(InvalidInput, match="no images without --allowed_image_hosts"):
        await fetch_image("https://example.com/", ImageLimits(), PATH)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2001:4860:4860::8888", True),
        ("10.0.0.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("192.168.1.1", False),
        ("::1", False),
        ("fe80::1", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::808:808", True),
        ("2002:7f00:1::", False),
        ("64:ff9b:1::7f00:1", False),
        ("::127.0.0.1", False),
        ("::ffff:0:7f00:1", False),
        ("fec0::1", False),
        ("2606:4700::1111", True),
        ("::ffff:8.8.8.8", True),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert _is_public(ip_address(address)) is public
