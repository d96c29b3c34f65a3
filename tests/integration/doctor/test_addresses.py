"""The doctor on wrong addresses, ports with another protocol, and untrusted certificates."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.commands import other_servers
from hf_transformer.commands.local_triton import LocalTriton
from tests.integration.conftest import Serve
from tests.integration.doctor.conftest import results_of, troubles
from tests.predictor.fault_server import Connection, scripted
from tests.support.service import NOBODY, flags_for
from tests.support.triton_repository import DEMO_MODEL

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
    """localhost:port of a proxy that terminates TLS and forwards all bytes to the address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pair)
    context.set_alpn_protocols(["h2", "http/1.1"])
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(TRUSTED[0])

    async with scripted(lambda connection: connection.forward(address), context) as host:
        yield host.replace("127.0.0.1", "localhost")


def assert_only(texts: dict[str, str], name: str, *parts: str) -> None:
    assert list(texts) == [name]
    assert all(part in texts[name] for part in parts), texts[name]


LEADING_ELSEWHERE = {
    "nobody": (
        lambda triton, protocol: NOBODY,
        "",
        "connection",
        "connect",
        "8000 for REST, on 8001 for gRPC",
    ),
    "no port": (lambda triton, protocol: "127.0.0.1", "", "connection", "no port is set, so the default, 80"),
    "no such name": (lambda triton, protocol: "triton.invalid:8000", "", "address", "triton.invalid can't be resolved"),
    "the other protocol": (
        lambda triton, protocol: address_of(triton, OTHER[protocol]),
        *("", "protocol", "in plain text, the flags say", "--predictor_protocol={other}"),
    ),
    "the metrics": (
        lambda triton, protocol: triton.metrics_address,
        *("", "server|protocol", "is Triton's port for metrics", "8002 for metrics"),
    ),
    "TLS to plain text": (
        lambda triton, protocol: address_of(triton, protocol),
        *("--predictor_use_ssl", "protocol", "in plain text, the flags say", "--predictor_use_ssl=false"),
    ),
}
"""For each case an address, a flag, the check that fails over REST|gRPC, and parts of its text."""


@pytest.mark.parametrize("case", LEADING_ELSEWHERE.values(), ids=LEADING_ELSEWHERE)
async def test_a_wrong_address_has_a_remedy(triton: LocalTriton, protocol: str, case: Any) -> None:
    address, flag, names, *says = case
    name = names.split("|")[0 if protocol == "v2" else -1]
    found = await examined(address(triton, protocol), protocol, *flag.split())
    assert_only(found, name, *[part.format(other=OTHER[protocol]) for part in says])


def test_the_service_as_its_own_predictor_is_detected(serve: Serve, protocol: str) -> None:
    service = serve("bert_masked")
    rest = f"127.0.0.1:{service.port}"
    found = asyncio.run(examined(rest if protocol == "v2" else service.grpc_address, protocol))
    assert_only(found, "server", "is a service of hf-transformer", "set --predictor_host to Triton's own address")
    if protocol == "grpc-v2":
        assert_only(asyncio.run(examined(rest, protocol)), "protocol", "is a service of hf-transformer")


async def refuse_in_words(connection: Connection) -> None:
    """Answers like nginx to plain HTTP on a TLS port."""
    await connection.request()
    await connection.send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    await asyncio.sleep(0.05)
    await connection.send(b"The plain HTTP request was sent to HTTPS port")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        pytest.param(refuse_in_words, "speaks neither REST nor gRPC", id="refuses"),
        pytest.param(Connection.until_closed, "accepts connections but does not answer", id="hangs"),
    ],
)
async def test_a_port_without_a_predictor_fails_the_protocol(
    monkeypatch: pytest.MonkeyPatch, script: Any, says: str
) -> None:
    if script is Connection.until_closed:  # the other one answers, however late on a busy machine
        monkeypatch.setattr(other_servers, "PROBE_SECONDS", 0.2)
    async with scripted(script) as host:
        assert_only(await examined(host, "v2"), "protocol", says)


TRUSTING = f"--predictor_use_ssl --predictor_ca_file={TRUSTED[0]}"
OURS = f"--predictor_cert_file={TRUSTED[0]} --predictor_key_file={TRUSTED[1]}"


@pytest.mark.parametrize("mutual", [False, True], ids=["one way", "mutual"])
async def test_a_trusted_certificate_is_ok(
    triton: LocalTriton, load: Callable[[str], None], protocol: str, mutual: bool
) -> None:
    await asyncio.to_thread(load, "bert_masked")
    flags = f"{TRUSTING} {OURS if mutual else ''}".split()
    async with behind_tls(address_of(triton, protocol), TRUSTED, mutual=mutual) as host:
        results = await results_of(flags_for("bert_masked", DEMO_MODEL, host, protocol, flags))
    assert troubles(results) == {}
    [tls] = [result for result in results if result.name == "TLS"]
    assert "a certificate for localhost, 127.0.0.1 until" in tls.found


def trusting(name: str) -> str:
    return f"--predictor_use_ssl --predictor_ca_file={HERE / name}"


PAIR = "--predictor_cert_file and --predictor_key_file"
REFUSED: dict[str, tuple[str, str, str, str, str]] = {
    "plain text": ("", "", "protocol", "over TLS, the flags say", "--predictor_use_ssl=true"),
    "expired": ("expired.pem", trusting("expired.pem"), "TLS", "has expired", "renew"),
    "other name": (
        "other_name.pem",
        trusting("other_name.pem"),
        "TLS",
        "not valid for 'localhost'",
        "(triton.example)",
    ),
    "unknown issuer": ("other_name.pem", trusting("expired.pem"), "TLS", "signed", "--predictor_ca_file"),
    "ours is missing": ("", TRUSTING, "protocol", "closes the connection after the TLS handshake", PAIR),
}
"""For each case the server's certificate, flags, the check that fails, and parts of its text and remedy."""


@pytest.mark.parametrize("case", REFUSED)
async def test_a_tls_failure_has_a_remedy(triton: LocalTriton, protocol: str, case: str) -> None:
    certificate, flags, name, *says = REFUSED[case]
    pair = (HERE / certificate, HERE / "server.key") if certificate else TRUSTED
    async with behind_tls(address_of(triton, protocol), pair, mutual=case == "ours is missing") as host:
        assert_only(await examined(host, protocol, *flags.split()), name, *says)


@contextmanager
def asking_for_a_certificate() -> Iterator[str]:
    """localhost:port of a server that refuses clients without a certificate by a TLS alert.

    It runs in a thread, because asyncio's servers close the connection without the alert.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*TRUSTED)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(TRUSTED[0])

    def refuse() -> None:
        with suppress(OSError):  # shutdown ends accept
            while True:
                connection, _ = listening.accept()
                with connection, suppress(OSError):
                    context.wrap_socket(connection, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as executor:
        refusing = executor.submit(refuse)
        yield f"localhost:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        refusing.result(10)


async def test_a_predictor_that_requires_a_certificate_fails_tls() -> None:
    with asking_for_a_certificate() as host:
        found = await examined(host, "v2", *TRUSTING.split())
    assert_only(found, "TLS", "asks for one: TLSV13_ALERT_CERTIFICATE_REQUIRED", PAIR)
