"""How calls of the HTTP client end: early, broken, cancelled, late, or since it closes; under both event loops."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest

from hf_transformer.predictor.http1_connection import Connection as ClientConnection
from hf_transformer.predictor.http1_connection import Hold
from hf_transformer.predictor.http1_errors import (
    AnswerTooLarge,
    ConnectDeadline,
    DeadlineExceeded,
    Disconnected,
    MalformedAnswer,
    NoAnswer,
)
from hf_transformer.predictor.http1_parser import Answer
from tests.predictor.fault_server import Connection, nobody, scripted
from tests.predictor.http1_calls import (
    GET,
    LARGE,
    LARGEST,
    PARTS,
    body_of,
    client_of,
    echo,
    on_both_loops,
    post,
    until,
)


@on_both_loops
@pytest.mark.parametrize("end", ["wait", "close", "reset"])
async def test_an_early_answer_arrives_and_ends_the_connection(end: str) -> None:
    ended = asyncio.Event()

    async def script(connection: Connection) -> None:
        if connection.number:
            await echo(connection)
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.answer("413 Too Large", b"too large")
        if end == "wait":
            await connection.until_closed()
            ended.set()
        elif end == "reset":
            await ended.wait()  # or the reset may overtake the answer
            connection.reset()

    async with scripted(script) as host, client_of(host) as client:
        answer = await client.request(*post(bytes(LARGE)))
        assert (answer.status, bytes(answer.body), client.idle) == (413, b"too large", 0)
        if end == "wait":
            await ended.wait()
        ended.set()
        assert await body_of(client.request(*post(b"small"))) == b"small"


@on_both_loops
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n", MalformedAnswer),
        (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (LARGEST + 1), AnswerTooLarge),
    ],
    ids=["malformed", "too large"],
)
async def test_a_broken_answer_ends_the_connection(answer: bytes, kind: type[Exception]) -> None:
    closed = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(answer)
        await connection.until_closed()
        closed.set()

    async with scripted(script) as host, client_of(host) as client:
        with pytest.raises(kind):
            await client.request(GET)
        await closed.wait()
        assert client.idle == 0


@on_both_loops
@pytest.mark.parametrize("beginning", [b"", *PARTS], ids=len)
async def test_a_cancelled_call_closes_its_connection(beginning: bytes) -> None:
    began, closed = asyncio.Event(), asyncio.Event()

    async def script(connection: Connection) -> None:
        if connection.number:
            await echo(connection)
        await connection.request()
        await connection.send(beginning)
        began.set()
        await connection.until_closed()
        closed.set()

    async with scripted(script) as host, client_of(host) as client:
        call = asyncio.create_task(client.request(GET))
        await began.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await closed.wait()
        assert client.idle == 0
        assert await body_of(client.request(*post(b"next"))) == b"next"


@on_both_loops
@pytest.mark.parametrize("beginning", [b"", *PARTS], ids=len)
@pytest.mark.parametrize("body", [b"", bytes(LARGE)], ids=["small", "large"])
async def test_a_late_answer_closes_its_connection(beginning: bytes, body: bytes) -> None:
    closed = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.answer("200 OK")
        try:
            await connection.reader.readuntil(b"\r\n\r\n")  # and nothing of the body
            await connection.send(beginning)
            await connection.until_closed()
        finally:  # in the middle of it, where the machine is so busy that the time is over by then
            closed.set()

    async with scripted(script) as host, client_of(host) as client:
        await client.request(GET)
        client._seconds = 0.05  # with the connection open, so that this is not what takes too long
        with pytest.raises(DeadlineExceeded):
            await client.request(*post(body))
        await closed.wait()


@on_both_loops
async def test_no_connection_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        host = f"127.0.0.1:{full.getsockname()[1]}"
        with socket.create_connection(full.getsockname()):  # the queue is full: the next packets are dropped
            async with client_of(host, 0.05) as client:
                with pytest.raises(ConnectDeadline):
                    await client.request(GET)


@on_both_loops
async def test_a_call_that_is_given_up_before_there_is_a_connection() -> None:
    """By whoever waits for it, or by a hold that is broken off."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        host = f"127.0.0.1:{full.getsockname()[1]}"
        with socket.create_connection(full.getsockname()):
            async with client_of(host) as client:
                hold = Hold()
                calls = [asyncio.create_task(client.request(GET, hold=one)) for one in (None, Hold(), hold)]
                await asyncio.sleep(0.01)
                calls[0].cancel()
                calls[1].cancel()
                hold.break_off()
                ends = await asyncio.gather(*calls, return_exceptions=True)
                assert [type(end) for end in ends] == [asyncio.CancelledError] * 3
                assert asyncio.all_tasks() == {asyncio.current_task()}


@on_both_loops
async def test_nobody_listens() -> None:
    async with client_of(nobody()) as client:
        with pytest.raises(ConnectionRefusedError):
            await client.request(GET)


@on_both_loops
async def test_closing_ends_calls_and_connections() -> None:
    arrived: list[int] = []
    closed: list[int] = []

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.answer("200 OK")
        await connection.request()
        arrived.append(connection.number)
        await connection.until_closed()
        closed.append(connection.number)

    async with scripted(script) as host, client_of(host) as client:
        await asyncio.gather(*(client.request(GET) for _ in range(3)))
        call = asyncio.create_task(client.request(GET))
        await until(lambda: len(arrived) == 1)
        await client.close()
        with pytest.raises(Disconnected, match="closed here"):
            await call
        with pytest.raises(Disconnected, match="the client is closed"):
            await client.request(GET)
        await client.close()


@on_both_loops
async def test_closing_while_a_connection_opens() -> None:
    async with scripted(echo) as host, client_of(host) as client:
        call = asyncio.create_task(client.request(GET))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(Disconnected):
            await call


@on_both_loops
async def test_a_connection_whose_request_is_cancelled_as_it_opens_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uvloop closes it without telling it."""
    async with scripted(echo) as host, client_of(host) as client:
        request = asyncio.ensure_future(client.request(GET))
        made = client.made

        def cancel(connection: Any) -> None:
            made(connection)
            request.cancel()

        with monkeypatch.context() as patched:
            patched.setattr(client, "made", cancel)
            with pytest.raises(asyncio.CancelledError):
                await request
        await until(lambda: not client._connections)
        assert await body_of(client.request(*post(b"next"))) == b"next"
        assert client.idle == len(client._connections) == 1


@on_both_loops
@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
async def test_a_server_that_hangs_up_at_once(reset: bool) -> None:
    """As what passes connections on does, where nobody is behind it. Every call ends, and soon."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            taken, _ = server.accept()
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", reset, 0))
            taken.close()

        loop.add_reader(server.fileno(), hang_up)
        try:
            async with client_of(f"127.0.0.1:{server.getsockname()[1]}") as client:
                for _ in range(20):
                    with pytest.raises((NoAnswer, ConnectionResetError)):
                        await client.request(GET)
                await until(lambda: not client._connections)
        finally:
            loop.remove_reader(server.fileno())


@on_both_loops
async def test_a_connection_that_is_closed_as_soon_as_it_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(echo) as host, client_of(host) as client:
        made = client.made

        def hung_up(connection: Any) -> None:
            made(connection)
            connection.eof_received()

        with monkeypatch.context() as patched:
            patched.setattr(client, "made", hung_up)
            with pytest.raises(ConnectionResetError, match="as soon as it was open"):
                await client.request(GET)
        await until(lambda: not client._connections)
        assert await body_of(client.request(*post(b"next"))) == b"next"


@on_both_loops
@pytest.mark.parametrize("held", ["no", "to its end", "left"])
async def test_a_cancellation_that_crosses_the_sending_on_a_new_connection(
    held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent goes on where that is asked for; else its connection is closed."""
    hold = None if held == "no" else Hold(leave=held == "left")
    seen = asyncio.Event()

    async def script(connection: Connection) -> None:
        _, body = await connection.request()
        await seen.wait()
        await connection.answer("200 OK", body)
        await connection.until_closed()

    async with scripted(script) as host, client_of(host) as client:
        request = asyncio.ensure_future(client.request(*post(b"sent"), hold=hold))
        send = ClientConnection.send

        def cancelled_next(connection: ClientConnection, *arguments: Any) -> asyncio.Future[Answer]:
            waiter = send(connection, *arguments)
            asyncio.get_running_loop().call_soon(request.cancel)
            asyncio.get_running_loop().call_later(0.01, seen.set)
            return waiter

        monkeypatch.setattr(ClientConnection, "send", cancelled_next)
        if held == "to its end":
            assert await body_of(request) == b"sent"
            assert hold is not None and hold.cancelled is not None
        else:
            with pytest.raises(asyncio.CancelledError):
                await request
        if hold is None:
            await until(lambda: not client._connections)
        elif hold.rest is not None:
            assert await body_of(hold.rest) == b"sent"
        assert client.idle == len(client._connections) == (hold is not None)
