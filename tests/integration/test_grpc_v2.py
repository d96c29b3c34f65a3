"""The gRPC API of the service as users run it, in front of the real Triton."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hf_transformer.commands.local_triton import HOST, LocalTriton, free_ports, poll
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.integration.conftest import MODEL_FOLDER, Serve
from tests.integration.grpc_client import channel_to, fails, request, stub, values
from tests.integration.test_errors import IN_FLIGHT, LIMITS
from tests.service import Service, flags_for

ROOT = Path(__file__).parents[2]
TLS = ROOT / "tests" / "predictor" / "tls"
FRANCE, ITALY = "The capital of france is [MASK].", "[MASK] is the capital of italy."
TEXT = {"text": [FRANCE]}
EXHAUSTED, INVALID = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_the_answers_of_v1(serve: Serve, raw: bool) -> None:
    """tests/clients has them for every task, through clients of others."""
    service = serve("bert")
    with stub(service) as calls:
        for texts in ([FRANCE], [FRANCE, ITALY] * 9):
            response = calls.ModelInfer(request("bert", {"text": texts}, raw=raw, id="7"))
            assert values(response) == service.predict(texts)
            assert (response.model_name, response.model_version, response.id) == ("bert", "1", "7")
            assert bool(response.raw_output_contents) is raw
        parameters = {"output_format": "pipeline", "top_k": 2, "targets": ["paris", "rome"]}
        response = calls.ModelInfer(request("bert", {"text_input": [[FRANCE]]}, raw=raw, parameters=parameters))
        assert [json.loads(one) for one in values(response)] == service.predict([FRANCE], parameters)


def test_metadata_tells_what_to_send(serve: Serve) -> None:
    with stub(serve("bert")) as calls:
        about = calls.ModelMetadata(pb.ModelMetadataRequest(name="bert"))
        assert list(about.versions) == ["1"]
        inputs = {one.name: [FRANCE] for one in about.inputs}
        response = calls.ModelInfer(request("bert", inputs, outputs=[one.name for one in about.outputs]))
        assert values(response) == ["paris"]
        assert [one.datatype for one in response.outputs] == [one.datatype for one in about.outputs]


def test_a_stream(serve: Serve) -> None:
    texts = [FRANCE, "no mask", ITALY] * 30
    requests = [request("bert", {"text": [text]}, id=str(number)) for number, text in enumerate(texts)]
    requests[0].parameters["triton_enable_empty_final_response"].bool_param = True
    with stub(serve("bert")) as calls:
        answers = list(calls.ModelStreamInfer(iter(requests)))
    assert [one.infer_response.id for one in answers] == [str(number) for number in range(90)]
    assert all(one.infer_response.parameters["triton_final_response"].bool_param for one in answers)
    for text, one in zip(texts, answers, strict=True):
        if text == "no mask":
            assert "instances[0]: no [MASK]" in one.error_message
        else:
            assert (one.error_message, values(one.infer_response)) == ("", ["paris" if text == FRANCE else "rome"])


def test_bad_requests(serve: Serve) -> None:
    """tests/integration/api/test_grpc_infer.py and tests/protocol/test_grpc_inbound.py have more."""
    with stub(serve("bert")) as calls:
        for message, code, says in (
            (request("other", TEXT), grpc.StatusCode.NOT_FOUND, "served: bert"),
            (request("bert", {**TEXT, "txt": [FRANCE]}), INVALID, "'txt' is unknown"),
            (request("bert", TEXT, parameters={"topk": 1}), INVALID, "parameters.topk"),
            (request("bert", {"text": ["no mask"]}), INVALID, "instances[0]: no [MASK]"),
            (request("bert", {"text": [FRANCE] * 2049}, raw=True), EXHAUSTED, "--max_sequences"),
        ):
            with fails(code, says):
                calls.ModelInfer(message)
        assert values(calls.ModelInfer(request("bert", TEXT))) == ["paris"]


def test_over_a_limit(serve: Serve) -> None:
    """A message of a megabyte, which gzip makes small enough."""
    with stub(serve("bert", "v2", *LIMITS)) as calls:
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            with fails(EXHAUSTED, "larger than max"):
                calls.ModelInfer(request("bert", {"text": ["x" * 1_000_000]}), compression=compression)
            with fails(EXHAUSTED, "--max_instances"):
                calls.ModelInfer(request("bert", {"text": [FRANCE] * 4}), compression=compression)
            assert values(calls.ModelInfer(request("bert", TEXT), compression=compression)) == ["paris"]


def test_a_message_that_would_be_inflated_is_not(serve: Serve) -> None:
    service = serve("bert", "v2", *LIMITS)
    status = Path(f"/proc/{service.process.pid}/status")

    def most_memory() -> int:
        """The process's peak so far, in KiB."""
        return int(status.read_text().partition("VmHWM:")[2].split()[0])

    with channel_to(service) as channel:
        infer: Any = channel.unary_unary(f"/{SERVICE}/ModelInfer", None, None)
        with fails(EXHAUSTED):
            infer(bytes(4000), compression=grpc.Compression.Gzip, timeout=30)
        before = most_memory()
        with fails(EXHAUSTED, "larger than max"):
            infer(bytes(100 << 20), compression=grpc.Compression.Gzip, timeout=30)
        assert most_memory() - before < 50 << 10


def test_failing_predictor(serve: Serve) -> None:
    with stub(serve("fault_raises")) as calls, fails(grpc.StatusCode.INTERNAL, "deliberate failure"):
        calls.ModelInfer(request("fault_raises", TEXT))


def test_callers_that_leave_give_their_place_back(serve: Serve) -> None:
    """The predictor takes 1 s for what nobody waits for any more; the place is free long before."""
    service = serve("fault_slow", "grpc-v2", "--max_concurrent_requests=1")
    message = request("fault_slow", TEXT)
    gone = 'hf_transformer_requests_total{api="grpc",status="499"}'
    with stub(service) as calls:
        with fails(grpc.StatusCode.DEADLINE_EXCEEDED):
            calls.ModelInfer(message, timeout=0.3)
        assert poll(lambda: service.metric(IN_FLIGHT) == 0, 10.0)
        call = calls.ModelInfer.future(message)
        assert poll(lambda: service.metric(IN_FLIGHT) == 1, 10.0)
        with fails(EXHAUSTED, "--max_concurrent_requests") as trailing:
            calls.ModelInfer(message)
        assert int(trailing["retry-after"]) >= 1
        assert call.cancel()
        assert poll(lambda: service.metric(IN_FLIGHT) == 0, 10.0)
        assert poll(lambda: service.metric(gone) >= 1, 10.0)
        assert values(calls.ModelInfer(message, timeout=30)) == ["paris"]
    assert "Traceback" not in service.log


def test_the_request_id_is_kept(serve: Serve) -> None:
    service = serve("bert")
    with stub(service) as calls:
        _, call = calls.ModelInfer.with_call(request("bert", TEXT), metadata=(("x-request-id", "caller-grpc"),))
        assert dict(call.trailing_metadata())["x-request-id"] == "caller-grpc"
        calls.ModelInfer(request("bert", TEXT, id="message-grpc"))
        assert poll(lambda: "requestId: message-grpc, preprocess_ms" in service.log, 10.0)
        assert "requestId: caller-grpc, preprocess_ms" in service.log
        before = service.metric('hf_transformer_requests_total{api="grpc",status="200"}')
        calls.ModelInfer(request("bert", TEXT))
        assert service.metric('hf_transformer_requests_total{api="grpc",status="200"}') == before + 1


def test_without_a_predictor_over_tls() -> None:
    address = f"{HOST}:{free_ports(1)[0]}"
    pem = TLS / "localhost.pem"
    tls = (f"--ssl_certfile={pem}", f"--ssl_keyfile={TLS / 'localhost.key'}")
    credentials = grpc.ssl_channel_credentials(pem.read_bytes())
    with Service(*flags_for("bert", MODEL_FOLDER, address, "v2", tls)) as service:
        with stub(service, credentials) as calls:
            assert calls.ServerLive(pb.ServerLiveRequest(), wait_for_ready=True, timeout=30).live
            assert not calls.ServerReady(pb.ServerReadyRequest()).ready
            assert not calls.ModelReady(pb.ModelReadyRequest(name="bert")).ready
            with fails(grpc.StatusCode.UNAVAILABLE, "not ready") as trailing:
                calls.ModelInfer(request("bert", TEXT))
            assert int(trailing["retry-after"]) >= 1
        with channel_to(service, credentials) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            assert health.Check(health_pb2.HealthCheckRequest()).status == 2
        with stub(service) as plain, fails(grpc.StatusCode.UNAVAILABLE):
            plain.ServerLive(pb.ServerLiveRequest(), timeout=30)


def test_sigterm_finishes_a_call_in_flight(serve: Serve, triton: LocalTriton) -> None:
    serve("fault_slow")  # loads the model
    with Service(*flags_for("fault_slow", MODEL_FOLDER, triton.grpc_address, "grpc-v2")) as service:
        service.wait_until("/v1/models/fault_slow")
        with stub(service) as calls, ThreadPoolExecutor(1) as pool:
            call = calls.ModelInfer.future(request("fault_slow", TEXT))
            assert poll(lambda: service.metric(IN_FLIGHT) == 1, 10.0)
            stopped = pool.submit(service.stop)
            assert values(call.result(timeout=60)) == ["paris"]
            assert stopped.result() == 0
        assert "Traceback" not in service.log


def test_no_grpc() -> None:
    address = f"{HOST}:{free_ports(1)[0]}"
    with Service(*flags_for("bert", MODEL_FOLDER, address, "v2", ["--enable_grpc=false"])) as service:
        service.wait_until("/")
        assert "grpc" not in service.log
        assert "cygrpc" not in Path(f"/proc/{service.process.pid}/maps").read_text()
