"""Keys over gRPC: which calls take one, and that none goes further."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from hf_transformer.api.auth import ApiKeys
from hf_transformer.api.grpc.server import GrpcServer, GrpcSettings
from hf_transformer.commands.local_triton import HOST, free_ports
from hf_transformer.observability.metrics import Metrics
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.types import Context
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


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    return path


def seen(contexts: list[Context]) -> dict[str, str]:
    """What goes on to the predictor, beside the request's id."""
    [context] = contexts
    return {name: value for name, value in context.headers.items() if name != "x-request-id"}


@asynccontextmanager
async def grpc_client(file: Path, model: ScriptedModel, metrics: Metrics | None = None) -> AsyncIterator[Client]:
    where = replace(GrpcSettings("", 0), host=HOST, port=free_ports(1)[0])
    metrics = metrics or Metrics(model.name)
    async with GrpcServer(service_of(model, metrics), where, ApiKeys(str(file))) as running:
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


async def test_grpc_streams(file: Path) -> None:
    model, metrics = ScriptedModel(), Metrics("bert")
    async with grpc_client(file, model, metrics) as client, asyncio.timeout(20):
        error = await failure(anext(aiter(client.stream(iter([request("a")])))))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        stream = client.stream(iter([request("a"), request("b")]), metadata=(("api-key", "alpha-key"),))
        assert [text_of(answer.infer_response) async for answer in stream] == ["a", "b"]
        assert [list(context.headers) for context in model.contexts] == [["x-request-id"], ["x-request-id"]]
    assert b'hf_transformer_requests_total{api="keys",status="401"} 1.0' in metrics.render()


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
