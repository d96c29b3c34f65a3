"""Addresses that lead elsewhere, ports that speak another protocol, certificates that are not trusted."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from hf_transformer.commands.doctor import network
from hf_transformer.commands.local_triton import LocalTriton
from tests.integration.doctor.conftest import Diagnose, results_of, troubles
from tests.predictor.fault_server import Connection, nobody, scripted
from tests.service import Service, flags_for
from tests.triton_repository import DEMO_MODEL

OTHER = {"v2": "grpc-v2", "grpc-v2": "v2"}
HERE = Path(__file__).parent / "tls"
GOOD = Path(__file__).parents[2] / "predictor" / "tls"
TRUSTED = (GOOD / "localhost.pem", GOOD / "localhost.key")


def address_of(triton: LocalTriton, protocol: str) -> str:
    return triton.http_address if protocol == "v2" else triton.grpc_address


async def examined(address: str, protocol: str, *flags: str) -> dict[str, str]:
    return troubles(await results_of(flags_for("bert_masked", DEMO_MODEL, address, protocol, flags)))


@asynccontextmanager
async def behind_tls(address: str, pair: tuple[Path, Path], *, mutual: bool = False) -> AsyncIterator[str]:
    """localhost:port of a proxy that ends TLS and passes everything on to the address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pair)
    context.set_alpn_protocols(["h2", "http/1.1"])
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(TRUSTED[0])

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def forward(connection: Connection) -> None:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        ways = [
            asyncio.ensure_future(copy(connection.reader, writer)),
            asyncio.ensure_future(copy(reader, connection.writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writer.close()  # before anything is waited for: the test's end may come in the middle of that
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async with scripted(forward, context) as host:
        yield host.replace("127.0.0.1", "localhost")


def assert_only(found: dict[str, str], name: str, *parts: str) -> None:
    assert list(found) == [name]
    assert all(part in found[name] for part in parts), found[name]


async def test_a_port_where_nobody_listens(protocol: str) -> None:
    assert_only(await examined(nobody(), protocol), "connection", "connect", "8000 for REST, on 8001 for gRPC")


@pytest.mark.parametrize(
    ("address", "name", "says"),
    [
        pytest.param("127.0.0.1", "connection", "no port is set, so it is 80", id="no port"),
        pytest.param("triton.invalid:8000", "address", "triton.invalid can't be found", id="no such name"),
    ],
)
async def test_an_address_that_leads_nowhere(address: str, name: str, says: str) -> None:
    assert_only(await examined(address, "v2"), name, says)


async def test_the_port_of_the_other_protocol(triton: LocalTriton, protocol: str) -> None:
    found = await examined(address_of(triton, OTHER[protocol]), protocol)
    assert_only(found, "protocol", "in plain text, the flags say", f"--predictor_protocol={OTHER[protocol]}")


async def test_the_port_of_the_metrics(triton: LocalTriton, protocol: str) -> None:
    check = "server" if protocol == "v2" else "protocol"
    found = await examined(triton.metrics_address, protocol)
    assert_only(found, check, "is Triton's port for metrics", "8002 for metrics")


async def test_the_service_itself(triton: LocalTriton, diagnose: Diagnose, protocol: str) -> None:
    await asyncio.to_thread(diagnose, "bert_masked")  # loads it
    with Service(*flags_for("bert_masked", DEMO_MODEL, triton.http_address, "v2")) as service:
        service.wait_until("/v1/models/bert_masked")
        address = f"127.0.0.1:{service.port}" if protocol == "v2" else service.grpc_address
        found = await examined(address, protocol)
        assert_only(found, "server", "is a service of hf-transformer", "set --predictor_host to Triton's own address")
        if protocol == "grpc-v2":
            found = await examined(f"127.0.0.1:{service.port}", protocol)
            assert_only(found, "protocol", "is a service of hf-transformer")


async def test_tls_to_a_port_that_speaks_plain_text(triton: LocalTriton, protocol: str) -> None:
    found = await examined(address_of(triton, protocol), protocol, "--predictor_use_ssl")
    assert_only(found, "protocol", "in plain text, the flags say", "--predictor_use_ssl=false")


async def test_plain_text_to_a_port_that_speaks_tls(triton: LocalTriton, protocol: str) -> None:
    async with behind_tls(address_of(triton, protocol), TRUSTED) as host:
        found = await examined(host, protocol)
    assert_only(found, "protocol", "over TLS, the flags say", "--predictor_use_ssl=true")


async def test_a_refusal_of_plain_text_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nginx and others answer plain HTTP on a TLS port."""
    monkeypatch.setattr(network, "PROBE_SECONDS", 0.2)

    async def refuse(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await asyncio.sleep(0.05)
        await connection.send(b"The plain HTTP request was sent to HTTPS port")

    async with scripted(refuse) as host:
        found = await examined(host, "v2")
    assert_only(found, "protocol", "speaks neither REST nor gRPC")


async def test_a_predictor_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "PROBE_SECONDS", 0.1)
    async with scripted(Connection.until_closed) as host:
        found = await examined(host, "v2")
    assert_only(found, "protocol", "takes connections and does not answer")


@pytest.mark.parametrize("mutual", [False, True], ids=["ours is not asked for", "ours is asked for"])
async def test_a_trusted_certificate(diagnose: Diagnose, triton: LocalTriton, protocol: str, mutual: bool) -> None:
    await asyncio.to_thread(diagnose, "bert_masked")  # loads it
    flags = ["--predictor_use_ssl", f"--predictor_ca_file={TRUSTED[0]}"]
    if mutual:
        flags += [f"--predictor_cert_file={TRUSTED[0]}", f"--predictor_key_file={TRUSTED[1]}"]
    async with behind_tls(address_of(triton, protocol), TRUSTED, mutual=mutual) as host:
        results = await results_of(flags_for("bert_masked", DEMO_MODEL, host, protocol, flags))
    assert troubles(results) == {}
    [tls] = [one for one in results if one.name == "TLS"]
    assert "a certificate for localhost, 127.0.0.1 until" in tls.found


CERTIFICATES = [
    pytest.param("expired.pem", "expired.pem", "has expired", "renew", id="expired"),
    pytest.param("other_name.pem", "other_name.pem", "not valid for 'localhost'", "(triton.example)", id="other name"),
    pytest.param("other_name.pem", "expired.pem", "signed", "--predictor_ca_file", id="unknown issuer"),
]


@pytest.mark.parametrize(("shown", "trusted", "says", "change"), CERTIFICATES)
async def test_a_certificate_that_is_refused(
    triton: LocalTriton, protocol: str, shown: str, trusted: str, says: str, change: str
) -> None:
    async with behind_tls(address_of(triton, protocol), (HERE / shown, HERE / "server.key")) as host:
        found = await examined(host, protocol, "--predictor_use_ssl", f"--predictor_ca_file={HERE / trusted}")
    assert_only(found, "TLS", says, change)


@contextmanager
def asking_for_a_certificate() -> Iterator[str]:
    """localhost:port that refuses every connection with TLS' alert that a certificate is missing.

    In a thread, since asyncio's servers close without the alert.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*TRUSTED)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(TRUSTED[0])

    def refuse() -> None:
        with suppress(OSError):  # the end of listening
            while True:
                connection, _ = listening.accept()
                with connection, suppress(OSError):
                    context.wrap_socket(connection, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as executor:
        refusing = executor.submit(refuse)
        yield f"localhost:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        refusing.result(10)


async def test_a_predictor_that_asks_for_our_certificate() -> None:
    with asking_for_a_certificate() as host:
        found = await examined(host, "v2", "--predictor_use_ssl", f"--predictor_ca_file={TRUSTED[0]}")
    assert_only(
        found,
        "TLS",
        "asks for one: TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "--predictor_cert_file and --predictor_key_file",
    )


async def test_a_predictor_that_closes_without_our_certificate(triton: LocalTriton, protocol: str) -> None:
    async with behind_tls(address_of(triton, protocol), TRUSTED, mutual=True) as host:
        found = await examined(host, protocol, "--predictor_use_ssl", f"--predictor_ca_file={TRUSTED[0]}")
    assert_only(
        found, "protocol", "closes the connection after the handshake", "--predictor_cert_file and --predictor_key_file"
    )
