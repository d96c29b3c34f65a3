"""Spans from the client to the real Triton, sent to a collector; with them Server-Timing, and logs in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import HOST, reserved_port
from tests.integration.conftest import Serve
from tests.integration.grpc_client import request, stub
from tests.support.collector import Collector, Proxy, attributes, collecting, proxying
from tests.support.service import Service

TEXT = "The capital of france is [MASK]."
BODY = {"instances": [TEXT, "Paris is the [MASK] of France."]}
PARENT = "00f067aa0ba902b7"
STAGES = ("tokenize", "queue", "predict", "decode")
TIMING = re.compile(r"parse;dur=([\d.]+), queue;dur=([\d.]+), predict;dur=([\d.]+), decode;dur=([\d.]+)")
ERROR: int = Status.STATUS_CODE_ERROR


class Traced:
    """A service whose predictor is behind a proxy and whose spans go to a collector."""

    def __init__(self, service: Service, proxy: Proxy, collector: Collector) -> None:
        self.service = service
        self.proxy = proxy
        self.collector = collector
        self._traces = 0

    def new(self, flags: str = "01") -> tuple[str, dict[str, str]]:
        """The id of a trace that nobody else has, and the headers of a request of it."""
        self._traces += 1
        trace_id = f"{self._traces:032x}"
        return trace_id, {"traceparent": f"00-{trace_id}-{PARENT}-{flags}"}

    def sent(self, trace_id: str) -> list[str]:
        """The traceparents that the predictor got for a trace."""
        return [one for one in self.proxy.traceparents if one[3:35] == trace_id]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def traced(triton: LocalTriton, serve: Serve, collector: Collector) -> Iterator[Traced]:
    form = '--access_log_format=%(m)s %(U)s %(s)s %(st)s "%(a)s"'
    with proxying(triton.http_address) as proxy:
        flags = (f"--predictor_host={proxy.address}", "--log_format=json", f"--otlp_endpoint={collector.url}", form)
        with serve.own("bert", "v2", *flags) as service:
            yield Traced(service.wait_until("/v1/models/bert"), proxy, collector)


def check_tree(trace: dict[str, Span]) -> None:
    """The server's span has the client's as its parent, contains the stages and is theirs."""
    server = trace[""]
    assert server.parent_span_id.hex() == PARENT
    assert {trace[name].parent_span_id for name in STAGES} == {server.span_id}
    assert len({span.span_id for span in trace.values()}) == len(trace)
    times = [server.start_time_unix_nano]
    for name in STAGES:
        times += [trace[name].start_time_unix_nano, trace[name].end_time_unix_nano]
    times.append(server.end_time_unix_nano)
    assert times == sorted(times)


def test_a_rest_request_has_a_span_per_stage_below_the_clients(traced: Traced) -> None:
    trace_id, headers = traced.new()
    response = traced.service.post(BODY, headers={**headers, "x-request-id": "r-1"})
    assert response.status_code == 200
    trace = traced.collector.trace(trace_id, 5)
    check_tree(trace)
    assert trace[""].name == "POST /v1/models/{model}:predict"
    assert attributes(trace[""].attributes) == {
        "http.request.method": "POST",
        "http.route": "/v1/models/{model}:predict",
        "http.response.status_code": 200,
        "url.path": "/v1/models/bert:predict",
        "url.scheme": "http",
        "hf_transformer.model": "bert",
        "hf_transformer.request_id": "r-1",
        "hf_transformer.instances": 2,
        "hf_transformer.tokens": 18,
    }
    assert trace["predict"].kind == Span.SPAN_KIND_CLIENT
    assert traced.sent(trace_id) == [f"00-{trace_id}-{trace['predict'].span_id.hex()}-01"]
    assert not any(span.status.code == ERROR for span in trace.values())
    trace_id, headers = traced.new()
    inputs = [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}]
    response = traced.service.client.post("/v2/models/bert/versions/1/infer", json={"inputs": inputs}, headers=headers)
    assert response.status_code == 200, response.text
    trace = traced.collector.trace(trace_id, 5)
    check_tree(trace)
    assert trace[""].name == "POST /v2/models/{model}/versions/{version}/infer"


def test_a_grpc_call_has_a_span_per_stage_below_the_clients(traced: Traced) -> None:
    trace_id, headers = traced.new()
    with stub(traced.service) as calls:
        _, call = calls.ModelInfer.with_call(request("bert", {"text": [TEXT]}), metadata=list(headers.items()))
        stream = calls.ModelStreamInfer(
            iter([request("bert", {"text": [TEXT]})] * 2), metadata=[("traceparent", f"00-{'e' * 32}-{PARENT}-01")]
        )
        assert len(list(stream)) == 2
    trace = traced.collector.trace(trace_id, 5)
    check_tree(trace)
    assert trace[""].name == "inference.GRPCInferenceService/ModelInfer"
    recorded = attributes(trace[""].attributes)
    assert {name: recorded[name] for name in recorded if name.startswith("rpc.")} == {
        "rpc.system": "grpc",
        "rpc.service": "inference.GRPCInferenceService",
        "rpc.method": "ModelInfer",
        "rpc.grpc.status_code": 0,
    }
    assert recorded["hf_transformer.tokens"] == 9
    assert traced.sent(trace_id) == [f"00-{trace_id}-{trace['predict'].span_id.hex()}-01"]
    assert TIMING.fullmatch(str(dict(call.trailing_metadata())["server-timing"]))
    assert poll(lambda: sum(span.trace_id.hex() == "e" * 32 for span in list(traced.collector.spans)) == 10, 20.0)


def test_a_failed_call_is_an_error_of_its_spans(serve: Serve, collector: Collector) -> None:
    trace_id = "a" * 32
    flags = (f"--otlp_endpoint={collector.url}/", "--predictor_request_retries=0")
    with serve.own("fault_raises", "grpc-v2", *flags) as service:
        service.wait_until("/v1/models/fault_raises")
        response = service.post(BODY, headers={"traceparent": f"00-{trace_id}-{PARENT}-01"})
        assert response.status_code == 502
        assert service.stop() == 0
    # Waiting spans were sent before the end.
    assert len([span for span in collector.spans if span.trace_id.hex() == trace_id]) == 4
    trace = collector.trace(trace_id, 4)
    assert {name for name, span in trace.items() if span.status.code == ERROR} == {"", "predict"}
    assert attributes(trace[""].attributes)["error.type"] == "502"


@pytest.mark.parametrize("path", ["/openai/v1/embeddings", "/v1/embeddings", "/v1/models/minibert_mean:predict"])
def test_embeddings_have_the_attributes_of_genai(serve: Serve, collector: Collector, path: str) -> None:
    trace_id = f"{abs(hash(path)) + 2**80:032x}"
    service = serve("minibert_mean", "grpc-v2", f"--otlp_endpoint={collector.url}")
    body = {"instances": [TEXT]} if "predict" in path else {"model": "minibert_mean", "input": TEXT}
    headers = {"traceparent": f"00-{trace_id}-{PARENT}-01"}
    assert service.client.post(path, json=body, headers=headers).status_code == 200
    recorded = attributes(collector.trace(trace_id, 5)[""].attributes)
    assert {name.removeprefix("gen_ai."): value for name, value in recorded.items() if name.startswith("gen_ai.")} == {
        "operation.name": "embeddings",
        "provider.name": "hf_transformer",
        "request.model": "minibert_mean",
        "response.model": "minibert_mean",
        "usage.input_tokens": recorded["hf_transformer.tokens"],
    }


def test_the_sampled_flag_of_the_client_decides_what_is_traced(traced: Traced) -> None:
    unwanted, headers = traced.new("00")
    assert traced.service.post(BODY, headers=headers).status_code == 200
    assert traced.sent(unwanted) == [headers["traceparent"]]
    wanted, headers = traced.new()
    assert traced.service.post(BODY, headers=headers).status_code == 200
    traced.collector.trace(wanted, 5)
    assert not any(span.trace_id.hex() == unwanted for span in traced.collector.spans)


def test_answers_have_the_times_of_all_stages(traced: Traced) -> None:
    response = traced.service.post(BODY)
    found = TIMING.fullmatch(response.headers["server-timing"])
    assert found is not None
    stages = [float(one) for one in found.groups()]
    assert all(stages) and sum(stages) <= response.elapsed.total_seconds() * 1e3
    assert "server-timing" not in traced.service.post({"instances": []}).headers
    assert "server-timing" not in traced.service.client.get("/v1/models").headers


def test_logs_and_spans_have_no_texts_and_no_credentials(traced: Traced) -> None:
    """Every line of the log is JSON."""
    service = traced.service
    trace_id, trace = traced.new()
    headers = {**trace, "x-request-id": 'r-"7"', "user-agent": 'te"st', "authorization": "Bearer hunter2"}
    assert service.post({"instances": ["plugh [MASK]"]}, headers=headers).status_code == 200
    assert service.client.get("/nowhere").status_code == 404
    with stub(service) as calls:
        calls.ModelInfer(request("bert", {"text": [TEXT]}), metadata=[("x-request-id", "r-8")])

    def lines() -> list[Any]:
        return [json.loads(line) for line in service.log.splitlines()]

    def logged(logger: str, request_id: str) -> list[Any]:
        return [line for line in lines() if line["logger"] == logger and line.get("request_id") == request_id]

    assert poll(lambda: all(logged("hf_transformer.latency", request_id) for request_id in ('r-"7"', "r-8")), 20.0)
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines())
    [latency] = logged("hf_transformer.latency", 'r-"7"')
    assert latency["predict_ms"] > 0 and 'requestId: r-"7",' in latency["message"]
    assert poll(lambda: all(logged("hf_transformer.access", request_id) for request_id in ('r-"7"', "r-8")), 20.0)
    [access] = logged("hf_transformer.access", 'r-"7"')
    assert access["message"] == 'POST /v1/models/bert:predict 200 OK "te\\x22st"'
    [call] = logged("hf_transformer.access", "r-8")
    assert call["message"].startswith('POST /inference.GRPCInferenceService/ModelInfer 0 OK "grpc-python')
    traced.collector.trace(trace_id, 5)
    assert not any(b"plugh" in body or b"hunter2" in body for body in traced.collector.bodies)
    assert {resource["service.name"] for resource in traced.collector.resources} == {"hf-transformer"}
    assert "plugh" not in service.log and "hunter2" not in service.log


def test_an_absent_collector_is_logged_once_and_fails_no_request(triton: LocalTriton, serve: Serve) -> None:
    with reserved_port() as nobody, proxying(triton.http_address) as proxy:
        nowhere = f"--otlp_endpoint=http://{HOST}:{nobody}"
        more = (f"--predictor_host={proxy.address}", "--otlp_sample_ratio=0", "--enable_server_timing=false")
        with serve.own("bert", "v2", nowhere, *more) as service:
            service.wait_until("/v1/models/bert")
            for number in range(20):
                headers = {"traceparent": f"00-{'c' * 31}{number % 10}-{PARENT}-01"} if number % 2 else {}
                response = service.post(BODY, headers=headers)
                assert response.status_code == 200 and "server-timing" not in response.headers
            logged = re.compile("WARNING opentelemetry.*(refused|Connection)", re.IGNORECASE)
            assert poll(lambda: logged.search(service.log) is not None, 20.0), service.log
            assert service.stop() == 0
            assert service.log.count("opentelemetry") == 1, service.log
            assert "Traceback" not in service.log
        # A request without a traceparent is not traced, and the predictor's headers say so.
        assert {one[-2:] for one in proxy.traceparents if one[3:34] != "c" * 31} == {"00"}
