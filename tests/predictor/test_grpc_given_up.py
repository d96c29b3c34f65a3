"""Unary gRPC calls that are given up: the server is told a moment later, unless it has answered by then."""

from __future__ import annotations

import asyncio
import weakref

import pytest

from hf_transformer.predictor.grpc_call import UnaryCall
from hf_transformer.predictor.grpc_client import GrpcClient
from hf_transformer.predictor.grpc_status import RpcError, Status
from hf_transformer.predictor.http2_frames import PING, RST_STREAM, ErrorCode, Setting, ping_frame
from tests.predictor.grpc_calls import ask, goaway, opened
from tests.predictor.http2_server import GOOD_HEAD, Peer, Request, answering, data, good, headers, message, serving

pytestmark = pytest.mark.asyncio


@pytest.fixture(params=["cancelled", "late"])
def how(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


async def give_up(client: GrpcClient, how: str, arrived: asyncio.Event) -> None:
    """Makes a call, of which the caller gets rid at once."""
    call = asyncio.create_task(ask(client))
    await arrived.wait()
    if how == "cancelled":
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    else:
        with pytest.raises(RpcError) as caught:
            await call
        assert caught.value.status is Status.DEADLINE_EXCEEDED and not caught.value.settled


async def test_the_server_is_told_when_it_does_not_answer(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnaryCall, "linger", 0.05)
    arrived, told = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def answer(peer: Peer, request: Request) -> None:
        if request.stream == 1:
            arrived.set()
            frame = await peer.frame(RST_STREAM)
            told.set_result((frame.stream, frame.payload))
            await peer.send(good(1, b"too late"))
        else:
            await peer.send(good(request.stream, b"world"))

    async with serving(answering(answer)) as host, opened(host, 0.2) as client:
        await give_up(client, how, arrived)
        assert not told.done()
        assert await told == (1, int(ErrorCode.CANCEL).to_bytes(4))
        assert await ask(client) == b"world"


@pytest.mark.parametrize("part", ["whole", "rest"])
async def test_an_answer_that_comes_by_then_ends_it(how: str, part: str) -> None:
    """What comes is not kept, and the connection goes on."""
    arrived, gone, seen = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop().create_future()
    large = message(b"x" * 100_000)

    async def answer(peer: Peer, request: Request) -> None:
        if request.stream != 1:
            await peer.send(good(request.stream, b"world"))
            return
        if part == "rest":
            await peer.send(headers(1, *GOOD_HEAD), data(1, large[:16_000]))
        arrived.set()
        await gone.wait()
        if part == "rest":
            await peer.send(*[data(1, large[at : at + 16_000], at == 96_000) for at in range(16_000, 100_005, 16_000)])
        else:
            await peer.send(good(1, b"too late"))
        await peer.send(ping_frame(b"12345678"))
        seen.set_result((await peer.frame(RST_STREAM, PING)).kind)

    async with serving(answering(answer)) as host, opened(host, 0.2) as client:
        await give_up(client, how, arrived)
        gone.set()
        assert await seen == PING
        [connection] = client._connections
        assert connection.idle
        assert await ask(client) == b"world"


async def test_a_client_that_closes_leaves_nothing_to_be_told(how: str) -> None:
    arrived = asyncio.Event()

    async def answer(peer: Peer, request: Request) -> None:
        arrived.set()
        await asyncio.Event().wait()

    async with serving(answering(answer)) as host:
        async with opened(host, 0.2) as client:
            await give_up(client, how, arrived)
        assert not client._connections
        await asyncio.sleep(1.1)  # longer than it would linger: nothing is raised on a connection that is closed


@pytest.mark.parametrize("ended", [True, False], ids=["ends", "goes on"])
async def test_what_has_come_of_an_answer_is_not_kept(how: str, ended: bool) -> None:
    arrived, gone = asyncio.Event(), asyncio.Event()
    large = message(b"x" * 2**20)

    async def answer(peer: Peer, request: Request) -> None:
        await peer.send(headers(1, *GOOD_HEAD), data(1, large[:16_000]))
        await peer.send(ping_frame(b"12345678"))
        await peer.frame(PING)
        arrived.set()
        await gone.wait()
        await peer.send(data(1, large[16_000:32_000], ended), ping_frame(b"12345678"))
        await peer.frame(PING)
        seen.set()

    seen = asyncio.Event()
    async with serving(answering(answer)) as host, opened(host, 0.2) as client:
        calls = asyncio.create_task(give_up(client, how, arrived))
        await arrived.wait()
        [connection] = client._connections
        [call] = connection.streams
        assert isinstance(call, UnaryCall)
        room = call.room()
        assert room is not None
        place = weakref.ref(room.obj)
        del call, room
        await calls
        gone.set()
        await seen.wait()
        assert place() is None


async def test_a_connection_that_the_server_ends_is_closed_after_that(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnaryCall, "linger", 0.05)
    arrived, gone, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(peer: Peer, request: Request) -> None:
        arrived.set()
        await gone.wait()
        await peer.send(goaway(request.stream))
        await peer.frame(RST_STREAM)
        await peer.connection.until_closed()
        closed.set()

    async with serving(answering(answer)) as host, opened(host, 0.2) as client:
        await give_up(client, how, arrived)
        gone.set()
        await closed.wait()


async def test_it_counts_among_those_that_the_server_takes(how: str) -> None:
    arrived = asyncio.Event()
    connections: list[int] = []

    async def answer(peer: Peer, request: Request) -> None:
        connections.append(peer.number)
        if peer.number:
            await peer.send(good(request.stream, b"world"))
        else:
            arrived.set()

    settings: dict[int, int] = {Setting.MAX_CONCURRENT_STREAMS: 1}
    async with serving(answering(answer, settings)) as host, opened(host, 0.2) as client:
        await give_up(client, how, arrived)
        assert await ask(client) == b"world"
    assert connections == [0, 1]
