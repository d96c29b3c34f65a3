"""Keys over HTTP: which routes take one, what is refused and how, and that the document says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.conftest import Serve
from tests.service import Service

KEYS = "# a comment\n\n  alpha-key  \nbeta-key\n"
KEY = {"Authorization": "Bearer alpha-key"}
INFER = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}
CLOSED = [
    ("POST", "/v1/models/bert:predict", {"instances": ["a"]}),
    ("POST", "/v1/models/bert:tokenize", {"instances": ["a"]}),
    ("POST", "/v2/models/bert/infer", INFER),
    ("POST", "/openai/v1/embeddings", {"input": "a", "model": "bert"}),
    ("POST", "/openai/v1/rerank", {"query": "a", "documents": ["b"], "model": "bert"}),
    ("GET", "/openai/v1/models", None),
    ("GET", "/v1/models", None),
    ("GET", "/v2/models/bert", None),
    ("GET", "/v2/models/bert/stats", None),
    ("POST", "/v2/repository/index", {}),
    ("GET", "/v2", None),
    ("GET", "/openapi.json", None),
    ("GET", "/info", None),
    ("GET", "/v1/models/bert/info", None),
    ("GET", "/docs", None),
    ("GET", "/no/such/path", None),
    ("POST", "/metrics", None),
]
OPEN = ["/", "/metrics", "/v1/models/bert", "/v2/health/live", "/v2/health/ready", "/v2/models/bert/ready"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(KEYS)
    return path


@pytest.fixture
def service(serve: Serve, file: Path) -> Service:
    service: Service = serve("bert", "v2", f"--api_keys_file={file}", "--enable_docs_url=true")
    return service


@pytest.mark.parametrize(("method", "path", "body"), CLOSED, ids=[f"{method} {path}" for method, path, _ in CLOSED])
def test_what_takes_a_key(service: Service, method: str, path: str, body: Any) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
        refused = service.client.request(method, path, json=body, headers=headers)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.headers["x-request-id"]
        said = refused.json()["error"]
        message = said["message"] if path.startswith("/openai/") else said
        assert "--api_keys_file" in message and "wrong" not in message
    for headers in (KEY, {"api-key": "beta-key"}, {"x-api-key": "beta-key"}):
        assert service.client.request(method, path, json=body, headers=headers).status_code != 401


@pytest.mark.parametrize("path", OPEN)
def test_what_takes_none(service: Service, path: str) -> None:
    client = service.client
    assert client.get(path).status_code == 200
    assert client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 200
    assert client.get(f"{path}?a=b").status_code == 200
    assert client.post(path).status_code == 401
    assert client.get(f"{path}/").status_code in (401, 200 if path == "/" else 401)


def test_refused_requests_are_counted(service: Service) -> None:
    refused = 'hf_transformer_requests_total{api="keys",status="401"}'
    service.post({"instances": ["a"]}, "bert")  # one at least, so that the metric is there
    before = service.metric(refused)
    service.post({"instances": ["a"]}, "bert")
    assert service.metric(refused) == before + 1


def test_the_document_tells_of_keys_what_is_done(service: Service) -> None:
    """Each operation of the document is tried without a key and with one."""
    client = service.client
    document = client.get("/openapi.json", headers=KEY).json()
    assert document["security"] == [{"Bearer": []}, {"XApiKey": []}, {"ApiKey": []}]
    assert set(document["components"]["securitySchemes"]) == {"Bearer", "XApiKey", "ApiKey"}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method == "parameters":
                continue
            url = path.format(version="1")
            refused = client.request(method, url)
            assert (refused.status_code == 401) == ("security" not in operation) == ("401" in operation["responses"])
            assert client.request(method, url, headers=KEY).status_code != 401
            if refused.status_code == 401:
                response = document["components"]["responses"][operation["responses"]["401"]["$ref"].rpartition("/")[2]]
                schema = response["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                assert schema == ("OpenAIError" if isinstance(refused.json()["error"], dict) else "Error")
                assert schema in document["components"]["schemas"]


def test_a_document_without_keys_tells_of_none(serve: Serve) -> None:
    document = httpx.get(f"{serve('bert').url}/openapi.json", trust_env=False).json()
    assert document["security"] == [] and "securitySchemes" not in document["components"]
