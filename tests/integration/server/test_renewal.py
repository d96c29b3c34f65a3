"""Certificates and keys that are renewed under a running service, as a mounted Secret is: by a link. None is logged."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.loopback import HOST
from tests.integration.server.processes import new_certificate, service_with, started
from tests.support.configuring import error
from tests.support.polling import SECONDS
from tests.support.raw_http import get, next_response
from tests.support.service import Service

LOUD = ("--log_level=debug", "--access_log_format=%(r)s %({authorization}i)s %({api-key}i)s")


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which each file is a link through ``data``, itself a link to the first version."""
    folder = tmp_path_factory.mktemp("mounted")
    for name in ("first", "second"):
        new_certificate(folder / name, name)
        (folder / name / "keys").write_text(f"{name}-secret\n")
    broken = folder / "broken"
    broken.mkdir()
    (broken / "tls.crt").write_bytes((folder / "second" / "tls.crt").read_bytes())
    (broken / "tls.key").write_bytes((folder / "first" / "tls.key").read_bytes())
    (broken / "keys").write_text("no key\n")
    (folder / "data").symlink_to("first")
    for name in ("tls.crt", "tls.key", "keys"):
        (folder / name).symlink_to(f"data/{name}")
    return folder


def mount(folder: Path, version: str) -> None:
    """Swaps the link as the kubelet does: in one step."""
    (folder / "new").symlink_to(version)
    os.replace(folder / "new", folder / "data")


@pytest.fixture(scope="module")
def service(mounted: Path) -> Iterator[Service]:
    tls = (f"--ssl_certfile={mounted / 'tls.crt'}", f"--ssl_keyfile={mounted / 'tls.key'}")
    keys, environ = f"--api_keys_file={mounted / 'keys'}", {"HF_TOKEN": "hub-secret"}
    with service_with(*tls, keys, *LOUD, "--workers=2", grpc=True, environ=environ) as running:
        assert started(running, 2)
        yield running


def connect(port: int, folder: Path, protocol: str = "http/1.1") -> ssl.SSLSocket:
    """A connection that trusts both certificates."""
    pem = "".join((folder / version / "tls.crt").read_text() for version in ("first", "second"))
    context = ssl.create_default_context(cadata=pem)
    context.set_alpn_protocols([protocol])
    plain = socket.create_connection((HOST, port), timeout=SECONDS)
    return context.wrap_socket(plain, server_hostname="localhost")


def shown(port: int, folder: Path, protocol: str = "http/1.1") -> str:
    """The name in the certificate that a new connection sees."""
    with connect(port, folder, protocol) as client:
        subject = dict(part[0] for part in client.getpeercert()["subject"])  # type: ignore[index,misc]
        return str(subject["commonName"])


def test_renewed_certificates_and_keys_are_used_and_broken_ones_are_not(service: Service, mounted: Path) -> None:
    grpc_port = int(service.grpc_address.rpartition(":")[2])

    def all_show(name: str) -> bool:
        # Several connections, for all workers.
        seen = {shown(service.port, mounted) for _ in range(4)}
        return seen | {shown(grpc_port, mounted, "h2") for _ in range(4)} == {name}

    def statuses(key: str) -> set[int]:
        # Each worker looks at the file by itself; of eight requests both get some, but not always.
        headers = (f"Authorization: Bearer {key}", f"api-key: {key}", "Connection: close")
        seen = set()
        for _ in range(8):
            with connect(service.port, mounted) as client:
                seen.add(next_response(client, get("/v1/models", *headers)).status)
        return seen

    credentials = grpc.ssl_channel_credentials((mounted / "first" / "tls.crt").read_bytes())
    with (
        connect(service.port, mounted) as old,
        grpc.secure_channel(f"localhost:{grpc_port}", credentials) as channel,
    ):
        check = health_pb2_grpc.HealthStub(channel).Check
        question = health_pb2.HealthCheckRequest()
        assert check(question, timeout=SECONDS, wait_for_ready=True).status
        assert all_show("first") and statuses("first-secret") == {200} and statuses("second-secret") == {401}
        keyed = get("/v1/models", "api-key: first-secret")
        assert next_response(old, keyed).status == next_response(old, keyed).status == 200

        mount(mounted, "broken")
        unusable = ": the new files can't be used"
        assert poll(lambda: service.log.count(f"--api_keys_file{unusable}") == 2, SECONDS)  # one per process
        assert poll(lambda: f"the certificate for HTTPS{unusable}" in service.log, SECONDS)
        assert all_show("first") and statuses("first-secret") == {200}
        assert poll(lambda: f"the certificate for gRPC{unusable}" in service.log, SECONDS)

        mount(mounted, "second")
        assert poll(lambda: all_show("second"), SECONDS)
        assert poll(lambda: statuses("first-secret") == {401}, SECONDS)
        assert poll(lambda: statuses("second-secret") == {200}, SECONDS)

        # Connections from before go on: this channel does not even trust the new certificate.
        assert check(question, timeout=SECONDS).status
        assert next_response(old, get("/")).status == 200
        assert next_response(old, keyed).status == 401
    assert service.log.count(f"the certificate for HTTPS{unusable}") <= 2
    assert service.stop() == 0
    assert "GET /v1/models" in service.log
    assert "secret" not in service.log and "no key" not in service.log.replace("is no key", "")


@pytest.mark.parametrize(
    "flag", ["--otlp_endpoint=ftp://me:a-secret@collector", "--predictor_host=http://me:a-secret@h"]
)
def test_a_password_in_an_address_is_in_no_message(flag: str) -> None:
    message = error(flag)
    assert "://***@" in message and "a-secret" not in message
