"""ModelStreamInfer of a server in this process, and how the server ends."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio
import pytest

from hf_transformer.api.grpc.server import GrpcSettings
from hf_transformer.api.grpc.stream import STREAM_IN_FLIGHT
from hf_transformer.errors import InvalidInput
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.types import Context
from tests.integration.api.bare_grpc import bare_call
from tests.integration.api.grpc_model import (
    IN_FLIGHT,
    Gate,
    ScriptedModel,
    connected,
    count,
    failure,
    request,
    serving,
    text_of,
)


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


async def test_a_stream_holds_no_more_bytes_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_transformer.api.grpc.stream.STREAM_BYTES", 5000)
    gate = Gate()
    async with serving(ScriptedModel(gate), GrpcSettings("", 0, max_receive=3000)) as server:
        async with connected(server) as client:
            stream = client.stream()
            texts = [str(number) * 2000 for number in range(8)]
            writing = asyncio.create_task(_write(stream, [request(text, id="x") for text in texts]))
            await server.until(IN_FLIGHT, 3)
            assert text_of(await client.infer(request("at once"))) == "at once"
            assert gate.waiting == texts[:3]
            gate.open.set()
            assert [(await read(stream))[1] for _ in texts] == texts
            await writing
            stream.cancel()


async def test_an_answer_over_the_limit_ends_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    settings = GrpcSettings("", 0, max_send=2000)
    async with serving(ScriptedModel(), settings) as server, connected(server) as client:
        stream = client.stream()
        sent = [request("a", id="1"), request("a" * 3000, id="2"), request("b", id="3" * 3000), request("c", id="4")]
        await _write(stream, sent)
        answers = [await read(stream) for _ in sent]
        assert [answer[:2] for answer in answers] == [("1", "a"), ("2", ""), ("", ""), ("4", "c")]
        for answer in answers[1:3]:
            assert "--grpc_max_send_message_length allows 2000" in answer[2] and answer[3]
        assert (server.metric(count(413)), server.metric(count(200))) == (2, 2)
        stream.cancel()
    assert not caplog.records


async def test_a_stream_does_not_take_its_own_places() -> None:
    gate = Gate()
    async with serving(ScriptedModel(gate), concurrent=2) as server, connected(server) as client:
        stream = client.stream()
        texts = [str(number) for number in range(9)]
        await _write(stream, [request(text) for text in texts])
        await server.until(IN_FLIGHT, 2)
        assert (await failure(client.infer(request("at once")))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert gate.waiting == texts[:2]
        gate.open.set()
        assert [(await read(stream))[1:3] for _ in texts] == [(text, "") for text in texts]
        assert (server.metric(count(200)), server.metric(count(429))) == (9, 1)
        assert server.metric('hf_transformer_refused_requests_total{limit="requests"}') == 1
        stream.cancel()


async def test_a_stream_is_refused_where_others_have_all_places() -> None:
    gate = Gate()
    async with serving(ScriptedModel(gate), concurrent=1) as server, connected(server) as client:
        first, stream = client.infer(request("a")), client.stream()
        await server.until(IN_FLIGHT, 1)
        await stream.write(request("b"))
        assert "--max_concurrent_requests" in (await read(stream))[2]
        gate.open.set()
        assert text_of(await first) == "a"
        await stream.write(request("c"))
        assert (await read(stream))[1:3] == ("c", "")
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


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_the_end_of_the_server_does_not_wait_for_who_does_not_read(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(text: str, context: Context) -> str:
        return "a" * 1_000_000

    monkeypatch.setattr("hf_transformer.api.grpc.calls.PATIENCE", 0.1)
    caplog.set_level(logging.WARNING)
    settings = GrpcSettings("", 0, grace=3600)
    async with asyncio.timeout(20), serving(ScriptedModel(answer), settings) as server:
        async with bare_call(server.settings.port, method, request("a")) as answered:
            await answered.readuntil(b"a" * 10_000)
            await server.end()
    assert not caplog.records


async def test_the_end_of_the_server_does_not_wait_for_ever() -> None:
    gate = Gate()
    async with serving(ScriptedModel(gate), GrpcSettings("", 0, grace=0.1)) as server, connected(server) as client:
        call = client.infer(request("a"))
        await server.until(IN_FLIGHT, 1)
        await server.end()
        assert (await failure(call)).code() is grpc.StatusCode.UNAVAILABLE
        await server.until(count(499), 1)
        assert gate.cancelled == ["a"]
