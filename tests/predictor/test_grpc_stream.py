"""Streams of the gRPC transport, against a real gRPC server that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import grpc
import numpy as np
import pytest

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable
from hf_transformer.predictor import failures
from hf_transformer.predictor.base import Outputs
from hf_transformer.predictor.grpc import GrpcPredictor
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.types import Tensor
from tests.predictor.fault_server import Connection, nobody
from tests.predictor.grpc_server import faulty, frame, head, message, predictor, serving, until_request

IDS = Tensor("input_ids", "INT32", np.array([[1, 2]], "<i4"))


def answer(*ids: int, name: str = "output_ids", final: bool = False, error: str = "") -> bytes:
    message = pb.ModelStreamInferResponse(error_message=error)
    if ids:
        message.infer_response.outputs.add(name=name, datatype="INT32", shape=[len(ids)])
        message.infer_response.raw_output_contents.append(np.array(ids, "<i4").tobytes())
    if not error:
        message.infer_response.parameters["triton_final_response"].bool_param = final
    return message.SerializeToString()


def stream(
    client: GrpcPredictor, headers: Mapping[str, str] | None = None, outputs: Sequence[str] = ("output_ids",)
) -> AsyncGenerator[Outputs, None]:
    return client.stream([IDS], outputs, headers or {})


async def read(client: GrpcPredictor, outputs: Sequence[str] = ("output_ids",)) -> list[list[int]]:
    return [one["output_ids"].data.tolist() async for one in stream(client, outputs=outputs)]


async def test_a_request_and_its_responses() -> None:
    seen: list[Any] = []

    async def handler(requests: AsyncIterator[bytes], context: Any) -> None:
        seen.append([pb.ModelInferRequest.FromString(request) async for request in requests])
        seen.append(dict(context.invocation_metadata()))
        for response in (answer(5), answer(), answer(6, 7), answer(final=True)):
            await context.write(response)

    async with serving(ModelStreamInfer=handler) as host, predictor(host) as client:
        responses = stream(client, {"x-request-id": "7"})
        assert seen == []
        found = [one["output_ids"].data.tolist() async for one in responses]
    assert found == [[5], [6, 7]]
    [request], metadata = seen
    assert (request.model_name, request.parameters["triton_enable_empty_final_response"].bool_param) == ("bert", True)
    assert (metadata["x-request-id"], metadata["triton_grpc_error"]) == ("7", "true")


@pytest.mark.parametrize("responses", [[answer(5, final=True)], [answer(5)]], ids=["said to be final", "never said"])
async def test_ends(responses: list[bytes]) -> None:
    cancelled = asyncio.Event()

    async def handler(requests: AsyncIterator[bytes], context: Any) -> None:
        context.add_done_callback(lambda done: cancelled.set() if done.cancelled() else None)
        for response in responses:
            await context.write(response)
        await asyncio.sleep(0.05)

    async with serving(ModelStreamInfer=handler) as host, predictor(host) as client:
        assert await read(client) == [[5]]
    assert not cancelled.is_set()


async def test_all_outputs_where_none_are_named() -> None:
    async def handler(requests: AsyncIterator[bytes], context: Any) -> None:
        assert not pb.ModelInferRequest.FromString(await anext(requests)).outputs
        await context.write(answer(5, final=True))

    async with serving(ModelStreamInfer=handler) as host, predictor(host) as client:
        assert await read(client, ()) == [[5]]


@pytest.mark.parametrize(
    ("said", "kind", "expected"),
    [
        ("the model has failed", "", PredictorError),
        ("Request for unknown model: 'gpt2' is not found", "unavailable", PredictorUnavailable),
        ("Exceeds maximum queue size", "busy", PredictorUnavailable),
    ],
)
async def test_errors_without_a_status(said: str, kind: str, expected: type[Exception]) -> None:
    async def handler(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.write(answer(5))
        await context.write(answer(error=said))

    async with serving(ModelStreamInfer=handler) as host, predictor(host) as client:
        responses = stream(client)
        assert (await anext(responses))["output_ids"].data.tolist() == [5]
        with pytest.raises(expected, match=said) as caught:
            await anext(responses)
    assert type(caught.value) is expected
    assert getattr(caught.value, "kind", "") == kind


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, PredictorUnavailable),
        (grpc.StatusCode.INTERNAL, PredictorError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, PredictorTimeout),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
@pytest.mark.parametrize("first", [0, 1], ids=["at once", "midway"])
async def test_errors_with_a_status(code: grpc.StatusCode, expected: type[Exception], first: int) -> None:
    async def handler(requests: AsyncIterator[bytes], context: Any) -> None:
        for _ in range(first):
            await context.write(answer(5))
        await context.abort(code, "the model's own words")

    async with serving(ModelStreamInfer=handler) as host, predictor(host) as client:
        with pytest.raises(expected, match="the model's own words") as caught:
            await read(client)
    assert type(caught.value) is expected


@pytest.mark.parametrize(
    ("response", "message"),
    [(b"\xff\xff", "response is malformed"), (answer(5, name="more"), "with 'more', which was not asked for")],
    ids=["garbage", "other output"],
)
async def test_answers_that_break_the_protocol(response: bytes, message: str) -> None:
    cancelled = asyncio.Event()

    async def handler(requests: AsyncIterator[bytes], context: Any) -> None:
        try:
            await context.write(response)  # the client may leave before this returns
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with serving(ModelStreamInfer=handler) as host, predictor(host) as client:
        with pytest.raises(PredictorError, match=message):
            await read(client)
        await asyncio.wait_for(cancelled.wait(), 20)


@pytest.mark.parametrize("by", ["closing", "cancelling"])
async def test_leaving_early_cancels_the_call(by: str) -> None:
    cancelled = asyncio.Event()

    async def handler(requests: AsyncIterator[bytes], context: Any) -> None:
        try:
            await context.write(answer(5))  # the client may read it, and leave, before this returns
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with serving(ModelStreamInfer=handler) as host, predictor(host) as client:
        async with aclosing(stream(client)) as responses:
            await anext(responses)
            if by == "cancelling":
                task = asyncio.ensure_future(anext(responses))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        await asyncio.wait_for(cancelled.wait(), 20)


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


async def test_leaving_the_context_breaks_streams_off(caplog: pytest.LogCaptureFixture) -> None:
    cancelled = asyncio.Event()

    async def handler(requests: AsyncIterator[bytes], context: Any) -> None:
        try:
            await context.write(answer(5))  # the client may leave before this returns
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with serving(ModelStreamInfer=handler) as host:
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
        await asyncio.wait_for(cancelled.wait(), 20)
    assert not caplog.records


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
