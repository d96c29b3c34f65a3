"""A client that sends any bytes over a socket and reads answers as they come; what a service holds meanwhile."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_transformer.commands.local_triton import HOST
from tests.support.service import Service
from tests.wire.corpus import request

TEXT = "The capital of france is [MASK]."
BODY = json.dumps({"instances": [TEXT]}).encode()
ANSWER = b'{"predictions":["paris"]}'
PREDICT = "/v1/models/bert:predict"
SECONDS = 30.0
"""How long a test waits for anything before it fails."""
MEGABYTE = 2**20
MOST_GROWTH = 64 * MEGABYTE
"""Bytes that a service may hold more after a request that is too large: four times --max_request_bytes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Headers in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """The message of our own error body."""
        content = json.loads(self.body)
        assert list(content) == ["error"], content
        message: str = content["error"]
        return message


@contextmanager
def connected(service: Service) -> Iterator[socket.socket]:
    """A connection without delays."""
    with socket.create_connection((HOST, service.port), SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def head(*lines: str, start: str = f"POST {PREDICT} HTTP/1.1") -> bytes:
    """A request's head: the first line, Host, and more lines as they are."""
    return request(start, *lines)


def post(body: bytes = BODY, *lines: str, version: str = "1.1") -> bytes:
    """A whole request as it should be."""
    return head(f"content-length: {len(body)}", *lines, start=f"POST {PREDICT} HTTP/{version}") + body


def get(path: str, *lines: str) -> bytes:
    """A request without a body."""
    return request(f"GET {path} HTTP/1.1", *lines)


def unfinished(*lines: str, length: int = 10) -> bytes:
    """A request whose body does not come."""
    return head(f"content-length: {length}", *lines)


def exchange(service: Service, *parts: bytes) -> list[Answer]:
    """Sends the parts over one connection; all that is answered until it is closed."""
    with connected(service) as connection:
        send(connection, *parts)
        return all_answers(connection)


def ask(connection: socket.socket, *parts: bytes) -> Answer:
    """Sends the parts; the next answer, on a connection that may stay open."""
    for part in parts:
        connection.sendall(part)
    return next_answer(connection)


def send(connection: socket.socket, *parts: bytes) -> bool:
    """False when the service has closed the connection before all was sent."""
    try:
        for part in parts:
            connection.sendall(part)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def all_answers(connection: socket.socket) -> list[Answer]:
    """The answers until the connection is closed; it has to be."""
    received = b""
    try:
        while data := connection.recv(2**16):
            received += data
    except ConnectionResetError:
        pass
    return answers_in(received)


def answers_in(received: bytes) -> list[Answer]:
    """The answers that some bytes are; nothing may be left over."""
    answers = []
    while received:
        answer, received = _split(received)
        answers.append(answer)
    return answers


def next_answer(connection: socket.socket) -> Answer:
    """One answer; the connection may stay open."""
    received = b""
    while True:
        data = connection.recv(2**16)
        assert data, f"closed after {received!r}"
        received += data
        if b"\r\n\r\n" in received:
            try:
                return _split(received)[0]
            except IndexError:
                continue


def _split(received: bytes) -> tuple[Answer, bytes]:
    """The first answer and what follows it. Raises IndexError while it is not whole."""
    start, _, rest = received.partition(b"\r\n\r\n")
    first, *lines = start.decode("latin-1").split("\r\n")
    named = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in named}
    length = int(headers["content-length"])
    if len(rest) < length:
        raise IndexError(length)
    return Answer(int(first.split()[1]), headers, rest[:length]), rest[length:]


def others_are_served(service: Service) -> None:
    """A normal client gets its answer, and nothing went wrong inside."""
    response = service.client.post(PREDICT, content=BODY)
    assert (response.status_code, response.content) == (200, ANSWER)
    fault = service.log.find("Traceback")
    assert fault < 0, service.log[max(0, fault - 500) : fault + 5000]


def model_body(**more: Any) -> bytes:
    """A body with further keys."""
    return json.dumps({"instances": [TEXT], **more}).encode()


def resident(service: Service) -> int:
    """Bytes of memory that the service holds, without what it shares with the predictor."""
    return _memory(service, "RssAnon:")


def peak(service: Service) -> int:
    """The most bytes that it has held, code and shared memory included."""
    return _memory(service, "VmHWM:")


def _memory(service: Service, name: str) -> int:
    status = (Path("/proc") / str(service.process.pid) / "status").read_text()
    return int(status.partition(name)[2].split()[0]) * 1024
