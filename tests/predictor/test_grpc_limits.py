"""What a gRPC call may cost the server and this side: its time, its bytes on the way, and pings."""

from __future__ import annotations

import asyncio

import pytest

from hf_transformer.predictor import http2_keepalive, kinds
from hf_transformer.predictor.grpc_client import GrpcClient
from hf_transformer.predictor.grpc_status import RpcError, Status
from hf_transformer.predictor.http2_frames import (
    ACK,
    DATA,
    HEADERS,
    PING,
    WINDOW_UPDATE,
    ErrorCode,
    Setting,
    ping_frame,
    reset_frame,
    window_frame,
)
from tests.predictor.grpc_calls import ask, echo, opened
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
    settings_of,
    trailers,
)

pytestmark = pytest.mark.asyncio


async def test_each_call_has_its_own_deadline() -> None:
    async def answer(peer: Peer, request: Request) -> None:
        if request.message != b"hang":
            await echo(peer, request)

    async with serving(answering(answer)) as host, opened(host, 0.15) as client:
        loop = asyncio.get_running_loop()
        began = loop.time()
        hanging = []
        for _ in range(3):
            hanging.append(asyncio.create_task(ask(client, b"hang")))
            await asyncio.sleep(0.02)
            await ask(client)
        ends = []
        for call in hanging:
            with pytest.raises(RpcError, match="Deadline Exceeded"):
                await call
            ends.append(loop.time() - began)
        assert ends == sorted(ends) and ends[0] >= 0.14 and ends[-1] >= 0.18


async def test_a_reset_by_the_server_at_the_deadline_is_the_deadline() -> None:
    """It keeps the deadline too, and its word may come first."""

    async def answer(peer: Peer, request: Request) -> None:
        await asyncio.sleep(0.06)
        await peer.send(reset_frame(request.stream, ErrorCode.CANCEL))

    async with serving(answering(answer)) as host, opened(host, 0.05) as client:
        await ask_late(client)


async def ask_late(client: GrpcClient) -> None:
    with pytest.raises(RpcError) as caught:
        await ask(client)
    assert caught.value.status is Status.DEADLINE_EXCEEDED


async def test_a_large_request_leaves_as_the_server_reads_it() -> None:
    content = bytes(range(251)) * 2000

    async def script(peer: Peer) -> None:
        await peer.begin({Setting.INITIAL_WINDOW_SIZE: 1000})
        begun, body, ends = await peer.frame(HEADERS), b"", 0
        while not ends:
            part = await peer.frame(DATA)
            body, ends = body + part.payload, part.flags
            await peer.send(window_frame(0, len(part.payload) or 1), window_frame(begun.stream, 2 * len(part.payload)))
            if len(body) < 5000:
                await peer.send(settings_of({Setting.INITIAL_WINDOW_SIZE: len(body)}))
        await peer.send(good(begun.stream, body[5:]))

    async with serving(script) as host, opened(host) as client:
        assert await ask(client, content) == content


async def test_a_hanging_server_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_keepalive, "PING_SECONDS", 0.05)
    monkeypatch.setattr(http2_keepalive, "ANSWER_SECONDS", 0.05)
    pings: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.begin()
        if peer.number == 1:
            await echo(peer, await peer.request())
        await peer.request()
        while True:
            pings.append((await peer.frame(PING)).payload)

    async with serving(script) as host, opened(host) as client:
        with pytest.raises(RpcError, match="answered no ping") as caught:
            await ask(client)
        assert (caught.value.status, caught.value.kind) == (Status.UNAVAILABLE, kinds.NO_ANSWER)
        assert await ask(client) == b"hello"
    assert len(pings) == 1


async def test_a_server_that_is_gone_is_noticed_though_its_calls_are_given_up_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No call is under way when it is time for a ping, and the next would wait for nothing too."""
    monkeypatch.setattr(http2_keepalive, "PING_SECONDS", 0.25)
    monkeypatch.setattr(http2_keepalive, "ANSWER_SECONDS", 0.05)
    closed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.begin()
        await echo(peer, await peer.request())
        if peer.number == 0:
            await peer.frame(PING)
            await peer.connection.until_closed()
            closed.set()

    async with serving(script) as host, opened(host, 0.2) as client:
        assert await ask(client) == b"hello"
        await asyncio.sleep(0.3)
        await ask_late(client)
        await closed.wait()
        assert await ask(client) == b"hello"


async def test_a_connection_without_calls_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_keepalive, "PING_SECONDS", 0.01)
    kinds_seen: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.begin()
        await echo(peer, await peer.request())
        kinds_seen.append((await peer.frame(PING, HEADERS)).kind)

    async with serving(script) as host, opened(host) as client:
        assert await ask(client) == b"hello"
        await asyncio.sleep(0.1)
        with pytest.raises(RpcError, match="closed the connection"):
            await ask(client)
    assert kinds_seen == [HEADERS]


async def test_a_long_call_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the server is not asked too often, which it would end the connection for."""
    monkeypatch.setattr(http2_keepalive, "PING_SECONDS", 0.02)
    monkeypatch.setattr(http2_keepalive, "ANSWER_SECONDS", 0.02)
    pings: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.begin()
        request = await peer.request()

        async def answer() -> None:
            await asyncio.sleep(0.3)
            await echo(peer, request)

        answering = asyncio.create_task(answer())
        while (frame := await peer.frame()).kind == PING:
            pings.append(frame.payload)
            await peer.send(ping_frame(frame.payload, ACK))
        await answering

    async with serving(script) as host, opened(host) as client:
        assert await ask(client) == b"hello"
        await asyncio.sleep(0.1)
    assert len(pings) == 2


async def test_a_reader_that_is_slow_holds_up_its_own_stream_alone() -> None:
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.begin()
        stream = (await peer.request()).stream
        await peer.send(headers(stream, *GOOD_HEAD))
        part = message(b"x" * 995)
        window = 65535
        while sent < 300:
            if window < len(part):
                frame = await peer.frame(WINDOW_UPDATE, HEADERS)
                if frame.kind == HEADERS:
                    await peer.frame(DATA)
                    await peer.send(good(frame.stream, b"quick"))
                elif frame.stream == stream:
                    window += int.from_bytes(frame.payload)
                continue
            await peer.send(data(stream, part))
            window -= len(part)
            sent += 1
        await peer.send(trailers(stream, *OK))

    async with serving(script) as host, opened(host) as client:
        call = await client.stream(client.method("/a.B/C"), b"hello")
        await asyncio.sleep(0.05)
        assert await ask(client) == b"quick"
        assert sent == 65, "what the window lets through"
        count = 0
        while (one := await call.read()) is not None:
            assert one == b"x" * 995
            count += 1
        assert count == 300


async def test_a_server_that_sends_more_than_it_may() -> None:
    async def answer(peer: Peer, request: Request) -> None:
        await peer.send(headers(request.stream, *GOOD_HEAD), data(request.stream, message(b"x" * 10_000)) * 7)

    async with serving(answering(answer)) as host, opened(host) as client:
        call = await client.stream(client.method("/a.B/C"), b"hello")
        with pytest.raises(RpcError, match="faster than allowed"):
            for _ in range(8):
                await asyncio.sleep(0.02)
                await call.read()
