"""The gRPC API of the service as users run it, in front of the real Triton."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from hf_transformer.commands.local_triton import HOST, LocalTriton, free_ports, poll
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.integration.conftest import MODEL_FOLDER, Serve
from tests.integration.grpc_client import channel_to, fails, request, stub, values
from tests.integration.test_errors import IN_FLIGHT, LIMITS
from tests.service import Service, flags_for
from tests.triton_repository import task_model_folder

ROOT = Path(__file__).parents[2]
TRITON_CLIENT = ROOT / "tests" / "clients" / "programs" / "triton_grpc.py"
TLS = ROOT / "tests" / "predictor" / "tls"
FRANCE, ITALY = "The capital of france is [MASK].", "[MASK] is the capital of italy."
TEXT = {"text": [FRANCE]}
EXHAUSTED, INVALID = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT


def of_task(serve: Serve, model: str, *flags: str) -> Service:
    return serve(model, "v2", f"--model_dir={task_model_folder(model)}", *flags)


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_the_answers_of_v1(serve: Serve, protocol: str, raw: bool) -> None:
    service = serve("bert", protocol)
    with stub(service) as calls:
        for texts in ([FRANCE], [FRANCE, ITALY] * 9):
            response = calls.ModelInfer(request("bert", {"text": texts}, raw=raw, id="7"))
            assert values(response) == service.predict(texts)
            assert (response.model_name, response.model_version, response.id) == ("bert", "1", "7")
            assert bool(response.raw_output_contents) is raw
        parameters = {"output_format": "pipeline", "top_k": 2, "targets": ["paris", "rome"]}
        response = calls.ModelInfer(request("bert", {"text_input": [[FRANCE]]}, raw=raw, parameters=parameters))
        assert [json.loads(one) for one in values(response)] == service.predict([FRANCE], parameters)


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_several_inputs_and_numbers(serve: Serve, raw: bool) -> None:
    service = of_task(serve, "squad")
    instance = {"question": "Who wrote it?", "context": "It was written by Anna in 1999."}
    with stub(service) as calls:
        response = calls.ModelInfer(request("squad", {name: [text] for name, text in instance.items()}, raw=raw))
        found = [json.loads(one) if one.startswith(("{", "[")) else one for one in values(response)]
        assert found == service.predict([instance])
    service = of_task(serve, "minibert_mean")
    with stub(service) as calls:
        response = calls.ModelInfer(request("minibert_mean", {"text": ["Hello.", "It rains."]}, raw=raw))
        expected = np.array(service.predict(["Hello.", "It rains."]), np.float32)
        np.testing.assert_array_equal(np.array(values(response), np.float32), expected)


def test_metadata_tells_what_to_send(serve: Serve) -> None:
    with stub(serve("bert")) as calls:
        about = calls.ModelMetadata(pb.ModelMetadataRequest(name="bert"))
        assert list(about.versions) == ["1"]
        inputs = {one.name: [FRANCE] for one in about.inputs}
        response = calls.ModelInfer(request("bert", inputs, outputs=[one.name for one in about.outputs]))
        assert values(response) == ["paris"]
        assert [one.datatype for one in response.outputs] == [one.datatype for one in about.outputs]


@pytest.mark.parametrize("how", ["unary", "stream"])
def test_tritonclient(serve: Serve, how: str) -> None:
    """In a process of its own: its messages have the names of ours."""
    service = serve("bert")
    requests = [{"inputs": {"text": [text]}} for text in (FRANCE, ITALY)]
    task = {"grpc": service.grpc_address, "model": "bert", "requests": requests}
    command = [sys.executable, str(TRITON_CLIENT), how]
    done = subprocess.run(command, input=json.dumps(task), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["answers"] == [service.predict([text]) for text in (FRANCE, ITALY)]
    assert said["ids"] == ["0", "1"]
    [tensor] = said["config"]["input"]
    assert (tensor["name"], tensor["data_type"], tensor["dims"]) == ("text", "TYPE_STRING", ["1"])


def test_a_stream(serve: Serve, protocol: str) -> None:
    texts = [FRANCE, "no mask", ITALY] * 30
    requests = [request("bert", {"text": [text]}, id=str(number)) for number, text in enumerate(texts)]
    requests[0].parameters["triton_enable_empty_final_response"].bool_param = True
    with stub(serve("bert", protocol)) as calls:
        answers = list(calls.ModelStreamInfer(iter(requests)))
    assert [one.infer_response.id for one in answers] == [str(number) for number in range(90)]
    assert all(one.infer_response.parameters["triton_final_response"].bool_param for one in answers)
    for text, one in zip(texts, answers, strict=True):
        if text == "no mask":
            assert "instances[0]: no [MASK]" in one.error_message
        else:
            assert (one.error_message, values(one.infer_response)) == ("", ["paris" if text == FRANCE else "rome"])


@pytest.mark.parametrize(
    ("message", "code", "says"),
    [
        pytest.param(request("other", TEXT), grpc.StatusCode.NOT_FOUND, "served: bert", id="model"),
        pytest.param(request("bert", {}), INVALID, "'text' is missing", id="no input"),
        pytest.param(request("bert", {**TEXT, "txt": [FRANCE]}), INVALID, "'txt' is unknown", id="input"),
        pytest.param(request("bert", TEXT, outputs=["logits"]), INVALID, "'logits' is unknown", id="output"),
        pytest.param(request("bert", TEXT, parameters={"topk": 1}), INVALID, "parameters.topk", id="parameter"),
        pytest.param(request("bert", {"text": ["no mask"]}), INVALID, "instances[0]: no [MASK]", id="mask"),
        pytest.param(request("bert", {"text": [[FRANCE] * 2]}), INVALID, "the shape [1, 2]", id="shape"),
        pytest.param(request("bert", {"text": []}), INVALID, "at least one", id="no texts"),
        pytest.param(request("bert", {"text": [FRANCE] * 2049}, raw=True), EXHAUSTED, "--max_sequences", id="texts"),
    ],
)
def test_bad_requests(serve: Serve, message: pb.ModelInferRequest, code: grpc.StatusCode, says: str) -> None:
    with stub(serve("bert")) as calls:
        with fails(code, says):
            calls.ModelInfer(message)
        assert values(calls.ModelInfer(request("bert", TEXT))) == ["paris"]


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_over_a_limit(serve: Serve, compression: grpc.Compression) -> None:
    """A message of a megabyte, which gzip makes small enough."""
    with stub(serve("bert", "v2", *LIMITS)) as calls:
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


def test_failing_predictor(serve: Serve, protocol: str) -> None:
    with stub(serve("fault_raises", protocol)) as calls, fails(grpc.StatusCode.INTERNAL, "deliberate failure"):
        calls.ModelInfer(request("fault_raises", TEXT))


def test_callers_that_leave_give_their_place_back(serve: Serve, protocol: str) -> None:
    """The predictor takes 1 s for what nobody waits for any more; the place is free long before."""
    service = serve("fault_slow", protocol, "--max_concurrent_requests=1")
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


def test_health_and_reflection(serve: Serve) -> None:
    with channel_to(serve("bert")) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE, "bert"):
            assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == 1
        with fails(grpc.StatusCode.NOT_FOUND):
            health.Check(health_pb2.HealthCheckRequest(service="other"))
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {SERVICE, "grpc.health.v1.Health"} < set(database.get_services())
        described = DescriptorPool(database).FindServiceByName(SERVICE)
        assert described.FindMethodByName("ModelInfer").input_type.full_name == "inference.ModelInferRequest"


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


def test_workers_share_the_port(triton: LocalTriton, serve: Serve) -> None:
    serve("bert")
    flags = flags_for("bert", MODEL_FOLDER, triton.grpc_address, "grpc-v2", ["--workers=2"])
    with Service(*flags) as service:
        service.wait_until("/v1/models/bert")
        assert poll(lambda: service.log.count("is ready: version") == 2, 20.0), service.log
        for _ in range(20):
            with stub(service) as calls:  # a connection each: the kernel chooses the worker
                assert values(calls.ModelInfer(request("bert", TEXT))) == ["paris"]
        assert service.stop() == 0
        assert "Traceback" not in service.log and "ResourceWarning" not in service.log


def test_no_grpc() -> None:
    address = f"{HOST}:{free_ports(1)[0]}"
    with Service(*flags_for("bert", MODEL_FOLDER, address, "v2", ["--enable_grpc=false"])) as service:
        service.wait_until("/")
        assert "grpc" not in service.log
        assert "cygrpc" not in Path(f"/proc/{service.process.pid}/maps").read_text()


def test_a_port_in_use() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        flags = flags_for("bert", MODEL_FOLDER, HOST, "v2", [f"--host={HOST}", "--http_port=0", f"--grpc_port={port}"])
        command = [sys.executable, "-W", "error", "-m", "hf_transformer", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert f"--grpc_port={port}: can't listen on {HOST}" in last
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr
