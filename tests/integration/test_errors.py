"""Every row of the error table through every API, with the predictor really absent, failing or slow."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from hf_transformer.commands.child_process import poll
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.integration.conftest import Serve, message_of
from tests.integration.grpc_client import fails, request, stub, values
from tests.integration.v2_rest import post, texts_tensor
from tests.support import raw_http
from tests.support.polling import SECONDS
from tests.support.service import NOBODY, Service
from tests.support.triton_repository import held

TEXT = "The capital of france is [MASK]."
BODY = {"instances": [TEXT]}
INFER = "/v2/models/bert/infer"
LIMITS = (
    "--max_request_bytes=2000",
    "--max_instances=3",
    "--max_text_length=100",
    "--max_answer_values=1000",
    "--max_model_len=32",
)
IN_FLIGHT = "hf_transformer_requests_in_flight"
STATUSES = {
    grpc.StatusCode.INTERNAL: 502,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
"""The HTTP status of each code that the predictor's faults have."""
PIPELINE = {"output_format": "pipeline"}


def refusal(service: Service, api: str) -> tuple[int, str]:
    """Status and message of a request that fails; over gRPC the HTTP status that its code stands for."""
    if api == "grpc":
        with stub(service) as calls, pytest.raises(grpc.RpcError) as caught:
            calls.ModelInfer(request(service.model, {"text": [TEXT]}))
        error: Any = caught.value
        return STATUSES[error.code()], error.details()
    response = service.post(BODY) if api == "v1" else post(service, {"text": [TEXT]})
    return response.status_code, message_of(response, response.status_code)


BAD: list[tuple[Any, str]] = [
    ({"instances": [TEXT, 7]}, "instances[1]: expected a string"),
    ({"instances": [[TEXT]]}, "instances[0]: expected a string"),
    ({"instances": [TEXT, "no mask"]}, "instances[1]: expected at least one [MASK]"),
    ({"instances": [""]}, "instances[0]: expected at least one [MASK]"),
    ({"instances": ["word " * 500 + TEXT]}, "expected [MASK] among the 128 tokens that truncation keeps"),
    ({**BODY, "parameters": {"top_k": 2}}, "no value in the kserve format"),
    ({**BODY, "parameters": {"return_probabilities": True, "return_raw_logits": True}}, "got both"),
]
"""Refusals by the task. tests/api/test_refusals.py has the earlier refusals by the API."""


def test_what_the_task_refuses_is_400_and_shows_no_text(serve: Serve) -> None:
    service = serve("bert")
    for body, says in BAD:
        message = message_of(service.post(body), 400)
        assert says in message
        assert TEXT not in message
    for raw in (False, True):
        message = message_of(post(service, {"text": [TEXT, "nothing"]}, raw), 400)
        assert message.startswith("instances[1]: expected at least one [MASK]")
    assert service.predict([TEXT]) == ["paris"]


TOO_MUCH: list[tuple[Any, str]] = [
    (json.dumps({"instances": [TEXT], "pad": "x" * 3000}).encode(), "--max_request_bytes"),
    ({"instances": [TEXT] * 4}, "--max_instances"),
    ({"instances": ["x" * 101]}, "--max_text_length"),
    ({**BODY, "parameters": {"return_raw_logits": True}}, "--max_answer_values"),
    ({"instances": [f"[MASK]{' a' * 40}"] * 3, "parameters": {"truncation": False}}, "truncation"),
    ({**BODY, "parameters": {**PIPELINE, "top_k": 10**9}}, "--max_answer_values"),
    ({**BODY, "parameters": {**PIPELINE, "targets": ["x" * 201]}}, "200 characters"),
]


def test_requests_over_a_limit_are_413_and_name_it(serve: Serve) -> None:
    service = serve("bert", "v2", *LIMITS)
    for body, says in TOO_MUCH:
        assert says in message_of(service.post(body), 413)
    bomb = gzip.compress(json.dumps({"instances": ["x" * 1_000_000]}).encode())
    assert "--max_request_bytes" in message_of(service.post(bomb, headers={"content-encoding": "gzip"}), 413)
    assert "--max_instances" in message_of(post(service, {"text": [TEXT] * 4}, raw=True), 413)
    assert service.predict([TEXT] * 3) == ["paris"] * 3


def test_a_slow_sender_keeps_nobody_out(serve: Serve) -> None:
    service = serve("bert", "v2", "--max_concurrent_requests=1")
    with raw_http.connected(service) as connection:
        connection.sendall(raw_http.unfinished() + b"{")
        assert service.predict([TEXT]) == ["paris"]


def test_an_abandoned_request_frees_its_slot_and_others_are_refused_until_then(
    serve: Serve, protocol: str, repository: Path
) -> None:
    """An abandoned request frees its slot at once, while the predictor still computes it."""
    service = serve("fault_slow", protocol, "--max_concurrent_requests=1")

    def gone(api: str) -> float:
        counter = f'hf_transformer_requests_total{{api="{api}",status="499"}}'
        return service.metric(counter, missing=0)

    before = {api: gone(api) for api in ("v1", "grpc")}
    message = request("fault_slow", {"text": [TEXT]})
    with stub(service) as calls:
        with held(repository):
            with raw_http.connected(service) as connection:
                connection.sendall(raw_http.post(target="/v1/models/fault_slow:predict"))
                assert poll(lambda: service.metric(IN_FLIGHT) == 1, SECONDS)
                refused = service.post(BODY)
                assert "--max_concurrent_requests" in message_of(refused, 429)
                assert int(refused.headers["retry-after"]) >= 1
                with fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "--max_concurrent_requests") as trailing:
                    calls.ModelInfer(message)
                assert int(trailing["retry-after"]) >= 1
            assert poll(lambda: service.metric(IN_FLIGHT) == 0, SECONDS)
            assert poll(lambda: gone("v1") == before["v1"] + 1, SECONDS)
            call = calls.ModelInfer.future(message)
            assert poll(lambda: service.metric(IN_FLIGHT) == 1, SECONDS)
            assert call.cancel()
            assert poll(lambda: service.metric(IN_FLIGHT) == 0, SECONDS)
            assert poll(lambda: gone("grpc") == before["grpc"] + 1, SECONDS)
            with fails(grpc.StatusCode.DEADLINE_EXCEEDED):
                calls.ModelInfer(message, timeout=0.3)
            assert poll(lambda: service.metric(IN_FLIGHT) == 0, SECONDS)
        assert values(calls.ModelInfer(message, timeout=SECONDS)) == ["paris"]
    assert "Traceback" not in service.log


@pytest.mark.parametrize(
    ("model", "protocol", "status", "says"),
    [
        ("fault_raises", "v2", 502, "deliberate failure"),
        ("fault_raises", "grpc-v2", 502, "deliberate failure"),
        ("fault_slow", "v2", 504, "0.3 s"),
        ("fault_slow", "grpc-v2", 504, "0.3 s"),
        ("fault_wrong_shape", "v2", 502, "with the shape"),
        ("fault_wrong_dtype", "v2", 502, "its configuration says FP32"),
        ("fault_wrong_dtype", "grpc-v2", 502, "its configuration says FP32"),
        ("fault_nan", "grpc-v2", 502, "NaN"),
    ],
)
def test_a_failing_predictor_has_one_status_in_every_api(
    serve: Serve, model: str, protocol: str, status: int, says: str
) -> None:
    flags = ("--predictor_request_timeout_seconds=0.3",) if model == "fault_slow" else ()
    service = serve(model, protocol, *flags)
    with ThreadPoolExecutor(3) as others:
        for found, message in others.map(lambda api: refusal(service, api), ("v1", "v2", "grpc")):
            assert (found, says in message) == (status, True), message


def test_a_predictor_that_always_breaks_its_word_is_not_ready(serve: Serve) -> None:
    """It is there all the same, so that the circuit stays closed."""
    service = serve("fault_nan", "v2", "--enable_predictor_health_check=true", "--predictor_circuit_failures=2")
    for _ in range(3):
        message_of(service.post(BODY), 502)
    answer = service.client.get("/v1/models/fault_nan")
    assert answer.status_code == 503 and "the last 3 requests failed, and so does a trial" in answer.json()["error"]
    assert service.metric('hf_transformer_predictor_errors_total{kind="error"}') >= 3
    assert service.metric("hf_transformer_predictor_circuit_open") == 0


def test_a_model_that_the_predictor_does_not_know_is_503_and_unavailable(serve: Serve) -> None:
    service = serve("absent", "grpc-v2", ready=False)
    assert poll(lambda: "absent" in service.post(BODY).json()["error"], SECONDS)
    for api in ("v1", "v2", "grpc"):
        assert refusal(service, api)[0] == 503
    [entry] = service.client.post("/v2/repository/index").json()
    assert (entry["name"], entry["state"]) == ("absent", "UNAVAILABLE") and "absent" in entry["reason"]
    assert service.client.post("/v2/repository/index", json={"ready": True}).json() == []
    with stub(service) as calls:
        assert [one.state for one in calls.RepositoryIndex(pb.RepositoryIndexRequest()).models] == ["UNAVAILABLE"]
        assert list(calls.RepositoryIndex(pb.RepositoryIndexRequest(ready=True)).models) == []


V2 = "/v2/models/minibert_mean"
WAITING: list[tuple[str, str, Any]] = [
    ("POST", "/v1/models/minibert_mean:predict", {"instances": ["a"]}),
    ("POST", "/v1/models/minibert_mean:tokenize", {"instances": ["a"]}),
    ("POST", "/v1/models/minibert_mean:detokenize", {"instances": [[2]]}),
    ("GET", "/v1/models/minibert_mean/info", None),
    ("GET", "/info", None),
    *(
        ("POST", f"{V2}{version}/infer", {"inputs": [texts_tensor("text", [TEXT], raw=False)[0]]})
        for version in ("", "/versions/1")
    ),
    *(("GET", f"{V2}{path}", None) for path in ("", "/config", "/versions/1", "/versions/1/config")),
]


def test_without_a_predictor_the_service_is_alive_and_not_ready(serve: Serve) -> None:
    """Alive, not ready, and every request for the model is 503 with Retry-After."""
    flags = (f"--predictor_host={NOBODY}", "--openai_route_prefix=")
    service = serve("minibert_mean", "v2", *flags, ready=False)
    client = service.client
    for method, path, body in WAITING:
        response = client.request(method, path, json=body)
        assert "not ready" in message_of(response, 503), path
        assert int(response.headers["retry-after"]) >= 1
    for version in ("", "/versions/1"):
        response = client.get(f"{V2}{version}/ready")
        assert (response.status_code, int(response.headers["retry-after"]) >= 1) == (503, True)
        assert (response.json()["name"], response.json()["ready"]) == ("minibert_mean", False)
        assert "not ready" in response.json()["error"]
    shared = client.get("/v1/models/minibert_mean")  # V1's and OpenAI's, without a prefix
    assert (shared.status_code, shared.json()["ready"], shared.json()["id"]) == (503, False, "minibert_mean")
    assert "not ready" in shared.json()["error"]
    ready = client.get("/v2/health/ready")
    assert (ready.status_code, ready.json()["ready"]) == (503, False)
    response = client.post("/v1/embeddings", json={"model": "minibert_mean", "input": "a"})
    error = response.json()["error"]
    assert response.status_code == 503 and int(response.headers["retry-after"]) >= 1
    assert "not ready" in error["message"] and (error["type"], error["param"]) == ("server_error", None)
    assert client.get("/v2/models").json() == {"models": ["minibert_mean"]}
    assert client.get("/v2/health/live").json() == {"live": True}
    message_of(client.get("/v2/models/other"), 404)
    message_of(client.get("/v2/models/other/config"), 404)
    with stub(service) as calls:
        assert calls.ServerLive(pb.ServerLiveRequest(), wait_for_ready=True, timeout=30).live
        assert not calls.ServerReady(pb.ServerReadyRequest()).ready
        assert not calls.ModelReady(pb.ModelReadyRequest(name="minibert_mean")).ready
        with fails(grpc.StatusCode.UNAVAILABLE, "not ready") as trailing:
            calls.ModelInfer(request("minibert_mean", {"text": [TEXT]}))
        assert int(trailing["retry-after"]) >= 1
