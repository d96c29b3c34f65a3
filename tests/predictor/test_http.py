"""The HTTP client: answers without sockets, split at every byte; connections on real sockets on both event loops."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from hf_transformer.predictor import http
from hf_transformer.predictor.base import Address
from hf_transformer.predictor.http import (
    MAX_FRAMING_BYTES,
    Answer,
    AnswerTooLarge,
    Client,
    ClientClosed,
    ConnectTimeout,
    Disconnected,
    HttpError,
    MalformedAnswer,
    NoAnswer,
    NotHttp,
)
from hf_transformer.predictor.http import Connection as ClientConnection
from tests.predictor.fault_server import HOST, Connection, client_context, scripted, server_context
from tests.support.polling import until

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
MAX_BODY = 2**25
Script = Callable[[Connection], Awaitable[None]]
LARGE = 2**24
"""More bytes than a socket's buffers hold."""

BEGINNINGS = [
    b"H",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab",
]


def allocate(size: int, headers: Mapping[bytes, bytes]) -> memoryview:
    return memoryview(bytearray(size))


@asynccontextmanager
async def client_of(host: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    """A client of the server at host:port."""
    address = Address("localhost" if tls is not None else HOST, int(host.rpartition(":")[2]), tls is not None)
    client = Client(address, tls, allocate, MAX_BODY)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def serving(script: Script, tls: bool = False) -> AsyncIterator[Client]:
    """A client of a server that runs the script for every connection."""
    contexts = (server_context(), client_context()) if tls else (None, None)
    async with scripted(script, contexts[0]) as host, client_of(host, contexts[1]) as client:
        yield client


async def status_of(client: Client, streamed: bool) -> int:
    """The status of an answer, after reading all of it."""
    if not streamed:
        return (await client.request(GET)).status
    connection = await client.begin([GET])
    try:
        while await connection.read():
            pass
        return connection.status
    finally:
        connection.leave()


async def body_of(answer: Awaitable[Answer]) -> bytes:
    return bytes((await answer).body)


def post(body: bytes) -> tuple[bytes, bytes]:
    return b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body), body


async def echo(connection: Connection) -> None:
    """Answers every request with its body."""
    while True:
        await connection.answer("200 OK", (await connection.request())[1])


class CountedAnswers:
    """A script that answers ``counts[n]`` requests of connection n, and then runs ``then``.

    ``requests`` has the connection's number for each request so far.
    """

    def __init__(self, *counts: int, then: Script) -> None:
        self.requests: list[int] = []
        self._counts, self._then = list(counts), then

    async def serve(self, connection: Connection) -> None:
        for _ in range(self._counts[min(connection.number, len(self._counts) - 1)]):
            await connection.request()
            self.requests.append(connection.number)
            await connection.answer("200 OK", b"%d" % connection.number)
        await self._then(connection)

    async def next(self, connection: Connection) -> None:
        await connection.request()
        self.requests.append(connection.number)


# Answers, without sockets


class NullTransport(asyncio.Transport):
    """A transport that drops all data."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0

    def write(self, data: object) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unsent


def receive(connection: ClientConnection, data: bytes) -> None:
    while data:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


Exchanged = tuple[int, bytes, Mapping[bytes, bytes], bool]


async def exchange(*parts: bytes, end: bool = False, whole: bool = True) -> Exchanged:
    """The client's answer for these reads: status, body, headers, and whether its connection is still open.

    With ``end`` the server closes the connection after them.
    """
    client = Client(Address("h", 1, False), None, allocate, 1000)
    connection = ClientConnection(client)
    connection.connection_made(NullTransport())

    async def call() -> Exchanged:
        await connection.begin((GET,), whole)
        if whole:
            answer = connection.answer()
            return answer.status, bytes(answer.body), answer.headers, connection.open
        body = b""
        while data := await connection.read():
            body += data
        connection.leave()
        return connection.status, body, connection.headers, connection.open

    task = asyncio.ensure_future(call())
    await asyncio.sleep(0)
    for part in parts:
        receive(connection, part)
    if end:
        connection.eof_received()
        connection.connection_lost(None)
    try:
        return await task
    finally:
        await client.close()


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
GOOD = {
    "a length": (OK + b"Content-Length: 3\r\n\r\nabc", b"abc", True),
    "nothing": (OK + b"Content-Length: 0\r\n\r\n", b"", True),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 3\r\n\r\nabc", b"abc", True),
    "interim answers": (b"HTTP/1.1 100 Go\r\nX: y\r\n\r\n" * 2 + OK + b"Content-Length: 3\r\n\r\nabc", b"abc", True),
    "chunks": (CHUNKED + b"1\r\na\r\n2;x=y\r\nbc\r\n0\r\nTrailer: t\r\n\r\n", b"abc", True),
    "that ends": (OK + b"Connection: close\r\nContent-Length: 3\r\n\r\nabc", b"abc", False),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc", False),
    "HTTP/1.0, kept": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc", b"abc", True),
    "until closed": (OK + b"\r\nabc", b"abc", False),
    "one behind it": (OK + b"Content-Length: 3\r\n\r\nabc" + OK + b"Content-Length: 1\r\n\r\nd", b"abc", False),
    "bytes behind it": (OK + b"Content-Length: 3\r\n\r\nabcdef", b"abc", False),
    "chunks, bytes behind": (CHUNKED + b"3\r\nabc\r\n0\r\n\r\nH", b"abc", False),
}


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
@pytest.mark.parametrize(("raw", "body", "kept"), GOOD.values(), ids=list(GOOD))
async def test_an_answer_may_be_split_at_any_byte(raw: bytes, body: bytes, kept: bool, whole: bool) -> None:
    end = b"Content-Length" not in raw and b"chunked" not in raw
    for parts in ((raw,), tuple(bytes([byte]) for byte in raw), *((raw[:at], raw[at:]) for at in range(1, len(raw)))):
        status, received, headers, is_open = await exchange(*parts, end=end, whole=whole)
        assert (status, received, is_open) == (200, body, kept)
        assert b"x" not in headers and b"trailer" not in headers


async def error_of(raw: bytes, whole: bool) -> type[HttpError]:
    """The error for an answer, the same in one read and in many."""
    with pytest.raises(HttpError) as at_once:
        await exchange(raw, end=True, whole=whole)
    size = 1 + len(raw) // 1000
    with pytest.raises(HttpError) as in_parts:
        await exchange(*(raw[at : at + size] for at in range(0, len(raw), size)), end=True, whole=whole)
    assert type(at_once.value) is type(in_parts.value)
    return type(at_once.value)


BAD = {
    "nothing": (b"", NoAnswer),
    "one byte": (b"H", Disconnected),
    "half a head": (OK, Disconnected),
    "half a body": (OK + b"Content-Length: 3\r\n\r\nab", Disconnected),
    "half a chunk": (CHUNKED + b"3\r\nab", Disconnected),
    "no last chunk": (CHUNKED + b"3\r\nabc\r\n", Disconnected),
    "only an interim answer": (b"HTTP/1.1 100 Go\r\n\r\n", Disconnected),
    "gRPC": (b"\x00\x00\x12\x04\x00\x00", NotHttp),
    "SSH": (b"SSH-2.0-OpenSSH\r\n", NotHttp),
    "HTTP/2.0": (b"HTTP/2.0 200 OK\r\n\r\n", NotHttp),
    "another protocol": (b"HTTP/1.1 101 Yes\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", MalformedAnswer),
    "status 99": (b"HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n", MalformedAnswer),
    "status 2000": (b"HTTP/1.1 2000 OK\r\n\r\n", MalformedAnswer),
    "a space before the colon": (OK + b"Content-Length : 3\r\n\r\nabc", MalformedAnswer),
    "a folded line": (OK + b"X: y\r\n z\r\n\r\n", MalformedAnswer),
    "two lengths": (OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", MalformedAnswer),
    "a list of lengths": (OK + b"Content-Length: 3, 4\r\n\r\nabc", MalformedAnswer),
    "a negative length": (OK + b"Content-Length: -3\r\n\r\nabc", MalformedAnswer),
    "length and chunks": (OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", MalformedAnswer),
    "gzip, chunked": (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", MalformedAnswer),
    "gzip": (OK + b"Transfer-Encoding: gzip\r\n\r\nabc", MalformedAnswer),
    "chunks in HTTP/1.0": (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", MalformedAnswer),
    "no size of a chunk": (CHUNKED + b"xyz\r\n", MalformedAnswer),
    "a huge chunk": (CHUNKED + b"f" * 17 + b"\r\n", MalformedAnswer),
    "a chunk beyond its size": (CHUNKED + b"1\r\nabc\r\n0\r\n\r\n", MalformedAnswer),
    "an endless head": (OK + b"X: " + b"x" * 3 * MAX_FRAMING_BYTES, MalformedAnswer),
    "endless interim answers": (b"HTTP/1.1 100 Go\r\n\r\n" * MAX_FRAMING_BYTES, MalformedAnswer),
    "endless trailers": (CHUNKED + b"1\r\na\r\n0\r\n" + b"X: y\r\n" * MAX_FRAMING_BYTES, MalformedAnswer),
}
TOO_LARGE = {
    "a length": OK + b"Content-Length: 1001\r\n\r\n",
    "chunks": CHUNKED + b"1f4\r\n" + b"x" * 500 + b"\r\n1f5\r\n" + b"x" * 501 + b"\r\n",
    "until closed": OK + b"\r\n" + b"x" * 1001,
}


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
@pytest.mark.parametrize(("raw", "kind"), BAD.values(), ids=list(BAD))
async def test_a_broken_answer_is_an_error(raw: bytes, kind: type[HttpError], whole: bool) -> None:
    assert await error_of(raw, whole) is kind


@pytest.mark.parametrize("raw", TOO_LARGE.values(), ids=list(TOO_LARGE))
async def test_a_body_over_the_limit_is_an_error(raw: bytes) -> None:
    assert await error_of(raw, True) is AnswerTooLarge


async def test_allocation_errors_reach_the_caller_and_a_late_cancellation_keeps_the_connection() -> None:
    def failing(size: int, headers: Mapping[bytes, bytes]) -> memoryview:
        raise KeyError(size)

    for allocation, body, error in ((failing, b"a", KeyError), (allocate, b"abc", asyncio.CancelledError)):
        client = Client(Address("h", 1, False), None, allocation, 1000)
        connection = ClientConnection(client)
        connection.connection_made(NullTransport())
        call = asyncio.ensure_future(connection.begin((GET,), whole=True))
        await asyncio.sleep(0)
        receive(connection, OK + b"A: x\r\na:  y \r\nContent-Length: 3\r\n\r\n" + body)
        if allocation is allocate:
            call.cancel()
        with pytest.raises(error):
            await call
        # After a whole answer the connection can be reused.
        assert client.idle == ([connection] if allocation is allocate else [])
        await client.close()
        connection.connection_lost(None)
    assert connection.headers[b"a"].strip() == b"x, y", "repeated fields are joined"


# Connections, on real sockets


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("size", [0, 2**16 + 1, LARGE])
async def test_bodies_of_any_size_reuse_one_connection(size: int, tls: bool) -> None:
    body = random.Random(size).randbytes(size)
    async with serving(echo, tls) as client:
        for _ in range(2):
            assert await body_of(client.request(*post(body))) == body
        view, half = memoryview(body), size // 2
        assert await body_of(client.request(post(body)[0], view[:half], view[half:])) == body
        assert len(client.connections) == len(client.idle) == 1


async def test_a_server_that_reads_slowly_delays_no_other_call() -> None:
    """Unsent bytes are sent later, in order."""
    pieces = [random.Random(size).randbytes(size) for size in (LARGE, 3, 2**17, 2**20)]
    body, others_are_done = b"".join(pieces), asyncio.Event()

    async def script(connection: Connection) -> None:
        if connection.number:
            await echo(connection)
        await connection.reader.readuntil(b"\r\n\r\n")
        await others_are_done.wait()
        got = await connection.reader.readexactly(len(body))
        await connection.answer("200 OK", str(got == body).encode())
        await connection.until_closed()

    async with serving(script) as client:
        slow = asyncio.create_task(body_of(client.request(post(body)[0], *[memoryview(piece) for piece in pieces])))
        await until(lambda: len(client.connections) == 1)
        for _ in range(3):
            assert await body_of(client.request(*post(b"small"))) == b"small"
        others_are_done.set()
        assert await slow == b"True"
        assert len(client.idle) == 2, "the request was sent completely"


async def test_each_concurrent_call_has_a_connection_and_the_last_used_is_reused_first() -> None:
    gates = [asyncio.Event() for _ in range(3)]

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            await gates[connection.number].wait()
            await connection.answer("200 OK", b"%d" % connection.number)

    async with serving(script) as client:
        calls = [asyncio.create_task(body_of(client.request(GET))) for _ in range(3)]
        for gate in (gates[1], gates[2], gates[0]):
            gate.set()
            await until(lambda: len(client.idle) == sum(gate.is_set() for gate in gates))
        assert {await call for call in calls} == {b"0", b"1", b"2"}
        assert [await body_of(client.request(GET)) for _ in range(2)] == [b"0"] * 2


@pytest.mark.parametrize("end", ["close", "reset", "answer"])
async def test_an_idle_connection_that_the_server_ends_is_dropped_at_once(end: str) -> None:
    go = asyncio.Event()

    async def then(connection: Connection) -> None:
        await go.wait()
        if end == "reset":
            connection.reset()
        elif end == "answer":
            await connection.answer("408 Request Timeout")

    async with serving(CountedAnswers(1, then=then).serve) as client:
        assert await body_of(client.request(GET)) == b"0"
        assert len(client.idle) == 1
        go.set()
        await until(lambda: not client.idle)
        assert await body_of(client.request(GET)) == b"1"


async def test_an_idle_connection_is_dropped_at_its_fourth_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(echo) as client:
        for _ in range(2):  # a connection in use does not age
            await client.request(GET)
            for _ in range(3):
                client.sweep()
            assert len(client.idle) == 1
        monkeypatch.setattr(http, "_SWEEP_SECONDS", 0.01)
        client.sweep()
        assert not client.idle
        await client.request(GET)
        await until(lambda: not client.idle)  # sweeps repeat


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_call_on_a_closing_connection_is_sent_again_once(end: str, streamed: bool) -> None:
    async def then(connection: Connection) -> None:
        await script.next(connection)
        if end == "reset":
            connection.reset()

    script = CountedAnswers(1, 1, 0, then=then)
    async with serving(script.serve) as client:
        for _ in range(2):
            assert await status_of(client, streamed) == 200
        assert script.requests == [0, 0, 1]
        with pytest.raises(NoAnswer):  # the fourth request is repeated as the fifth
            await status_of(client, streamed)
        assert script.requests == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("part", BEGINNINGS, ids=len)
async def test_a_call_is_not_repeated_after_the_first_byte_of_its_answer(part: bytes, end: str) -> None:
    async def then(connection: Connection) -> None:
        await script.next(connection)
        await connection.send(part)
        if end == "reset":
            connection.reset()

    script = CountedAnswers(1, then=then)
    async with serving(script.serve) as client:
        await client.request(GET)
        with pytest.raises(Disconnected) as caught:
            await client.request(GET)
        # A reset may discard the sent bytes before the client has read them.
        assert type(caught.value) is Disconnected or end == "reset"
        assert script.requests == [0, 0] or end == "reset"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("status", "closes", "kept", "expected"),
    [
        (408, True, True, 200),
        (400, True, True, 200),
        (503, True, True, 503),
        (408, False, True, 408),
        (408, True, False, 408),
        (400, True, False, 400),
    ],
)
async def test_a_status_for_an_idle_connection_repeats_the_call(
    status: int, closes: bool, kept: bool, expected: int, streamed: bool
) -> None:
    async def then(connection: Connection) -> None:
        await connection.request()
        await connection.answer(f"{status} No", b"idle", *(["Connection: close"] if closes else []))
        await connection.until_closed()

    async with serving(CountedAnswers(int(kept), 1, then=then).serve) as client:
        if kept:
            await client.request(GET)
        assert await status_of(client, streamed) == expected


@pytest.mark.parametrize("seed", range(2))
async def test_a_connection_has_one_request_at_a_time(seed: int) -> None:
    """Each of many calls, some cancelled, gets its own answer, and starts after the previous call's end."""
    chance = random.Random(seed)
    counts: Counter[str] = Counter()

    async def pause() -> None:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)

    async def script(connection: Connection) -> None:
        while True:
            _, body = await connection.request()
            await pause()
            # Buffered bytes would be a second request, sent before the answer to the first.
            counts["early"] += len(connection.reader._buffer)  # type: ignore[attr-defined]
            fate = chance.randrange(8)
            counts[f"fate {fate}"] += 1
            if fate == 0:
                return
            await connection.answer("200 OK", body, *(["Connection: close"] if fate == 1 else []))

    async def caller(client: Client, name: int) -> None:
        for turn in range(20):
            text = b"%d %d" % (name, turn) * chance.choice([1, 1, 10_000])
            call = asyncio.create_task(client.request(*post(text)))
            if chance.randrange(6) == 0:
                await pause()
                call.cancel()
            try:
                assert await body_of(call) == text
                counts["answered"] += 1
            except (asyncio.CancelledError, Disconnected) as end:
                counts[type(end).__name__] += 1

    async with serving(script) as client:
        await asyncio.gather(*(caller(client, name) for name in range(12)))
        assert len(client.idle) <= 12
    assert counts["early"] == 0
    assert all(counts[key] for key in ("answered", "fate 0", "fate 1", "CancelledError", "NoAnswer"))


# Early ends


async def test_an_early_answer_is_read_and_ends_the_connection() -> None:
    ended = asyncio.Event()

    async def script(connection: Connection) -> None:
        if connection.number:
            await echo(connection)
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.answer("413 Too Large", b"too large")
        await connection.until_closed()
        ended.set()

    async with serving(script) as client:
        answer = await client.request(*post(bytes(LARGE)))
        assert (answer.status, bytes(answer.body), client.idle) == (413, b"too large", [])
        await ended.wait()
        assert await body_of(client.request(*post(b"small"))) == b"small"


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("beginning", [b"", *BEGINNINGS[2:], OK + b"Content-Length: %d\r\n\r\n" % LARGE], ids=len)
async def test_a_cancelled_call_closes_its_connection(beginning: bytes, streamed: bool, tls: bool) -> None:
    """Even if a proxy announces 16 MB and never sends them. Later calls succeed."""
    began, closed = asyncio.Event(), asyncio.Event()

    async def script(connection: Connection) -> None:
        if connection.number:
            await echo(connection)
        await connection.request()
        await connection.send(beginning)
        began.set()
        await connection.until_closed()
        closed.set()

    async with serving(script, tls) as client:
        task = asyncio.create_task(status_of(client, streamed))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await closed.wait()
        assert not client.idle
        assert await body_of(client.request(*post(b"next"))) == b"next"


@pytest.mark.parametrize("end", ["cancelled", "connect timeout", "handshake timeout"])
async def test_a_connection_that_does_not_open_is_forgotten(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if end != "cancelled":
        monkeypatch.setattr(http, "CONNECT_SECONDS", 0.05)
    tls = client_context() if end == "handshake timeout" else None
    with socket.create_server((HOST, 0), backlog=5 if tls else 0) as full:
        host = f"{HOST}:{full.getsockname()[1]}"
        with socket.create_connection(full.getsockname()):  # the queue is full, so later packets are dropped
            async with client_of(host, tls) as client:
                call = asyncio.create_task(client.request(GET))
                await asyncio.sleep(0.01)
                if end == "cancelled":
                    call.cancel()
                with pytest.raises(asyncio.CancelledError if end == "cancelled" else ConnectTimeout):
                    await call
                assert asyncio.all_tasks() == {asyncio.current_task()} and not client.connections


@pytest.mark.parametrize("end", ["cancelled", "closed"])
async def test_a_connection_that_ends_as_it_opens_is_forgotten(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ClientConnection.connection_made

    def ends(connection: ClientConnection, transport: asyncio.BaseTransport) -> None:
        original(connection, transport)
        if end == "cancelled":
            request.cancel()
        else:
            connection.eof_received()

    async with serving(echo) as client:
        with monkeypatch.context() as patched:
            patched.setattr(ClientConnection, "connection_made", ends)
            request = asyncio.ensure_future(client.request(GET))
            with pytest.raises(asyncio.CancelledError if end == "cancelled" else ConnectionResetError):
                await request
        assert not client.connections
        assert await body_of(client.request(*post(b"next"))) == b"next"


async def test_closing_ends_calls_and_connections() -> None:
    async def then(connection: Connection) -> None:
        await script.next(connection)
        await connection.send(OK + b"\r\nabc")
        await connection.until_closed()

    script = CountedAnswers(1, then=then)
    async with serving(script.serve) as client:
        await asyncio.gather(*(client.request(GET) for _ in range(3)))
        call = asyncio.create_task(client.request(GET))
        stream = await client.begin([GET])
        await until(lambda: len(script.requests) == 5)
        await client.close()
        with pytest.raises(Disconnected, match="closed here"):
            await call
        with pytest.raises(Disconnected, match="closed here"):
            while await stream.read():
                pass
        stream.leave()
        with pytest.raises(ClientClosed):
            await client.request(GET)
        assert not client.connections


async def test_closing_ends_a_call_whose_connection_opens() -> None:
    async with serving(echo) as client:
        call = asyncio.create_task(client.request(GET))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(Disconnected):
            await call


# Streams


async def test_a_slow_reader_slows_the_server() -> None:
    written, part = 0, b"x" * 2**20

    async def script(connection: Connection) -> None:
        nonlocal written
        await connection.request()
        await connection.send(CHUNKED)
        for _ in range(64):
            await connection.send(b"%x\r\n%b\r\n" % (len(part), part))
            written += len(part)
        await connection.send(b"0\r\n\r\n")

    async with serving(script) as client:
        connection = await client.begin([GET])
        before = -1
        while written != before:  # until the server is blocked
            before = written
            await asyncio.sleep(0.1)
        assert written < 64 * len(part)
        size = 0
        while data := await connection.read():
            size += len(data)
        connection.leave()
        assert size == written == 64 * len(part)


# TLS


async def test_a_body_over_tls_may_end_with_the_connection() -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(OK + b"\r\n" + b"x" * 300_000)

    async with serving(script, tls=True) as client:
        assert await body_of(client.request(GET)) == b"x" * 300_000
