"""Requests that are small for what they make the service hold, each against a process of its own."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from hf_transformer.commands.local_triton import HOST, poll
from tests.integration.api.bare_grpc import END_HEADERS, HEADERS, START, call_fields, field, frame
from tests.integration.hostile.hostile_predictor import HostilePredictor, behind
from tests.integration.hostile.wire import MEGABYTE, peak, resident

MILLION = 1_000_000


@pytest.mark.parametrize("unit", ["the hotel was dirty ", "a ", "."])
def test_a_text_of_a_million_characters(unit: str) -> None:
    """Only the beginning that the model takes is encoded. Whole, one took 80 to 430 MB."""
    body = json.dumps({"instances": ["[MASK] " + (unit * MILLION)[: MILLION - 7]]}).encode()
    flags = ("--max_text_length=1000000", "--max_total_length=100000000", "--max_queued_tokens=100000000")
    with HostilePredictor() as predictor, behind(predictor, *flags) as service, ThreadPoolExecutor(10) as pool:
        before = peak(service)
        assert service.post(body).status_code == 200
        assert {one.status_code for one in pool.map(service.post, [body] * 10)} == {200}
        assert peak(service) - before < 128 * MEGABYTE


INDEXED = b"\xbe"
"""The field that was kept last, in one byte."""
FRAMES = 320


def test_header_fields_of_one_byte() -> None:
    """5 MB of HEADERS frames, whose fields take 200 to 400 MB until gRPC has refused them. The memory comes back."""
    call = call_fields("ServerLive")
    large, small = call + field(b"a", b"x" * 4000, kept=True), call + INDEXED * (16_000 - len(call))
    with HostilePredictor() as predictor, behind(predictor) as service:
        port, before = int(service.grpc_address.rpartition(":")[2]), resident(service)
        with socket.create_connection((HOST, port), 20.0) as connection, suppress(OSError):
            connection.sendall(START + frame(HEADERS, END_HEADERS, 1, large))
            for number in range(FRAMES):
                connection.sendall(frame(HEADERS, END_HEADERS, 3 + 2 * number, small))
        assert poll(lambda: resident(service) - before < 96 * MEGABYTE, 40.0), resident(service) - before
        assert service.client.get("/v2/health/live").status_code == 200
