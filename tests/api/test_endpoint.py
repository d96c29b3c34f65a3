"""An endpoint counts each request once and releases its admission, however the request ends; bodies."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from time import perf_counter
from typing import Any

import pytest

from hf_transformer.api.body import read_body, to_utf8
from hf_transformer.api.call import Call, apply_triton_parameters
from hf_transformer.api.endpoint import UNHELD_BYTES, Endpoint, server_timing
from hf_transformer.api.errors import error_json
from hf_transformer.api.grpc.infer import measured as measured_call
from hf_transformer.api.open_streams import OpenStreams
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Models, Service
from hf_transformer.api.v2 import statistics
from hf_transformer.core.limits import Admission, AdmissionTicket
from hf_transformer.errors import InvalidInput, RequestError, TooLarge, TooManyRequests, UnsupportedEncoding
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types.http import ClientGone, Response
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import ModelDescription
from tests.api.generating import counted
from tests.api.plain_request import PlainRequest
from tests.observability.measured import measured
from tests.support.budgets import limits


class Work:
    """An endpoint whose handler waits for ``future``."""

    def __init__(self, *, server_timing: bool = True) -> None:
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.metrics = Metrics()
        self.admission = Admission(1, 100, self.metrics)
        self.service = Service(
            Models([]),
            self.admission,
            self.metrics,
            max_bytes=1000,
            limits=limits(max_instances=9, max_sequences=9),
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
async def test_a_finished_request_holds_no_admission_and_is_counted_once(end: str) -> None:
    work = Work()
    task = asyncio.ensure_future(work.endpoint(PlainRequest(bytes(100))))
    await asyncio.sleep(0)
    assert work.held[:2] == (100, 1) and not task.done()
    if end == "left":
        task.cancel()
    elif end == "answered":
        work.future.set_result(b"answer")
    else:
        work.future.set_exception(InvalidInput("", "another value") if end == "refused" else OSError("lost"))
    await asyncio.wait([task])
    status = {"answered": 200, "refused": 400, "broken": 500, "left": 499}[end]
    assert task.cancelled() if end == "left" else task.result().status == status
    assert work.held == (0, 0, 0) and counted(work.metrics) == {str(status): 1}


async def test_a_large_answer_holds_its_bytes_until_the_client_has_read_it() -> None:
    work, size = Work(), UNHELD_BYTES + 1
    work.admission.max_bytes = 2 * size
    task = asyncio.ensure_future(work.endpoint(PlainRequest(b"body")))
    await asyncio.sleep(0)
    work.future.set_result(bytes(size - len(b"body")))
    answer = await task
    assert isinstance(answer, Response) and answer.sent is not None and work.held == (size, 0, 0)
    for _ in range(2):
        answer.sent()
        assert work.held == (0, 0, 0)


@pytest.mark.parametrize("served", ["bert", "gpt2", ""])
async def test_a_request_is_counted_for_its_model(served: str) -> None:
    work = Work()
    for name in ("bert", "gpt2"):
        work.metrics.of(name)

    async def handle(call: Call) -> Response:
        call.context.served_name = served
        raise InvalidInput("", "another value")

    answer = await Endpoint("v1", handle, error_json, work.service)(PlainRequest(b"{}"))
    context = Context("r1", {})
    context.served_name, context.arrived = served, perf_counter()
    with pytest.raises(InvalidInput), measured_call(work.service, context, "ModelInfer"):
        raise InvalidInput("", "another value")
    lines = work.metrics.render().decode().splitlines()
    assert answer.status == 400 and [line for line in lines if line.startswith("hf_transformer_requests_total")] == [
        f'hf_transformer_requests_total{{api="{api}",model_name="{served}",status="400"}} 1.0' for api in ("v1", "grpc")
    ]
    failed = {model["name"]: model["inference_stats"]["fail"]["count"] for model in statistics_of(work.metrics)}
    assert failed == {name: 2 * (name == served) for name in ("bert", "gpt2")}


def test_statistics_are_those_of_each_model() -> None:
    metrics = Metrics()
    for name, requests in (("bert", 2), ("gpt2", 0)):
        for _ in range(requests):
            metrics.of(name).observe(measured(preprocess=1.0, queue=2.0, predict=6.0, postprocess=3.0))
            metrics.of(name).observe_batch(3, 30, 0)
    bert, gpt2 = statistics_of(metrics)
    assert (bert["name"], bert["inference_count"], bert["execution_count"]) == ("bert", 6, 2)
    assert bert["inference_stats"]["success"] == {"count": 2, "ns": 20 * 10**9}
    assert bert["inference_stats"]["compute_infer"] == {"count": 2, "ns": 8 * 10**9}
    assert (gpt2["name"], gpt2["inference_count"], gpt2["last_inference"]) == ("gpt2", 0, 0)
    assert gpt2["inference_stats"]["success"] == {"count": 0, "ns": 0} and bert["last_inference"] > 0


def statistics_of(metrics: Metrics) -> list[Any]:
    models = [ModelDescription(name, "1", "fill_mask", (), (), 512) for name in ("bert", "gpt2")]
    entries: list[Any] = statistics(models, metrics.totals_of)["model_stats"]
    return entries


async def test_disconnected_and_refused_requests_hold_no_admission() -> None:
    work = Work()
    with pytest.raises(ClientGone):
        await work.endpoint(PlainRequest(b"some", leaves=True))
    assert work.held == (0, 0, 0) and counted(work.metrics) == {"499": 1} and not work.contexts
    with AdmissionTicket(work.admission) as ticket:
        ticket.enter()
        request = PlainRequest(b"body")
        answer = await work.endpoint(request)
    assert answer.status == 429 and (b"retry-after", b"1") in answer.headers
    assert request.reads == 0 and work.held == (0, 0, 0) and counted(work.metrics) == {"499": 1, "429": 1}


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS"])
async def test_other_methods_get_405_with_allow(method: str) -> None:
    work = Work()
    request = PlainRequest(b"body", method=method)
    answer = await asyncio.wait_for(work.endpoint(request), 20)
    assert isinstance(answer, Response) and (answer.status, request.reads) == (405, 0)
    assert answer.body == f'{{"error":"{method} /path: Method Not Allowed, expected POST"}}'.encode()
    assert (b"allow", b"POST") in answer.headers and counted(work.metrics) == {"405": 1}


async def test_the_predictor_gets_the_id_and_the_forwarded_headers() -> None:
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
async def test_server_timing_is_sent_if_enabled_and_the_model_ran(timed: bool, predict: float) -> None:
    work = Work(server_timing=timed)
    work.predict = predict
    work.future.set_result(b"")
    answer = await work.endpoint(PlainRequest())
    expected = [(b"server-timing", server_timing(work.contexts[0]))] if timed and predict else []
    assert answer.headers == [(b"content-type", b"application/json"), *expected]
    assert not expected or b"predict;dur=250.000" in expected[0][1]


@pytest.mark.parametrize("predict", [0.0001, 0.0009, 0.0100004, 59.9999])
async def test_server_timing_is_in_milliseconds(predict: float) -> None:
    context = measured(queue=0.0002, predict=predict, postprocess=0.0000126, parse=0.0001, tokenize=0.0000004)
    rest = max(predict - 0.0002, 0.0)
    expected = f"parse;dur=0.100, queue;dur=0.200, predict;dur={rest * 1e3:.3f}, decode;dur=0.013"
    assert server_timing(context) == expected.encode()
    more = expected.replace("queue", "tokenize;dur=0.000, queue")
    assert server_timing(context, tokenize=True) == more.encode()


# Bodies: compressions, charsets and limits


BODY = b'{"instances": ["a"]}'


def admission_of(max_bytes: int = 2**20) -> tuple[Admission, Metrics]:
    metrics = Metrics()
    return Admission(10, 1000, metrics, max_bytes), metrics


def refused(metrics: Metrics) -> bool:
    """Whether a request was refused for its bytes."""
    return b'hf_transformer_refused_requests_total{limit="bytes"} 1.0' in metrics.render()


async def read(*chunks: bytes, encoding: bytes = b"", length: bytes = b"") -> bytes:
    return await read_body(request(*chunks, encoding=encoding, length=length), 1000, AdmissionTicket(admission_of()[0]))


def request(*chunks: bytes, encoding: bytes = b"", length: bytes = b"") -> PlainRequest:
    lines = ((b"content-encoding", encoding), (b"content-length", length))
    return PlainRequest(*chunks, fields=[line for line in lines if line[1]])


@pytest.mark.parametrize(
    ("chunks", "encoding", "expected"),
    [
        ((BODY[:3], BODY[3:]), b"identity", BODY),
        ((b"x" * 400, b"x" * 600), b"", b"x" * 1000),  # a body of the limit is taken
        *[((gzip.compress(BODY),), name, BODY) for name in (b"gzip", b"GZIP", b"x-gzip")],
        ((gzip.compress(BODY[:7]) + gzip.compress(BODY[7:]),), b"gzip", BODY),
        # zlib's format, as Triton's clients send it.
        ((zlib.compress(BODY),), b"Deflate", BODY),
    ],
)
async def test_bodies_are_decompressed(chunks: tuple[bytes, ...], encoding: bytes, expected: bytes) -> None:
    assert await read(*chunks, encoding=encoding) == expected


async def test_reading_a_body_raises_client_gone_on_disconnect() -> None:
    with pytest.raises(ClientGone):
        await read_body(PlainRequest(b"abc", leaves=True), 1000, AdmissionTicket(admission_of()[0]))


BROKEN = {
    "plain": (BODY, b"gzip", "gzip"),
    "cut off": (gzip.compress(BODY)[:-9], b"gzip", "gzip"),
    "empty": (b"", b"gzip", "gzip"),
    "followed by rubbish": (gzip.compress(BODY) + b"rest", b"gzip", "gzip"),
    "deflate": (zlib.compress(BODY), b"gzip", "gzip"),
    "many members": (gzip.compress(b"") * 17, b"gzip", "members"),
    "plain, deflate": (BODY, b"deflate", "deflate( stream)?, as Content-Encoding says"),
    "raw, deflate": (
        zlib.compress(BODY)[2:-4],
        b"deflate",
        "deflate( stream)?, as Content-Encoding says",
    ),
    "gzip, deflate": (
        gzip.compress(BODY),
        b"deflate",
        "deflate( stream)?, as Content-Encoding says",
    ),
    "cut off, deflate": (
        zlib.compress(BODY)[:-3],
        b"deflate",
        "deflate( stream)?, as Content-Encoding says",
    ),
}


@pytest.mark.parametrize(("body", "encoding", "says"), BROKEN.values(), ids=BROKEN)
async def test_a_body_in_another_compression_is_invalid(body: bytes, encoding: bytes, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        await read(body, encoding=encoding)


LARGE = {
    "body": ((b"x" * 1001,), b"", b""),
    "chunks": ((b"x" * 600, b"x" * 600), b"", b""),
    "content-length": ((b"x",), b"", b"1001"),
    "decompressed": ((gzip.compress(b"x" * 1001),), b"gzip", b""),
    "members": ((gzip.compress(b"x" * 600) * 2,), b"gzip", b""),
    "bomb": ((gzip.compress(b"x" * 10_000_000)[:900],), b"gzip", b""),
    "deflate": ((zlib.compress(b"x" * 1001),), b"deflate", b""),
}


@pytest.mark.parametrize(("chunks", "encoding", "length"), LARGE.values(), ids=LARGE)
async def test_a_body_over_the_limit_is_too_large(chunks: tuple[bytes, ...], encoding: bytes, length: bytes) -> None:
    with pytest.raises(TooLarge, match="1000 bytes"):
        await read(*chunks, encoding=encoding, length=length)


@pytest.mark.parametrize(
    ("encoding", "length", "error", "status"),
    [
        pytest.param(b"", b"1001", TooLarge, 413, id="too large"),
        pytest.param(b"gzip", b"1001", TooLarge, 413, id="too large, compressed"),
        pytest.param(b"", b"101", TooManyRequests, 429, id="no room"),
        pytest.param(b"br", b"9", UnsupportedEncoding, 415, id="another compression"),
        pytest.param(b"br", b"", UnsupportedEncoding, 415, id="another compression, chunked"),
    ],
)
async def test_headers_are_checked_before_the_body_is_read(
    encoding: bytes, length: bytes, error: type[RequestError], status: int
) -> None:
    admission, metrics = admission_of(200)
    AdmissionTicket(admission).hold(100)
    sent = request(b"x" * 99, encoding=encoding, length=length)
    with pytest.raises(error) as caught:
        await read_body(sent, 1000, AdmissionTicket(admission))
    assert (caught.value.status, sent.reads, admission.bytes) == (status, 0, 100)
    assert refused(metrics) == (status == 429)


@pytest.mark.parametrize(
    ("content_type", "charset"),
    [
        (b"application/json; charset=UTF-8", "utf-8"),
        (b"application/json", "utf-8-sig"),
        (b"text/plain; charset=latin-1", "latin-1"),
        (b'application/json; charset="utf-16"; x=y', "utf-16"),
    ],
)
def test_bodies_are_converted_to_utf_8(content_type: bytes, charset: str) -> None:
    assert to_utf8('"é"'.encode(charset), {b"content-type": content_type}) == '"é"'.encode()


@pytest.mark.parametrize(
    ("charset", "error", "says"),
    [
        *[
            (name, UnsupportedEncoding, "expected the charset UTF-8")
            for name in "klingon punycode base64 utf-7 \0".split()
        ],
        ("x" * 9000, UnsupportedEncoding, "expected the charset"),
        *[(name, InvalidInput, "charset") for name in ("ascii", "utf-16")],
    ],
)
def test_unsupported_and_wrong_charsets_are_refused(charset: str, error: type[RequestError], says: str) -> None:
    with pytest.raises(error, match=says):
        to_utf8(b"\xff\xfe\xff", {b"content-type": b"text/plain; charset=" + charset.encode()})


async def test_all_bodies_together_have_a_limit() -> None:
    admission, metrics = admission_of(100)
    first, second = AdmissionTicket(admission), AdmissionTicket(admission)
    await read_body(PlainRequest(b"x" * 40, b"x" * 20), 100, first)
    with pytest.raises(TooManyRequests, match=r"90 bytes, \d+ more would exceed --max_bytes_in_flight=100") as caught:
        await read_body(PlainRequest(b"x" * 30, b"x" * 11), 100, second)
    assert (caught.value.status, caught.value.retry_after, refused(metrics)) == (429, 1, True)
    assert admission.bytes == 90  # its received bytes count until it is released
    second.leave()
    assert await read_body(PlainRequest(b"x" * 40), 100, second) == b"x" * 40
    for ticket in (first, second, second):
        ticket.leave()
    assert admission.bytes == 0


async def test_a_compressed_body_counts_with_its_decompressed_size() -> None:
    admission, _ = admission_of(1000)
    sent = gzip.compress(b"x" * 900)
    with AdmissionTicket(admission) as first:
        await read_body(request(sent, encoding=b"gzip"), 1000, first)
        assert admission.bytes == 900
        with AdmissionTicket(admission) as second, pytest.raises(TooManyRequests):
            await read_body(request(sent, encoding=b"gzip"), 1000, second)
    assert admission.bytes == 0


@pytest.mark.parametrize(("earlier", "seconds"), [(None, 10), (5, 5), (20, 10)])
async def test_the_earlier_of_two_deadlines_applies(earlier: float | None, seconds: float) -> None:
    now = asyncio.get_running_loop().time()
    context = Context("id", {}, deadline=None if earlier is None else now + earlier)
    assert apply_triton_parameters({"timeout": 10_000_000, "top_k": 2}, context) == {"top_k": 2}
    assert context.deadline == pytest.approx(now + seconds, abs=1)
