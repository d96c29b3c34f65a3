"""Every row of the error table, on a real socket, with the predictor really absent, failing or slow."""

from __future__ import annotations

import gzip
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from hf_transformer.commands.local_triton import HOST, poll
from tests.integration.conftest import Serve

TEXT = "The capital of france is [MASK]."
BODY = {"instances": [TEXT]}
LIMITS = (
    "--max_request_bytes=2000",
    "--max_instances=3",
    "--max_text_length=100",
    "--max_answer_values=1000",
    "--max_model_len=32",
)
IN_FLIGHT = "hf_transformer_requests_in_flight"


def error(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    message: str = body["error"]
    return message


def test_unknown_model(serve: Serve) -> None:
    service = serve("bert")
    assert "'other'" in error(service.post(BODY, "other"), 404)
    assert "served: bert" in error(service.client.get("/v1/models/other"), 404)


BAD: list[tuple[Any, str]] = [
    (b"", "not JSON"),
    ([TEXT], "got a list"),
    ({"texts": [TEXT]}, "the keys texts"),
    ({"instances": [TEXT], "inputs": [TEXT]}, "got both"),
    ({"instances": []}, "instances: expected at least one"),
    ({"instances": None}, "instances: expected a list"),
    ({"instances": [TEXT, 7]}, "instances[1]: expected a string"),
    ({"instances": [[TEXT]]}, "instances[0]: expected a string"),
    ({"instances": [TEXT, "no mask"]}, "instances[1]: no [MASK]"),
    ({"instances": [""]}, "instances[0]: no [MASK]"),
    ({"instances": ["word " * 500 + TEXT]}, "no [MASK] among the first"),
    ({**BODY, "parameters": [1]}, "parameters: expected an object"),
    ({**BODY, "parameters": {"topk": 1}}, "parameters.topk: unknown"),
    ({**BODY, "parameters": {"top_k": "1", "output_format": "pipeline"}}, "whole number, got a string"),
    ({**BODY, "parameters": {"top_k": 0, "output_format": "pipeline"}}, "0 is too small"),
    ({**BODY, "parameters": {"top_k": 2}}, "only the pipeline format"),
    ({**BODY, "parameters": {"output_format": "xml"}}, "'xml' is not one of"),
    ({**BODY, "parameters": {"return_probabilities": 1}}, "expected true or false"),
    ({**BODY, "parameters": {"return_probabilities": True, "return_raw_logits": True}}, "combined"),
]
TOO_MUCH: list[tuple[Any, str]] = [
    (json.dumps({"instances": [TEXT], "pad": "x" * 3000}).encode(), "--max_request_bytes"),
    ({"instances": [TEXT] * 4}, "--max_instances"),
    ({"instances": ["x" * 101]}, "--max_text_length"),
    ({**BODY, "parameters": {"return_raw_logits": True}}, "--max_answer_values"),
    ({"instances": [f"[MASK]{' a' * 40}"] * 3, "parameters": {"truncation": False}}, "truncation"),
    ({**BODY, "parameters": {"output_format": "pipeline", "top_k": 10**9}}, "--max_answer_values"),
    ({**BODY, "parameters": {"output_format": "pipeline", "targets": ["x" * 201]}}, "200 characters"),
]


def test_bad_input(serve: Serve) -> None:
    service = serve("bert")
    for body, says in BAD:
        message = error(service.post(body), 400)
        assert says in message
        assert TEXT not in message
    assert service.predict([TEXT]) == ["paris"]


def test_over_a_limit(serve: Serve) -> None:
    service = serve("bert", "v2", *LIMITS)
    for body, says in TOO_MUCH:
        assert says in error(service.post(body), 413)
    assert service.predict([TEXT] * 3) == ["paris"] * 3


def test_a_gzip_bomb_is_over_the_limit(serve: Serve) -> None:
    service = serve("bert", "v2", *LIMITS)
    bomb = gzip.compress(json.dumps({"instances": ["x" * 1_000_000]}).encode())
    assert "--max_request_bytes" in error(service.post(bomb, headers={"content-encoding": "gzip"}), 413)


def test_a_body_without_end_is_cut_off(serve: Serve) -> None:
    service = serve("bert", "v2", *LIMITS)
    chunks = (b"x" * 1000 for _ in range(10))
    assert "--max_request_bytes" in error(service.client.post("/v1/models/bert:predict", content=chunks), 413)


def test_unknown_compression(serve: Serve) -> None:
    assert "'br'" in error(serve("bert").post(BODY, headers={"content-encoding": "br"}), 415)


def test_too_many_requests(serve: Serve) -> None:
    service = serve("fault_slow", "v2", "--max_concurrent_requests=1")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(service.post, BODY)
        assert poll(lambda: service.metric(IN_FLIGHT) == 1, 10.0)
        refused = service.post(BODY)
        assert "--max_concurrent_requests" in error(refused, 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert first.result().json() == {"predictions": ["paris"]}


@pytest.mark.parametrize(("protocol", "pause"), [("v2", 0.0), ("grpc-v2", 0.05)])
def test_a_client_that_leaves_gives_its_place_back(serve: Serve, protocol: str, pause: float) -> None:
    """The predictor takes 1 s for what nobody waits for any more; the place is free long before."""
    service = serve("fault_slow", protocol, "--max_concurrent_requests=1")
    gone = 'hf_transformer_requests_total{api="v1",status="499"}'
    before = service.metric(gone) if gone in service.client.get("/metrics").text else 0
    body = json.dumps(BODY).encode()
    head = f"POST /v1/models/fault_slow:predict HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((HOST, service.port)) as connection:
        if pause:
            connection.sendall(head.encode())
            time.sleep(pause)
        connection.sendall(body if pause else head.encode() + body)
        assert poll(lambda: service.metric(IN_FLIGHT) == 1, 10.0)
    assert poll(lambda: service.metric(IN_FLIGHT) == 0, 10.0)
    assert service.metric(gone) == before + 1
    assert service.predict([TEXT]) == ["paris"]
    assert "Traceback" not in service.log


def test_a_slow_sender_keeps_nobody_out(serve: Serve) -> None:
    service = serve("bert", "v2", "--max_concurrent_requests=1")
    with socket.create_connection((HOST, service.port)) as connection:
        connection.sendall(b"POST /v1/models/bert:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
        assert service.predict([TEXT]) == ["paris"]


def test_waiting_for_a_turn_counts_as_waiting(serve: Serve) -> None:
    """Twenty batches of 1 s, one at a time: the request still ends at its timeout, and gives up the other batches."""
    flags = ("--max_batches_in_flight=1", "--predictor_request_timeout_seconds=1.5")
    service = serve("fault_slow", "v2", *flags)
    assert "1.5 s" in error(service.post({"instances": [f"{'a ' * length}[MASK]" for length in range(20)]}), 504)
    assert service.metric(IN_FLIGHT) == 0
    assert poll(lambda: service.post(BODY).status_code == 200, 20.0)


def test_unknown_to_the_predictor(serve: Serve) -> None:
    service = serve("absent", "grpc-v2", ready=False)
    assert poll(lambda: "absent" in service.post(BODY).json()["error"], 10.0)
    error(service.post(BODY), 503)


def test_failing_predictor(serve: Serve, protocol: str) -> None:
    assert "deliberate failure" in error(serve("fault_raises", protocol).post(BODY), 502)


def test_slow_predictor(serve: Serve, protocol: str) -> None:
    service = serve("fault_slow", protocol, "--predictor_request_timeout_seconds=0.3")
    assert "0.3 s" in error(service.post(BODY), 504)


@pytest.mark.parametrize(
    ("model", "protocol", "says"),
    [
        ("fault_wrong_shape", "v2", "with the shape"),
        ("fault_wrong_dtype", "v2", "its configuration says FP32"),
        ("fault_wrong_dtype", "grpc-v2", "its configuration says FP32"),
        ("fault_nan", "grpc-v2", "NaN"),
    ],
)
def test_predictor_that_breaks_its_word(serve: Serve, model: str, protocol: str, says: str) -> None:
    assert says in error(serve(model, protocol).post(BODY), 502)


def test_predictor_that_always_breaks_its_word_is_not_ready(serve: Serve) -> None:
    """It is there all the same, so that the circuit stays closed."""
    service = serve("fault_nan", "v2", "--enable_predictor_health_check=true", "--predictor_circuit_failures=2")
    for _ in range(3):
        error(service.post(BODY), 502)
    answer = service.client.get("/v1/models/fault_nan")
    assert answer.status_code == 503 and "the last 3 requests failed, and so does a trial" in answer.json()["error"]
    assert service.metric('hf_transformer_predictor_errors_total{kind="error"}') >= 3
    assert service.metric("hf_transformer_predictor_circuit_open") == 0


def test_other_paths_and_methods(serve: Serve) -> None:
    client = serve("bert").client
    for method, path, status in (
        ("GET", "/v3", 404),
        ("POST", "/v1/models/bert", 405),
        ("GET", "/v1/models/bert:predict", 405),
        ("PUT", "/", 405),
    ):
        assert path in error(client.request(method, path), status)
