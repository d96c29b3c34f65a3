"""The gRPC client's connections: how many there are, how they end, and what that means for calls."""

from __future__ import annotations

import asyncio
import socket

import pytest

from hf_transformer.errors import PredictorUnavailable
from hf_transformer.predictor import grpc_client, kinds
from hf_transformer.predictor.base import PredictorSettings
from hf_transformer.predictor.grpc import GrpcPredictor
from hf_transformer.predictor.grpc_client import GrpcClient
from hf_transformer.predictor.grpc_status import RpcError, Status
from hf_transformer.predictor.http2_frames import (
    ACK,
    PING,
    ErrorCode,
    Setting,
    ping_frame,
    reset_frame,
)
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.predictor.grpc_calls import ask, echo, fails, goaway, opened
from tests.predictor.http2_server import (
    GOOD_HEAD,
    OK,
    Peer,
    Request,
    answering,
    data,
    good,
    headers,
    message,
    serving,
    trailers,
)

pytestmark = pytest.mark.asyncio


async def test_calls_share_one_connection_and_may_end_in_any_order() -> None:
    async def script(peer: Peer) -> None:
        assert peer.number == 0
        await peer.begin()
        requests = [await peer.request() for _ in range(20)]
        for request in reversed(requests):
            await echo(peer, request)

    async with serving(script) as host, opened(host) as client:
        requests = [str(number).encode() for number in range(20)]
        assert await asyncio.gather(*[ask(client, request) for request in requests]) == requests


async def test_more_calls_than_a_connection_takes() -> None:
    """Two at a time on each, so ten calls need five connections; the next ten find them."""
    seen: list[int] = []
    all_there = asyncio.Barrier(5)

    async def script(peer: Peer) -> None:
        seen.append(peer.number)
        await peer.begin({Setting.MAX_CONCURRENT_STREAMS: 2})
        while True:
            pair = [await peer.request(), await peer.request()]
            await all_there.wait()
            await peer.send(*[good(one.stream, one.message) for one in pair])

    async with serving(script) as host, opened(host) as client:
        for _ in range(2):
            assert await asyncio.gather(*[ask(client) for _ in range(10)]) == [b"hello"] * 10
    assert seen == [0, 1, 2, 3, 4]


async def test_a_call_that_crosses_the_end_is_made_again() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        request = await peer.request()
        if peer.number == 0:
            await peer.send(goaway(request.stream - 1))
        else:
            await echo(peer, request)

    async with serving(script) as host, opened(host) as client:
        assert await ask(client) == b"hello"


@pytest.mark.parametrize("refusal", ["goaway", "refused"])
async def test_a_call_that_is_refused_twice(refusal: str) -> None:
    async def answer(peer: Peer, request: Request) -> None:
        if refusal == "goaway":
            await peer.send(goaway(request.stream - 1))
        else:
            await peer.send(reset_frame(request.stream, ErrorCode.REFUSED_STREAM))

    error = await fails(answering(answer))
    assert (error.status, error.kind, error.settled) == (Status.UNAVAILABLE, kinds.UNAVAILABLE, True)


async def test_a_stream_that_crosses_the_end_is_made_again() -> None:
    response = pb.ModelStreamInferResponse()
    response.infer_response.outputs.add(name="ids", datatype="INT32", shape=[1])
    response.infer_response.raw_output_contents.append(bytes(4))

    async def script(peer: Peer) -> None:
        await peer.begin()
        request = await peer.request()
        if peer.number == 0:
            await peer.send(goaway(request.stream - 1))
        else:
            await peer.send(good(request.stream, response.SerializeToString()))

    async with serving(script) as host, GrpcPredictor(PredictorSettings("m", host)) as predictor:
        found = [one["ids"].data.tolist() async for one in predictor.stream([], ["ids"], {})]
    assert found == [[0]]


async def test_a_stream_that_is_refused_twice() -> None:
    async def answer(peer: Peer, request: Request) -> None:
        await peer.send(reset_frame(request.stream, ErrorCode.REFUSED_STREAM))

    async with serving(answering(answer)) as host, GrpcPredictor(PredictorSettings("m", host)) as predictor:
        with pytest.raises(PredictorUnavailable, match="refuses the stream") as caught:
            await anext(predictor.stream([], ["ids"], {}))
    assert caught.value.kind == kinds.UNAVAILABLE


async def test_calls_go_on_while_the_connection_ends() -> None:
    """New ones go elsewhere, and the old connection is closed here after its last."""
    closed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.begin()
        first = await peer.request()
        if peer.number == 0:
            await peer.send(goaway(2**31 - 1), ping_frame(b"graceful"))
            assert (await peer.frame(PING)).flags == ACK
            await peer.send(goaway(first.stream), headers(first.stream, *GOOD_HEAD))
            other.set()
            await done.wait()
            await peer.send(data(first.stream, message(b"old")), trailers(first.stream, *OK))
            assert await peer.connection.reader.read() == b""
            closed.set()
        else:
            await peer.send(good(first.stream, b"new"))

    other, done = asyncio.Event(), asyncio.Event()
    async with serving(script) as host, opened(host) as client:
        old = asyncio.create_task(ask(client))
        await other.wait()
        assert await ask(client) == b"new"
        done.set()
        assert await old == b"old"
        await closed.wait()


async def test_a_connection_that_was_closed_is_replaced() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        await echo(peer, await peer.request())

    async with serving(script) as host, opened(host) as client:
        for _ in range(3):
            assert await ask(client) == b"hello"
            await asyncio.sleep(0.02)


async def test_a_connection_that_was_silent_for_long_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []

    async def answer(peer: Peer, request: Request) -> None:
        numbers.append(peer.number)
        await echo(peer, request)

    async with serving(answering(answer)) as host, opened(host) as client:
        await ask(client)
        await ask(client)
        monkeypatch.setattr(grpc_client, "_SILENT_SECONDS", 0.2)
        await asyncio.sleep(0.3)
        await ask(client)
    assert numbers == [0, 0, 1]


async def test_one_attempt_serves_all_who_wait_and_outlives_them() -> None:
    async def script(peer: Peer) -> None:
        assert peer.number == 0
        await asyncio.sleep(0.05)
        await answering(echo)(peer)

    async with serving(script) as host, opened(host) as client:
        calls = [asyncio.create_task(ask(client)) for _ in range(5)]
        await asyncio.sleep(0.01)
        for call in calls[:3]:
            call.cancel()
        assert await asyncio.gather(*calls[3:]) == [b"hello"] * 2
        assert all(call.cancelled() for call in calls[:3])


@pytest.mark.parametrize("moment", ["connecting", "calling", "streaming"])
async def test_closing_ends_calls(moment: str) -> None:
    arrived = asyncio.Event()

    async def script(peer: Peer) -> None:
        if moment == "connecting":
            arrived.set()
            await peer.connection.until_closed()
        await peer.begin()
        request = await peer.request()
        if moment == "streaming":
            await peer.send(headers(request.stream, *GOOD_HEAD), data(request.stream, message(b"x")))
        arrived.set()
        await peer.connection.until_closed()

    async with serving(script) as host, opened(host) as client:
        call = asyncio.create_task(drain(client) if moment == "streaming" else ask(client))
        await arrived.wait()
        await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(RpcError, match="closed"):
            await call
        with pytest.raises(RpcError, match="closed"):
            await ask(client)


async def test_a_new_connection_that_is_full_before_its_attempt_counts_as_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two calls that come just then opens another, and does not stop the event loop."""
    later: list[asyncio.Task[bytes]] = []

    async with serving(answering(echo, {Setting.MAX_CONCURRENT_STREAMS: 1})) as host, opened(host) as client:
        connect = client._open

        async def then_call() -> None:
            await connect()
            if not later:
                later.extend(asyncio.create_task(ask(client, one)) for one in (b"b", b"c"))

        monkeypatch.setattr(client, "_open", then_call)
        assert await ask(client, b"a") == b"a"
        assert await asyncio.gather(*later) == [b"b", b"c"]


async def test_the_sockets_word_on_what_is_not_acknowledged() -> None:
    """A machine that is gone acknowledges nothing; by itself Linux goes on for 15 minutes."""
    async with serving(answering(echo)) as host, opened(host) as client:
        await ask(client)
        (connection,) = client._connections
        raw = connection._transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000


async def test_closing_ends_a_call_that_has_only_just_begun() -> None:
    """Before the task that connects has run at all."""
    async with serving(answering(echo)) as host, opened(host) as client:
        call = asyncio.create_task(ask(client))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(RpcError, match="the client is closed"):
            await call


async def drain(client: GrpcClient) -> bytes:
    call = await client.stream(client.method("/a.B/C"), b"hello")
    found = b""
    while (one := await call.read()) is not None:
        found += one
    return found
