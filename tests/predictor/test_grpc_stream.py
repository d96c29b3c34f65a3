"""Streams of the gRPC transport, against a real gRPC server that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import grpc
import numpy as np
import pytest

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.predictor import failures
from hf_transformer.predictor.base import Outputs
from hf_transformer.predictor.grpc import GrpcPredictor
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.types import Tensor
from tests.predictor.fault_server import Connection, nobody
from tests.predictor.grpc_server import faulty, frame, head, message, predictor, serving, until_request

IDS = Tensor("input_ids", "INT32", np.array([[1, 2]], "<i4"))
Code = grpc.StatusCode


def answer(*ids: int, name: str = "output_ids", final: bool = False, error: str = "") -> bytes:
    message = pb.ModelStreamInferResponse(error_message=error)
    if ids:
        message.infer_response.outputs.add(name=name, datatype="INT32", shape=[len(ids)])
        message.infer_response.raw_output_contents.append(np.array(ids, "<i4").tobytes())
    if not error:
        message.infer_response.parameters["triton_final_response"].bool_param = final
    return message.SerializeToString()


class Telling:
    """A handler that writes these responses and ends with a status, or, where that is None, never by itself."""

    def __init__(self, *responses: bytes, end: Code | None = None) -> None:
        self.responses, self.end = responses, end
        self.requests: list[pb.ModelInferRequest] = []
        self.metadata: dict[str, str] = {}
        self.cancelled = asyncio.Event()

    async def handle(self, requests: AsyncIterator[bytes], context: Any) -> None:
        self.requests = [pb.ModelInferRequest.FromString(request) async for request in requests]
        self.metadata = dict(context.invocation_metadata())
        try:
            for response in self.responses:
                await context.write(response)  # the client may leave before this returns
            if self.end is None:
                await asyncio.Event().wait()
            await asyncio.sleep(0.02)  # a client that would cancel the call after the last response does it now
            if self.end is not Code.OK:
                await context.abort(self.end, "the model's own words")
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def stream(
    client: GrpcPredictor, headers: Mapping[str, str] | None = None, outputs: Sequence[str] = ("output_ids",)
) -> AsyncGenerator[Outputs, None]:
    return client.stream([IDS], outputs, headers or {})


async def read(client: GrpcPredictor, outputs: Sequence[str] = ("output_ids",)) -> list[list[int]]:
    return [one["output_ids"].data.tolist() async for one in stream(client, outputs=outputs)]


async def test_a_request_and_its_responses() -> None:
    told = Telling(answer(5), answer(), answer(6, 7), answer(final=True), end=Code.OK)
    async with serving(ModelStreamInfer=told.handle) as host, predictor(host) as client:
        responses = stream(client, {"x-request-id": "7"})
        assert told.requests == []
        assert [one["output_ids"].data.tolist() async for one in responses] == [[5], [6, 7]]
    [request] = told.requests
    assert (request.model_name, request.parameters["triton_enable_empty_final_response"].bool_param) == ("bert", True)
    assert (told.metadata["x-request-id"], told.metadata["triton_grpc_error"]) == ("7", "true")


@pytest.mark.parametrize("final", [True, False], ids=["said to be final", "never said"])
async def test_a_stream_that_ends_is_not_cancelled(final: bool) -> None:
    told = Telling(answer(5, final=final), end=Code.OK)
    async with serving(ModelStreamInfer=told.handle) as host, predictor(host) as client:
        assert await read(client, ()) == [[5]]
    assert not told.requests[0].outputs, "all are wanted where none is named"
    assert not told.cancelled.is_set()


FAILURES: list[tuple[bytes | Code, type[RequestError], str, str]] = [
    (answer(error="the model has failed"), PredictorError, "error", "the model has failed"),
    (answer(error="unknown model: 'gpt2'"), PredictorUnavailable, "unavailable", "unknown model: 'gpt2'"),
    (answer(error="Exceeds maximum queue size"), PredictorUnavailable, "busy", "queue size"),
    (b"\xff\xff", PredictorError, "error", "response is malformed"),
    (answer(5, name="more"), PredictorError, "error", "with 'more', which was not asked for"),
    (Code.UNAVAILABLE, PredictorUnavailable, "unavailable", "the model's own words"),
    (Code.INTERNAL, PredictorError, "error", "the model's own words"),
    (Code.DEADLINE_EXCEEDED, PredictorTimeout, "timeout", "the model's own words"),
]


@pytest.mark.parametrize(("end", "expected", "kind", "said"), FAILURES, ids=[f"{row[2]} {row[3]}" for row in FAILURES])
@pytest.mark.parametrize("first", [0, 1], ids=["at once", "midway"])
async def test_failures(end: bytes | Code, expected: type[RequestError], kind: str, said: str, first: int) -> None:
    before = [answer(5)] * first
    told = Telling(*before, end=end) if isinstance(end, Code) else Telling(*before, end)
    async with serving(ModelStreamInfer=told.handle) as host, predictor(host) as client:
        responses = stream(client)
        for _ in before:
            assert (await anext(responses))["output_ids"].data.tolist() == [5]
        with pytest.raises(expected, match=said) as caught:
            await anext(responses)
        if not isinstance(end, Code):
            await asyncio.wait_for(told.cancelled.wait(), 20)
    assert (type(caught.value), failures.kind_of(caught.value)) == (expected, kind)


@pytest.mark.parametrize("by", ["closing", "cancelling"])
async def test_leaving_early_cancels_the_call(by: str) -> None:
    told = Telling(answer(5))
    async with serving(ModelStreamInfer=told.handle) as host, predictor(host) as client:
        async with aclosing(stream(client)) as responses:
            await anext(responses)
            if by == "cancelling":
                task = asyncio.ensure_future(anext(responses))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        await asyncio.wait_for(told.cancelled.wait(), 20)


async def test_leaving_the_context_breaks_streams_off(caplog: pytest.LogCaptureFixture) -> None:
    told = Telling(answer(5))
    async with serving(ModelStreamInfer=told.handle) as host:
        async with predictor(host) as client:
            responses = stream(client)
            await anext(responses)
            following = asyncio.ensure_future(anext(responses))
            await asyncio.sleep(0)
        with pytest.raises(PredictorUnavailable, match="are closed") as caught:
            await following
        assert caught.value.kind == failures.LOST
        with pytest.raises(PredictorUnavailable, match="are closed"):
            await anext(stream(client))
        await asyncio.wait_for(told.cancelled.wait(), 20)
    assert not caplog.records


@pytest.mark.parametrize(
    ("responses", "kind"), [(0, failures.NO_ANSWER), (1, failures.LOST)], ids=["at once", "midway"]
)
async def test_a_connection_that_ends(responses: int, kind: str) -> None:
    async def fault(connection: Connection) -> None:
        begun = await until_request(connection)
        await connection.send(head(begun) + frame(0, 0, begun, message(answer(5))) * responses)
        await asyncio.sleep(0.05)

    async with faulty(fault, nobody()) as host, predictor(host) as client:
        found = stream(client)
        for _ in range(responses):
            await anext(found)
        with pytest.raises(PredictorUnavailable) as caught:
            await anext(found)
    assert caught.value.kind == kind
    assert caught.value.connection is not None


async def test_a_slow_reader_holds_the_server_back() -> None:
    written = 0

    async def handler(requests: AsyncIterator[bytes], context: Any) -> None:
        nonlocal written
        for _ in range(10_000):
            await context.write(answer(*range(10_000)))
            written += 1

    async with serving(ModelStreamInfer=handler) as host, predictor(host) as client:
        async with aclosing(stream(client)) as responses:
            await anext(responses)
            before = -1
            while before != written:  # until it stands still
                before = written
                await asyncio.sleep(0.2)
            assert written < 2000
            for _ in range(before + 50):
                await anext(responses)
            assert written > before
