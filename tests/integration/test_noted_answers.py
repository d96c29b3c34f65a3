"""Answers are counted and logged after they were sent, but before their client can ask for it."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable

from hf_transformer.commands.local_triton import HOST, LocalTriton
from tests.integration.conftest import MODEL_FOLDER, Serve
from tests.service import Service, flags_for

BODY = json.dumps({"instances": ["The capital of france is [MASK]."]})
ROUNDS = 50


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None) -> bytes:
    """The body of an answer with the status 200."""
    connection.request(method, path, body, {"content-type": "application/json"} if body else {})
    response = connection.getresponse()
    content = response.read()
    assert response.status == 200, content
    return content


def test_whoever_has_an_answer_finds_it_in_the_metrics(serve: Serve, protocol: str) -> None:
    service = serve("bert", protocol)
    wanted = re.compile(rb'^request_predict_seconds_count\{model_name="bert"\} ([\d.]+)$', re.MULTILINE)
    predictions, metrics = (http.client.HTTPConnection(HOST, service.port, timeout=60) for _ in range(2))

    def count() -> float:
        found = wanted.search(ask(metrics, "GET", "/metrics"))
        assert found is not None
        return float(found[1])

    try:
        before = count()
        for number in range(1, ROUNDS + 1):
            ask(predictions, "POST", "/v1/models/bert:predict", BODY)
            assert count() == before + number
    finally:
        predictions.close()
        metrics.close()


def test_the_last_answer_of_all_is_logged(triton: LocalTriton, load: Callable[[str], None]) -> None:
    load("bert")
    with Service(*flags_for("bert", MODEL_FOLDER, triton.http_address, "v2")).wait_until("/v1/models/bert") as service:
        service.post(BODY.encode(), headers={"x-request-id": "the-last"})
        assert service.stop() == 0
        assert "requestId: the-last, preprocess_ms: " in service.log
