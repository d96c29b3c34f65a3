"""Keys: which are taken, what is refused and how, and that they go no further."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from starlette.applications import Starlette

from hf_transformer.api.api_keys import ApiKeys, KeyedApp
from hf_transformer.api.grpc.keys import KeyedCalls
from hf_transformer.api.grpc.server import GrpcServer, GrpcSettings
from hf_transformer.api.key_file import read_keys
from hf_transformer.api.openai import routes as openai
from hf_transformer.app import build_app, http_app
from hf_transformer.commands.local_triton import HOST, free_ports
from hf_transformer.errors import ConfigError
from hf_transformer.model_parts import load_parts
from hf_transformer.observability.metrics import Metrics
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.v2_grpc import SERVICE
from hf_transformer.types import Context
from tests.configuring import config
from tests.integration.api.grpc_model import (
    Client,
    ScriptedModel,
    Server,
    connected,
    failure,
    request,
    service_of,
    text_of,
)

KEYS = "# a comment\n\n  alpha-key  \nbeta-key\n"
INFER = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}


DEMO = Path(__file__).parents[2] / "deploy" / "model_repository" / "bert"


@cache
def demo_task() -> Any:
    return load_parts(config(f"--model_dir={DEMO}")).task


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    return path


@asynccontextmanager
async def http_client(file: Path, model: ScriptedModel) -> AsyncIterator[httpx.AsyncClient]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield

    given = config("--enable_docs_url=true")
    metrics = Metrics(model.name)
    model.task = demo_task()
    app = http_app(given, service_of(model, metrics), lifespan)
    keyed = KeyedApp(app, ApiKeys(str(file)), [model.name], openai.errors_by_path(given.openai_route_prefix), metrics)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(keyed), base_url="http://x") as client:
        yield client


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no key"),
        ("# only a comment\n", "has no key"),
        ("good\nwith space\n", "line 2"),
        ("schlüssel\n", "line 1"),
        ("a" * 1025, "line 1"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_files_that_hold_no_keys(tmp_path: Path, text: str | bytes, says: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=f"^--api_keys_file={path}: .*{says}") as caught:
        ApiKeys(str(path))
    assert "with space" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        ApiKeys(str(tmp_path / "none"))


def test_the_keys_in_a_file(file: Path) -> None:
    assert read_keys(str(file)) == ["alpha-key", "beta-key"]


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        (b"authorization", b"Bearer alpha-key", True),
        (b"authorization", b"bearer  beta-key ", True),
        (b"x-api-key", b"alpha-key", True),
        (b"api-key", b"beta-key", True),
        (b"authorization", b"alpha-key", False),
        (b"authorization", b"Basic alpha-key", False),
        (b"authorization", b"Bearer alpha-ke", False),
        (b"authorization", b"Bearer alpha-keyy", False),
        (b"authorization", b"Bearer ", False),
        (b"x-api-key", b"# a comment", False),
        (b"x-api-key", b"", False),
        (b"x-key", b"alpha-key", False),
    ],
)
def test_which_headers_are_accepted(file: Path, name: bytes, value: bytes, accepted: bool) -> None:
    assert ApiKeys(str(file)).accept([(b"host", b"x"), (name, value)]) is accepted


def test_a_renewed_file(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = ApiKeys(str(file))

    def accepts(key: bytes) -> bool:
        return keys.accept([(b"x-api-key", key)])

    def write(text: str) -> None:
        new = file.with_name("new")
        new.write_text(text)
        os.replace(new, file)

    assert not keys.file.renew()
    write("gamma-key\n")
    assert accepts(b"alpha-key")  # nobody has looked yet
    assert keys.file.renew()
    assert accepts(b"gamma-key") and not accepts(b"alpha-key")

    for broken in ("", "two words\n"):
        write(broken)
        assert not keys.file.renew()
        assert not keys.file.renew()
        assert accepts(b"gamma-key")
    file.unlink()
    assert not keys.file.renew()
    assert accepts(b"gamma-key")
    refused = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(refused) == 3  # one line for each broken file
    assert "two words" not in caplog.text and "gamma-key" not in caplog.text

    write("delta-key\n")
    assert keys.file.renew()
    assert accepts(b"delta-key")


CLOSED = [
    ("POST", "/v1/models/bert:predict", {"instances": ["a"]}),
    ("POST", "/v1/models/bert:tokenize", {"instances": ["a"]}),
    ("POST", "/v2/models/bert/infer", INFER),
    ("POST", "/openai/v1/embeddings", {"input": "a", "model": "bert"}),
    ("POST", "/openai/v1/rerank", {"query": "a", "documents": ["b"], "model": "bert"}),
    ("GET", "/openai/v1/models", None),
    ("GET", "/v1/models", None),
    ("GET", "/v2/models/bert", None),
    ("GET", "/v2", None),
    ("GET", "/openapi.json", None),
    ("GET", "/docs", None),
    ("GET", "/no/such/path", None),
    ("POST", "/metrics", None),
]
OPEN = ["/", "/metrics", "/v1/models/bert", "/v2/health/live", "/v2/health/ready", "/v2/models/bert/ready"]


@pytest.mark.parametrize(("method", "path", "body"), CLOSED, ids=[f"{method} {path}" for method, path, _ in CLOSED])
async def test_what_takes_a_key(file: Path, method: str, path: str, body: Any) -> None:
    async with http_client(file, ScriptedModel()) as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
            refused = await client.request(method, path, json=body, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.headers["x-request-id"]
            said = refused.json()["error"]
            message = said["message"] if path.startswith("/openai/") else said
            assert "--api_keys_file" in message and "wrong" not in message
        for headers in ({"Authorization": "Bearer alpha-key"}, {"api-key": "beta-key"}, {"x-api-key": "beta-key"}):
            assert (await client.request(method, path, json=body, headers=headers)).status_code != 401


@pytest.mark.parametrize("path", OPEN)
async def test_what_takes_none(file: Path, path: str) -> None:
    async with http_client(file, ScriptedModel()) as client:
        assert (await client.get(path)).status_code == 200
        assert (await client.get(path, headers={"Authorization": "Bearer wrong"})).status_code == 200
        assert (await client.get(f"{path}?a=b")).status_code == 200
        assert (await client.post(path)).status_code == 401
        assert (await client.get(f"{path}/")).status_code in (401, 200 if path == "/" else 401)


async def test_refused_requests_are_counted(file: Path) -> None:
    async with http_client(file, ScriptedModel()) as client:
        await client.post("/v1/models/bert:predict", json={"instances": ["a"]})
        text = (await client.get("/metrics")).text
        assert 'hf_transformer_requests_total{api="keys",status="401"} 1.0' in text


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key"])
async def test_no_key_reaches_the_model(file: Path, name: str) -> None:
    model = ScriptedModel()
    async with http_client(file, model) as client:
        key = "Bearer alpha-key" if name == "authorization" else "alpha-key"
        # Whatever else is in these headers may be a key for somebody: it goes no further either.
        others = {"authorization": "Bearer other", "x-api-key": "other", "api-key": "other"}
        headers = others | {name: key, "traceparent": "00-1-2-01"}
        assert (await client.post("/v2/models/bert/infer", json=INFER, headers=headers)).status_code == 200
    assert seen(model.contexts) == {"traceparent": "00-1-2-01"}


def seen(contexts: list[Context]) -> dict[str, str]:
    """What goes on to the predictor, beside the request's id."""
    [context] = contexts
    return {name: value for name, value in context.headers.items() if name != "x-request-id"}


@asynccontextmanager
async def grpc_client(file: Path, model: ScriptedModel, metrics: Metrics | None = None) -> AsyncIterator[Client]:
    where = replace(GrpcSettings("", 0), host=HOST, port=free_ports(1)[0])
    metrics = metrics or Metrics(model.name)
    async with GrpcServer(service_of(model, metrics), where, (KeyedCalls(ApiKeys(str(file)), metrics),)) as running:
        async with connected(Server(where, metrics, running)) as client:
            yield client


async def test_grpc_with_and_without_a_key(file: Path) -> None:
    model = ScriptedModel()
    async with grpc_client(file, model) as client:
        for metadata in ((), (("authorization", "Bearer wrong"),), (("x-api-key", ""),)):
            error = await failure(client.infer(request("a"), metadata=metadata))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "--api_keys_file" in str(error.details())
        key = (("authorization", "Bearer beta-key"), ("traceparent", "00-1-2-01"))
        assert text_of(await client.infer(request("a"), metadata=key)) == "a"
        assert seen(model.contexts) == {"traceparent": "00-1-2-01"}


async def test_refused_calls_are_counted_as_requests_are(file: Path) -> None:
    metrics = Metrics("bert")
    async with grpc_client(file, ScriptedModel(), metrics) as client:
        await failure(client.infer(request("a")))
        await failure(anext(aiter(client.stream(iter([request("a")])))))
        assert text_of(await client.infer(request("a"), metadata=(("api-key", "beta-key"),))) == "a"
    text = metrics.render().decode()
    assert 'hf_transformer_requests_total{api="keys",status="401"} 2.0' in text
    assert 'hf_transformer_requests_total{api="grpc",status="200"} 1.0' in text


async def test_grpc_streams(file: Path) -> None:
    model = ScriptedModel()
    async with grpc_client(file, model) as client, asyncio.timeout(20):
        error = await failure(anext(aiter(client.stream(iter([request("a")])))))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        stream = client.stream(iter([request("a"), request("b")]), metadata=(("api-key", "alpha-key"),))
        assert [text_of(answer.infer_response) async for answer in stream] == ["a", "b"]
        assert [list(context.headers) for context in model.contexts] == [["x-request-id"], ["x-request-id"]]


async def test_what_grpc_tells_everybody(file: Path) -> None:
    async with grpc_client(file, ScriptedModel()) as client:
        assert (await client.ask("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse)).live
        assert (await client.ask("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse)).ready
        assert (await client.ask("ModelReady", pb.ModelReadyRequest(name="bert"), pb.ModelReadyResponse)).ready
        check: Any = client.channel.unary_unary("/grpc.health.v1.Health/Check", None, None)
        assert await check(b"") == b"\x08\x01"  # SERVING
        watch: Any = client.channel.unary_stream("/grpc.health.v1.Health/Watch", None, None)(b"")
        assert await watch.read() == b"\x08\x01"
        watch.cancel()
        closed = (
            f"/{SERVICE}/ServerMetadata",
            f"/{SERVICE}/ModelMetadata",
            f"/{SERVICE}/ModelConfig",
        )
        for method in closed:
            error = await failure(client.channel.unary_unary(method, None, None)(b""))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED, method
        reflection: Any = client.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", None, None
        )
        error = await failure(anext(aiter(reflection(iter([b""])))))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        error = await failure(client.channel.unary_unary(f"/{SERVICE}/NoSuchMethod", None, None)(b""))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_document_tells_of_keys_what_is_done(file: Path) -> None:
    """Each operation of the document is tried without a key and with one."""
    app = build_app(
        config(f"--model_dir={DEMO}", "--model_name=bert", "--enable_grpc=false", f"--api_keys_file={file}")
    )
    key = {"authorization": "Bearer alpha-key"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        document = (await client.get("/openapi.json", headers=key)).json()
        assert document["security"] == [{"Bearer": []}, {"XApiKey": []}, {"ApiKey": []}]
        assert set(document["components"]["securitySchemes"]) == {"Bearer", "XApiKey", "ApiKey"}
        for path, item in document["paths"].items():
            for method, operation in item.items():
                url = path.format(model="bert", version="1")
                refused = await client.request(method, url)
                assert (
                    (refused.status_code == 401) == ("security" not in operation) == ("401" in operation["responses"])
                )
                assert (await client.request(method, url, headers=key)).status_code != 401
                if refused.status_code == 401:
                    content = operation["responses"]["401"]["content"]["application/json"]
                    schema = content["schema"]["$ref"].rpartition("/")[2]
                    assert schema == ("OpenAIError" if isinstance(refused.json()["error"], dict) else "Error")
                    assert schema in document["components"]["schemas"]


async def test_a_document_without_keys_tells_of_none() -> None:
    app = build_app(config(f"--model_dir={DEMO}", "--model_name=bert", "--enable_grpc=false"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        document = (await client.get("/openapi.json")).json()
    assert "security" not in document and "securitySchemes" not in document["components"]
