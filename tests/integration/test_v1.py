"""The V1 routes, and what every HTTP route shares: bodies, ids, logs and metrics."""

from __future__ import annotations

import gzip
import json
import re
import socket
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from hf_transformer.commands.local_triton import HOST, poll
from tests.integration.conftest import Serve
from tests.service import Service

TEXT = "The capital of france is [MASK]."
BODY = json.dumps({"instances": [TEXT]}).encode()


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [TEXT]},
        {"inputs": [TEXT]},
        {"instances": TEXT},
        {"inputs": TEXT},
        {"instances": [{"text": TEXT}]},
        {"instances": [TEXT], "parameters": None},
        {"instances": [TEXT], "parameters": {}},
        {"instances": [TEXT], "signature_name": "serving_default"},
    ],
    ids=str,
)
def test_forms_of_a_request(serve: Serve, protocol: str, body: Any) -> None:
    response = serve("bert", protocol).post(body)
    assert (response.status_code, response.text) == (200, '{"predictions":["paris"]}')


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "application/json",
        "application/json; charset=utf-8",
        "application/x-www-form-urlencoded",
        "text/plain",
        "nonsense",
    ],
)
def test_any_content_type(serve: Serve, content_type: str | None) -> None:
    headers = {"content-type": content_type} if content_type else {}
    assert serve("bert").post(BODY, headers=headers).json() == {"predictions": ["paris"]}


def test_a_charset_is_honoured(serve: Serve) -> None:
    body = BODY.decode().encode("utf-16")
    headers = {"content-type": "application/json; charset=utf-16"}
    assert serve("bert").post(body, headers=headers).json() == {"predictions": ["paris"]}


def test_a_gzip_body_is_honoured(serve: Serve) -> None:
    response = serve("bert").post(gzip.compress(BODY), headers={"content-encoding": "gzip"})
    assert response.json() == {"predictions": ["paris"]}


def test_a_chunked_body(serve: Serve) -> None:
    chunks = (BODY[start : start + 5] for start in range(0, len(BODY), 5))
    response = serve("bert").client.post("/v1/models/bert:predict", content=chunks)
    assert response.json() == {"predictions": ["paris"]}


def test_a_body_in_single_bytes_on_one_connection(serve: Serve) -> None:
    """Two requests on one connection, each in many small writes."""
    service = serve("bert")
    head = f"POST /v1/models/bert:predict HTTP/1.1\r\nhost: x\r\ncontent-length: {len(BODY)}\r\n\r\n".encode()
    with socket.create_connection((HOST, service.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):
            for byte in head + BODY:
                connection.sendall(bytes([byte]))
            answer = b""
            while b"predictions" not in answer:
                answer += connection.recv(4096)
            assert answer.endswith(b'{"predictions":["paris"]}')


def test_a_client_that_leaves_early_harms_nobody(serve: Serve) -> None:
    service = serve("bert")
    for cut in (30, 120):
        with socket.create_connection((HOST, service.port)) as connection:
            head = b"POST /v1/models/bert:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n"
            connection.sendall((head + BODY)[:cut])
    assert service.predict([TEXT]) == ["paris"]
    assert "Traceback" not in service.log


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


def test_truncated_instances_are_counted(serve: Serve) -> None:
    service = serve("bert")
    name = 'hf_transformer_truncated_instances_total{model_name="bert"}'
    before = service.metric(name)
    service.predict([TEXT, TEXT + " and so on" * 200])
    assert service.metric(name) == before + 1


def test_the_predictor_health_check(serve: Serve, protocol: str) -> None:
    service = serve("bert", protocol, "--enable_predictor_health_check=true")
    assert service.client.get("/v1/models/bert").json() == {"name": "bert", "ready": True}


def test_requests_at_once_get_their_own_answers(serve: Serve, protocol: str) -> None:
    """Many connections, each with a text whose answer is known."""
    service = serve("bert_masked", protocol)
    pairs = [("france", "paris"), ("italy", "rome"), ("japan", "tokyo"), ("spain", "madrid")] * 25

    def ask(pair: tuple[str, str]) -> bool:
        answer: list[str] = service.predict([f"The capital of {pair[0]} is [MASK]."])
        return answer == [pair[1]]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, pairs))


def test_https(serve: Serve, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    plain = serve("bert")
    with Service(*plain.flags, f"--ssl_certfile={certificate}", f"--ssl_keyfile={key}") as service:
        context = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(verify=context, trust_env=False) as client:

            def answer() -> dict[str, Any] | None:
                url = f"https://{HOST}:{service.port}/v1/models/bert:predict"
                try:
                    found: dict[str, Any] = client.post(url, content=BODY).json()
                    return found
                except httpx.TransportError:
                    return None

            assert poll(lambda: answer() == {"predictions": ["paris"]}, 20.0)
