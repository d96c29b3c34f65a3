"""Both transports over TLS, with a certificate that only tests trust, from open to closed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from hf_transformer.errors import PredictorUnavailable
from hf_transformer.predictor import open_predictor
from hf_transformer.predictor.base import PredictorSettings
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.predictor.fault_server import HOST, Connection, scripted

pytestmark = pytest.mark.asyncio

TLS = Path(__file__).with_name("tls")
CERTIFICATE, KEY = TLS / "localhost.pem", TLS / "localhost.key"


@asynccontextmanager
async def rest_server() -> AsyncIterator[int]:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.answer("200 OK")

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE, KEY)
    async with scripted(script, context) as host:
        yield int(host.rpartition(":")[2])


@asynccontextmanager
async def grpc_server() -> AsyncIterator[int]:
    async def ready(request: bytes, context: Any) -> bytes:
        return pb.ModelReadyResponse(ready=True).SerializeToString()

    server = grpc.aio.server()
    handlers = {"ModelReady": grpc.unary_unary_rpc_method_handler(ready)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),))
    credentials = grpc.ssl_server_credentials([(KEY.read_bytes(), CERTIFICATE.read_bytes())])
    port = server.add_secure_port(f"{HOST}:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


SERVERS = {"v2": rest_server, "grpc-v2": grpc_server}


@pytest.mark.parametrize("protocol", SERVERS, ids=["rest", "grpc"])
async def test_a_trusted_certificate(protocol: str) -> None:
    async with SERVERS[protocol]() as port:
        settings = PredictorSettings("m", f"localhost:{port}", use_ssl=True, ca_file=str(CERTIFICATE))
        async with open_predictor(protocol, settings, 0) as predictor:
            assert await predictor.model_ready()


@pytest.mark.parametrize("protocol", SERVERS, ids=["rest", "grpc"])
async def test_an_unknown_certificate_is_refused(protocol: str) -> None:
    async with SERVERS[protocol]() as port:
        settings = PredictorSettings("m", f"localhost:{port}", use_ssl=True)
        async with open_predictor(protocol, settings, 0) as predictor:
            with pytest.raises(PredictorUnavailable, match=r"(?i)certificate"):
                await predictor.model_ready()


@pytest.mark.parametrize("protocol", SERVERS, ids=["rest", "grpc"])
async def test_a_predictor_that_is_closed_is_unavailable(protocol: str) -> None:
    async with SERVERS[protocol]() as port:
        settings = PredictorSettings("m", f"localhost:{port}", use_ssl=True, ca_file=str(CERTIFICATE))
        async with open_predictor(protocol, settings, 0) as predictor:
            await predictor.model_ready()
        with pytest.raises(PredictorUnavailable, match="closed"):
            await predictor.model_ready()


@pytest.mark.parametrize("protocol", SERVERS, ids=["rest", "grpc"])
async def test_plain_text_where_tls_is_spoken(protocol: str) -> None:
    async with SERVERS[protocol]() as port:
        async with open_predictor(protocol, PredictorSettings("m", f"localhost:{port}"), 0) as predictor:
            with pytest.raises(PredictorUnavailable):
                await asyncio.wait_for(predictor.model_ready(), 30)


@pytest.mark.parametrize("protocol", SERVERS, ids=["rest", "grpc"])
@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["closes", "answers"])
async def test_tls_where_plain_text_is_spoken(protocol: str, said: bytes) -> None:
    async def script(connection: Connection) -> None:
        await connection.reader.read(10)
        if said:
            await connection.send(said)

    async with (
        scripted(script) as host,
        open_predictor(protocol, PredictorSettings("m", host, use_ssl=True), 0) as predictor,
    ):
        flags = r"\(--predictor_use_ssl or https:// in --predictor_host ask for TLS\)$"
        with pytest.raises(PredictorUnavailable, match=flags):
            await predictor.model_ready()
