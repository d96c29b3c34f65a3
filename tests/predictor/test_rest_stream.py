"""Streams of the REST transport, against a server that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing

import numpy as np
import orjson
import pytest

from hf_transformer.errors import PredictorError, PredictorUnavailable
from hf_transformer.predictor.base import Outputs, PredictorSettings
from hf_transformer.predictor.rest import RestPredictor
from hf_transformer.types import Tensor
from tests.predictor.fault_server import Connection, scripted
from tests.predictor.rest_calls import fails, predictor

TEXT = Tensor("text_input", "BYTES", np.array([b"hello"], np.object_))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSED = HEAD.replace(b"Transfer-Encoding: chunked\r\n", b"")
END = b"0\r\n\r\n"
Script = Callable[[Connection], Awaitable[None]]


def event(text: str = "", error: str = "") -> bytes:
    said = {"error": error} if error else {"model_name": "m", "model_version": "1", "text_output": text}
    return b"data: " + orjson.dumps(said) + b"\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def stream(rest: RestPredictor, headers: Mapping[str, str] | None = None) -> AsyncGenerator[Outputs, None]:
    return rest.stream([TEXT], ["text_output"], headers or {})


async def read(rest: RestPredictor) -> list[str]:
    return [one["text_output"].data[0].decode() async for one in stream(rest)]


def answering(*parts: bytes) -> Script:
    """Answers every request with these bytes, one write each, and hangs up."""

    async def script(connection: Connection) -> None:
        await connection.request()
        for part in parts:
            await connection.send(part)
            await asyncio.sleep(0)

    return script


async def test_a_request_and_its_responses() -> None:
    requests = []

    async def script(connection: Connection) -> None:
        assert connection.number == 0
        while True:
            requests.append(await connection.request())
            await connection.send(HEAD)
            for text in ("a", "é"):
                await connection.send(chunk(event(text)))
            await connection.send(END)

    async with scripted(script) as host, predictor(host) as rest:
        responses = stream(rest, {"x-request-id": "7", "host": "elsewhere"})
        assert requests == []
        found = [one["text_output"].data[0].decode() async for one in responses]
        assert found == await read(rest) == ["a", "é"]
    (headers, body), _ = requests
    assert headers[""] == "POST /v2/models/my%20model/generate_stream HTTP/1.1"
    assert (headers["x-request-id"], headers["host"]) == ("7", host)
    assert headers["accept-encoding"] == "identity"
    assert orjson.loads(body) == {"text_input": "hello"}


async def test_cut_at_every_place() -> None:
    whole = HEAD + chunk(event("a") + event("é")[:10]) + chunk(event("é")[10:]) + END
    for place in range(1, len(whole), 7):
        async with scripted(answering(whole[:place], whole[place:])) as host, predictor(host) as rest:
            assert await read(rest) == ["a", "é"], place


@pytest.mark.parametrize(
    ("said", "kind"),
    [("the model has failed", ""), ("Request timeout expired", "busy"), ("'m' is not ready", "unavailable")],
)
async def test_an_error_midway(said: str, kind: str) -> None:
    parts = [HEAD, chunk(event("a")), chunk(event(error=said)), END]
    async with scripted(answering(*parts)) as host, predictor(host) as rest:
        responses = stream(rest)
        await anext(responses)
        with pytest.raises(PredictorUnavailable if kind else PredictorError, match=said) as caught:
            await anext(responses)
    assert getattr(caught.value, "kind", "") == kind


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [("500 Oops", b'data: {"error":"bad input"}\n\n', PredictorError), ("503 No", b"bad input", PredictorUnavailable)],
    ids=["an event", "plain text"],
)
async def test_other_statuses(status: str, body: bytes, expected: type[Exception]) -> None:
    error = await fails(lambda connection: connection.answer(status, body), call=read)
    assert type(error) is expected and str(error).endswith(f"answered {status[:3]}: bad input")


@pytest.mark.parametrize(
    ("parts", "expected", "kind"),
    [
        ([], PredictorUnavailable, "no_answer"),
        ([HEAD[:20]], PredictorUnavailable, "lost"),
        ([HEAD, chunk(event("a"))], PredictorUnavailable, "lost"),
        ([HEAD, b"zz\r\n"], PredictorError, ""),
        ([HEAD, chunk(b"data: {\n\n"), END], PredictorError, ""),
        ([HEAD.replace(b"text/event-stream", b"application/json"), chunk(b"{}"), END], PredictorError, ""),
    ],
    ids=["nothing", "half a head", "no end", "no size", "not JSON", "no events"],
)
async def test_broken_answers(parts: list[bytes], expected: type[Exception], kind: str) -> None:
    async with scripted(answering(*parts)) as host, predictor(host) as rest:
        with pytest.raises(expected) as caught:
            await read(rest)
    assert type(caught.value) is expected
    assert getattr(caught.value, "kind", "") == kind


@pytest.mark.parametrize("by", ["closing", "cancelling"])
async def test_leaving_early_closes_the_connection(by: str) -> None:
    closed, sent = asyncio.Event(), asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(HEAD + chunk(event("a")))
        sent.set()
        try:
            await connection.until_closed()
        finally:
            closed.set()

    async with scripted(script) as host, predictor(host) as rest:
        if by == "closing":
            async with aclosing(stream(rest)) as responses:
                await anext(responses)
        else:
            task = asyncio.create_task(read(rest))
            await sent.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await closed.wait()


async def test_a_compressed_stream_is_refused() -> None:
    head = HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    async with scripted(answering(head, chunk(b"\x1f\x8b"), END)) as host, predictor(host) as rest:
        with pytest.raises(PredictorError, match="Content-Encoding gzip, although identity was asked for"):
            await read(rest)


async def test_an_event_over_the_limit() -> None:
    async with scripted(answering(HEAD, chunk(event("a" * 100_000)), END)) as host:
        async with RestPredictor(PredictorSettings("m", host, max_response_bytes=50_000)) as rest:
            with pytest.raises(PredictorError, match="an event of its stream has more than 50000 bytes"):
                await read(rest)
