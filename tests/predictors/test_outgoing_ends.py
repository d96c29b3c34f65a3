"""What becomes of a call at the predictor when nobody waits for it, through all that is wrapped around a transport."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hf_transformer.errors import PredictorTimeout
from hf_transformer.metrics import Metrics
from hf_transformer.predictors import open_predictor
from hf_transformer.predictors.base import Predictor, PredictorSettings
from tests.predictors.fault_server import Connection, scripted
from tests.predictors.rest_calls import IDS, good_answer
from tests.predictors.test_grpc_predictor import serving

pytestmark = pytest.mark.asyncio


def opened(protocol: str, host: str, retries: int, seconds: float = 30.0) -> Predictor:
    settings = PredictorSettings("m", host, timeout=seconds)
    return open_predictor(protocol, settings, retries, Metrics("m"), circuit_failures=1)


async def infer(predictor: Predictor) -> None:
    async with predictor.infer([IDS], ["logits"], {}, sizes={"logits": 8}):
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


@pytest.mark.parametrize("retries", [0, 3])
async def test_a_cancelled_call_is_cancelled_over_grpc(retries: int) -> None:
    hanging = Hanging()
    async with serving(ModelInfer=hanging.call) as host, opened("grpc-v2", host, retries) as predictor:
        assert predictor.stops_when_cancelled({"logits": 8})
        call = asyncio.create_task(infer(predictor))
        await hanging.arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await hanging.cancelled.wait()


@pytest.mark.parametrize("retries", [0, 3])
async def test_a_call_that_takes_too_long_is_cancelled_over_grpc(retries: int) -> None:
    hanging = Hanging()
    async with serving(ModelInfer=hanging.call) as host, opened("grpc-v2", host, retries, 0.2) as predictor:
        with pytest.raises(PredictorTimeout):
            await infer(predictor)
        await hanging.cancelled.wait()


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "late"])
async def test_a_connection_is_closed_when_its_call_is_given_up(cancelled: bool) -> None:
    arrived, closed = asyncio.Event(), asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        arrived.set()
        await connection.until_closed()
        closed.set()

    async with scripted(script) as host, opened("v2", host, 0, 30.0 if cancelled else 0.2) as predictor:
        assert not predictor.stops_when_cancelled({"logits": 8}), "the scheduler keeps its place"
        call = asyncio.create_task(infer(predictor))
        await arrived.wait()
        if cancelled:
            call.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else PredictorTimeout):
            await call
        await closed.wait()


async def test_with_retries_a_call_over_rest_ends_before_it_is_given_up() -> None:
    """The predictor would go on with it, and another one in its place would be one too many."""
    arrived, answer = asyncio.Event(), asyncio.Event()

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            arrived.set()
            await answer.wait()
            await good_answer(connection)

    async with scripted(script) as host, opened("v2", host, 3) as predictor:
        call = asyncio.create_task(infer(predictor))
        await arrived.wait()
        call.cancel()
        await asyncio.wait([call], timeout=0.01)
        assert not call.done()
        answer.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        await infer(predictor)
