"""gRPC calls that no client of good will makes. tests/protocol has all that the codec refuses, here is the server."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import pytest

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.loopback import HOST
from hf_transformer.protocol.grpc import SERVICE
from tests.integration.api.bare_grpc import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    START,
    call_fields,
    field,
    frame,
)
from tests.integration.grpc_client import channel_to, fails, request
from tests.integration.hostile.conftest import MAX_GROWTH_BYTES, MEGABYTE
from tests.integration.hostile.hostile_predictor import HostilePredictor, behind
from tests.support.polling import SECONDS
from tests.support.raw_http import TEXT
from tests.support.service import Service

INVALID, EXHAUSTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED
RESOURCE_EXHAUSTED = b"grpc-status\x018"
"""As a header's name and value, the length of the value between them."""


def raw(service: Service, body: bytes, method: str = "ModelInfer", **options: Any) -> bytes:
    """A call with any bytes as its message."""
    with channel_to(service) as channel:
        call = channel.unary_unary(f"/{SERVICE}/{method}", bytes, bytes)
        answer: bytes = call(body, timeout=SECONDS, **options)
        return answer


def connected(service: Service) -> socket.socket:
    return socket.create_connection((HOST, int(service.grpc_address.rpartition(":")[2])), SECONDS)


def test_a_message_that_is_too_large_is_not_kept(service: Service) -> None:
    """One that only says that it has 4 GB is refused by its length: by the five bytes before it and a little of it."""
    before = service.resident_bytes
    with fails(EXHAUSTED):
        raw(service, b"\0" * (64 * MEGABYTE))
    with connected(service) as connection:
        connection.sendall(START + frame(HEADERS, END_HEADERS, 1, call_fields("ModelInfer")))
        connection.sendall(frame(DATA, 0, 1, b"\0\xff\xff\xff\xff" + b"x" * 1000))
        received = b""
        while RESOURCE_EXHAUSTED not in received:
            data = connection.recv(2**16)
            assert data, received
            received += data
    assert service.resident_bytes - before < MAX_GROWTH_BYTES


def test_metadata_of_a_megabyte_is_refused(service: Service) -> None:
    message = request("bert", {"text": [TEXT]}).SerializeToString()
    for metadata in ([("x-test", "v" * 2**20)], [(f"x-test-{number}", "v" * 100) for number in range(10_000)]):
        with fails(EXHAUSTED):
            raw(service, message, metadata=metadata)


def rapid_reset() -> bytes:
    """Ten thousand calls that are cancelled at once (CVE-2023-44487)."""
    fields, cancel = bytes.fromhex("838604") + b"\x01/", b"\0\0\0\x08"  # POST, http, a path; by RFC 7541, A
    return b"".join(
        frame(HEADERS, END_HEADERS, number, fields) + frame(RST_STREAM, 0, number, cancel)
        for number in range(1, 20_001, 2)
    )


SHOTS: dict[str, Callable[[], bytes]] = {
    "HTTP/1.1": lambda: b"POST / HTTP/1.1\r\nhost: x\r\n\r\n",
    "garbage behind the preface": lambda: PREFACE + b"\xff" * 4096,
    "a frame of 16 MB": lambda: START + b"\xff\xff\xff\0\0\0\0\0\1" + b"\0" * 4096,
    "headers without end": lambda: START + frame(HEADERS, 0, 1, b"\x82") + frame(CONTINUATION, 0, 1, b"\0") * 9999,
    "a thousand settings": lambda: START + frame(SETTINGS, 0, 0, b"") * 1000,
    "ten thousand pings": lambda: START + frame(PING, 0, 0, b"\0" * 8) * 10_000,
    "rapid reset": lambda: START + rapid_reset(),
}


@pytest.mark.parametrize("shot", SHOTS.values(), ids=list(SHOTS))
def test_broken_frames_do_not_end_the_service(service: Service, shot: Callable[[], bytes]) -> None:
    """Whatever becomes of the connection, the service stays."""
    for _ in range(3):
        with connected(service) as connection, suppress(OSError):
            connection.sendall(shot())
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(2**16):
                pass


INDEXED = b"\xbe"
"""The field that was kept last, in one byte."""
FRAMES = 320


def test_memory_of_indexed_header_fields_comes_back() -> None:
    """5 MB of HEADERS frames, whose fields take 200 to 400 MB until gRPC has refused them. The memory comes back."""
    call = call_fields("ServerLive")
    large, small = call + field(b"a", b"x" * 4000, kept=True), call + INDEXED * (16_000 - len(call))
    with HostilePredictor() as predictor, behind(predictor) as service:
        before = service.resident_bytes
        with connected(service) as connection, suppress(OSError):
            connection.sendall(START + frame(HEADERS, END_HEADERS, 1, large))
            for number in range(FRAMES):
                connection.sendall(frame(HEADERS, END_HEADERS, 3 + 2 * number, small))
        assert poll(lambda: service.resident_bytes - before < 96 * MEGABYTE, 40.0), service.resident_bytes - before
        assert service.client.get("/v2/health/live").status_code == 200
