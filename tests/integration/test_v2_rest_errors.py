"""Every row of the error table through the open inference protocol over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hf_transformer.commands.local_triton import HOST, free_ports
from tests.integration.conftest import MODEL_FOLDER, Serve
from tests.integration.test_errors import LIMITS, error
from tests.integration.v2_rest import LENGTH, post
from tests.service import Service, flags_for

FRANCE = "The capital of france is [MASK]."
TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [FRANCE]}
RAW = {**TENSOR, "data": None, "parameters": {"binary_data_size": 8}}
BAD: list[tuple[Any, str]] = [
    (b"{", "body: not JSON"),
    ({"instances": [FRANCE]}, "'instances' is not understood"),
    ({"inputs": []}, "inputs: 'text' is missing"),
    ({"inputs": [{**TENSOR, "shape": [0], "data": []}]}, "instances: expected at least one"),
    ({"inputs": [TENSOR, {**TENSOR, "name": "x"}]}, "inputs: 'x' is unknown, expected 'text'"),
    ({"inputs": [{**TENSOR, "datatype": "INT64", "data": [1]}]}, "'text' is INT64, expected BYTES"),
    ({"inputs": [{**TENSOR, "shape": [1, 2], "data": ["a", "b"]}]}, "has the shape [1, 2], expected"),
    ((RAW, b"\4\0\0\0\xff\xff\xff\xff"), "element 0 of 'text' is not UTF-8"),
    ({"inputs": [TENSOR], "outputs": [{"name": "logits"}]}, "outputs: 'logits' is unknown"),
    ({"inputs": [TENSOR], "model_name": "other"}, "'other' differs from what is asked here, 'bert'"),
    ({"inputs": [TENSOR], "model_version": "2"}, "'2' differs from what is asked here, '1'"),
    ({"inputs": [TENSOR], "parameters": {"topk": 1}}, "parameters.topk: unknown"),
    ({"inputs": [{**TENSOR, "data": ["nothing"]}]}, "instances[0]: no [MASK]"),
]
"""tests/protocol/test_rest_inbound.py has what is wrong with tensors alone."""


def test_bad_input(serve: Serve) -> None:
    client = serve("bert").client
    for body, says in BAD:
        headers = {}
        if isinstance(body, tuple):
            header = json.dumps({"inputs": [body[0]]}).encode()
            body, headers = header + body[1], {LENGTH: str(len(header))}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        message = error(client.post("/v2/models/bert/infer", content=content, headers=headers), 400)
        assert says in message
        assert FRANCE not in message
    for length in ("", "-1", "x", str(2**60)):
        response = client.post(
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
    for headers in ({"content-encoding": "br"}, {"content-type": "application/json; charset=utf-7"}):
        error(client.post("/v2/models/bert/infer", content=json.dumps({"inputs": [TENSOR]}), headers=headers), 415)


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
        for refused in (service.post({"instances": [FRANCE]}), client.get("/v1/models/bert")):
            assert "not ready" in refused.json()["error"] and refused.status_code == 503
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
