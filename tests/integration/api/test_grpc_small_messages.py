"""Methods other than inference take small messages only, keep nothing of larger ones, and bound what waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import Any

import grpc
import grpc.aio
import pytest

from hf_transformer.api.grpc import small_messages
from hf_transformer.api.grpc.introspection import HEALTH_LIST, MAX_CONNECTION_WATCHES, MIN_WATCHES
from hf_transformer.api.grpc.small_messages import MAX_MESSAGE_BYTES, MAX_READING, SmallMessages
from hf_transformer.commands.loopback import HOST
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.integration.api.grpc_model import SECONDS, channel_to, connected, serving, status_of

CODES = grpc.StatusCode
HEALTH = "/grpc.health.v1.Health"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
LISTED = [] if HEALTH_LIST is None else [f"{HEALTH}/List"]
METHODS = [
    f"/{SERVICE}/{method.name}"
    for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    if not method.name.endswith("Infer") and "SharedMemory" not in method.name  # those are Triton's own
]
WITHOUT_KEY = [f"/{SERVICE}/ServerLive", f"{HEALTH}/Check"]


def named(size: int) -> bytes:
    """A message of so many bytes, with a long name as its first field."""
    length = size - 3
    return b"\x0a" + bytes((length & 127 | 128, length >> 7)) + b"a" * length


@pytest.mark.parametrize("method", [*METHODS, f"{HEALTH}/Check", *LISTED])
async def test_a_method_other_than_inference_has_a_limit_of_4_kb(method: str) -> None:
    async with serving() as server, asyncio.timeout(SECONDS):
        code, details = await status_of(server.raw(method, named(MAX_MESSAGE_BYTES + 1)))
        assert (code, details) == (CODES.RESOURCE_EXHAUSTED, "expected a message of at most 4096 bytes, got 4097")
        call = server.channel.unary_unary(method, None, None)(named(MAX_MESSAGE_BYTES))
        assert await call.code() is not CODES.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("method", [f"{HEALTH}/Watch", REFLECTION], ids=["watch", "reflection"])
async def test_a_stream_of_answers_has_the_limit_too(method: str) -> None:
    async with serving() as server, asyncio.timeout(SECONDS):
        if method == REFLECTION:
            call: Any = server.channel.stream_stream(method, None, None)(iter([named(10_000)]))
        else:
            call = server.channel.unary_stream(method, None, None)(named(10_000))
        assert (await status_of(anext(aiter(call))))[0] is CODES.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("method", [*WITHOUT_KEY, f"/{SERVICE}/ModelMetadata"])
async def test_a_message_that_is_no_protobuf_is_the_clients_error(method: str) -> None:
    async with serving() as server, asyncio.timeout(SECONDS):
        assert (await status_of(server.raw(method, b"\xff" * 9)))[0] is CODES.INVALID_ARGUMENT


async def test_a_call_without_a_message_is_the_clients_error() -> None:
    async with serving() as server, asyncio.timeout(SECONDS):
        call: Any = server.channel.stream_stream(f"{HEALTH}/Check", None, None)(iter(()))
        assert (await status_of(anext(aiter(call))))[0] is CODES.INVALID_ARGUMENT


async def never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def test_messages_that_do_not_come_delay_no_health_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest call reads first; the others end after READ_SECONDS."""
    monkeypatch.setattr(small_messages, "READ_SECONDS", 0.2)
    async with serving() as server, asyncio.timeout(SECONDS):
        method = server.channel.stream_stream(f"{HEALTH}/Check", None, None)
        slow: list[Any] = [method(never()) for _ in range(5 * MAX_READING)]
        readers = [asyncio.ensure_future(status_of(anext(aiter(call)))) for call in slow]
        await asyncio.sleep(0.05)
        began = asyncio.get_running_loop().time()
        assert await server.raw(f"{HEALTH}/Check") == b"\x08\x01"
        assert asyncio.get_running_loop().time() - began < 0.5  # the slow ones take five times 0.2 s
        statuses = await asyncio.gather(*readers)
        assert {code for code, _ in statuses} == {CODES.RESOURCE_EXHAUSTED}
        assert await server.raw(f"{HEALTH}/Check") == b"\x08\x01"


async def test_the_oldest_waiting_call_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_messages, "MAX_WAITING", 2)
    async with serving() as server, asyncio.timeout(SECONDS):
        method = server.channel.stream_stream(f"{HEALTH}/Check", None, None)
        reading: list[Any] = []
        for _ in range(MAX_READING + 3):
            reading.append(method(never()))
            await asyncio.sleep(0.05)
        assert await reading[MAX_READING].code() is CODES.RESOURCE_EXHAUSTED
        for call in reading:  # cancelled ones give their slots back
            call.cancel()
        await asyncio.sleep(0.1)
        assert await server.raw(f"{HEALTH}/Check") == b"\x08\x01"


async def test_a_connection_has_a_limited_number_of_watches() -> None:
    async with serving() as server, asyncio.timeout(SECONDS):
        watch = server.channel.unary_stream(f"{HEALTH}/Watch", None, None)
        watches: list[Any] = [watch(b"") for _ in range(MAX_CONNECTION_WATCHES)]
        assert [await call.read() for call in watches] == [b"\x08\x01"] * MAX_CONNECTION_WATCHES
        code, details = await status_of(anext(aiter(watch(b""))))
        assert code is CODES.RESOURCE_EXHAUSTED and "32 watches of a connection" in details
        watches[0].cancel()
        await asyncio.sleep(0.1)
        again: Any = watch(b"")
        assert await again.read() == b"\x08\x01"
        for call in (*watches, again):
            call.cancel()


async def test_all_connections_have_a_limited_number_of_watches() -> None:
    async with serving(connections=16) as server, asyncio.timeout(SECONDS), AsyncExitStack() as stack:
        codes: list[Any] = []
        for _ in range(3):
            client = await stack.enter_async_context(connected(server))
            watches: list[Any] = [client.channel.unary_stream(f"{HEALTH}/Watch", None, None)(b"") for _ in range(30)]
            for watch in watches:
                try:
                    codes.append(await watch.read())
                except grpc.aio.AioRpcError as error:
                    codes.append(error.code())
        assert codes.count(b"\x08\x01") == MIN_WATCHES
        assert codes.count(CODES.RESOURCE_EXHAUSTED) == 90 - MIN_WATCHES


@asynccontextmanager
async def other_address(port: int) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server, through connections from another address."""

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = await asyncio.open_connection(HOST, port, local_addr=("127.0.0.2", 0))

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with closing(sink):
                while data := await source.read(65536):
                    sink.write(data)

        await asyncio.gather(copy(reader, server[1]), copy(server[0], writer), return_exceptions=True)

    forwarder = await asyncio.start_server(connect, HOST)
    async with forwarder, channel_to(forwarder.sockets[0].getsockname()[1]) as channel:
        yield channel


async def test_calls_without_messages_delay_no_health_check_of_another_address() -> None:
    """However many there are, and however new. Before, five a second held all slots."""
    async with serving() as server, asyncio.timeout(SECONDS), other_address(server.port) as channel:
        method = channel.stream_stream(f"{HEALTH}/Check", None, None)
        calls: list[Any] = []

        async def flood() -> None:
            while True:
                calls.append(method(never()))
                await asyncio.sleep(0.01)

        flooding = asyncio.create_task(flood())
        await asyncio.sleep(0.5)
        times = []
        for _ in range(5):
            began = asyncio.get_running_loop().time()
            assert await server.raw(f"{HEALTH}/Check") == b"\x08\x01"
            times.append(asyncio.get_running_loop().time() - began)
        flooding.cancel()
        for call in calls:
            call.cancel()
        assert max(times) < 1.0, times  # kubelet's default timeout


async def test_calls_that_end_together_give_their_slots_back() -> None:
    """Calls that read and calls that wait, as when a client closes its connection. A slot was lost for each."""
    small, readers = SmallMessages(), 3 * MAX_READING

    async def read() -> None:
        async with small._slot("ipv4:127.0.0.1:1"):
            await asyncio.Event().wait()

    for _ in range(MAX_READING):
        tasks = [asyncio.create_task(read()) for _ in range(readers)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(SECONDS), AsyncExitStack() as stack:
        for _ in range(MAX_READING):
            await stack.enter_async_context(small._slot("ipv4:127.0.0.1:2"))
