from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hf_transformer.commands.local_triton import poll
from tests.integration.conftest import Serve
from tests.integration.grpc_client import request, stub, values
from tests.integration.hostile.wire import MOST_GROWTH, SECONDS, TEXT, others_are_served, resident
from tests.support.service import Service


def descriptors(service: Service) -> int:
    return len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))


@pytest.fixture
def service(serve: Serve) -> Iterator[Service]:
    """It keeps nothing of what a test sends, and answers normal clients of both protocols all the same."""
    service = serve("bert")
    others_are_served(service)
    held, opened = resident(service), descriptors(service)
    yield service
    with stub(service) as calls:
        assert values(calls.ModelInfer(request("bert", {"text": [TEXT]}))) == ["paris"]
    others_are_served(service)
    assert poll(lambda: resident(service) - held < MOST_GROWTH, 10.0)
    assert poll(lambda: descriptors(service) <= opened + 5, SECONDS)
