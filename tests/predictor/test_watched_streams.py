"""What the circuit hears of streams from the transports themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from hf_transformer.errors import PredictorError, PredictorUnavailable, RequestError
from hf_transformer.following import source_of
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Predictor
from hf_transformer.predictor.circuit import CircuitPredictor
from hf_transformer.types import Tensor
from tests.predictor import rest_calls, test_grpc_stream
from tests.predictor.fault_server import Connection, nobody, scripted
from tests.predictor.test_grpc_stream import answer, serving
from tests.predictor.test_rest_stream import END, HEAD, chunk, event

pytestmark = pytest.mark.asyncio

TEXT = Tensor("text", "BYTES", np.array([b"x"], np.object_))
Script = list[str]
"""What becomes of a call: ``response``, ``error`` of the model's, ``lost``, or the end."""


async def rest_script(connection: Connection, scripts: list[Script]) -> None:
    while True:
        await connection.request()
        said = scripts.pop(0)
        await connection.send(HEAD)
        for one in said:
            if one == "lost":
                return
            await connection.send(chunk(event("a") if one == "response" else event(error="the model has failed")))
        await connection.send(END)


@asynccontextmanager
async def over_rest(scripts: list[Script]) -> AsyncIterator[Predictor]:
    async with scripted(lambda connection: rest_script(connection, scripts)) as host, rest_calls.predictor(host) as one:
        yield one


@asynccontextmanager
async def over_grpc(scripts: list[Script]) -> AsyncIterator[Predictor]:
    async def handler(requests: AsyncIterator[bytes], context: Any) -> None:
        for one in scripts.pop(0):
            if one == "lost":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the model is not ready")
            await context.write(answer(5) if one == "response" else answer(error="the model has failed"))
        await context.write(answer(final=True))

    async with serving(handler) as host, test_grpc_stream.predictor(host) as one:
        yield one


Over = Callable[[list[Script]], AbstractAsyncContextManager[Predictor]]
OVER: list[Any] = [pytest.param(over_rest, id="rest"), pytest.param(over_grpc, id="grpc")]


async def read(predictor: Predictor) -> int:
    async with aclosing(predictor.stream([TEXT], [], {})) as responses:
        return len([one async for one in responses])


def counted(metrics: Metrics, kind: str) -> float:
    name = f'hf_transformer_predictor_errors_total{{kind="{kind}"}} '
    return next(float(line[len(name) :]) for line in metrics.render().decode().splitlines() if line.startswith(name))


@pytest.mark.parametrize("over", OVER)
async def test_streams_that_break_off_open_the_circuit(over: Over) -> None:
    scripts = [["response", "lost"], ["lost"], ["response"]]
    metrics = Metrics("m")
    async with over(scripts) as transport:
        circuit = CircuitPredictor(transport, 2, metrics)
        for _ in range(2):
            assert not circuit.is_open
            with pytest.raises(PredictorUnavailable):
                await read(circuit)
        assert circuit.is_open and len(scripts) == 1
        with pytest.raises(PredictorUnavailable, match="counts as dead"):
            await read(circuit)
        assert len(scripts) == 1 and counted(metrics, "circuit_open") == 1
        await circuit.__aexit__(None, None, None)


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("answered", [["response"], [], ["error"]], ids=["a response", "none", "the model's error"])
async def test_an_answer_closes_the_row_of_failures(over: Over, answered: Script) -> None:
    metrics = Metrics("m")
    async with over([["lost"], answered, ["lost"]]) as transport:
        circuit = CircuitPredictor(transport, 2, metrics)
        found: list[object] = []
        for _ in range(3):
            try:
                found.append(await read(circuit))
            except RequestError as error:
                found.append(type(error))
        said = PredictorError if answered == ["error"] else len(answered)
        assert found == [PredictorUnavailable, said, PredictorUnavailable]
        assert not circuit.is_open
        assert counted(metrics, "error") == (answered == ["error"])


@pytest.mark.parametrize("over", OVER)
async def test_a_stream_that_is_left_says_nothing(over: Over) -> None:
    async with over([["response", "response"], ["response"]]) as transport:
        circuit = CircuitPredictor(transport, 1)
        responses = circuit.stream([TEXT], [], {})
        await anext(responses)
        await responses.aclose()
        assert not circuit.is_open
        source = source_of(responses)
        assert source is not None and source.take() is None and not source.follow(lambda: None)
        with pytest.raises(StopAsyncIteration):
            await anext(responses)
        assert await read(circuit) == 1


async def test_nobody_there() -> None:
    async with rest_calls.predictor(nobody()) as rest:
        circuit = CircuitPredictor(rest, 1)
        with pytest.raises(PredictorUnavailable):
            await read(circuit)
        assert circuit.is_open
        await circuit.__aexit__(None, None, None)


async def test_each_answer_that_begins_otherwise_is_looked_at() -> None:
    heads = [HEAD, HEAD.replace(b"text/event-stream", b"application/json"), HEAD]

    async def script(connection: Connection) -> None:
        for head in heads:
            await connection.request()
            await connection.send(head + chunk(event("a")) + END)

    async with scripted(script) as host, rest_calls.predictor(host) as rest:
        assert await read(rest) == 1
        with pytest.raises(PredictorError, match="answered with the content type 'application/json"):
            await read(rest)
