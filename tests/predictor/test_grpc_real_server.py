"""The gRPC client and grpcio's server: large messages, streams, metadata, deadlines, TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
import uvloop

from hf_transformer.predictor.address import Address
from hf_transformer.predictor.grpc_client import GrpcClient
from hf_transformer.predictor.grpc_status import RpcError, Status
from tests.predictor.fault_server import HOST, scripted

TLS = Path(__file__).with_name("tls")
CERTIFICATE, KEY = TLS / "localhost.pem", TLS / "localhost.key"
LARGE = np.random.default_rng(7).integers(0, 256, 20_000_003, np.uint8).tobytes()
"""20 MB that look the same nowhere."""

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


class Service:
    """/echo/Unary gives the request back; /echo/Stream gives it as often as its metadata says; /echo/Hang waits."""

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, Any], float]] = []
        self.written = 0
        self.cancelled = asyncio.Event()

    def handler(self) -> Any:
        return grpc.method_handlers_generic_handler(
            "echo",
            {
                "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
                "Stream": grpc.unary_stream_rpc_method_handler(self.stream),
                "Hang": grpc.unary_unary_rpc_method_handler(self.hang),
            },
        )

    async def unary(self, request: bytes, context: Any) -> bytes:
        self.seen.append((dict(context.invocation_metadata()), context.time_remaining()))
        return request

    async def stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        metadata = dict(context.invocation_metadata())
        for _ in range(int(metadata["count"])):
            yield request
            self.written += 1
        if "failing" in metadata:
            await context.abort(grpc.StatusCode.DATA_LOSS, "lost: ümlaut, 100 %\nand a line")

    async def hang(self, request: bytes, context: Any) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return b""


@asynccontextmanager
async def serving(service: Service, credentials: grpc.ServerCredentials | None = None) -> AsyncIterator[int]:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((service.handler(),))
    if credentials is None:
        port = server.add_insecure_port(f"{HOST}:0")
    else:
        port = server.add_secure_port(f"{HOST}:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@asynccontextmanager
async def opened(port: int, tls: ssl.SSLContext | None = None, seconds: float = 60.0) -> AsyncIterator[GrpcClient]:
    client = GrpcClient(Address("localhost" if tls else HOST, port, tls is not None), tls, seconds)
    try:
        yield client
    finally:
        await client.close()


def everything(service: Service) -> Coroutine[Any, Any, None]:
    """Small and large calls and streams, all on one connection."""

    async def exchange(client: GrpcClient) -> None:
        unary, stream = client.method("/echo/Unary"), client.method("/echo/Stream")
        for size in (0, 1, 5, 2**14, 2**16, 300_000):
            assert bytes(await client.unary(unary, LARGE[:size])) == LARGE[:size]
        answers = await asyncio.gather(
            client.unary(unary, LARGE), *[client.unary(unary, b"x%d" % number) for number in range(50)]
        )
        assert answers[0] == LARGE
        assert answers[1:] == [b"x%d" % number for number in range(50)]
        for content, count in ((b"token", 2000), (LARGE[:100_000], 20), (b"", 3)):
            assert await read(client, stream, content, count) == [content] * count

    async def call() -> None:
        async with serving(service) as port, opened(port) as client:
            await exchange(client)

    return call()


async def read(client: GrpcClient, method: bytes, content: bytes, count: int) -> list[bytes]:
    call = await client.stream(method, content, [("count", str(count))])
    found = []
    while (one := await call.read()) is not None:
        found.append(one)
    return found


@LOOPS
def test_calls_and_streams(run: Any) -> None:
    run(everything(Service()))


@LOOPS
def test_tls(run: Any) -> None:
    async def call() -> None:
        pair = [(KEY.read_bytes(), CERTIFICATE.read_bytes())]
        credentials = grpc.ssl_server_credentials(pair, CERTIFICATE.read_bytes(), True)
        context = ssl.create_default_context(cafile=str(CERTIFICATE))
        context.load_cert_chain(CERTIFICATE, KEY)
        async with serving(Service(), credentials) as port, opened(port, context) as client:
            for content in (b"hello", LARGE):
                assert await client.unary(client.method("/echo/Unary"), content) == content
            assert await read(client, client.method("/echo/Stream"), b"token", 500) == [b"token"] * 500

    run(call())


@pytest.mark.asyncio
@pytest.mark.parametrize("offered", [[], ["http/1.1"]], ids=["nothing", "http/1.1"])
async def test_tls_with_another_protocol(offered: list[str]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE, KEY)
    context.set_alpn_protocols(offered)
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    async with scripted(lambda connection: connection.until_closed(), context) as host:
        async with opened(int(host.rpartition(":")[2]), trusting) as client:
            with pytest.raises(RpcError, match=r"no protocol in TLS \(ALPN\), expected h2"):
                await client.unary(client.method("/echo/Unary"), b"hello")


@pytest.mark.asyncio
async def test_metadata_and_the_deadline_arrive() -> None:
    service = Service()
    metadata = [("x-request-id", "7"), ("authorization", "Bearer x"), ("long", "y" * 5000), ("empty", "")]
    async with serving(service) as port, opened(port) as client:
        for _ in range(2):
            await client.unary(client.method("/echo/Unary", [("a", "b")]), b"hello", metadata)
    for seen, remaining in service.seen:
        assert dict(metadata).items() <= seen.items()
        assert seen["a"] == "b"
        assert 56 < remaining <= 61.1  # one second more than ours


@pytest.mark.asyncio
async def test_an_error_after_messages() -> None:
    async with serving(Service()) as port, opened(port) as client:
        call = await client.stream(client.method("/echo/Stream"), b"x", [("count", "2"), ("failing", "yes")])
        assert [await call.read(), await call.read()] == [b"x", b"x"]
        for _ in range(2):
            with pytest.raises(RpcError) as caught:
                await call.read()
            assert (caught.value.status, caught.value.details) == (Status.DATA_LOSS, "lost: ümlaut, 100 %\nand a line")


@pytest.mark.asyncio
async def test_the_server_sees_that_a_call_is_cancelled() -> None:
    service = Service()
    async with serving(service) as port, opened(port) as client:
        call = asyncio.create_task(client.unary(client.method("/echo/Hang"), b"x"))
        await asyncio.sleep(0.05)
        call.cancel()
        await service.cancelled.wait()
        assert await client.unary(client.method("/echo/Unary"), b"hello") == b"hello"


@pytest.mark.asyncio
async def test_a_stream_that_is_cancelled_in_the_middle_of_a_message_is_over() -> None:
    service = Service()
    async with serving(service) as port, opened(port) as client:
        call = await client.stream(client.method("/echo/Stream"), LARGE[:300_000], [("count", "1000")])
        assert await call.read() == LARGE[:300_000]
        call.cancel()
        with pytest.raises(RpcError, match="cancelled here"):
            await call.read()
        assert await client.unary(client.method("/echo/Unary"), LARGE) == LARGE
        assert service.written < 20


@pytest.mark.asyncio
async def test_a_slow_reader_holds_the_server_back() -> None:
    service = Service()
    async with serving(service) as port, opened(port) as client:
        call = await client.stream(client.method("/echo/Stream"), b"x" * 1000, [("count", "100000")])
        await call.read()
        before = -1
        while before != service.written:  # until it stands still
            before = service.written
            await asyncio.sleep(0.1)
        assert before < 1000
        for _ in range(200):
            await call.read()
        assert service.written > before
        call.cancel()
