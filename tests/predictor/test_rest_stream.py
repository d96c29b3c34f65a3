"""Streams of the REST transport, against a server that follows a script."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing

import numpy as np
import orjson
import pytest

from hf_transformer.errors import PredictorError, PredictorUnavailable
from hf_transformer.predictor.base import Outputs, PredictorSettings
from hf_transformer.predictor.rest import RestPredictor
from hf_transformer.types import Tensor
from tests.predictor.fault_server import Connection, nobody, scripted
from tests.predictor.rest_calls import predictor
from tests.predictor.test_http import TLS

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
        requests.append(await connection.request())
        await connection.send(HEAD)
        for text in ("a", "é"):
            await connection.send(chunk(event(text)))
        await connection.send(END)
        await connection.until_closed()

    async with scripted(script) as host, predictor(host) as rest:
        responses = stream(rest, {"x-request-id": "7", "host": "elsewhere"})
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


async def test_connections_are_used_again_and_given_up_as_for_calls() -> None:
    """Kept after an answer that was read whole; not after one that was left early."""
    served: list[int] = []

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            served.append(connection.number)
            await connection.send(HEAD + chunk(event("a")) + (b"" if len(served) == 3 else END))

    async with scripted(script) as host, predictor(host) as rest:
        assert [await read(rest), await read(rest)] == [["a"], ["a"]]
        async with aclosing(stream(rest)) as responses:
            await anext(responses)
        assert await read(rest) == ["a"]
    assert served == [0, 0, 0, 1]


@pytest.mark.parametrize("last", [b"", b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n"], ids=["", "408"])
async def test_a_stale_connection_costs_nothing(last: bytes) -> None:
    seen = []

    async def script(connection: Connection) -> None:
        seen.append((connection.number, (await connection.request())[1]))
        await connection.send(HEAD + chunk(event("a")) + END)
        seen.append((connection.number, (await connection.request())[1]))
        await connection.send(last)

    async with scripted(script) as host, predictor(host) as rest:
        assert [await read(rest), await read(rest)] == [["a"], ["a"]]
    assert [number for number, _ in seen] == [0, 0, 1] and len({body for _, body in seen}) == 1


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


async def test_over_tls() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "localhost.pem", TLS / "localhost.key")

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.send(HEAD + chunk(event("a" * 200_000)) + chunk(event("b")) + END)

    async with scripted(script, context) as host:
        at = f"localhost:{host.rpartition(':')[2]}"
        settings = PredictorSettings("my model", at, use_ssl=True, ca_file=str(TLS / "localhost.pem"))
        async with RestPredictor(settings) as rest:
            assert [await read(rest) for _ in range(2)] == [["a" * 200_000, "b"]] * 2
