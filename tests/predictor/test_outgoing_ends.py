"""What becomes of a call at the predictor when nobody waits for it, through all that is wrapped around a transport."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hf_transformer.predictor.grpc_call import UnaryCall
from tests.predictor.test_grpc_predictor import answer as good_message
from tests.predictor.test_grpc_predictor import serving

from hf_transformer.errors import PredictorTimeout
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import open_predictor
from hf_transformer.predictor.base import Predictor, PredictorSettings
from tests.predictor.rest_calls import IDS

pytestmark = pytest.mark.asyncio

SIZES = {"logits": 8}


def opened(protocol: str, host: str, retries: int, seconds: float = 30.0) -> Predictor:
    settings = PredictorSettings("m", host, timeout=seconds)
    return open_predictor(protocol, settings, retries, Metrics("m"), circuit_failures=1)


async def infer(predictor: Predictor, sizes: Mapping[str, int] | None = SIZES) -> None:
    async with predictor.infer([IDS], ["logits"], {}, sizes=sizes):
        pass


class Hanging:
    """A gRPC server's call that never ends by itself."""

    def __init__(self) -> None:
        self.arrived, self.cancelled = asyncio.Event(), asyncio.Event()

    async def call(self, request: bytes, context: Any) -> bytes:
        self.arrived.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return b""


@pytest.fixture
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnaryCall, "linger", 0.05)


@pytest.mark.parametrize("retries", [0, 3])
async def test_a_call_that_is_worth_it_is_cancelled_over_grpc(retries: int, short_linger: None) -> None:
    hanging = Hanging()
    async with serving(ModelInfer=hanging.call) as host, opened("grpc-v2", host, retries) as predictor:
        call = asyncio.create_task(infer(predictor, sizes=None))
        await hanging.arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not hanging.cancelled.is_set()
        await hanging.cancelled.wait()


@pytest.mark.parametrize("protocol", ["v2", "grpc-v2"])
async def test_a_batch_keeps_its_place(protocol: str) -> None:
    async with opened(protocol, "127.0.0.1:1", 0) as predictor:
        assert not predictor.stops_when_cancelled


@pytest.mark.parametrize("retries", [0, 3])
async def test_a_call_that_takes_too_long_is_cancelled_over_grpc(retries: int, short_linger: None) -> None:
    hanging = Hanging()
    async with serving(ModelInfer=hanging.call) as host, opened("grpc-v2", host, retries, 0.2) as predictor:
        with pytest.raises(PredictorTimeout):
            await infer(predictor)
        await hanging.cancelled.wait()


async def is_cancelled_at_its_end(predictor: Predictor, arrived: asyncio.Event, answer: asyncio.Event) -> None:
    """The predictor would go on with a call, and another one in its place would be one too many."""
    call = asyncio.create_task(infer(predictor))
    await arrived.wait()
    call.cancel()
    await asyncio.wait([call], timeout=0.01)
    assert not call.done()
    answer.set()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_with_retries_a_batch_over_grpc_ends_before_it_is_given_up() -> None:
    arrived, answer = asyncio.Event(), asyncio.Event()

    async def call_of_the_server(request: bytes, context: Any) -> bytes:
        arrived.set()
        await answer.wait()
        return good_message()

    async with serving(ModelInfer=call_of_the_server) as host, opened("grpc-v2", host, 3) as predictor:
        await is_cancelled_at_its_end(predictor, arrived, answer)
        await infer(predictor)
