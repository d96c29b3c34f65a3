"""The V1 routes, and what every HTTP route shares: bodies, ids, logs and metrics."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import zlib
from typing import Any

from hf_transformer.commands.local_triton import HOST, poll
from tests.integration.conftest import Serve

TEXT = "The capital of france is [MASK]."
BODY = json.dumps({"instances": [TEXT]}).encode()
FORMS: list[tuple[Any, dict[str, str]]] = [
    ({"inputs": [TEXT]}, {}),
    ({"instances": TEXT}, {}),
    ({"inputs": TEXT}, {}),
    ({"instances": [{"text": TEXT}]}, {}),
    ({"instances": [TEXT], "parameters": None}, {}),
    ({"instances": [TEXT], "signature_name": "serving_default"}, {}),
    (BODY, {}),
    (BODY, {"content-type": "application/x-www-form-urlencoded"}),
    (BODY, {"content-type": "nonsense"}),
    (BODY.decode().encode("utf-16"), {"content-type": "application/json; charset=utf-16"}),
    (gzip.compress(BODY), {"content-encoding": "gzip"}),
    (zlib.compress(BODY), {"content-encoding": "deflate"}),
]
ROUNDS = 50


def test_forms_of_a_request(serve: Serve) -> None:
    service = serve("bert")
    for body, headers in FORMS:
        response = service.post(body, headers=headers)
        assert (response.status_code, response.text) == (200, '{"predictions":["paris"]}')
    chunks = (BODY[start : start + 5] for start in range(0, len(BODY), 5))
    assert service.client.post("/v1/models/bert:predict", content=chunks).json() == {"predictions": ["paris"]}


def test_models_and_readiness(serve: Serve) -> None:
    client = serve("bert").client
    assert client.get("/").json() == {"status": "alive"}
    assert client.get("/v1/models").json() == {"models": ["bert"]}
    assert client.get("/v1/models/bert").json() == {"name": "bert", "ready": True}


def test_the_latency_line_is_kserves_and_shows_no_text(serve: Serve) -> None:
    service = serve("bert")
    headers = {"x-request-id": "line-1"}
    answered = service.post({"instances": ["The capital of sesame is [MASK]."]}, headers=headers)
    assert answered.headers["x-request-id"] == "line-1"
    line = re.compile(
        r"^\d{4}-\d\d-\d\dT[\d:.]+ INFO hf_transformer.latency: requestId: line-1, preprocess_ms: [\d.]+, "
        r"explain_ms: 0, predict_ms: [\d.]+, postprocess_ms: [\d.]+\n",
        re.MULTILINE,
    )
    assert poll(lambda: line.search(service.log) is not None, 5.0)  # it waits a tenth of a second for others
    failed = service.post({"instances": ["a sesame without one"]}, headers={"x-request-id": "line-2"})
    assert (failed.status_code, failed.headers["x-request-id"]) == (400, "line-2")
    assert "sesame" not in service.log


def test_texts_are_logged_only_when_asked_for(serve: Serve) -> None:
    service = serve("bert", "v2", "--enable_log_requests", "--max_log_len=14", "--enable_latency_logging=false")
    service.post(BODY, headers={"x-request-id": "shown"})
    assert "requestId: shown, instances: ['The capital of']" in service.log
    assert "france" not in service.log
    assert "preprocess_ms" not in service.log


def test_metrics_have_kserves_histograms(serve: Serve) -> None:
    service = serve("bert")
    names = [
        f'request_{stage}_seconds_count{{model_name="bert"}}' for stage in ("preprocess", "predict", "postprocess")
    ]
    before = [service.metric(name) for name in names]
    requests = service.metric('hf_transformer_requests_total{api="v1",status="200"}')
    service.predict([TEXT] * 20)
    assert [service.metric(name) for name in names] == [count + 1 for count in before]
    assert service.metric('hf_transformer_requests_total{api="v1",status="200"}') == requests + 1
    assert 'request_explain_seconds_count{model_name="bert"} 0.0' in service.client.get("/metrics").text
    assert service.client.get("/metrics").headers["content-type"].startswith("text/plain")


def test_who_has_an_answer_finds_it_in_the_metrics(serve: Serve) -> None:
    """Answers are counted after they were sent, but before their client can ask."""
    service = serve("bert")
    wanted = re.compile(rb'^request_predict_seconds_count\{model_name="bert"\} ([\d.]+)$', re.MULTILINE)
    predictions, metrics = (http.client.HTTPConnection(HOST, service.port, timeout=60) for _ in range(2))

    def count() -> float:
        metrics.request("GET", "/metrics")
        found = wanted.search(metrics.getresponse().read())
        assert found is not None
        return float(found[1])

    try:
        before = count()
        for number in range(1, ROUNDS + 1):
            predictions.request("POST", "/v1/models/bert:predict", BODY, {"content-type": "application/json"})
            answer = predictions.getresponse()
            assert (answer.status, answer.read()) == (200, b'{"predictions":["paris"]}')
            assert count() == before + number
    finally:
        predictions.close()
        metrics.close()
