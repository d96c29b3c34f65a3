"""A gRPC server with scripted methods, and a TCP server in front of it that breaks the first connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from hf_transformer.predictor.base import PredictorSettings
from hf_transformer.predictor.grpc import GrpcPredictor
from tests.predictor.fault_server import CERTIFICATE, HOST, KEY, Connection, scripted

Handler = Callable[[Any, Any], Awaitable[Any]]


@asynccontextmanager
async def serving(
    host: str = HOST, port: int = 0, credentials: grpc.ServerCredentials | None = None, **methods: Handler
) -> AsyncIterator[str]:
    """A server with these methods of the V2 service, bytes in and bytes out; yields host:port."""
    handlers = {
        name: grpc.stream_stream_rpc_method_handler(method)
        if name == "ModelStreamInfer"
        else grpc.unary_unary_rpc_method_handler(method)
        for name, method in methods.items()
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),))
    address = f"{host}:{port}"
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    await server.start()
    try:
        yield f"{host}:{port}"
    finally:
        await server.stop(None)


def server_credentials(mutual: bool) -> grpc.ServerCredentials:
    """The server's credentials; ``mutual`` requires the same certificate from the client."""
    certificate = CERTIFICATE.read_bytes()
    return grpc.ssl_server_credentials([(KEY.read_bytes(), certificate)], certificate if mutual else None, mutual)


def predictor(host: str, **settings: Any) -> GrpcPredictor:
    return GrpcPredictor(PredictorSettings("bert", host, **settings))


Fault = Callable[[Connection], Awaitable[None]]


@asynccontextmanager
async def faulty(fault: Fault, host: str) -> AsyncIterator[str]:
    """A server whose first connection has the fault. Later ones are forwarded to the server at ``host``."""

    async def script(connection: Connection) -> None:
        await (fault(connection) if connection.number == 0 else connection.forward(host))

    async with scripted(script) as address:
        yield address


# HTTP/2 frames for faulty responses

GOOD_HEAD = b"\x88\x0f\x10\x10application/grpc"
""":status 200 and the content type, in HPACK."""


def frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    """A frame; ``length`` overrides the true length in its header."""
    size = len(payload) if length is None else length
    return size.to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def message(content: bytes) -> bytes:
    """An uncompressed gRPC message."""
    return b"\0" + len(content).to_bytes(4) + content


def head(stream: int) -> bytes:
    return frame(1, 4, stream, GOOD_HEAD)


async def until_request(connection: Connection, count: int = 1) -> int:
    """Opens HTTP/2, reads ``count`` requests, and returns the stream id of the last one."""
    await connection.reader.readexactly(24)
    await connection.send(frame(4, 0, 0, b""))
    while True:
        header = await connection.reader.readexactly(9)
        await connection.reader.readexactly(int.from_bytes(header[:3]))
        if header[3] == 0 and header[4] & 1:  # DATA with END_STREAM
            count -= 1
            if not count:
                return int.from_bytes(header[5:])
