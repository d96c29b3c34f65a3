"""The HTTP client on real sockets, under both event loops: keeping, sharing and replacing connections."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections import Counter

import pytest

from hf_transformer.predictor.http1 import Http1Client
from hf_transformer.predictor.http1_errors import Disconnected, NoAnswer
from tests.predictor.fault_server import Connection, scripted
from tests.predictor.http1_calls import GET, LARGE, PARTS, body_of, client_of, echo, on_both_loops, post, until


async def number(connection: Connection) -> None:
    """Answers every request with the number of its connection."""
    while True:
        await connection.request()
        await connection.answer("200 OK", b"%d" % connection.number)


@on_both_loops
async def test_one_connection_serves_call_after_call() -> None:
    async with scripted(number) as host, client_of(host) as client:
        assert [await body_of(client.request(GET)) for _ in range(5)] == [b"0"] * 5


@on_both_loops
async def test_as_many_connections_as_calls_and_the_last_used_first() -> None:
    gates = [asyncio.Event() for _ in range(3)]

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            await gates[connection.number].wait()
            await connection.answer("200 OK", b"%d" % connection.number)

    async with scripted(script) as host, client_of(host) as client:
        calls = [asyncio.create_task(body_of(client.request(GET))) for _ in range(3)]
        for gate in (gates[1], gates[2], gates[0]):
            gate.set()
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            await until(lambda: client.idle == sum(gate.is_set() for gate in gates))
        assert {await call for call in calls} == {b"0", b"1", b"2"}
        assert [await body_of(client.request(GET)) for _ in range(2)] == [b"0"] * 2


@on_both_loops
@pytest.mark.parametrize("size", [0, 1, 2**14, 2**16, 2**16 + 1, 2**20 + 1, LARGE])
async def test_bodies_of_any_size(size: int) -> None:
    body = random.Random(size).randbytes(size)
    async with scripted(echo) as host, client_of(host) as client:
        for _ in range(2):
            assert await body_of(client.request(*post(body))) == body


@on_both_loops
async def test_a_body_in_pieces_to_a_server_that_reads_slowly() -> None:
    """What the socket does not take at once is sent later, in its order, and nothing waits for it."""
    pieces = [random.Random(size).randbytes(size) for size in (LARGE, 3, 2**17, 2**20)]
    body, others_are_done = b"".join(pieces), asyncio.Event()

    async def script(connection: Connection) -> None:
        if connection.number:
            await echo(connection)
        await connection.reader.readuntil(b"\r\n\r\n")
        await others_are_done.wait()
        got = bytearray()
        while len(got) < len(body):
            got += await connection.reader.read(2**18)
            await asyncio.sleep(0.001)
        await connection.answer("200 OK", str(got == body).encode())
        await connection.until_closed()

    async with scripted(script) as host, client_of(host) as client:
        slow = asyncio.create_task(body_of(client.request(post(body)[0], *[memoryview(piece) for piece in pieces])))
        await asyncio.sleep(0.01)
        for _ in range(3):
            assert await body_of(client.request(*post(b"small"))) == b"small"
        others_are_done.set()
        assert await slow == b"True"
        assert client.idle == 2, "all was sent, so its connection is as good as the other"


ENDINGS = {
    "close": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
    "bytes behind it": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\ny",
}


@on_both_loops
@pytest.mark.parametrize("answer", ENDINGS.values(), ids=list(ENDINGS))
async def test_answers_that_end_the_connection(answer: bytes) -> None:
    closed = 0

    async def script(connection: Connection) -> None:
        nonlocal closed
        await connection.request()
        await connection.send(answer)
        await connection.until_closed()
        closed += 1

    async with scripted(script) as host, client_of(host) as client:
        for calls in (1, 2):
            assert await body_of(client.request(GET)) == b"x"
            assert client.idle == 0
            await until(lambda expected=calls: closed == expected)  # type: ignore[misc]


@on_both_loops
async def test_a_body_until_the_end() -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
        await connection.send(b"x" * 100_000)

    async with scripted(script) as host, client_of(host) as client:
        for _ in range(2):
            assert await body_of(client.request(GET)) == b"x" * 100_000


@on_both_loops
@pytest.mark.parametrize("end", ["close", "reset", "say something"])
async def test_an_idle_connection_that_ends_is_dropped_at_once(end: str) -> None:
    go = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.answer("200 OK", b"%d" % connection.number)
        await go.wait()
        if end == "reset":
            connection.reset()
        elif end == "say something":
            await connection.answer("408 Request Timeout")

    async with scripted(script) as host, client_of(host) as client:
        assert await body_of(client.request(GET)) == b"0"
        assert client.idle == 1
        go.set()
        await until(lambda: client.idle == 0)
        assert await body_of(client.request(GET)) == b"1"


@on_both_loops
@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_call_that_meets_a_closing_connection_is_made_again_once(end: str) -> None:
    requests: list[int] = []

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            requests.append(connection.number)
            if len(requests) in (2, 4, 5):
                if end == "reset":
                    connection.reset()
                return
            await connection.answer("200 OK")

    async with scripted(script) as host, client_of(host) as client:
        await client.request(GET)
        await client.request(GET)
        assert requests == [0, 0, 1]
        with pytest.raises(NoAnswer):  # the fourth is sent again as the fifth
            await client.request(GET)
        assert requests == [0, 0, 1, 1, 2]


@on_both_loops
async def test_a_call_that_may_not_be_made_twice() -> None:
    requests: list[int] = []

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.answer("200 OK")
        await connection.request()
        requests.append(connection.number)

    async with scripted(script) as host, client_of(host) as client:
        await client.request(GET)
        with pytest.raises(NoAnswer):
            await client.request(GET, resend=False)
    assert requests == [0]


@on_both_loops
async def test_a_call_on_a_new_connection_is_made_once() -> None:
    requests: list[int] = []

    async def script(connection: Connection) -> None:
        await connection.request()
        requests.append(connection.number)

    async with scripted(script) as host, client_of(host) as client:
        with pytest.raises(NoAnswer):
            await client.request(GET)
    assert requests == [0]


@on_both_loops
@pytest.mark.parametrize("end", ["close", "reset"])
@pytest.mark.parametrize("part", PARTS, ids=len)
async def test_an_answer_that_has_begun_is_not_asked_for_again(part: bytes, end: str) -> None:
    requests: list[int] = []

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            requests.append(connection.number)
            if len(requests) == 2:
                break
            await connection.answer("200 OK")
        await connection.send(part)
        if end == "reset":
            connection.reset()

    async with scripted(script) as host, client_of(host) as client:
        await client.request(GET)
        with pytest.raises(Disconnected) as caught:
            await client.request(GET)
        # A reset may overtake what was sent before it, and then nothing has begun.
        assert type(caught.value) is Disconnected or end == "reset"
        assert requests == [0, 0] or end == "reset"


@on_both_loops
@pytest.mark.parametrize("seed", range(4))
async def test_never_two_requests_on_one_connection(seed: int) -> None:
    """Many calls, some of them cancelled: each gets its own answer, and none begins before the one before it ended."""
    chance = random.Random(seed)
    counts: Counter[str] = Counter()

    async def pause() -> None:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)

    async def script(connection: Connection) -> None:
        while True:
            _, body = await connection.request()
            await pause()
            # What has come meanwhile would be a second request, sent before the first was answered.
            counts["early"] += len(connection.reader._buffer)  # type: ignore[attr-defined]
            fate = chance.randrange(8)
            counts[f"fate {fate}"] += 1
            if fate == 0:
                return
            await connection.answer("200 OK", body, *(["Connection: close"] if fate == 1 else []))

    async def caller(client: Http1Client, name: int) -> None:
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

    async with scripted(script) as host, client_of(host) as client:
        await asyncio.gather(*(caller(client, name) for name in range(12)))
        assert client.idle <= 12
    assert counts["early"] == 0
    assert all(counts[key] for key in ("answered", "fate 0", "fate 1", "CancelledError", "NoAnswer"))


@on_both_loops
async def test_small_requests_leave_at_once() -> None:
    async with scripted(number) as host, client_of(host) as client:
        await client.request(GET)
        (connection,) = client._connections
        with socket.socket(fileno=os.dup(connection._transport.get_extra_info("socket").fileno())) as same:
            assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
