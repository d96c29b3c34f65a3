"""Generated text over gRPC, whole and in pieces, over a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.api.generating import PROMPT, Bench, bench, post
from tests.integration.api.grpc_model import Server, count, read, request, serving, text_of, told

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def writing(**options: Any) -> AsyncIterator[tuple[Bench, Server]]:
    """A bench, and a server of its model."""
    async with bench(**options) as made, serving(made.service) as server:
        yield made, server


def asking(*texts: str, id: str = "", **parameters: bool | int | str) -> pb.ModelInferRequest:
    message = request(texts[0] if texts else PROMPT, id, "gpt2")
    if len(texts) > 1:
        message.inputs[0].shape[0] = len(texts)
        message.inputs[0].contents.bytes_contents.extend(text.encode() for text in texts[1:])
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(message.parameters[name], kind, value)
    return message


def final(response: pb.ModelInferResponse) -> bool:
    return response.parameters["triton_final_response"].bool_param


async def pieces_of(stream: Any) -> list[pb.ModelInferResponse]:
    """The responses up to the final one."""
    found: list[pb.ModelInferResponse] = []
    while not found or not final(found[-1]):
        answer = await read(stream)
        assert not answer.error_message
        found.append(answer.infer_response)
    return found


async def test_one_answer_has_the_whole_text() -> None:
    async with writing() as (_, server):
        answer = await server.infer(asking(id="1"))
        assert (answer.id, answer.outputs[0].name, text_of(answer)) == ("1", "output-0", f"{PROMPT} paris.")
        code, says = await told(server.infer(asking(stream=True)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT and "parameters.stream: one answer is given here" in says


async def test_the_parameter_may_be_in_the_parameters_as_text() -> None:
    """No way of asking for pieces is passed over."""
    async with writing() as (made, server):
        stream = server.stream()
        await stream.write(asking(parameters='{"stream": true, "return_full_text": false}'))
        found = await pieces_of(stream)
        assert len(found) > 1 and "".join(map(text_of, found)) == " paris."
        await stream.write(asking())
        [answer] = await pieces_of(stream)
        assert text_of(answer) == f"{PROMPT} paris."
        assert (
            "parameters.stream: one answer is given here"
            in (await told(server.infer(asking(parameters='{"stream": true}'))))[1]
        )
        tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [PROMPT]}
        body = {"inputs": [tensor], "parameters": {"parameters": '{"stream": true}'}}
        status, found_json = await post(made, "/v2/models/gpt2/infer", body)
        assert status == 400 and found_json["error"].startswith("parameters.stream: one answer is given here")


@pytest.mark.parametrize("empty", [False, True], ids=["plain", "with empty final responses"])
async def test_pieces_end_with_the_final_response(empty: bool) -> None:
    async with writing() as (_, server):
        stream = server.stream()
        more = {"triton_enable_empty_final_response": True} if empty else {}
        await stream.write(asking(id="7", stream=True, return_full_text=False, **more))
        await stream.done_writing()
        found = await pieces_of(stream)
        assert len(found) > 1 and {one.id for one in found} == {"7"}
        assert "".join(map(text_of, found)) == " paris."
        assert all("triton_final_response" in one.parameters for one in found)
        assert found[-1].parameters["finish_reason"].string_param == "stop"
        assert await read(stream) is grpc.aio.EOF  # type: ignore[attr-defined]
        assert server.metric(count(200)) == 1


async def test_pieces_say_which_text_they_belong_to() -> None:
    async with writing() as (_, server):
        stream = server.stream()
        await stream.write(asking("A", "B", stream=True, n=2, do_sample=True))
        texts: dict[tuple[int, int], str] = {}
        for one in await pieces_of(stream):
            place = one.parameters["instance"].int64_param, one.parameters["choice"].int64_param
            texts[place] = texts.get(place, "") + text_of(one)
        assert texts == {(0, 0): "A paris.", (0, 1): "A paris.", (1, 0): "B paris.", (1, 1): "B paris."}


async def test_other_requests_of_a_stream_are_answered_meanwhile() -> None:
    gate = asyncio.Semaphore(0)
    async with writing(gate=gate) as (made, server):
        stream = server.stream()
        await stream.write(asking(id="slow", stream=True))
        gate.release()
        assert (await read(stream)).infer_response.id == "slow"
        # Refused for itself, so that it needs no step of the model that waits.
        await stream.write(asking(id="wrong", stream=True, top_q=1))
        answer = await read(stream)
        assert "parameters.top_q: unknown" in answer.error_message and answer.infer_response.id == "wrong"
        for _ in range(20):
            gate.release()
        found = await pieces_of(stream)
        assert {one.id for one in found} == {"slow"}
        assert made.metric(count(400)) == 1


async def test_an_error_in_the_middle_ends_its_request_alone() -> None:
    async with writing(fails=PredictorError("it broke"), after=1) as (_, server):
        stream = server.stream()
        await stream.write(asking(id="1", stream=True))
        assert not (await read(stream)).error_message
        answer = await read(stream)
        assert answer.error_message == "it broke" and answer.infer_response.id == "1"
        assert final(answer.infer_response)
        await stream.write(asking(id="2", stream=True))
        assert (await read(stream)).infer_response.id == "2"
        assert (await read(stream)).error_message == "it broke"
        await server.until(count(502), 2)


async def test_a_call_that_is_cancelled_ends_the_generation() -> None:
    gate = asyncio.Semaphore(0)
    async with writing(gate=gate) as (made, server):
        stream = server.stream()
        await stream.write(asking(stream=True))
        gate.release()
        await read(stream)
        stream.cancel()
        await server.until(count(499), 1)
        assert made.generator.running == 0 and made.in_flight == 0


async def test_the_end_of_the_service_ends_pieces_with_an_error() -> None:
    gate = asyncio.Semaphore(0)
    async with writing(gate=gate) as (made, server):
        stream = server.stream()
        await stream.write(asking(id="1", stream=True))
        gate.release()
        await read(stream)
        made.service.streams.end_within(0.2)
        ending = asyncio.create_task(server.end())
        answer = await read(stream)
        assert answer.error_message == "the service is shutting down" and answer.infer_response.id == "1"
        assert (await told(read(stream)))[0] is grpc.StatusCode.UNAVAILABLE
        await ending
