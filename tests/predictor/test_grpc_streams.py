"""Streams over gRPC against a scripted HTTP/2 server: frames, flow control, and the ends of connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hf_transformer.errors import PredictorError, PredictorUnavailable, RequestError
from hf_transformer.predictor import failures, grpc_connections
from hf_transformer.predictor.base import ModelCall
from hf_transformer.predictor.grpc import GrpcPredictor
from hf_transformer.predictor.grpc_stream_connection import MAX_UNREAD_BYTES, WINDOW_BYTES
from tests.predictor.fault_server import Connection, scripted
from tests.predictor.grpc_server import frame, head, message, predictor, until_request
from tests.predictor.test_grpc import FLOODS, IDS, response, values_of
from tests.support.polling import until

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, PADDED = 1, 4, 8
ACK = b"\0\0\0\4\1\0\0\0\0"


def field(name: str, value: str) -> bytes:
    """A header in HPACK, without index and compression."""
    parts = [bytes((len(part),)) + part.encode() for part in (name, value)]
    return b"\0" + b"".join(parts)


def trailers(stream: int, status: int = 0, text: str = "") -> bytes:
    fields = field("grpc-status", str(status)) + (field("grpc-message", text) if text else b"")
    return frame(HEADERS, END_STREAM | END_HEADERS, stream, fields)


def data(stream: int, *values: float) -> bytes:
    return frame(DATA, 0, stream, message(response(*values)))


async def read(client: GrpcPredictor) -> list[list[float]]:
    """The values of all responses of a stream."""
    return [values_of(outputs) async for outputs in client.stream(ModelCall([IDS], ["logits"], {}))]


class Server:
    """Answers each request of every connection with ``answer``. ``frames`` has what a client sends, without requests.

    ``requests`` is the numbers of the connections, by request.
    """

    def __init__(self, answer: Callable[[int], bytes], settings: bytes = b"") -> None:
        self.answer = answer
        self.settings = settings
        self.requests: list[int] = []
        self.frames: list[tuple[int, int, bytes]] = []
        self.connections: list[Connection] = []
        self.closed = 0

    async def serve(self, connection: Connection) -> None:
        self.connections.append(connection)
        try:
            await connection.reader.readexactly(24)
            await connection.send(frame(SETTINGS, 0, 0, self.settings) + ACK)
            while True:
                header = await connection.reader.readexactly(9)
                payload = await connection.reader.readexactly(int.from_bytes(header[:3]))
                kind, flags, stream = header[3], header[4], int.from_bytes(header[5:])
                if kind == DATA and flags & END_STREAM:
                    self.requests.append(connection.number)
                    await connection.send(frame(WINDOW, 0, 0, len(payload).to_bytes(4)) + self.answer(stream))
                elif kind not in (DATA, HEADERS, SETTINGS):
                    self.frames.append((kind, stream, payload))
        finally:
            self.closed += 1


@asynccontextmanager
async def served(
    answer: Callable[[int], bytes], settings: bytes = b"", **more: Any
) -> AsyncIterator[tuple[Server, GrpcPredictor]]:
    server = Server(answer, settings)
    async with scripted(server.serve) as host, predictor(host, **more) as client:
        yield server, client


def padded(stream: int) -> bytes:
    return frame(DATA, PADDED, stream, b"\3" + message(response(5)) + bytes(3)) + frame(DATA, PADDED, stream, b"\0")


def cut(stream: int, size: int) -> bytes:
    """Two messages in frames of ``size`` bytes."""
    content = message(response(5)) + message(response(6, 7))
    return b"".join(frame(DATA, 0, stream, content[i : i + size]) for i in range(0, len(content), size))


ANSWERS: dict[str, tuple[Callable[[int], bytes], list[list[float]]]] = {
    "a message per frame": (lambda stream: data(stream, 5) + data(stream, 6, 7), [[5], [6, 7]]),
    "messages in one frame": (lambda stream: cut(stream, 1000), [[5], [6, 7]]),
    "a message in many frames": (lambda stream: cut(stream, 7), [[5], [6, 7]]),
    "a byte per frame": (lambda stream: cut(stream, 1), [[5], [6, 7]]),
    "padding": (padded, [[5]]),
    "an empty frame": (lambda stream: frame(DATA, 0, stream, b"") + data(stream, 5), [[5]]),
    "frames of other kinds": (
        lambda stream: frame(PING, 0, 0, bytes(8)) + data(stream, 5) + frame(99, 0, 0, b"x") + frame(4, 0, 0, b""),
        [[5]],
    ),
    "nothing": (lambda stream: b"", []),
}


@pytest.mark.parametrize(("content", "expected"), ANSWERS.values(), ids=ANSWERS)
async def test_messages_are_read_however_frames_cut_them(
    content: Callable[[int], bytes], expected: list[list[float]]
) -> None:
    async with served(lambda stream: head(stream) + content(stream) + trailers(stream)) as (server, client):
        assert await read(client) == expected
        assert await read(client) == expected
        assert server.requests == [0, 0], "one connection serves all"


@pytest.mark.parametrize("size", [1, 3, 9, 50])
async def test_bytes_may_arrive_in_any_pieces(size: int) -> None:
    async def slowly(connection: Connection) -> None:
        stream = await until_request(connection)
        content = head(stream) + data(stream, 5) + data(stream, 6, 7) + trailers(stream)
        for index in range(0, len(content), size):
            await connection.send(content[index : index + size])
            await asyncio.sleep(0)
        await connection.until_closed()

    async with scripted(slowly) as host, predictor(host) as client:
        assert await read(client) == [[5], [6, 7]]


FAILED: dict[str, tuple[Callable[[int], bytes], type[RequestError], str, str]] = {
    "an escaped message": (
        lambda s: head(s) + trailers(s, 13, "caf%C3%A9 %zz"), PredictorError, "error", "café %zz",
    ),
    "only trailers": (
        lambda s: frame(HEADERS, 5, s, b"\x88" + field("grpc-status", "14") + field("grpc-message", "queue size")),
        PredictorUnavailable, "busy", "queue size",
    ),
    "a status that gRPC lacks": (lambda s: head(s) + trailers(s, 99), PredictorError, "error", "answered UNKNOWN"),
    "no status": (
        lambda s: head(s) + frame(HEADERS, 5, s, field("x", "y")), PredictorError, "error", "without a grpc-status",
    ),
    "an end without trailers": (
        lambda s: head(s) + frame(DATA, END_STREAM, s, b""), PredictorError, "error", "without a grpc-status",
    ),
    "HTTP 503": (lambda s: frame(HEADERS, 5, s, b"\x08\x03503"), PredictorUnavailable, "unavailable", "status: 503"),
    "HTTP 404": (lambda s: frame(HEADERS, 5, s, b"\x8d"), PredictorError, "error", "status: 404"),
    "a reset": (lambda s: head(s) + frame(RESET, 0, s, (2).to_bytes(4)), PredictorError, "error", "error code 2"),
    "a refused stream": (
        lambda s: frame(RESET, 0, s, (7).to_bytes(4)), PredictorUnavailable, "unavailable", "error code 7",
    ),
    "a compressed message": (
        lambda s: head(s) + frame(DATA, 0, s, b"\1\0\0\0\1x"), PredictorError, "error", "is compressed",
    ),
    "a whole message over the limit": (
        lambda s: head(s) + data(s, *range(400)), PredictorError, "error", "larger than max",
    ),
    "a message over the limit": (
        lambda s: head(s) + frame(DATA, 0, s, b"\0\0\1\0\0x"), PredictorError, "error", "larger than max",
    ),
    "more padding than bytes": (
        lambda s: head(s) + frame(DATA, PADDED, s, b"\5abc"), PredictorUnavailable, "no_answer", "more padding",
    ),
    "a frame over the limit": (
        lambda s: head(s) + frame(DATA, 0, s, b"", length=2**15), PredictorUnavailable, "no_answer", "Frame size 32768",
    ),
    "more than the window": (
        lambda s: head(s) + frame(DATA, 0, s, b"\0\0\0\xff\xff" + bytes(2**14 - 5)) * (WINDOW_BYTES // 2**14 * 3),
        PredictorError, "error", "larger than max",
    ),
    "broken headers": (
        lambda s: frame(HEADERS, 4, s, b"\xff\xff\xff\xff\xff\xff"), PredictorUnavailable, "no_answer",
        "Failed parsing HTTP/2",
    ),
    "headers without an end": (
        lambda s: frame(HEADERS, 0, s, b"\x88") + frame(9, 0, s, field("a", "b" * 100) * 150) * 100,
        PredictorUnavailable, "no_answer", "Failed parsing HTTP/2",
    ),
    "a pushed stream": (
        lambda s: frame(5, 4, s, (2).to_bytes(4) + b"\x88"), PredictorUnavailable, "no_answer", "Failed parsing HTTP/2",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("content", "expected", "kind", "text"), FAILED.values(), ids=FAILED)
async def test_a_bad_answer_fails_its_call_and_the_next_one_is_served(
    content: Callable[[int], bytes], expected: type[RequestError], kind: str, text: str
) -> None:
    answers: list[Callable[[int], bytes]] = [content, lambda stream: head(stream) + data(stream, 5) + trailers(stream)]
    async with served(lambda stream: answers.pop(0)(stream), max_response_bytes=1000) as (_, client):
        with pytest.raises(expected) as caught:
            await read(client)
        assert text in str(caught.value)
        assert failures.kind_of(caught.value) == kind
        assert await read(client) == [[5]]


async def test_a_server_that_ignores_the_window_loses_its_connection() -> None:
    def flood(stream: int) -> bytes:
        return head(stream) + frame(DATA, 0, stream, message(response(*range(1000)))) * 1000

    async with served(flood) as (_, client):
        responses = client.stream(ModelCall([IDS], ["logits"], {}))
        await anext(responses)
        await asyncio.sleep(0.2)
        with pytest.raises(PredictorUnavailable, match="more than its window"):
            async for _ in responses:
                pass


async def test_a_response_may_be_larger_than_the_window() -> None:
    values = list(range(MAX_UNREAD_BYTES))
    credits = asyncio.Event()

    async def serve(connection: Connection) -> None:
        stream = await until_request(connection)
        content, window = message(response(*values)), WINDOW_BYTES
        await connection.send(head(stream))
        while content:
            size = min(len(content), window, 2**14)
            if size:
                await connection.send(frame(DATA, 0, stream, content[:size]))
                content, window = content[size:], window - size
                continue
            header = await connection.reader.readexactly(9)
            payload = await connection.reader.readexactly(int.from_bytes(header[:3]))
            if header[3] == WINDOW and int.from_bytes(header[5:]) == stream:
                window += int.from_bytes(payload)
                credits.set()
        await connection.send(trailers(stream))
        await connection.until_closed()

    async with scripted(serve) as host, predictor(host) as client:
        assert await asyncio.wait_for(read(client), 20) == [values]
    assert credits.is_set()


async def test_a_request_waits_for_the_servers_window() -> None:
    """Also one that is larger than the socket takes at once."""
    received = bytearray()

    async def serve(connection: Connection) -> None:
        await connection.reader.readexactly(24)
        await connection.send(frame(SETTINGS, 0, 0, b"") + ACK)
        while True:
            header = await connection.reader.readexactly(9)
            payload = await connection.reader.readexactly(int.from_bytes(header[:3]))
            stream = int.from_bytes(header[5:])
            if header[3] == DATA:
                received.extend(payload)
                credit = len(payload).to_bytes(4)
                if header[4] & END_STREAM:
                    await connection.send(head(stream) + data(stream, 5) + trailers(stream))
                elif payload:
                    await connection.send(frame(WINDOW, 0, stream, credit) + frame(WINDOW, 0, 0, credit))

    long = {f"x-{index}": "y" for index in range(3)}
    async with scripted(serve) as host, predictor(host) as client:
        many = [IDS] * 3000
        responses = client.stream(ModelCall(many, ["logits"], long))
        assert [values_of(outputs) async for outputs in responses] == [[5]]
    assert int.from_bytes(received[1:5]) == len(received) - 5 > 2**16


async def test_calls_beyond_the_servers_limit_use_another_connection() -> None:
    waiting: list[tuple[Connection, int]] = []

    async def serve(connection: Connection) -> None:
        await connection.reader.readexactly(24)
        await connection.send(frame(SETTINGS, 0, 0, b"\0\3" + (2).to_bytes(4)) + ACK)
        while True:
            header = await connection.reader.readexactly(9)
            await connection.reader.readexactly(int.from_bytes(header[:3]))
            if header[3] == DATA and header[4] & END_STREAM:
                waiting.append((connection, int.from_bytes(header[5:])))

    async with scripted(serve) as host, predictor(host) as client:
        calls = [asyncio.create_task(read(client)) for _ in range(5)]
        await until(lambda: len(waiting) == 5)
        assert sorted(connection.number for connection, _ in waiting) == [0, 0, 1, 1, 2]
        for connection, stream in waiting:
            await connection.send(head(stream) + data(stream, stream) + trailers(stream))
        assert sorted(await asyncio.gather(*calls)) == [[[1]], [[1]], [[1]], [[3]], [[3]]]


async def test_a_server_without_room_for_any_stream_is_unavailable() -> None:
    async with served(lambda stream: b"", b"\0\3" + bytes(4)) as (_, client):
        with pytest.raises(PredictorUnavailable, match="allows no streams") as caught:
            await asyncio.wait_for(read(client), 5)
    assert caught.value.kind == failures.CONNECTION


async def test_a_server_that_goes_away_finishes_what_it_has_accepted() -> None:
    sent: list[tuple[Connection, int]] = []

    async def serve(connection: Connection) -> None:
        stream = await until_request(connection, 1 if connection.number else 2)
        sent.append((connection, stream))
        if connection.number:
            await connection.send(head(stream) + data(stream, 9) + trailers(stream))
        else:
            await connection.send(head(1) + data(1, 5) + frame(GOAWAY, 0, 0, (1).to_bytes(4) + bytes(4)))
        await connection.until_closed()

    async with scripted(serve) as host, predictor(host) as client:
        accepted, refused = (client.stream(ModelCall([IDS], ["logits"], {})) for _ in range(2))
        first, second = asyncio.ensure_future(anext(accepted)), asyncio.ensure_future(anext(refused))
        assert values_of(await first) == [5]
        with pytest.raises(PredictorUnavailable, match="GOAWAY received") as caught:
            await second
        assert caught.value.kind == failures.NO_ANSWER, "it may be sent again"
        assert await read(client) == [[9]]
        await sent[0][0].send(data(1, 6) + trailers(1))
        assert [values_of(outputs) async for outputs in accepted] == [[6]]


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer pause and a shorter delay, for a machine that is busy."""
    monkeypatch.setattr(grpc_connections, "PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(grpc_connections, "LINGER_SECONDS", 1.0)


async def given_up(client: GrpcPredictor) -> None:
    """Closes a stream after its first response."""
    responses = client.stream(ModelCall([IDS], ["logits"], {}))
    assert values_of(await anext(responses)) == [5]
    await responses.aclose()


def resets(server: Server) -> list[int]:
    return [stream for kind, stream, _ in server.frames if kind == RESET]


def credited(server: Server, stream: int) -> int:
    """The bytes of a stream's further credit."""
    return sum(int.from_bytes(payload) for kind, of, payload in server.frames if (kind, of) == (WINDOW, stream))


@pytest.mark.usefixtures("leaving")
async def test_a_stream_is_cancelled_in_a_pause() -> None:
    """Never while its messages arrive, and not at all if it ends by itself meanwhile."""
    async with served(lambda stream: head(stream) + data(stream, 5)) as (server, client):
        await given_up(client)
        await given_up(client)
        for _ in range(20):
            await server.connections[0].send(data(1, 6) + data(3, 6))
            await asyncio.sleep(0.01)
        assert resets(server) == []
        await server.connections[0].send(trailers(1))
        started = time.monotonic()
        await until(lambda: resets(server) == [3])
        assert time.monotonic() - started < 0.7
        await asyncio.sleep(1)
        assert resets(server) == [3]


@pytest.mark.usefixtures("leaving")
@pytest.mark.parametrize("sends", [False, True], ids=["says nothing", "never pauses"])
async def test_a_stream_without_a_pause_is_cancelled_after_a_second(sends: bool) -> None:
    async with served(lambda stream: head(stream) + data(stream, 5)) as (server, client):
        started = time.monotonic()
        await given_up(client)
        while not resets(server):
            if sends:
                await server.connections[0].send(data(1, 6))
            await asyncio.sleep(0.01)
            assert time.monotonic() - started < 5
        assert time.monotonic() - started > 0.9
        await server.connections[0].send(data(1, 6))  # does nothing to the connection


@pytest.mark.usefixtures("leaving")
async def test_a_stream_that_is_given_up_may_send_on() -> None:
    """More than a reader would leave unread, so that it can end."""
    content, sent = frame(DATA, 0, 1, message(response(*range(1000)))), 0
    async with served(lambda stream: head(stream) + data(stream, 5)) as (server, client):
        await given_up(client)
        for _ in range(2 * MAX_UNREAD_BYTES // len(content)):
            sent += len(content)
            await until(lambda: credited(server, 1) + WINDOW_BYTES > sent)  # noqa: B023 - called at once
            await server.connections[0].send(content)
        await server.connections[0].send(trailers(1))
        server.answer = lambda stream: head(stream) + data(stream, 7) + trailers(stream)
        assert await read(client) == [[7]]
        assert resets(server) == [] and server.requests == [0, 0]


@pytest.mark.parametrize("first", [0, 1], ids=["before a response", "midway"])
async def test_a_server_that_says_nothing_is_pinged(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_connections, "PING_SECONDS", 0.1)
    monkeypatch.setattr(grpc_connections, "PONG_SECONDS", 0.1)
    async with served(lambda stream: head(stream) + data(stream, 5) * first) as (server, client):
        with pytest.raises(PredictorUnavailable, match="ping timeout") as caught:
            await asyncio.wait_for(read(client), 5)
        assert caught.value.kind == (failures.LOST if first else failures.NO_ANSWER)
        assert any(kind == PING for kind, _, _ in server.frames)


async def test_a_slow_model_is_pinged_twice_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC servers such as Triton end a connection with more pings."""
    monkeypatch.setattr(grpc_connections, "PING_SECONDS", 0.05)
    monkeypatch.setattr(grpc_connections, "PONG_SECONDS", 0.5)
    pings = 0

    async def serve(connection: Connection) -> None:
        nonlocal pings
        stream = await until_request(connection)

        async def answer() -> None:
            await asyncio.sleep(1)
            await connection.send(head(stream) + data(stream, 5) + trailers(stream))

        task = asyncio.create_task(answer())
        try:
            while True:
                header = await connection.reader.readexactly(9)
                payload = await connection.reader.readexactly(int.from_bytes(header[:3]))
                if header[3] == PING:
                    pings += 1
                    await connection.send(frame(PING, 1, 0, payload))
        finally:
            await task

    async with scripted(serve) as host, predictor(host) as client:
        assert await read(client) == [[5]]
    assert pings == 2


async def test_an_idle_connection_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_connections, "PING_SECONDS", 0.05)
    monkeypatch.setattr(grpc_connections, "_IDLE_SECONDS", 0.1)
    async with served(lambda stream: head(stream) + data(stream, 5) + trailers(stream)) as (server, client):
        assert await read(client) == [[5]]
        await until(lambda: server.closed == 1)
        assert await read(client) == [[5]]
        assert server.requests == [0, 1]


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_of_frames_ends_its_connection(name: str) -> None:
    answers: list[Callable[[int], bytes]] = [
        lambda stream: head(stream) + data(stream, 5) + FLOODS[name] * 100_000,
        lambda stream: head(stream) + data(stream, 6) + trailers(stream),
    ]
    async with served(lambda stream: answers.pop(0)(stream)) as (server, client):
        started = time.process_time()
        with pytest.raises(PredictorUnavailable, match="Failed parsing HTTP/2") as caught:
            await read(client)
        assert caught.value.kind == failures.LOST
        assert await read(client) == [[6]]
        assert server.requests == [0, 1]
    assert time.process_time() - started < 1, "all of them would take several seconds"


async def test_many_calls_and_tokens_are_no_flood() -> None:
    async with served(lambda stream: head(stream) + data(stream, 5) * 10 + trailers(stream)) as (server, client):
        for _ in range(1200):
            assert await read(client) == [[5]] * 10
    assert set(server.requests) == {0}


async def test_concurrent_calls_share_the_opening_of_a_connection() -> None:
    async with served(lambda stream: head(stream) + data(stream, 5) + trailers(stream)) as (server, client):
        assert await asyncio.gather(*(read(client) for _ in range(50))) == [[[5]]] * 50
        assert len(server.connections) == 1


async def test_a_cancelled_opening_leaves_the_others_alone() -> None:
    async with served(lambda stream: head(stream) + data(stream, 5) + trailers(stream)) as (server, client):
        leaving, staying = asyncio.create_task(read(client)), asyncio.create_task(read(client))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await staying == [[5]]
        assert leaving.cancelled() and len(server.connections) == 1
