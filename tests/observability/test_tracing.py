"""Sampling of requests, spans at the collector, and a collector that is down."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.trace import SpanContext, TraceFlags

from hf_transformer.app import application
from hf_transformer.errors import ConfigError
from hf_transformer.observability import tracing
from hf_transformer.observability.tracing import Trace, Tracing, parse_traceparent
from hf_transformer.types.request import Context
from hf_transformer.types.tokenization import Encoding
from tests.api.plain_request import PlainRequest
from tests.core.scheduling import SETTINGS, SIGNATURE, SchedulerHarness, run
from tests.observability.measured import measured
from tests.support.collector import Collector, attributes, collecting
from tests.support.configuring import config

IDS = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{IDS[0]}-{IDS[1]}-01"
NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (TRACEPARENT, 1),
        (f"00-{IDS[0]}-{IDS[1]}-00", 0),
        (f"cc-{IDS[0]}-{IDS[1]}-03-more", 3),
        (f"00-{IDS[0]}-{IDS[1]}-01-more", None),
        (f"ff-{IDS[0]}-{IDS[1]}-01", None),
        (f"00-{'0' * 32}-{IDS[1]}-01", None),
        (f"00-{IDS[0]}-{'0' * 16}-01", None),
        (TRACEPARENT.upper(), None),
        (f" {TRACEPARENT}", None),
        ("", None),
    ],
)
def test_an_invalid_traceparent_is_ignored(text: str, flags: int | None) -> None:
    expected = SpanContext(int(IDS[0], 16), int(IDS[1], 16), True, TraceFlags(flags)) if flags is not None else None
    assert parse_traceparent(text) == expected


@pytest.mark.parametrize("client", [{}, {"traceparent": "nonsense", "tracestate": "a=b"}])
def test_without_a_valid_traceparent_the_ratio_decides(client: dict[str, str]) -> None:
    """Like OpenTelemetry's sampler, by the last 8 bytes of the id, so that other services decide alike."""
    sampled = 0
    tracer = Tracing(NOWHERE, 0.3)
    for _ in range(200):
        headers, trace = tracer.begin(client)
        assert headers.keys() == {"traceparent"}
        sent = parse_traceparent(headers["traceparent"])
        assert sent is not None and sent.trace_flags in (0, 1)
        assert (sent.trace_id % 2**64 < 0.3 * 2**64) == sent.trace_flags.sampled == (trace is not None)
        if trace is not None:
            sampled += 1
            assert (sent.trace_id, sent.span_id) == (trace.predict.trace_id, trace.predict.span_id)
            assert trace.parent is None
    assert 20 < sampled < 120


@asynccontextmanager
async def traced() -> AsyncIterator[tuple[Tracing, Trace, Collector]]:
    """A request in the client's trace. The collector has its spans after the context."""
    with collecting() as collector:
        async with Tracing(collector.url, 1.0) as tracer:
            _, trace = tracer.begin({"traceparent": TRACEPARENT})
            assert trace is not None
            yield tracer, trace, collector


def request(path: str = "/v1/models/bert:predict", method: str = "POST") -> PlainRequest:
    plain = PlainRequest(method=method, path=path, scheme="https")
    plain.route = "/v1/models/{model}:predict"
    return plain


async def spans_of(status: int, **timings: Any) -> tuple[Span, dict[str, Span], Any]:
    """The server's span, the stages by name, and a stage's start and end in ms since the trace's start."""
    async with traced() as (tracer, trace, collector):
        trace.started -= 0.010  # the request began 10 ms ago
        tracer.end_http(trace, request(), status, measured(arrived=trace.started + 0.001, **timings))
    stages = {span.name: span for span in collector.spans}
    server = stages.pop("POST /v1/models/{model}:predict")
    assert len(stages) == len(collector.spans) - 1
    assert {span.trace_id.hex() for span in collector.spans} == {IDS[0]}
    assert {span.parent_span_id for span in stages.values()} <= {server.span_id}
    assert server.parent_span_id.hex() == IDS[1] and server.kind == Span.SPAN_KIND_SERVER

    def times(name: str) -> Any:
        span = stages[name]
        moments = [(at - trace.began) / 1e6 for at in (span.start_time_unix_nano, span.end_time_unix_nano)]
        return pytest.approx(moments, abs=1e-3)

    return server, stages, times


async def test_spans_follow_the_timings() -> None:
    timings = {"parse": 0.001, "tokenize": 0.002, "queue": 0.002, "predict": 0.005, "postprocess": 0.001}
    server, stages, times = await spans_of(200, batch_traceparent=TRACEPARENT, **timings)
    assert list(stages) == ["tokenize", "queue", "predict", "decode"]
    assert times("tokenize") == [2.0, 4.0]
    assert times("queue") == [4.0, 6.0]
    assert times("predict") == [6.0, 9.0]
    assert times("decode") == [9.0, 10.0]
    assert [span.kind for span in stages.values()] == [1, 1, Span.SPAN_KIND_CLIENT, 1]
    assert not any(span.status.code for span in (server, *stages.values()))
    assert [link.span_id.hex() for span in stages.values() for link in span.links] == [IDS[1]]


@pytest.mark.parametrize(
    ("timings", "names", "broken"),
    [
        ({}, [], []),
        ({"tokenize": 0.001}, ["tokenize", "queue"], []),
        ({"tokenize": 0.001, "queue": 0.001}, ["tokenize", "queue", "predict"], ["predict"]),
    ],
    ids=["not read", "not sent", "not answered"],
)
async def test_a_failed_request_has_the_spans_of_the_stages_that_it_reached(
    timings: dict[str, float], names: list[str], broken: list[str]
) -> None:
    server, stages, _ = await spans_of(502, **timings)
    assert list(stages) == names
    assert [name for name, span in stages.items() if span.status.code] == broken
    assert all(span.end_time_unix_nano == server.end_time_unix_nano for span in list(stages.values())[-1:])


async def test_attributes_of_clients_are_bounded() -> None:
    async with traced() as (tracer, trace, collector):
        tracer.end_http(trace, request("/" + "x" * 300, "BREW"), 405, Context("r" * 300, {}))
    span = attributes(collector.spans[0].attributes)
    assert span["url.path"] == "/" + "x" * 255
    assert span["hf_transformer.request_id"] == "r" * 256
    assert span["http.request.method"] == "_OTHER"


async def test_grpc_codes_of_server_errors_make_the_span_an_error() -> None:
    codes = {0: None, 1: None, 3: None, 8: None, 4: "4", 13: "13"}
    async with traced() as (tracer, trace, collector):
        for code in codes:
            tracer.end_grpc(trace, "s", "m", code, None)
    for span, error in zip(collector.spans, codes.values(), strict=True):
        assert span.name == "s/m" and bool(span.status.code) == bool(error)
        assert attributes(span.attributes).get("error.type") == error


async def test_spans_over_the_limit_are_dropped_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with traced() as (tracer, trace, collector):
        monkeypatch.setattr(tracing, "MAX_WAITING_SPANS", 2)
        for _ in range(5):
            tracer.end_grpc(trace, "s", "m", 0, None)
    assert len(collector.spans) == 2
    message = "the collector takes spans too slowly: those of 1 requests are lost so far"
    assert [record.getMessage() for record in caplog.records] == [message]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), {"http.request.method": "POST", "url.full": "http://triton:8000/v2/models/bert/infer"}),
        (("--predictor_protocol=grpc-v2",), {"rpc.system": "grpc", "rpc.method": "ModelInfer"}),
    ],
)
async def test_calls_to_the_predictor_have_the_attributes_of_clients(
    flags: Sequence[str], expected: dict[str, object]
) -> None:
    with collecting() as collector:
        settings = config(*flags, f"--otlp_endpoint={collector.url}", "--model_name=bert")
        tracer = application.open_tracing(settings)
        assert tracer is not None
        tracer.calls["bert"] = application.call_attributes(settings, cast(Any, None))
        async with tracer:
            _, trace = tracer.begin({"traceparent": TRACEPARENT})
            assert trace is not None
            context = measured(served_name="bert", tokenize=0.001, queue=0.001, predict=0.002)
            tracer.end_http(trace, request(), 200, context)
    [call] = [attributes(span.attributes) for span in collector.spans if span.name == "predict"]
    assert call.items() >= {"server.address": "triton", "server.port": 8000, **expected}.items()


async def test_requests_of_a_batch_know_the_traceparent_that_it_was_sent_with() -> None:
    with ThreadPoolExecutor(1) as executor:
        harness = SchedulerHarness(executor, SETTINGS, SIGNATURE)
        contexts = [Context(str(number), {"traceparent": f"trace {number}"}) for number in range(4)]
        tasks = []
        for number, context in enumerate(contexts):
            request = run(harness.scheduler, [Encoding([number], [0])], context=context)
            tasks.append(asyncio.create_task(request))
            await harness.predictor.turn()
        assert harness.sent == [[0]]
        await harness.answer(0)
        assert harness.sent == [[0], [1, 2, 3]]
        assert harness.predictor.calls[1].given.headers["traceparent"] == "trace 1"
        assert [context.batch_traceparent for context in contexts] == ["", "", "trace 1", "trace 1"]
        await harness.answer(1)
        for task in tasks:
            await task


@pytest.mark.parametrize("missing", [True, False])
def test_a_start_that_fails_gives_the_reason_without_the_collectors_password(
    monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    if missing:
        monkeypatch.delitem(sys.modules, "hf_transformer.observability.tracing")
        monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    else:
        monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "http://me:word@c")
    with pytest.raises(ConfigError, match=r"^--otlp_endpoint=http://\*\*\*@c:4318/x: ") as caught:
        application.open_tracing(config("--otlp_endpoint=http://me:pass@word@c:4318/x"))
    assert "pass" not in str(caught.value) and "word@" not in str(caught.value)
    assert ("[otel]'" in str(caught.value)) == missing


@pytest.mark.slow
def test_opentelemetry_is_imported_only_for_a_collector() -> None:
    code = "import sys, hf_transformer.commands.serve, hf_transformer.api.grpc.server; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "hf_transformer.app" in loaded.stdout and "opentelemetry" not in loaded.stdout
