"""Which requests are traced, and what spans they get."""

from __future__ import annotations

import asyncio
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hf_transformer.errors import ConfigError
from hf_transformer.observability.tracing.export import SILENCE, Exporter, Seldom
from hf_transformer.observability.tracing.spans import (
    Finished,
    Parent,
    Span,
    Trace,
    Tracing,
    parse_traceparent,
    spans_of,
)
from hf_transformer.types import Context, Encoding, Timings
from tests.api.plain_request import PlainRequest
from tests.core.test_scheduler import SETTINGS, SIGNATURE, Bench

IDS = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{IDS[0]}-{IDS[1]}-01"


@pytest.mark.parametrize(
    ("text", "parent"),
    [
        (TRACEPARENT, Parent(*IDS, "01")),
        (f"00-{IDS[0]}-{IDS[1]}-00", Parent(*IDS, "00")),
        (f"cc-{IDS[0]}-{IDS[1]}-03-more", Parent(*IDS, "03")),
        (f"00-{IDS[0]}-{IDS[1]}-01-more", None),
        (f"ff-{IDS[0]}-{IDS[1]}-01", None),
        (f"00-{'0' * 32}-{IDS[1]}-01", None),
        (f"00-{IDS[0]}-{'0' * 16}-01", None),
        (TRACEPARENT.upper(), None),
        (f" {TRACEPARENT}", None),
        ("", None),
        ("00-xyz", None),
    ],
)
def test_a_traceparent(text: str, parent: Parent | None) -> None:
    assert parse_traceparent(text) == parent


def test_flags() -> None:
    assert [Parent(*IDS, flags).sampled for flags in ("00", "01", "02", "03", "ff")] == [False, True, False, True, True]


def tracing(ratio: float = 1.0) -> tuple[Tracing, list[Finished]]:
    taken: list[Finished] = []
    return Tracing("bert", ratio, taken.append), taken


def test_the_clients_trace_goes_on() -> None:
    headers, trace = tracing(0.0)[0].begin({"traceparent": TRACEPARENT, "tracestate": "a=b", "x-request-id": "r"})
    assert trace is not None
    assert (trace.trace_id, trace.parent_id) == IDS
    assert headers == {
        "traceparent": f"00-{IDS[0]}-{trace.predict_id}-01",
        "tracestate": "a=b",
        "x-request-id": "r",
    }
    assert len({trace.span_id, trace.predict_id, trace.parent_id}) == 3


def test_the_clients_no_is_heard() -> None:
    sent = {"traceparent": f"00-{IDS[0]}-{IDS[1]}-00"}
    assert tracing(1.0)[0].begin(sent) == (sent, None)


@pytest.mark.parametrize("given", [{}, {"traceparent": "nonsense", "tracestate": "a=b"}])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_trace_of_our_own(given: dict[str, str], ratio: float) -> None:
    headers, trace = tracing(ratio)[0].begin(given)
    parent = parse_traceparent(headers.pop("traceparent"))
    assert headers == {}
    assert parent is not None and parent.sampled == bool(ratio) == (trace is not None)
    if trace is not None:
        assert (trace.trace_id, trace.predict_id, trace.parent_id) == (parent.trace_id, parent.span_id, "")


def test_the_ratio_is_met_by_the_last_half_of_the_trace_id() -> None:
    sampler = tracing(0.3)[0]
    for _ in range(200):
        headers, trace = sampler.begin({})
        parent = parse_traceparent(headers["traceparent"])
        assert parent is not None
        assert (int(parent.trace_id[16:], 16) < 0.3 * 2**64) == parent.sampled == (trace is not None)


TRACE = Trace(IDS[0], "1" * 16, "2" * 16, IDS[1], 10**18, 100.0)


def ms(span: Span) -> tuple[str, float, float]:
    return span.name, (span.start - 10**18) / 1e6, (span.end - 10**18) / 1e6


def finished(timings: Timings | None, error: str = "") -> Finished:
    return Finished(TRACE, "POST /x", 100.010, error, {"http.route": "/x"}, timings, TRACEPARENT)


def test_spans_follow_the_timings() -> None:
    timings = Timings(0.003, 0.002, 0.005, 0.001, parse=0.001, tokenize=0.002, arrived=100.001)
    server, *stages = spans_of(finished(timings))
    expected: list[Any] = [
        ("POST /x", 0.0, pytest.approx(10.0, abs=1e-3)),
        ("tokenize", pytest.approx(2.0, abs=1e-3), pytest.approx(4.0, abs=1e-3)),
        ("queue", pytest.approx(4.0, abs=1e-3), pytest.approx(6.0, abs=1e-3)),
        ("predict", pytest.approx(6.0, abs=1e-3), pytest.approx(9.0, abs=1e-3)),
        ("decode", pytest.approx(9.0, abs=1e-3), pytest.approx(10.0, abs=1e-3)),
    ]
    assert [ms(span) for span in (server, *stages)] == expected
    assert (server.span_id, server.parent_id, server.server) == ("1" * 16, IDS[1], True)
    assert {(span.parent_id, span.server, span.error) for span in stages} == {("1" * 16, False, "")}
    assert [span.span_id for span in stages] == ["", "", "2" * 16, ""]
    assert [span.link for span in stages] == ["", "", TRACEPARENT, ""]


@pytest.mark.parametrize(
    ("timings", "names", "broken"),
    [
        (None, [], None),
        (Timings(arrived=100.0), [], None),
        (Timings(tokenize=0.001, arrived=100.0), ["tokenize", "queue"], None),
        (Timings(tokenize=0.001, queue=0.001, arrived=100.0), ["tokenize", "queue", "predict"], "predict"),
    ],
)
def test_a_request_that_fails_has_the_spans_that_it_came_to(
    timings: Timings | None, names: list[str], broken: str | None
) -> None:
    server, *stages = spans_of(finished(timings, "502"))
    assert [span.name for span in stages] == names
    assert (server.error, server.attributes["error.type"]) == ("502", "502")
    assert [span.name for span in stages if span.error] == ([broken] if broken else [])
    assert all(ms(span)[2] == pytest.approx(10.0, abs=1e-3) for span in stages[-1:])


@pytest.mark.parametrize(("status", "error"), [(200, ""), (400, ""), (499, ""), (500, "500"), (504, "504")])
def test_a_request_over_http(status: int, error: str) -> None:
    tracer, taken = tracing()
    _, trace = tracer.begin({})
    assert trace is not None
    context = Context("r1", {}, instances=2, tokens=9, sent_with=TRACEPARENT)
    request = PlainRequest(path="/v1/models/bert:predict", scheme="https")
    request.route = "/v1/models/{model}:predict"
    tracer.end_http(trace, request, status, context)
    assert [(one.name, one.error, one.sent_with, one.timings) for one in taken] == [
        ("POST /v1/models/{model}:predict", error, TRACEPARENT, context)
    ]
    assert taken[0].attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/models/{model}:predict",
        "http.response.status_code": status,
        "url.path": "/v1/models/bert:predict",
        "url.scheme": "https",
        "hf_transformer.model": "bert",
        "hf_transformer.request_id": "r1",
        "hf_transformer.instances": 2,
        "hf_transformer.tokens": 9,
    }


def test_a_method_that_nobody_knows() -> None:
    tracer, taken = tracing()
    _, trace = tracer.begin({})
    assert trace is not None
    tracer.end_http(trace, PlainRequest(method="BREW", path="/pot"), 405, Context("r1", {}))
    assert taken[0].attributes["http.request.method"] == "_OTHER"


@pytest.mark.parametrize(("code", "error"), [(0, ""), (1, ""), (3, ""), (8, ""), (4, "4"), (13, "13"), (14, "14")])
def test_a_call_over_grpc(code: int, error: str) -> None:
    tracer, taken = tracing()
    _, trace = tracer.begin({})
    assert trace is not None
    tracer.end_grpc(trace, "s", "m", code, None)
    assert (taken[0].name, taken[0].error, taken[0].timings) == ("s/m", error, None)
    assert taken[0].attributes == {
        "rpc.system": "grpc",
        "rpc.service": "s",
        "rpc.method": "m",
        "rpc.grpc.status_code": code,
        "hf_transformer.model": "bert",
    }


async def test_requests_that_share_a_batch_know_whose_traceparent_it_was_sent_with() -> None:
    with ThreadPoolExecutor(1) as executor:
        bench = Bench(executor, SETTINGS, SIGNATURE)
        contexts = [Context(str(one), {"traceparent": f"trace {one}"}) for one in range(4)]
        tasks = []
        for number, context in enumerate(contexts):
            task = run(bench.scheduler, [Encoding([number], [0])], context=context)
            tasks.append(asyncio.create_task(task))
            await bench.turn()
        assert bench.sent == [[0]]
        await bench.answer(0)
        assert bench.sent == [[0], [1, 2, 3]]
        assert bench.predictor.calls[1].headers["traceparent"] == "trace 1"
        assert [one.sent_with for one in contexts] == ["", "", "trace 1", "trace 1"]
        await bench.answer(1)
        for task in tasks:
            await task


def test_without_opentelemetry_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hf_transformer.observability.tracing.otlp", raising=False)
    monkeypatch.delattr("hf_transformer.observability.tracing.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(ConfigError, match=r"--otlp_endpoint=http://c:4318.*hf-transformer\[otel\]"):
        Exporter("http://c:4318")


def test_a_variable_of_the_exporters_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "nobody")
    with pytest.raises(ConfigError, match=r"--otlp_endpoint=http://c:4318: .*nobody"):
        Exporter("http://c:4318")


@pytest.mark.parametrize("missing", [True, False])
def test_no_message_tells_the_collectors_password(monkeypatch: pytest.MonkeyPatch, missing: bool) -> None:
    if missing:
        monkeypatch.delitem(sys.modules, "hf_transformer.observability.tracing.otlp", raising=False)
        monkeypatch.delattr("hf_transformer.observability.tracing.otlp", raising=False)
        monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    else:
        monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "http://me:word@c")
    with pytest.raises(ConfigError, match=r"^--otlp_endpoint=http://\*\*\*@c:4318/x: ") as caught:
        Exporter("http://me:pass@word@c:4318/x")
    assert "pass" not in str(caught.value) and "word@" not in str(caught.value)


def test_attributes_of_clients_are_cut() -> None:
    tracer, taken = tracing()
    _, trace = tracer.begin({})
    assert trace is not None
    tracer.end_http(trace, PlainRequest(method="GET", path="/" + "x" * 300), 404, Context("r" * 300, {}))
    assert taken[0].attributes["url.path"] == "/" + "x" * 255
    assert taken[0].attributes["hf_transformer.request_id"] == "r" * 256


def test_lost_spans_are_told_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    seldom, record = Seldom(), logging.makeLogRecord({})
    told = []
    for _ in range(4):
        told.append(seldom.filter(record))
        now[0] += SILENCE * 0.6
    assert told == [True, False, True, False]


def test_spans_are_dropped_where_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_transformer.observability.tracing.export.MOST_WAITING", 2)
    exporter = Exporter("http://127.0.0.1:9")
    for _ in range(5):
        exporter.put(finished(None))
    assert (len(exporter._waiting), exporter._dropped) == (2, 3)
