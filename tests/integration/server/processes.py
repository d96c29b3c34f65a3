"""The service as a process, with no predictor behind it, and what a bare socket gets from it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hf_transformer.commands.local_triton import HOST, poll, session_members
from tests.service import Service, flags_for

MODEL_FOLDER = Path(__file__).parents[3] / "deploy" / "model_repository" / "bert"
NOBODY = f"{HOST}:1"
"""Where no predictor listens."""
SECONDS = 30.0
"""How long anything may take before a test gives up."""
PID = re.compile(r"Started server process \[(\d+)\]")


def service_with(*flags: str, grpc: bool = False) -> Service:
    return Service(*flags_for("bert", MODEL_FOLDER, NOBODY, "v2", (f"--enable_grpc={grpc}", *flags)))


@contextmanager
def connected(service: Service) -> Iterator[socket.socket]:
    with socket.create_connection((HOST, service.port), timeout=SECONDS) as client:
        yield client


def all_of(client: socket.socket) -> bytes:
    """What comes until the connection is closed."""
    answer = b""
    while piece := client.recv(65536):
        answer += piece
    return answer


def answer_of(client: socket.socket) -> tuple[int, bytes]:
    """Status and all bytes of one answer, on a connection that stays open."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        piece = client.recv(65536)
        assert piece, f"closed after {answer!r}"
        answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head)
    assert found is not None
    while len(body) < int(found[1]):
        body += client.recv(65536)
    return int(head.split()[1]), head + b"\r\n\r\n" + body


def status_of(answer: bytes) -> int:
    return int(answer.split()[1])


def get(path: str, *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode()


def unfinished(path: str = "/v1/models/bert:predict", *headers: str) -> bytes:
    """A request whose body does not come."""
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n{lines}\r\n".encode()


def signal_to(service: Service, number: signal.Signals) -> None:
    if service.process.exit_code is None:
        os.kill(service.process.pid, number)


def exit_code_of(service: Service) -> int:
    """Waits for the end."""
    assert service.process.wait(SECONDS), service.log
    code = service.process.exit_code
    assert code is not None
    # A worker would be left in the session that the service began.
    assert poll(lambda: not session_members(service.process.pid), SECONDS)
    return code


def new_certificate(folder: Path, name: str) -> None:
    """``folder``/tls.crt and tls.key for localhost, whose common name is ``name``."""
    folder.mkdir()
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    more = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    subprocess.run([*command.split(), *more, *files], check=True, capture_output=True)
