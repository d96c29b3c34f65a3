"""Certificates that are renewed while the service runs, over HTTP and gRPC, as a mounted Secret is: by a link."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from hf_transformer.commands.local_triton import HOST, poll
from tests.integration.server.processes import SECONDS, answer_of, get, new_certificate, service_with
from tests.service import Service


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which tls.crt and tls.key are links through ``data``, itself a link to the first version."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("first", "second"):
        new_certificate(folder / name, name)
    (folder / "broken").mkdir()
    (folder / "broken" / "tls.crt").write_bytes((folder / "second" / "tls.crt").read_bytes())
    (folder / "broken" / "tls.key").write_bytes((folder / "first" / "tls.key").read_bytes())
    (folder / "data").symlink_to("first")
    for name in ("tls.crt", "tls.key"):
        (folder / name).symlink_to(f"data/{name}")
    return folder


def mount(folder: Path, version: str) -> None:
    """Swaps the link as the kubelet does: in one step."""
    (folder / "new").symlink_to(version)
    os.replace(folder / "new", folder / "data")


@pytest.fixture
def service(mounted: Path) -> Iterator[Service]:
    mount(mounted, "first")
    flags = (f"--ssl_certfile={mounted / 'tls.crt'}", f"--ssl_keyfile={mounted / 'tls.key'}")
    with service_with(*flags, "--workers=2", grpc=True) as running:
        assert poll(lambda: running.log.count("startup complete") == 2, SECONDS)
        yield running


def connect(port: int, folder: Path, protocol: str = "") -> ssl.SSLSocket:
    """A connection that trusts both certificates."""
    pem = "".join((folder / version / "tls.crt").read_text() for version in ("first", "second"))
    context = ssl.create_default_context(cadata=pem)
    if protocol:
        context.set_alpn_protocols([protocol])
    return context.wrap_socket(socket.create_connection((HOST, port), timeout=SECONDS), server_hostname="localhost")


def shown(port: int, folder: Path, protocol: str = "") -> str:
    """The name in the certificate that a new connection sees."""
    with connect(port, folder, protocol) as client:
        subject = dict(part[0] for part in client.getpeercert()["subject"])  # type: ignore[index,misc]
        return str(subject["commonName"])


def test_renewed_and_broken_certificates(service: Service, mounted: Path) -> None:
    grpc_port = int(service.grpc_address.rpartition(":")[2])

    def all_show(name: str) -> bool:
        # Several connections, for all workers.
        seen = {shown(service.port, mounted) for _ in range(4)}
        return seen | {shown(grpc_port, mounted, "h2") for _ in range(4)} == {name}

    credentials = grpc.ssl_channel_credentials((mounted / "first" / "tls.crt").read_bytes())
    with (
        connect(service.port, mounted) as old,
        grpc.secure_channel(f"localhost:{grpc_port}", credentials) as channel,
    ):
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        assert check(health_pb2.HealthCheckRequest(), timeout=SECONDS, wait_for_ready=True).status
        assert all_show("first")

        mount(mounted, "broken")
        assert poll(lambda: "the certificate for HTTPS: the new files can't be used" in service.log, SECONDS)
        assert all_show("first")
        assert "the certificate for gRPC: the new files can't be used" in service.log

        mount(mounted, "second")
        assert poll(lambda: all_show("second"), SECONDS)

        # Connections from before go on: this channel does not even trust the new certificate.
        assert check(health_pb2.HealthCheckRequest(), timeout=SECONDS).status
        old.sendall(get("/"))
        assert answer_of(old)[0] == 200
    assert service.log.count("the certificate for HTTPS: the new files can't be used") <= 2  # one per process
    assert service.stop() == 0
