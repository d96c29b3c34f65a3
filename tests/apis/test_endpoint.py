"""What a request on its short way leaves behind: it is counted once, and holds nothing any more."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator

import pytest

from hf_transformer.admission import Admission
from hf_transformer.apis.base import Call, Models, Reply, Service, error_json
from hf_transformer.apis.endpoint import Endpoint
from hf_transformer.errors import InvalidInput
from hf_transformer.metrics import Metrics
from hf_transformer.short_way import Headers


class Work:
    """A handler that waits for ``future``, and what it was answered with."""

    def __init__(self) -> None:
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.metrics = Metrics("model")
        self.admission = Admission(1, 100, self.metrics)
        self.service = Service(Models([]), self.admission, self.metrics, max_bytes=1000, max_texts=9)
        endpoint = Endpoint("v1", self.handle, error_json, self.service)
        self.way = endpoint.short_way("/path", {})
        self.answers: list[tuple[int, bytes]] = []

    async def handle(self, call: Call) -> Reply:
        return Reply(await self.future + call.body)

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        self.answers.append((status, body))

    @property
    def held(self) -> tuple[int, int, int]:
        """Bytes, requests and tokens."""
        return self.service.bodies.held, self.admission.requests, self.admission.tokens

    def counted(self, status: int) -> bool:
        """Whether one request was, under this status."""
        return f'requests_total{{api="v1",status="{status}"}} 1.0' in self.metrics.render().decode()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Without the collector, which would hide that objects refer to each other."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ["answered", "refused", "broken", "left"])
async def test_at_its_end_a_request_has_given_all_back(uncollected: None, end: str) -> None:
    work = Work()
    body = bytes(range(100))
    before = sys.getrefcount(body)
    leave = work.way([(b"host", b"x")], body, "http", work.respond)
    assert work.held[:2] == (100, 1) and sys.getrefcount(body) > before and not work.answers
    if end == "left":
        leave()
        leave()  # as a connection does that is lost
    elif end == "answered":
        work.future.set_result(b"answer")
    else:
        work.future.set_exception(InvalidInput("wrong") if end == "refused" else OSError("lost"))
    for _ in range(5):
        await asyncio.sleep(0)
    leave()
    work.future = asyncio.get_running_loop().create_future()  # the last one's error refers to what it was raised in
    assert work.held == (0, 0, 0)
    status = {"answered": 200, "refused": 400, "broken": 500, "left": 499}[end]
    assert [status for status, _ in work.answers] == ([] if end == "left" else [status]) and work.counted(status)
    if end != "broken":  # pytest keeps what was logged, and that refers to the error
        assert sys.getrefcount(body) == before
