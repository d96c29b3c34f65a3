"""What a request at its endpoint leaves behind: it is counted once, and holds nothing any more, however it ends."""

from __future__ import annotations

import asyncio

import pytest

from hf_transformer.api.base import Call, Models, Service, error_json, reply
from hf_transformer.api.endpoint import Endpoint, server_timing
from hf_transformer.api.streaming import OpenStreams
from hf_transformer.core.limits import Admission, Place
from hf_transformer.errors import InvalidInput
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types import ClientGone, Context, Response
from tests.api.generating import counted
from tests.api.plain_request import PlainRequest
from tests.observability.measured import measured


class Work:
    """An endpoint whose handler waits for ``future``."""

    def __init__(self, *, server_timing: bool = True) -> None:
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.metrics = Metrics("model")
        self.admission = Admission(1, 100, self.metrics)
        self.service = Service(
            Models([]),
            self.admission,
            self.metrics,
            max_bytes=1000,
            max_texts=9,
            streams=OpenStreams(),
            server_timing=server_timing,
        )
        self.endpoint = Endpoint("v1", self.handle, error_json, self.service)
        self.contexts: list[Context] = []
        self.predict = 0.0

    async def handle(self, call: Call) -> Response:
        call.context.predict = self.predict
        self.contexts.append(call.context)
        return reply(await self.future + call.body)

    @property
    def held(self) -> tuple[int, int, int]:
        """Bytes, requests and tokens."""
        return self.admission.bytes, self.admission.requests, self.admission.tokens


@pytest.mark.parametrize("end", ["answered", "refused", "broken", "left"])
async def test_at_its_end_a_request_has_given_all_back(end: str) -> None:
    work = Work()
    task = asyncio.ensure_future(work.endpoint(PlainRequest(bytes(100))))
    await asyncio.sleep(0)
    assert work.held[:2] == (100, 1) and not task.done()
    if end == "left":
        task.cancel()
    elif end == "answered":
        work.future.set_result(b"answer")
    else:
        work.future.set_exception(InvalidInput("wrong") if end == "refused" else OSError("lost"))
    await asyncio.wait([task])
    status = {"answered": 200, "refused": 400, "broken": 500, "left": 499}[end]
    assert task.cancelled() if end == "left" else task.result().status == status
    assert work.held == (0, 0, 0) and counted(work.metrics) == {str(status): 1}


async def test_a_request_that_leaves_within_its_body_or_finds_no_place() -> None:
    work = Work()
    with pytest.raises(ClientGone):
        await work.endpoint(PlainRequest(b"some", leaves=True))
    assert work.held == (0, 0, 0) and counted(work.metrics) == {"499": 1} and not work.contexts
    with Place(work.admission) as place:
        place.enter()
        request = PlainRequest(b"body")
        answer = await work.endpoint(request)
    assert answer.status == 429 and (b"retry-after", b"1") in answer.headers
    assert request.reads == 0 and work.held == (0, 0, 0) and counted(work.metrics) == {"499": 1, "429": 1}


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS"])
async def test_other_methods_are_told_which_one_to_use(method: str) -> None:
    work = Work()
    request = PlainRequest(b"body", method=method)
    answer = await asyncio.wait_for(work.endpoint(request), 20)
    assert isinstance(answer, Response) and (answer.status, request.reads) == (405, 0)
    assert answer.body == f'{{"error":"{method} /path: Method Not Allowed, expected POST"}}'.encode()
    assert (b"allow", b"POST") in answer.headers and counted(work.metrics) == {"405": 1}


async def test_the_predictor_gets_some_headers_and_the_id() -> None:
    work = Work()
    work.future.set_result(b"")
    fields = [(b"host", b"x"), (b"x-b3-traceid", b"1"), (b"authorization", b"Bearer a"), (b"x-request-id", b"\x00")]
    fields.append((b"tracestate", b"\xe9"))  # what a header holds is not read as UTF-8
    for number in ("1", "2"):
        request = PlainRequest(fields=fields)
        request.id = number
        await work.endpoint(request)
    for context, number in zip(work.contexts, ("1", "2"), strict=True):
        assert context.request_id == number
        assert context.headers == {
            "x-b3-traceid": "1",
            "authorization": "Bearer a",
            "tracestate": "\xe9",
            "x-request-id": number,
        }
    first, second = work.contexts
    assert first.headers is not second.headers and first is not second


@pytest.mark.parametrize("predict", [0.0, 0.25], ids=["not asked", "asked"])
@pytest.mark.parametrize("timed", [True, False])
async def test_an_answer_tells_how_long_it_took(timed: bool, predict: float) -> None:
    work = Work(server_timing=timed)
    work.predict = predict
    work.future.set_result(b"")
    answer = await work.endpoint(PlainRequest())
    expected = [(b"server-timing", server_timing(work.contexts[0]))] if timed and predict else []
    assert answer.headers == [(b"content-type", b"application/json"), *expected]
    assert not expected or b"predict;dur=250.000" in expected[0][1]


@pytest.mark.parametrize("predict", [0.0001, 0.0009, 0.0100004, 59.9999])
async def test_stages_in_milliseconds(predict: float) -> None:
    context = measured(queue=0.0002, predict=predict, postprocess=0.0000126, parse=0.0001, tokenize=0.0000004)
    rest = max(predict - 0.0002, 0.0)
    expected = f"parse;dur=0.100, tokenize;dur=0.000, queue;dur=0.200, predict;dur={rest * 1e3:.3f}, decode;dur=0.013"
    assert server_timing(context) == expected.encode()
