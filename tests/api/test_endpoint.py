"""What a request on its short way leaves behind: it is counted once, and holds nothing any more."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
from collections.abc import Iterator

import pytest

from hf_transformer.api.base import Call, Models, Reply, Service, error_json
from hf_transformer.api.endpoint import Endpoint
from hf_transformer.core.limits import Admission
from hf_transformer.errors import InvalidInput
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types import Context
from tests.api.short_response import Answers


class Work:
    """A handler that waits for ``future``, and what it was answered with."""

    def __init__(self, *, server_timing: bool = True) -> None:
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.metrics = Metrics("model")
        self.admission = Admission(1, 100, self.metrics)
        self.service = Service(
            Models([]), self.admission, self.metrics, max_bytes=1000, max_texts=9, server_timing=server_timing
        )
        endpoint = Endpoint("v1", self.handle, error_json, self.service)
        self.way = endpoint.short_way("/path", {})
        self.response = Answers()
        self.contexts: list[Context] = []

    async def handle(self, call: Call) -> Reply:
        self.contexts.append(call.context)
        return Reply(await self.future + call.body)

    @property
    def lines(self) -> list[bytes]:
        """Those of all answers."""
        return [lines for _, lines, _ in self.response.all]

    @property
    def answers(self) -> list[tuple[int, bytes]]:
        """Status and body of all."""
        return [(status, body) for status, _, body in self.response.all]

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
    leave = work.way([(b"host", b"x")])(body, "http", work.response)
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


async def answered(work: Work, headers: list[tuple[bytes, bytes]], number: int) -> list[Context]:
    """So many requests with these headers, one after the other, and all of one head."""
    work.future.set_result(b"")
    begin = work.way(headers)
    for index in range(number):
        begin(b"%d" % index, "http", work.response)
        await asyncio.sleep(0)
    assert work.answers == [(200, b"%d" % index) for index in range(number)]
    return work.contexts


async def test_requests_with_the_same_headers_share_nothing_that_changes() -> None:
    work = Work()
    contexts = await answered(work, [(b"host", b"x"), (b"x-b3-traceid", b"1")], 3)
    ids = [context.request_id for context in contexts]
    assert len(set(ids)) == 3 and all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)
    for context, lines in zip(contexts, work.lines, strict=True):
        one = context.request_id
        assert context.headers == {"x-b3-traceid": "1", "x-request-id": one}
        assert lines == b"content-type: application/json\r\nx-request-id: %b\r\n" % one.encode()
    first, second, _ = contexts
    assert first.headers is not second.headers and first.timings is not second.timings


async def test_the_clients_id_is_that_of_each_of_its_requests() -> None:
    work = Work()
    contexts = await answered(work, [(b"x-request-id", b"mine"), (b"authorization", b"Bearer a")], 2)
    for context in contexts:
        assert context.request_id == "mine"
        assert context.headers == {"x-request-id": "mine", "authorization": "Bearer a"}
    assert work.lines == [b"content-type: application/json\r\nx-request-id: mine\r\n"] * 2


@pytest.mark.parametrize("timed", [True, False])
async def test_an_answer_tells_how_long_it_took(timed: bool) -> None:
    work = Work(server_timing=timed)
    work.future.set_result(b"")
    seconds = [0.0, 0.25]

    async def handle(call: Call) -> Reply:
        call.context.timings.predict = seconds.pop()
        return Reply(b"", headers=((b"x-more", b"1"),))

    begin = Endpoint("v1", handle, error_json, work.service).short_way("/path", {})([])
    for expected in (timed, False):  # where nothing was asked of the predictor there is nothing to tell
        begin(b"", "http", work.response)
        lines = work.lines[-1].split(b"\r\n")
        assert lines[2] == b"x-more: 1" and lines[-1] == b""
        assert len(lines) == (5 if expected else 4)
        if expected:
            assert lines[3].startswith(b"server-timing: parse;dur=") and b"predict;dur=250.000" in lines[3]
