"""Streams of the REST transport, against a server that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing

import numpy as np
import orjson
import pytest

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable
from hf_transformer.following import source_of
from hf_transformer.predictor.rest import RestPredictor
from hf_transformer.types import Tensor
from tests.predictor.fault_server import Connection, nobody, scripted
from tests.predictor.following import Responses, following
from tests.predictor.rest_calls import predictor

pytestmark = pytest.mark.asyncio

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


@pytest.fixture(autouse=True, params=["asked", "followed", "taken at once"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds for all ways of reading a stream."""
    if request.param != "asked":
        asked, at_once = stream, request.param == "taken at once"
        monkeypatch.setattr(
            f"{__name__}.stream", lambda *args, **options: following(asked(*args, **options), at_once=at_once)
        )


def stream(rest: RestPredictor, headers: Mapping[str, str] | None = None) -> Responses:
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
        requests.append(await connection.request())
        await connection.send(HEAD)
        for text in ("a", "é"):
            await connection.send(chunk(event(text)))
        await connection.send(END)
        await connection.until_closed()

    async with scripted(script) as host, predictor(host) as rest:
        responses = stream(rest, {"X-Request-Id": "7", "host": "elsewhere"})
        assert requests == []
        found = [one["text_output"].data[0].decode() async for one in responses]
    assert found == ["a", "é"]
    [(headers, body)] = requests
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
    "head",
    [
        UNTIL_CLOSED,
        HEAD.replace(b"Transfer-Encoding: chunked", f"Content-Length: {2 * len(event('a'))}".encode()),
        b"HTTP/1.1 100 Continue\r\n\r\n" + UNTIL_CLOSED,
    ],
    ids=["until it is closed", "of known length", "after an interim answer"],
)
async def test_other_framings(head: bytes) -> None:
    async with scripted(answering(head, event("a"), event("b"))) as host, predictor(host) as rest:
        assert await read(rest) == ["a", "b"]


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
    [
        ("400 Bad Request", b'{"error":"unexpected inference input"}', PredictorError),
        ("500 Internal Server Error", b'data: {"error":"unexpected inference input"}\n\n', PredictorError),
        ("404 Not Found", b'{"error":"unexpected inference input"}', PredictorUnavailable),
        ("503 Service Unavailable", b"unexpected inference input", PredictorUnavailable),
    ],
    ids=["400", "500", "404", "503"],
)
async def test_other_statuses(status: str, body: bytes, expected: type[Exception]) -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.answer(status, body)

    async with scripted(script) as host, predictor(host) as rest:
        with pytest.raises(expected, match=rf"answered {status[:3]}: unexpected inference input$") as caught:
            await read(rest)
    assert type(caught.value) is expected


@pytest.mark.parametrize(
    ("parts", "expected", "kind"),
    [
        ([], PredictorUnavailable, "no_answer"),
        ([HEAD[:20]], PredictorUnavailable, "lost"),
        ([HEAD], PredictorUnavailable, "lost"),
        ([HEAD, chunk(event("a"))], PredictorUnavailable, "lost"),
        ([HEAD, chunk(event("a"))[:-9]], PredictorUnavailable, "lost"),
        ([b"\x00\x00\x12\x04\x00"], PredictorError, ""),
        ([b"HTTP/1.1 101 Switching Protocols\r\n\r\n"], PredictorError, ""),
        ([b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n"], PredictorError, ""),
        ([HEAD, b"zz\r\n"], PredictorError, ""),
        ([HEAD, chunk(b"data: {\n\n"), END], PredictorError, ""),
        ([HEAD.replace(b"text/event-stream", b"application/json"), chunk(b"{}"), END], PredictorError, ""),
    ],
    ids=[
        "nothing",
        "half a head",
        "a head",
        "no end",
        "half a chunk",
        "not HTTP",
        "another protocol",
        "a long head",
        "no size",
        "not JSON",
        "no events",
    ],
)
async def test_broken_answers(parts: list[bytes], expected: type[Exception], kind: str) -> None:
    async with scripted(answering(*parts)) as host, predictor(host) as rest:
        with pytest.raises(expected) as caught:
            await read(rest)
    assert type(caught.value) is expected
    assert getattr(caught.value, "kind", "") == kind


async def test_refused() -> None:
    async with predictor(nobody()) as rest:
        with pytest.raises(PredictorUnavailable) as caught:
            await read(rest)
    assert caught.value.kind == "connection"


@pytest.mark.parametrize(
    "parts",
    [[], [HEAD, chunk(event("a"))], [UNTIL_CLOSED, event("a")]],
    ids=["at once", "midway", "where the server would close"],
)
async def test_no_end_in_time(parts: list[bytes]) -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        for part in parts:
            await connection.send(part)
        await connection.until_closed()

    async with scripted(script) as host, predictor(host, 0.1) as rest:
        with pytest.raises(PredictorTimeout, match="--predictor_request_timeout_seconds"):
            await read(rest)


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


@pytest.mark.parametrize(
    "answer", [HEAD + chunk(event("a")), UNTIL_CLOSED + event("a")], ids=["chunked", "until closed"]
)
async def test_closing_the_predictor_ends_its_streams(answer: bytes) -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(answer)
        await connection.until_closed()

    async with scripted(script) as host:
        async with predictor(host) as rest:
            responses = stream(rest)
            await anext(responses)
        with pytest.raises(PredictorUnavailable, match="closed here"):
            await anext(responses)
        with pytest.raises(PredictorUnavailable, match="are closed"):
            await anext(stream(rest))


async def test_a_slow_reader_holds_the_server_up() -> None:
    written = 0
    part = chunk(event("x" * 10_000) * 10)

    async def script(connection: Connection) -> None:
        nonlocal written
        await connection.request()
        await connection.send(HEAD)
        for _ in range(1000):
            await connection.send(part)
            written += len(part)
        await connection.send(END)

    async with scripted(script) as host, predictor(host) as rest:
        responses = stream(rest)
        await anext(responses)
        before = -1
        while written != before:  # until nothing more fits on the way
            before = written
            await asyncio.sleep(0.1)
        assert written < 1000 * len(part)
        assert sum([1 async for _ in responses]) == 9999
    assert written == 1000 * len(part)


async def test_a_response_is_there_in_the_moment_in_which_it_comes() -> None:
    more = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(HEAD + chunk(event("a")))
        for part in (chunk(event("b") + event("c")), chunk(event("d")), chunk(event(error="it broke"))):
            await more.wait()
            more.clear()
            await connection.send(part)
        await connection.until_closed()

    async with scripted(script) as host, predictor(host) as rest:
        responses = rest.stream([TEXT], ["text_output"], {})
        source = source_of(responses)
        assert source is not None and source.take() is None and not source.follow(more.set)
        await anext(responses)
        taken: list[str] = []
        moment = asyncio.Event()

        def wake() -> None:
            while (response := source.take()) is not None:
                taken.append(response["text_output"].data[0].decode())
            moment.set()

        for expected in (["b", "c"], ["b", "c", "d"], ["b", "c", "d"]):
            assert source.follow(wake)
            more.set()
            async with asyncio.timeout(20):
                await moment.wait()
            moment.clear()
            assert taken == expected
        assert not source.follow(wake)
        source.unfollow()
        with pytest.raises(PredictorError, match="it broke"):
            await anext(responses)
