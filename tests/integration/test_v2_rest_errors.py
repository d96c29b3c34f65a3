"""Every row of the error table through the open inference protocol over HTTP."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hf_transformer.commands.local_triton import HOST, free_ports, poll
from tests.integration.conftest import MODEL_FOLDER, Serve
from tests.integration.test_errors import IN_FLIGHT, LIMITS, error
from tests.integration.v2_rest import LENGTH, OUTPUT, post, read
from tests.service import Service, flags_for

FRANCE = "The capital of france is [MASK]."
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [FRANCE]}
RAW = {**TENSOR, "data": None, "parameters": {"binary_data_size": 8}}
BAD = {
    "bad JSON": (b"{", "body: not JSON"),
    "deep JSON": (b"[" * 5000, "body: not JSON"),
    "no object": ([TENSOR], "body: a list is not a JSON object"),
    "no inputs": ({}, "inputs: expected a list of tensors"),
    "V1": ({"instances": [FRANCE]}, "'instances' is not understood"),
    "empty inputs": ({"inputs": []}, "inputs: 'text' is missing"),
    "no instances": ({"inputs": [{**TENSOR, "shape": [0], "data": []}]}, "instances: expected at least one"),
    "unknown input": ({"inputs": [TENSOR, {**TENSOR, "name": "x"}]}, "inputs: 'x' is unknown, expected 'text'"),
    "two names": ({"inputs": [TENSOR, {**TENSOR, "name": "input-0"}]}, "inputs: 'text' comes twice"),
    "datatype": ({"inputs": [{**TENSOR, "datatype": "INT64", "data": [1]}]}, "'text' is INT64, expected BYTES"),
    "shape": ({"inputs": [{**TENSOR, "shape": [1, 2], "data": ["a", "b"]}]}, "has the shape [1, 2], expected"),
    "absurd shape": ({"inputs": [{**TENSOR, "shape": [2**40, 2**40]}]}, "absurd shape"),
    "empty rows": ({"inputs": [{**TENSOR, "shape": [2**40, 0], "data": []}]}, "no bytes for so many elements"),
    "not UTF-8": ((RAW, b"\4\0\0\0\xff\xff\xff\xff"), "element 0 of 'text' is not UTF-8"),
    "cut off": ((RAW, b"\5\0\0\0abcd"), "'text' ends within element 0 of 1"),
    "too short": ((RAW, b"\4\0\0"), "binary_data_size 8, but 3 bytes are left"),
    "unknown output": ({"inputs": [TENSOR], "outputs": [{"name": "logits"}]}, "outputs: 'logits' is unknown"),
    "classification": (
        {"inputs": [TENSOR], "outputs": [{"name": OUTPUT, "parameters": {"classification": 1}}]},
        "'classification' is not understood",
    ),
    "shared memory": (
        {"inputs": [{**TENSOR, "data": None, "parameters": {"shared_memory_region": "x"}}]},
        "'shared_memory_region' is not understood",
    ),
    "other model": ({"inputs": [TENSOR], "model_name": "other"}, "'other' differs from what is asked here, 'bert'"),
    "other version": ({"inputs": [TENSOR], "model_version": "2"}, "'2' differs from what is asked here, '1'"),
    "content type": (
        {"inputs": [{**TENSOR, "parameters": {"content_type": "np"}}]},
        "content_type is 'np', expected 'str'",
    ),
    "unknown parameter": ({"inputs": [TENSOR], "parameters": {"topk": 1}}, "parameters.topk: unknown"),
    "no mask": ({"inputs": [{**TENSOR, "data": ["nothing"]}]}, "instances[0]: no [MASK]"),
}


@pytest.mark.parametrize(("body", "says"), BAD.values(), ids=list(BAD))
def test_bad_input(serve: Serve, body: Any, says: str) -> None:
    service = serve("bert")
    headers = {}
    if isinstance(body, tuple):
        header = json.dumps({"inputs": [body[0]]}).encode()
        body, headers = header + body[1], {LENGTH: str(len(header))}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    message = error(service.client.post("/v2/models/bert/infer", content=content, headers=headers), 400)
    assert says in message
    assert FRANCE not in message


@pytest.mark.parametrize("length", ["", "-1", "x", "1.5", "1000", str(2**60), "9" * 40])
def test_a_wrong_header_length(serve: Serve, length: str) -> None:
    response = serve("bert").client.post(
        "/v2/models/bert/infer", content=json.dumps({"inputs": [TENSOR]}), headers={LENGTH: length}
    )
    assert "Inference-Header-Content-Length" in error(response, 400)


def test_what_is_not_there(serve: Serve) -> None:
    service = serve("bert")
    for path in ("/v2/models/other", "/v2/models/bert/versions/2"):
        assert "not served here" in error(post(service, {"text": [FRANCE]}, path=f"{path}/infer"), 404)
        for route in (path, f"{path}/ready"):
            assert "not served here" in error(service.client.get(route), 404)
    assert "served: 1" in error(service.client.get("/v2/models/bert/versions/2"), 404)
    error(service.client.get("/v2/other"), 404)
    refused = service.client.get("/v2/models/bert/infer")
    assert "expected POST" in error(refused, 405)
    assert refused.headers["allow"] == "POST"
    refused = service.client.post("/v2/models/bert")
    assert "expected GET, HEAD" in error(refused, 405)
    assert refused.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("raw", [False, True], ids=["json", "raw"])
def test_over_a_limit(serve: Serve, raw: bool) -> None:
    service = serve("bert", "v2", *LIMITS)
    assert "--max_request_bytes" in error(post(service, {"text": ["x" * 3000]}, raw), 413)
    assert "instances: 4 in a request" in error(post(service, {"text": [FRANCE] * 4}, raw), 413)
    assert "--max_text_length" in error(post(service, {"text": ["x" * 101]}, raw), 413)
    logits = {"return_raw_logits": True}
    assert "--max_answer_values" in error(post(service, {"text": [FRANCE]}, raw, parameters=logits), 413)
    text = {"parameters": json.dumps({"top_k": "1" * 2**16})}
    assert "parameters.parameters: 65" in error(post(serve("bert"), {"text": [FRANCE]}, raw, parameters=text), 413)
    many = error(post(serve("bert"), {"text": [""] * 2049}, raw), 413)
    assert "2049 elements" in many and "--max_instances" in many and "--max_sequences" in many


def test_unknown_encodings(serve: Serve) -> None:
    client = serve("bert").client
    for headers in ({"content-encoding": "deflate"}, {"content-type": "application/json; charset=utf-7"}):
        error(client.post("/v2/models/bert/infer", content=json.dumps({"inputs": [TENSOR]}), headers=headers), 415)


def test_too_many_requests(serve: Serve) -> None:
    service = serve("fault_slow", "v2", "--max_concurrent_requests=1")
    path = "/v2/models/fault_slow/infer"
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, service, {"text": [FRANCE]}, path=path)
        assert poll(lambda: service.metric(IN_FLIGHT) == 1, 10.0)
        refused = post(service, {"text": [FRANCE]}, path=path)
        assert "--max_concurrent_requests" in error(refused, 429)
        assert int(refused.headers["retry-after"]) >= 1
        assert read(first.result())[1] == {OUTPUT: ["paris"]}


def test_a_predictor_that_fails(serve: Serve) -> None:
    assert "deliberate failure" in error(post(serve("fault_raises"), {"text": [FRANCE]}), 502)
    slow = serve("fault_slow", "v2", "--predictor_request_timeout_seconds=0.3")
    assert "0.3 s" in error(post(slow, {"text": [FRANCE]}), 504)


def test_no_predictor() -> None:
    with Service(*flags_for("bert", MODEL_FOLDER, f"{HOST}:{free_ports(1)[0]}", "v2")) as service:
        service.wait_until("/")
        client = service.client
        assert client.get("/v2/models").json() == {"models": ["bert"]}
        assert client.get("/v2/health/live").json() == {"live": True}
        for version in ("", "/versions/1"):
            path = f"/v2/models/bert{version}"
            answers = [post(service, {"text": [FRANCE]}, path=f"{path}/infer"), client.get(path)]
            answers.append(client.get(f"{path}/config"))
            for answer in answers:
                assert "not ready" in error(answer, 503)
            ready = client.get(f"{path}/ready")
            assert (ready.json()["name"], ready.json()["ready"]) == ("bert", False)
            assert "not ready" in ready.json()["error"]
            for answer in (*answers, ready):
                assert answer.status_code == 503
                assert int(answer.headers["retry-after"]) >= 1
        ready = client.get("/v2/health/ready")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        error(client.get("/v2/models/other"), 404)
        error(client.get("/v2/models/other/config"), 404)
