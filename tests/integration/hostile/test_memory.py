"""Requests that are small for what they make the service hold, each against a process of its own."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from hf_transformer.commands.local_triton import HOST, poll
from tests.integration.conftest import MODEL_FOLDER
from tests.integration.hostile.hostile_predictor import HostilePredictor
from tests.integration.hostile.memory import peak, resident
from tests.integration.hostile.test_grpc_shapes import START, frame
from tests.service import Service, flags_for

MEGABYTE = 2**20
MILLION = 1_000_000
PATH = "/v1/models/bert:predict"


@pytest.fixture
def service() -> Iterator[Service]:
    flags = ("--max_text_length=1000000", "--max_total_length=100000000", "--max_queued_tokens=100000000")
    with (
        HostilePredictor() as predictor,
        Service(*flags_for("bert", MODEL_FOLDER, predictor.address, "v2", flags)) as made,
    ):
        yield made.wait_until("/v1/models/bert")


@pytest.mark.parametrize("unit", ["the hotel was dirty ", "a ", "."])
def test_a_text_of_a_million_characters(service: Service, unit: str) -> None:
    """Only the beginning that the model takes is encoded. Whole, one took 80 to 430 MB."""
    body = json.dumps({"instances": ["[MASK] " + (unit * MILLION)[: MILLION - 7]]}).encode()
    before = peak(service)
    assert service.post(body).status_code == 200
    with ThreadPoolExecutor(10) as pool:
        assert {one.status_code for one in pool.map(service.post, [body] * 10)} == {200}
    assert peak(service) - before < 64 * MEGABYTE


def literal(name: bytes, value: bytes, *, kept: bool = False) -> bytes:
    """A header field, which is ``kept`` in the table of the connection (RFC 7541, 6.2)."""
    over = len(value) - 127
    length = bytes([len(value)] if over < 0 else [127, over % 128 + 128, over // 128])
    return (b"\x40" if kept else b"\0") + bytes([len(name)]) + name + length + value


CALL = b"".join(
    literal(name, value)
    for name, value in {
        b":method": b"POST", b":scheme": b"http", b":path": b"/inference.GRPCInferenceService/ServerLive",
        b":authority": b"x", b"te": b"trailers", b"content-type": b"application/grpc",
    }.items()
)  # fmt: skip
INDEXED = b"\xbe"
"""The field that was kept last, in one byte."""
FRAMES = 320


def test_header_fields_of_one_byte(service: Service) -> None:
    """5 MB of HEADERS frames, whose fields take 200 to 400 MB until gRPC has refused them. The memory comes back."""
    port = int(service.grpc_address.rpartition(":")[2])
    before = resident(service)
    with socket.create_connection((HOST, port), 20.0) as connection, suppress(OSError):
        connection.sendall(START + frame(1, 4, 1, CALL + literal(b"a", b"x" * 4000, kept=True)))
        for number in range(FRAMES):
            connection.sendall(frame(1, 4, 3 + 2 * number, CALL + INDEXED * (16_000 - len(CALL))))
    assert poll(lambda: resident(service) - before < 96 * MEGABYTE, 40.0), resident(service) - before
    assert service.client.get("/v2/health/live").status_code == 200
