"""What the end of a connection is to the circuit: one failure, however many calls shared it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import pytest

from hf_transformer.errors import PredictorUnavailable
from hf_transformer.predictor.base import Predictor, PredictorSettings
from hf_transformer.predictor.circuit import CircuitPredictor
from hf_transformer.predictor.grpc import GrpcPredictor
from hf_transformer.predictor.http2_frames import ErrorCode, reset_frame
from hf_transformer.predictor.rest import RestPredictor
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.types import Tensor
from tests.predictor.fault_server import Connection, scripted
from tests.predictor.grpc_calls import goaway
from tests.predictor.http2_server import GOOD_HEAD, Peer, Request, good, headers, serving
from tests.predictor.rest_calls import IDS

pytestmark = pytest.mark.asyncio

CALLS = 8
OPENS_AT = 3

output = pb.ModelInferResponse.InferOutputTensor(name="logits", datatype="FP32", shape=[1])
ANSWER = pb.ModelInferResponse(outputs=[output], raw_output_contents=[bytes(4)]).SerializeToString()


@asynccontextmanager
async def guarded(transport: Predictor, failures: int = OPENS_AT) -> AsyncIterator[CircuitPredictor]:
    async def never(seconds: float) -> None:
        await asyncio.Event().wait()  # so that no probe closes it

    async with CircuitPredictor(transport, failures, sleep=never) as circuit:
        yield circuit


async def infer(circuit: CircuitPredictor) -> Mapping[str, Tensor]:
    async with circuit.infer([IDS], ["logits"], {}) as outputs:
        return outputs


async def stream(circuit: CircuitPredictor) -> None:
    async with aclosing(circuit.stream([IDS], ["logits"], {})) as responses:
        async for _ in responses:
            pass


async def fail(circuit: CircuitPredictor, calls: int) -> list[str]:
    """Makes calls at once, every other one as a stream, that all find the predictor unavailable; gives their kinds."""
    made = [stream(circuit) if number % 2 else infer(circuit) for number in range(calls)]
    errors = await asyncio.gather(*made, return_exceptions=True)
    assert all(isinstance(error, PredictorUnavailable) for error in errors), errors
    return sorted({error.kind for error in errors if isinstance(error, PredictorUnavailable)})


async def all_of(peer: Peer) -> list[Request]:
    """The server's first words, and then as many calls as share a connection here."""
    await peer.begin()
    return [await peer.request() for _ in range(CALLS)]


async def test_the_end_of_a_connection_counts_once() -> None:
    async def script(peer: Peer) -> None:
        if peer.number == 0:
            first, *_ = await all_of(peer)
            await peer.send(headers(first.stream, *GOOD_HEAD))  # so that it ends for this one in another way
        else:
            await peer.begin()
            await peer.send(good((await peer.request()).stream, ANSWER))

    async with serving(script) as host, guarded(GrpcPredictor(PredictorSettings("m", host))) as circuit:
        assert await fail(circuit, CALLS) == ["lost", "no_answer"]
        assert not circuit.is_open
        assert list(await infer(circuit)) == ["logits"]


async def test_each_connection_counts() -> None:
    async def script(peer: Peer) -> None:
        await all_of(peer)

    async with serving(script) as host, guarded(GrpcPredictor(PredictorSettings("m", host))) as circuit:
        for _ in range(OPENS_AT):
            assert not circuit.is_open
            await fail(circuit, CALLS)
        assert circuit.is_open


async def test_after_it_each_call_counts_that_finds_no_connection() -> None:
    async def script(peer: Peer) -> None:
        await all_of(peer)

    async with AsyncExitStack() as stack:
        async with serving(script) as host:
            circuit = await stack.enter_async_context(guarded(GrpcPredictor(PredictorSettings("m", host))))
            assert await fail(circuit, CALLS) == ["no_answer"]
        assert not circuit.is_open
        assert await fail(circuit, OPENS_AT - 1) == ["connection"]
        assert circuit.is_open


async def test_a_connection_that_the_server_ends_in_words_counts_once() -> None:
    """The client makes such calls once more; so it is the end of the second connection that they fail for."""
    ended: list[int] = []

    async def script(peer: Peer) -> None:
        await all_of(peer)
        ended.append(peer.number)
        await peer.send(goaway(0))
        await peer.connection.until_closed()

    async with serving(script) as host, guarded(GrpcPredictor(PredictorSettings("m", host))) as circuit:
        assert await fail(circuit, CALLS) == ["unavailable"]
        assert (ended, circuit.is_open) == ([0, 1], False)


async def test_calls_that_the_server_ends_one_by_one_count_each() -> None:
    async def script(peer: Peer) -> None:
        for request in await all_of(peer):
            await peer.send(reset_frame(request.stream, ErrorCode.CANCEL))
        await peer.connection.until_closed()

    async with serving(script) as host, guarded(GrpcPredictor(PredictorSettings("m", host)), CALLS) as circuit:
        assert await fail(circuit, CALLS) == ["lost"]
        assert circuit.is_open


async def test_over_rest_each_call_has_a_connection() -> None:
    async def script(connection: Connection) -> None:
        await connection.request()

    async with scripted(script) as host, guarded(RestPredictor(PredictorSettings("m", host))) as circuit:
        assert await fail(circuit, OPENS_AT - 1) == ["no_answer"]
        assert not circuit.is_open
        assert await fail(circuit, 1) == ["no_answer"]
        assert circuit.is_open
