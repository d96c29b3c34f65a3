"""ModelStreamInfer of a server in this process, and how the server ends."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from hf_transformer.apis.grpc_infer import STREAM_IN_FLIGHT
from hf_transformer.apis.grpc_v2 import GrpcSettings
from hf_transformer.errors import InvalidInput
from hf_transformer.types import Context
from hf_transformer.wire.pb import open_inference_grpc_pb2 as pb
from tests.apis.grpc_model import IN_FLIGHT, Gate, ScriptedModel, connected, count, failure, request, serving, text_of


async def read(stream: Any) -> tuple[str, str, str, bool]:
    """One answer of a stream: id, text, error, and whether it is the last one for its request."""
    answer = await asyncio.wait_for(stream.read(), 20)
    response = answer.infer_response
    text = text_of(response) if response.outputs else ""
    return response.id, text, answer.error_message, response.parameters["triton_final_response"].bool_param


async def test_a_stream_answers_in_order_whatever_is_first_ready() -> None:
    gate = Gate()
    async with serving(ScriptedModel(gate)) as server, connected(server) as client:
        stream = client.stream(metadata=(("x-request-id", "caller-1"),))
        await stream.write(request("slow", id="1"))
        await stream.write(request("at once", id="2"))
        await server.until(count(200), 1)  # the second is done
        gate.open.set()
        assert [await read(stream), await read(stream)] == [("1", "slow", "", True), ("2", "at once", "", True)]
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF  # type: ignore[attr-defined]
        assert await stream.code() is grpc.StatusCode.OK
        assert dict(await stream.trailing_metadata())["x-request-id"] == "caller-1"


async def test_an_error_in_a_stream_ends_its_request_alone() -> None:
    async def sometimes(text: str, context: Context) -> str:
        if text == "bad":
            raise InvalidInput("no mask")
        if text == "fault":
            raise ValueError("secret")
        return text

    async with serving(ScriptedModel(sometimes)) as server, connected(server) as client:
        stream = client.stream()
        wrong = request("x", id="4")
        wrong.inputs[0].datatype = "FP8"
        for message in (request("bad", id="1"), request("x", id="2", model="other"), request("fault", id="3"), wrong):
            await stream.write(message)
        await stream.write(request("good", id="5"))
        answers = [await read(stream) for _ in range(5)]
        assert [answer[0] for answer in answers] == ["1", "2", "3", "4", "5"]
        for (_, text, error, final), says in zip(
            answers, ("no mask", "'other'", "internal error; the log has it under 3", "'FP8'", ""), strict=True
        ):
            assert says in error and final
            assert text == ("" if says else "good")
        assert server.metric(IN_FLIGHT) == 0
        stream.cancel()


async def test_a_stream_reads_no_further_than_it_works() -> None:
    gate = Gate()
    async with serving(ScriptedModel(gate)) as server, connected(server) as client:
        stream = client.stream()
        total = STREAM_IN_FLIGHT + 8
        writing = asyncio.create_task(_write(stream, [request(str(number), id="x") for number in range(total)]))
        await server.until(IN_FLIGHT, STREAM_IN_FLIGHT)
        assert text_of(await client.infer(request("at once"))) == "at once"
        assert len(gate.waiting) == STREAM_IN_FLIGHT
        gate.open.set()
        assert [(await read(stream))[1] for _ in range(total)] == [str(number) for number in range(total)]
        await writing
        stream.cancel()


async def _write(stream: Any, messages: list[pb.ModelInferRequest]) -> None:
    for message in messages:
        await stream.write(message)


async def test_a_stream_that_is_cancelled_ends_its_requests() -> None:
    gate = Gate()
    async with serving(ScriptedModel(gate)) as server, connected(server) as client:
        stream = client.stream()
        await _write(stream, [request(str(number)) for number in range(3)])
        await server.until(IN_FLIGHT, 3)
        stream.cancel()
        await server.until(count(499), 3)
        assert sorted(gate.cancelled) == ["0", "1", "2"]
        assert server.metric(IN_FLIGHT) == 0


async def test_the_end_of_the_server_waits_for_what_is_in_flight() -> None:
    gate = Gate()
    async with serving(ScriptedModel(gate)) as server, connected(server) as client:
        call, stream = client.infer(request("a")), client.stream()
        await stream.write(request("b", id="1"))
        await server.until(IN_FLIGHT, 2)
        ending = asyncio.create_task(server.end())
        await asyncio.sleep(0)  # it has begun
        gate.open.set()
        assert text_of(await call) == "a"
        assert (await read(stream))[:2] == ("1", "b")
        found = await failure(stream.read())
        assert (found.code(), found.details()) == (grpc.StatusCode.UNAVAILABLE, "the service is shutting down")
        await ending
        assert (await failure(client.infer(request("c")))).code() is grpc.StatusCode.UNAVAILABLE


async def test_the_end_of_the_server_does_not_wait_for_ever() -> None:
    gate = Gate()
    async with serving(ScriptedModel(gate), GrpcSettings("", 0, grace=0.1)) as server, connected(server) as client:
        call = client.infer(request("a"))
        await server.until(IN_FLIGHT, 1)
        await server.end()
        assert (await failure(call)).code() is grpc.StatusCode.UNAVAILABLE
        await server.until(count(499), 1)
        assert gate.cancelled == ["a"]
