"""ModelStreamInfer of a server in this process: answers in order, errors of one request, and what a stream may hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import repeat
from typing import Any

import grpc
import grpc.aio
import pytest

from hf_transformer.api.grpc.stream import STREAM_IN_FLIGHT
from hf_transformer.errors import InvalidInput
from hf_transformer.generation.types import Prompt, Sampling, Step
from hf_transformer.types import Context
from tests.api.generating import bench
from tests.integration.api.grpc_model import (
    IN_FLIGHT,
    SECONDS,
    Gate,
    count,
    failure,
    long_answer,
    read,
    request,
    serving,
    text_of,
    told,
    write,
)
from tests.integration.api.test_grpc_generate import asking

END = grpc.aio.EOF  # type: ignore[attr-defined]


async def answer(stream: Any) -> tuple[str, str, str, bool]:
    """One answer of a stream: id, text, error, and whether it is the last one for its request."""
    found = await read(stream)
    response = found.infer_response
    text = text_of(response) if response.outputs else ""
    return response.id, text, found.error_message, response.parameters["triton_final_response"].bool_param


async def test_a_stream_answers_in_order_whatever_is_first_ready() -> None:
    async with serving(gate := Gate()) as server:
        stream = server.stream(metadata=(("x-request-id", "caller-1"),))
        await write(stream, request("slow", id="1"), request("at once", id="2"))
        await server.until(count(200), 1)  # the second is done
        gate.open.set()
        assert [await answer(stream), await answer(stream)] == [("1", "slow", "", True), ("2", "at once", "", True)]
        await stream.done_writing()
        assert await stream.read() is END
        assert await stream.code() is grpc.StatusCode.OK
        assert dict(await stream.trailing_metadata())["x-request-id"] == "caller-1"


async def test_an_error_in_a_stream_ends_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def sometimes(text: str, context: Context) -> str:
        if text in ("bad", "fault"):
            raise InvalidInput("no mask") if text == "bad" else ValueError("secret")
        return text

    wrong, limit = request("x", id="4"), "--grpc_max_send_message_length allows 2000"
    wrong.inputs[0].datatype = "FP8"
    cases = (
        (request("bad", id="1"), "no mask"),
        (request("x", id="2", model="other"), "'other'"),
        (request("fault", id="3"), "internal error; the log has it under 3"),
        (wrong, "'FP8'"),
        (request("a" * 3000, id="5"), limit),
        (request("b", id="3" * 3000), limit),  # too long for the answer that says so, too
        (request("good", id="7"), ""),
    )
    async with serving(sometimes, max_send=2000) as server:
        stream = server.stream()
        await write(stream, *[message for message, _ in cases])
        for message, says in cases:
            id, text, error, final = await answer(stream)
            assert id == ("" if len(message.id) > 1 else message.id)
            assert says in error and final
            assert text == ("" if says else "good")
        assert (server.metric(count(413)), server.metric(count(200)), server.metric(IN_FLIGHT)) == (2, 1, 0)
        stream.cancel()
    assert ["secret" in str(record.exc_info) for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("size", "at_once"), [(1, STREAM_IN_FLIGHT), (1000, 3)], ids=["as many requests", "as many bytes"]
)
async def test_a_stream_reads_no_further_than_it_works(
    size: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_transformer.api.grpc.stream.STREAM_BYTES", 5000)
    texts = [f"{number:02}" * size for number in range(at_once + 8)]
    async with serving(gate := Gate(), max_receive=3000) as server:
        stream = server.stream()
        writing = asyncio.create_task(write(stream, *[request(text, id="x") for text in texts]))
        await server.until(IN_FLIGHT, at_once)
        assert text_of(await server.infer(request("at once"))) == "at once"
        assert gate.waiting == texts[:at_once]
        gate.open.set()
        assert [(await answer(stream))[1] for _ in texts] == texts
        await writing
        stream.cancel()


async def test_a_stream_does_not_take_its_own_places() -> None:
    async with serving(gate := Gate(), concurrent=2) as server:
        stream = server.stream()
        texts = [str(number) for number in range(9)]
        await write(stream, *map(request, texts))
        await server.until(IN_FLIGHT, 2)
        refused = await failure(server.infer(request("at once")))
        metadata: Any = refused.trailing_metadata()
        assert (refused.code(), dict(metadata)["retry-after"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "1")
        assert gate.waiting == texts[:2]
        gate.open.set()
        assert [(await answer(stream))[1:3] for _ in texts] == [(text, "") for text in texts]
        assert (server.metric(count(200)), server.metric(count(429))) == (9, 1)
        assert server.metric('hf_transformer_refused_requests_total{limit="requests"}') == 1
        stream.cancel()


async def test_a_stream_is_refused_where_others_have_all_places() -> None:
    async with serving(gate := Gate(), concurrent=1) as server:
        first, stream = server.infer(request("a")), server.stream()
        await server.until(IN_FLIGHT, 1)
        await write(stream, request("b"))
        assert "--max_concurrent_requests" in (await answer(stream))[2]
        gate.open.set()
        assert text_of(await first) == "a"
        await write(stream, request("c"))
        assert (await answer(stream))[1:3] == ("c", "")
        stream.cancel()


async def test_a_stream_that_is_cancelled_ends_its_requests() -> None:
    async with serving(gate := Gate()) as server:
        stream = server.stream()
        await write(stream, *map(request, "012"))
        await server.until(IN_FLIGHT, 3)
        stream.cancel()
        await server.until(count(499), 3)
        assert sorted(gate.cancelled) == ["0", "1", "2"]
        assert server.metric(IN_FLIGHT) == 0


async def test_who_takes_no_answer_is_given_up_and_told_so_when_it_reads_on() -> None:
    async with serving(long_answer, patience=0.2) as server, asyncio.timeout(SECONDS):
        stream = server.stream(metadata=(("x-request-id", "caller-1"),))
        await write(stream, *[request("a", id=str(number)) for number in range(30)])
        while not server.works:  # noqa: ASYNC110 - there is nothing that tells of a change
            await asyncio.sleep(0.01)
        await server.over()
        assert server.metric(IN_FLIGHT) == 0
        found = await failure(read_all(stream))
        assert found.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert found.details() == "an answer was not taken within 0.2 s (--client_timeout_seconds)"
        metadata: Any = found.trailing_metadata()
        assert dict(metadata)["x-request-id"] == "caller-1"
        assert text_of(await server.infer(request("b"))) == "b" * 1_000_000, "the connection is as good as before"


def pieces(prompt: Prompt, sampling: Sampling) -> Iterable[Step]:
    """Large ones, and for another prompt none, without an end."""
    return [Step(text="a" * 1_000_000)] * 30 if prompt.text == "A" else repeat(Step())


@pytest.mark.parametrize("behind", ["nothing more", "perhaps more", "another"])
async def test_who_takes_no_pieces_is_given_up(behind: str) -> None:
    """Whatever else the stream waits for: a request that may come, or the answer to the next one."""
    async with bench() as made, serving(made.service, patience=0.2) as server, asyncio.timeout(SECONDS):
        await made.model.require_ready()
        made.generator._script = pieces
        stream = server.stream()
        await stream.write(asking("A", stream=True, max_new_tokens=50))
        if behind == "another":
            await stream.write(asking("B", stream=True, return_full_text=False))
        elif behind == "nothing more":
            await stream.done_writing()
        assert (await stream.read()).infer_response.outputs
        await server.over()
        assert made.generator.running == 0
        assert (await told(read_all(stream)))[0] is grpc.StatusCode.DEADLINE_EXCEEDED


async def read_all(stream: Any) -> None:
    while await stream.read() is not END:
        pass
