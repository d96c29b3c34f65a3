"""gRPC calls that go on to their end when their caller is cancelled: without a task of their own."""

from __future__ import annotations

import asyncio

import pytest

from hf_transformer.errors import PredictorTimeout
from hf_transformer.predictor.base import HeldCall, PredictorSettings
from hf_transformer.predictor.grpc import GrpcPredictor
from hf_transformer.predictor.grpc_client import GrpcClient
from hf_transformer.predictor.grpc_status import RpcError, Status
from hf_transformer.predictor.http2_frames import PING, RST_STREAM, ping_frame
from hf_transformer.predictor.retry_budget import RetryBudget
from hf_transformer.predictor.retrying import RetryingPredictor
from tests.predictor.grpc_calls import goaway, opened
from tests.predictor.http2_server import Peer, Request, answering, good, serving
from tests.predictor.rest_calls import IDS
from tests.predictor.shared_calls import until

pytestmark = pytest.mark.asyncio


def held(client: GrpcClient, seconds: float = 30.0) -> asyncio.Task[object]:
    deadline = asyncio.get_running_loop().time() + seconds
    return asyncio.create_task(client.unary(client.method("/a.B/C"), b"hello", held=deadline))


class Gate:
    """Answers a call when it is told to. Says what the client has sent meanwhile."""

    def __init__(self) -> None:
        self.arrived, self.opened = asyncio.Event(), asyncio.Event()
        self.seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.calls = 0

    async def __call__(self, peer: Peer, request: Request) -> None:
        self.calls += 1
        self.arrived.set()
        await self.opened.wait()
        await peer.send(ping_frame(b"12345678"))
        kind = (await peer.frame(RST_STREAM, PING)).kind
        if not self.seen.done():
            self.seen.set_result(kind)
        await peer.send(good(request.stream, b"world"))


async def turns(task: asyncio.Task[object]) -> None:
    await asyncio.wait([task], timeout=0.01)


async def test_a_cancellation_takes_effect_at_the_end() -> None:
    gate = Gate()
    async with serving(answering(gate)) as host, opened(host) as client:
        call = held(client)
        await gate.arrived.wait()
        for _ in range(2):
            call.cancel()
            await turns(call)
        assert not call.done()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await gate.seen == PING
        assert await held(client) == b"world"


async def test_it_is_given_up_at_its_deadline() -> None:
    gate = Gate()
    async with serving(answering(gate)) as host, opened(host) as client:
        with pytest.raises(RpcError) as caught:
            await held(client, 0.1)
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        call = held(client, 0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_one_that_was_cancelled_is_not_sent_again() -> None:
    gate = asyncio.Event()
    requests: list[int] = []

    async def refuse(peer: Peer, request: Request) -> None:
        requests.append(request.stream)
        await gate.wait()
        await peer.send(goaway(0))

    async with serving(answering(refuse)) as host, opened(host) as client:
        call = held(client)
        await until(lambda: bool(requests))
        call.cancel()
        await turns(call)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert len(requests) == 1


async def test_what_was_not_sent_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting = asyncio.Event()

    async def never(*arguments: object, **options: object) -> None:
        connecting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    async with opened("127.0.0.1:1") as client:
        call = held(client)
        await connecting.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_it_ends_with_the_client() -> None:
    gate = Gate()
    async with serving(answering(gate)) as host:
        async with opened(host) as client:
            call = held(client)
            await gate.arrived.wait()
            call.cancel()
            await turns(call)
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_with_retries_it_has_their_deadline() -> None:
    gate = Gate()
    async with serving(answering(gate)) as host, GrpcPredictor(PredictorSettings("m", host)) as predictor:
        assert isinstance(predictor.infer([IDS], ["logits"], {}), HeldCall), "or it would be made in a task"
        tries = RetryingPredictor(predictor, 3, 0.2, RetryBudget(1.0))
        with pytest.raises(PredictorTimeout, match=r"no answer in 0\.2 s, retries included"):
            async with tries.infer([IDS], ["logits"], {}, sizes={"logits": 8}):
                pass
    assert gate.calls == 1
