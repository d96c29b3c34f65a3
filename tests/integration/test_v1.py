"""The V1 routes, and what every HTTP route shares: bodies, ids, logs and metrics."""

from __future__ import annotations

import gzip
import json
import re
from concurrent.futures import ThreadPoolExecutor

from hf_transformer.commands.local_triton import poll
from tests.integration.conftest import Serve

TEXT = "The capital of france is [MASK]."
BODY = json.dumps({"instances": [TEXT]}).encode()


def test_forms_of_a_request(serve: Serve) -> None:
    service = serve("bert")
    for body in (
        {"inputs": [TEXT]},
        {"instances": TEXT},
        {"inputs": TEXT},
        {"instances": [{"text": TEXT}]},
        {"instances": [TEXT], "parameters": None},
        {"instances": [TEXT], "signature_name": "serving_default"},
    ):
        response = service.post(body)
        assert (response.status_code, response.text) == (200, '{"predictions":["paris"]}')
    for headers in ({}, {"content-type": "application/x-www-form-urlencoded"}, {"content-type": "nonsense"}):
        assert service.post(BODY, headers=headers).json() == {"predictions": ["paris"]}


def test_charsets_and_compression(serve: Serve) -> None:
    service = serve("bert")
    charset = {"content-type": "application/json; charset=utf-16"}
    assert service.post(BODY.decode().encode("utf-16"), headers=charset).json() == {"predictions": ["paris"]}
    response = service.post(gzip.compress(BODY), headers={"content-encoding": "gzip"})
    assert response.json() == {"predictions": ["paris"]}
    chunks = (BODY[start : start + 5] for start in range(0, len(BODY), 5))
    assert service.client.post("/v1/models/bert:predict", content=chunks).json() == {"predictions": ["paris"]}


def test_models_and_readiness(serve: Serve) -> None:
    client = serve("bert").client
    assert client.get("/").json() == {"status": "alive"}
    assert client.get("/v1/models").json() == {"models": ["bert"]}
    assert client.get("/v1/models/bert").json() == {"name": "bert", "ready": True}
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}


def test_the_request_id_is_kept(serve: Serve) -> None:
    service = serve("bert")
    response = service.post(BODY, headers={"x-request-id": "caller-17"})
    assert response.headers["x-request-id"] == "caller-17"
    assert service.post(BODY).headers["x-request-id"] != service.post(BODY).headers["x-request-id"]
    failed = service.post(b"{", headers={"x-request-id": "caller-18"})
    assert failed.headers["x-request-id"] == "caller-18"


def test_the_latency_line_is_kserves_and_shows_no_text(serve: Serve) -> None:
    service = serve("bert")
    service.post({"instances": ["The capital of sesame is [MASK]."]}, headers={"x-request-id": "line-1"})
    line = re.compile(
        r"^\d{4}-\d\d-\d\dT[\d:.]+ INFO hf_transformer.latency: requestId: line-1, preprocess_ms: [\d.]+, "
        r"explain_ms: 0, predict_ms: [\d.]+, postprocess_ms: [\d.]+\n",
        re.MULTILINE,
    )
    assert poll(lambda: line.search(service.log) is not None, 5.0)  # it waits a tenth of a second for others
    service.post({"instances": ["a sesame without one"]})
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


def test_requests_at_once_get_their_own_answers(serve: Serve, protocol: str) -> None:
    """Many connections, each with a text whose answer is known."""
    service = serve("bert_masked", protocol)
    pairs = [("france", "paris"), ("italy", "rome"), ("japan", "tokyo"), ("spain", "madrid")] * 25

    def ask(pair: tuple[str, str]) -> bool:
        answer: list[str] = service.predict([f"The capital of {pair[0]} is [MASK]."])
        return answer == [pair[1]]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, pairs))
