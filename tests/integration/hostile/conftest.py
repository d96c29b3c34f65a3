from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hf_transformer.commands.child_process import poll
from tests.integration.conftest import Serve
from tests.integration.grpc_client import request, stub, values
from tests.support.polling import SECONDS
from tests.support.raw_http import ANSWER, BODY, PREDICT, TEXT
from tests.support.service import Service

MEGABYTE = 2**20
MAX_GROWTH_BYTES = 64 * MEGABYTE
"""Memory that a service may keep after a request that is too large: four times --max_request_bytes."""


def assert_served(service: Service) -> None:
    """A normal client gets its answer, and the log has no traceback."""
    response = service.client.post(PREDICT, content=BODY)
    assert (response.status_code, response.content) == (200, ANSWER)
    traceback = service.log.find("Traceback")
    assert traceback < 0, service.log[max(0, traceback - 500) : traceback + 5000]


def open_descriptors(service: Service) -> int:
    return len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))


@pytest.fixture
def service(serve: Serve) -> Iterator[Service]:
    """A service that, after the test, has released its memory and descriptors and still answers over HTTP and gRPC."""
    service = serve("bert")
    assert_served(service)
    memory, descriptors = service.resident_bytes, open_descriptors(service)
    yield service
    with stub(service) as calls:
        assert values(calls.ModelInfer(request("bert", {"text": [TEXT]}))) == ["paris"]
    assert_served(service)
    assert poll(lambda: service.resident_bytes - memory < MAX_GROWTH_BYTES, 10.0)
    assert poll(lambda: open_descriptors(service) <= descriptors + 5, SECONDS)
