"""API keys over HTTP and gRPC: protected routes and methods, refusals, and the OpenAPI document."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from hf_transformer.api.auth import ApiKeys
from hf_transformer.protocol.grpc import SERVICE
from tests.integration.api.grpc_model import SECONDS, ScriptedModel, failure, request, serving, status_of, text_of
from tests.integration.conftest import Serve
from tests.support.service import Service

KEYS = "# a comment\n\n  alpha-key  \nbeta-key\n"
KEY = {"Authorization": "Bearer alpha-key"}
REFUSED = 'hf_transformer_requests_total{api="keys",model_name="",status="401"}'
PROTECTED = """
POST /v1/models/bert:predict
POST /v1/models/bert:tokenize
POST /v2/models/bert/infer
POST /openai/v1/embeddings
POST /openai/v1/rerank
GET /openai/v1/models
GET /v1/models
GET /v2/models/bert
GET /v2/models/bert/stats
GET /v2/models/stats
POST /v2/repository/index
GET /v2
GET /openapi.json
GET /info
GET /v1/models/bert/info
GET /docs
GET /no/such/path
POST /metrics
"""
PUBLIC = [
    "/",
    "/metrics",
    "/health",
    "/openai/health",
    "/v1/models/bert",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/bert/ready",
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(KEYS)
    return path


@pytest.fixture
def service(serve: Serve, file: Path) -> Service:
    return serve("bert", "v2", f"--api_keys_file={file}", "--enable_docs_url=true")


def test_protected_routes_need_a_key(service: Service) -> None:
    before = service.metric(REFUSED, missing=0)
    for line in PROTECTED.strip().splitlines():
        method, path = line.split()
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
            refused = service.client.request(method, path, json={}, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.headers["x-request-id"]
            error = refused.json()["error"]
            message = error["message"] if path.startswith("/openai/") else error
            assert "--api_keys_file" in message and "wrong" not in message
        for headers in (KEY, {"api-key": "beta-key"}, {"x-api-key": "beta-key"}):
            assert service.client.request(method, path, json={}, headers=headers).status_code != 401
    assert service.metric(REFUSED) == before + 3 * len(PROTECTED.strip().splitlines())


def test_public_routes_need_no_key(service: Service) -> None:
    client = service.client
    for path in PUBLIC:
        assert client.get(path).status_code == 200
        assert client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 200
        assert client.get(f"{path}?a=b").status_code == 200
        assert client.post(path).status_code == 401
        assert client.get(f"{path}/").status_code in (401, 200 if path == "/" else 401)


def test_the_document_declares_keys_for_protected_operations(service: Service, serve: Serve) -> None:
    """Tries each operation of the document without and with a key. Without keys, the document declares none."""
    client = service.client
    document = client.get("/openapi.json", headers=KEY).json()
    assert document["security"] == [{"Bearer": []}, {"XApiKey": []}, {"ApiKey": []}]
    assert set(document["components"]["securitySchemes"]) == {"Bearer", "XApiKey", "ApiKey"}
    operations = [
        (method, path.format(version="1"), operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method != "parameters"
    ]
    for method, url, operation in operations:
        refused = client.request(method, url)
        assert (refused.status_code == 401) == ("security" not in operation) == ("401" in operation["responses"])
        assert client.request(method, url, headers=KEY).status_code != 401
        if refused.status_code == 401:
            response = document["components"]["responses"][operation["responses"]["401"]["$ref"].rpartition("/")[2]]
            schema = response["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            assert schema == ("OpenAIError" if isinstance(refused.json()["error"], dict) else "Error")
            assert schema in document["components"]["schemas"]
    plain = httpx.get(f"{serve('bert').url}/openapi.json", trust_env=False).json()
    assert plain["security"] == [] and "securitySchemes" not in plain["components"]


async def test_grpc_methods_need_a_key_that_is_not_forwarded(file: Path) -> None:
    model = ScriptedModel()
    async with serving(model, keys=ApiKeys(str(file))) as server, asyncio.timeout(SECONDS):
        for metadata in ((), (("authorization", "Bearer wrong"),), (("x-api-key", ""),)):
            error = await failure(server.infer(request("a"), metadata=metadata))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "--api_keys_file" in str(error.details())
        reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        for stream in (server.stream, server.channel.stream_stream(reflection, bytes, bytes)):
            call: Any = stream(iter([request("a") if stream is server.stream else b""]))
            assert (await status_of(anext(aiter(call))))[0] is grpc.StatusCode.UNAUTHENTICATED
        for method in ("ServerMetadata", "ModelMetadata", "ModelConfig"):
            assert (await status_of(server.raw(f"/{SERVICE}/{method}")))[0] is grpc.StatusCode.UNAUTHENTICATED
        assert (await status_of(server.raw(f"/{SERVICE}/NoSuchMethod")))[0] is grpc.StatusCode.UNIMPLEMENTED
        assert server.metric(REFUSED) == 8 and not model.contexts

        key = (("authorization", "Bearer beta-key"), ("traceparent", "00-1-2-01"))
        assert text_of(await server.infer(request("a"), metadata=key)) == "a"
        call = server.stream(iter([request("a"), request("b")]), metadata=(("api-key", "alpha-key"),))
        assert [text_of(answer.infer_response) async for answer in call] == ["a", "b"]
        assert [set(context.headers) for context in model.contexts] == [
            {"traceparent", "x-request-id"},
            {"x-request-id"},
            {"x-request-id"},
        ]


async def test_grpc_probes_need_no_key(file: Path) -> None:
    async with serving(keys=ApiKeys(str(file))) as server:
        assert (await server.ask("ServerLive")).live
        assert (await server.ask("ServerReady")).ready
        assert (await server.ask("ModelReady", name="bert")).ready
        assert await server.raw("/grpc.health.v1.Health/Check") == b"\x08\x01"  # SERVING
        watch: Any = server.channel.unary_stream("/grpc.health.v1.Health/Watch", None, None)(b"")
        assert await watch.read() == b"\x08\x01"
        watch.cancel()
