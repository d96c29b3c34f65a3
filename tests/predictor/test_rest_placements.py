"""What the REST transport knows of calls with outputs in shared memory, on real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import numpy as np
import orjson
import pytest

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.predictor import kinds
from hf_transformer.predictor.base import Destination, UnknownRegion
from hf_transformer.predictor.http1_connection import Connection as Http1Connection
from hf_transformer.predictor.rest import RestPredictor
from hf_transformer.protocol.tensors import Placement
from tests.predictor.fault_server import Connection, nobody, scripted
from tests.predictor.rest_calls import IDS, good_answer, predictor

pytestmark = pytest.mark.asyncio

PLACED = b'{"outputs":[{"name":"logits","datatype":"FP32","shape":[1,2]}]}'


def destination() -> Destination:
    memory = memoryview(np.array([3, 4], "<f4").tobytes())
    return Destination("r1", {"logits": Placement("r1", 64, memory)})


async def infer(rest: RestPredictor, where: Destination) -> list[float]:
    async with rest.infer([IDS], ["logits"], {}, destination=where) as tensors:
        values: list[float] = tensors["logits"].data.ravel().tolist()
        return values


async def ended_by(answer: Callable[[Connection], Awaitable[None]], seconds: float = 30.0) -> tuple[Destination, str]:
    """The destination after a call with this answer, which is an error, and the error's name."""
    where = destination()

    async def script(connection: Connection) -> None:
        await connection.request()
        await answer(connection)

    async with scripted(script) as host, predictor(host, seconds) as rest:
        with pytest.raises(RequestError) as caught:
            await infer(rest, where)
    return where, type(caught.value).__name__


async def test_an_answer_settles_the_call() -> None:
    seen: list[bytes] = []

    async def script(connection: Connection) -> None:
        headers, body = await connection.request()
        seen.append(body[: int(headers["inference-header-content-length"])])
        await connection.answer("200 OK", PLACED)

    where = destination()
    async with scripted(script) as host, predictor(host) as rest:
        assert await infer(rest, where) == [3, 4]
    assert where.settled
    parameters = {"shared_memory_region": "r1", "shared_memory_offset": 64, "shared_memory_byte_size": 8}
    assert orjson.loads(seen[0])["outputs"] == [{"name": "logits", "parameters": parameters}]


@pytest.mark.parametrize(
    ("status", "body", "settled"),
    [
        ("500 Internal Server Error", b'{"error":"should be at least 9 bytes"}', True),
        ("400 Bad Request", b'{"error":"bad shape"}', True),
        ("404 Not Found", b'{"error":"unknown model"}', True),
        ("503 Service Unavailable", b'{"error":"Exceeds maximum queue size"}', True),
        ("503 Service Unavailable", b"upstream connect error", False),
        ("504 Gateway Timeout", b'{"error":"timeout"}', False),
        ("502 Bad Gateway", b'{"error":"gateway"}', False),
        ("500 Internal Server Error", b'{"error":{"code":3}}', False),
        ("500 Internal Server Error", b"[1]", False),
    ],
)
async def test_which_errors_settle_the_call(status: str, body: bytes, settled: bool) -> None:
    where, _ = await ended_by(lambda connection: connection.answer(status, body))
    assert where.settled is settled


async def test_an_answer_that_breaks_off_does_not_settle_the_call() -> None:
    where, name = await ended_by(
        lambda connection: connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
    )
    assert (where.settled, name) == (False, "PredictorUnavailable")


async def test_a_timeout_does_not_settle_the_call() -> None:
    async def hang(connection: Connection) -> None:
        await connection.until_closed()

    where, name = await ended_by(hang, 0.05)
    assert (where.settled, name) == (False, "PredictorTimeout")


async def test_a_call_that_was_not_sent_is_settled() -> None:
    where = destination()
    async with predictor(nobody()) as rest:
        with pytest.raises(PredictorUnavailable):
            await infer(rest, where)
    assert where.settled


async def test_a_call_whose_connection_is_closed_as_soon_as_it_is_open_is_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = destination()
    async with scripted(good_answer) as host, predictor(host) as rest:
        made = rest._client.made

        def hung_up(connection: Http1Connection) -> None:
            made(connection)
            connection.eof_received()

        monkeypatch.setattr(rest._client, "made", hung_up)
        with pytest.raises(PredictorUnavailable, match="as soon as it was open") as caught:
            await infer(rest, where)
    assert (where.settled, caught.value.kind) == (True, kinds.CONNECTION)


async def test_a_call_without_a_connection_in_time_is_settled() -> None:
    where = destination()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        async with predictor(f"127.0.0.1:{full.getsockname()[1]}", 0.05) as rest:
            with pytest.raises(PredictorTimeout, match=r"there was no connection .* in 0\.05 s") as caught:
                await infer(rest, where)
    assert (where.settled, caught.value.kind) == (True, "connection")


async def test_an_unknown_region() -> None:
    body = b'{"error":"Unable to find shared memory region: \'r1\'"}'
    where, name = await ended_by(lambda connection: connection.answer("404 Not Found", body))
    assert (where.settled, name) == (True, UnknownRegion.__name__)


async def test_a_call_that_was_sent_twice_is_not_settled() -> None:
    """The first one may be under way after all, so the second leaves the shared memory to it."""
    first, second = destination(), destination()
    outputs: list[object] = []

    async def script(connection: Connection) -> None:
        while True:
            headers, body = await connection.request()
            outputs.append(orjson.loads(body[: int(headers["inference-header-content-length"])])["outputs"])
            if len(outputs) == 1:
                await connection.answer("200 OK", PLACED)
            elif len(outputs) == 2:
                return
            else:
                await good_answer(connection)

    async with scripted(script) as host, predictor(host) as rest:
        assert await infer(rest, first) == [3, 4]
        assert await infer(rest, second) == [0.25, 0.75]
    assert (first.settled, second.settled) == (True, False)
    assert (first.inline, second.inline) == (False, True)
    assert outputs[2] == [{"name": "logits", "parameters": {"binary_data": True}}] != outputs[1]


async def test_without_an_answer_on_a_new_connection_it_is_not_sent_again() -> None:
    """That would be a retry, for which there is a budget."""
    requests = 0

    async def script(connection: Connection) -> None:
        nonlocal requests
        await connection.request()
        requests += 1

    where = destination()
    async with scripted(script) as host, predictor(host) as rest:
        with pytest.raises(PredictorUnavailable) as caught:
            await infer(rest, where)
    assert (requests, caught.value.kind) == (1, "no_answer")
    assert (where.settled, where.inline) == (False, False)


async def test_it_is_sent_again_on_a_new_connection() -> None:
    """Where one idle connection is stale the others are as well, as after a restart."""
    both = asyncio.Barrier(2)
    requests: list[int] = []

    async def script(connection: Connection) -> None:
        await connection.request()
        requests.append(connection.number)
        if connection.number < 2:
            await both.wait()
            await connection.answer("200 OK", PLACED)
            await connection.request()
            requests.append(connection.number)
        else:
            await good_answer(connection)

    async with scripted(script) as host, predictor(host) as rest:
        await asyncio.gather(*(infer(rest, destination()) for _ in range(2)))
        where = destination()
        assert await infer(rest, where) == [0.25, 0.75]
    assert len(requests) == 4 and requests[3] == 2
    assert (where.settled, where.inline) == (False, True)


async def test_a_408_that_crosses_the_request_settles_nothing() -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        if connection.number == 0:
            await connection.answer("200 OK", PLACED)
            await connection.request()
            await connection.answer("408 Request Timeout", b"", "Connection: close")
        else:
            await good_answer(connection)

    where = destination()
    async with scripted(script) as host, predictor(host) as rest:
        await infer(rest, destination())
        assert await infer(rest, where) == [0.25, 0.75]
    assert (where.settled, where.inline) == (False, True)


async def test_a_cancelled_call_is_not_settled() -> None:
    arrived = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        arrived.set()
        await connection.until_closed()

    where = destination()
    async with scripted(script) as host, predictor(host) as rest:
        call = asyncio.create_task(infer(rest, where))
        await arrived.wait()
        call.cancel()
        await asyncio.wait([call])
    assert not where.settled


async def test_registrations() -> None:
    seen: list[tuple[str, bytes]] = []

    async def script(connection: Connection) -> None:
        for answer in (b"", b"", b'[{"name":"r1"}]'):
            headers, body = await connection.request()
            seen.append((headers[""], body))
            await connection.answer("200 OK", answer)

    async with scripted(script) as host, predictor(host) as rest:
        await rest.register_region("r1", "/r1", 4096)
        await rest.unregister_region("r1")
        assert await rest.region_names() == ["r1"]
    assert seen == [
        (
            "POST /v2/systemsharedmemory/region/r1/register HTTP/1.1",
            b'{"key":"/r1","offset":0,"byte_size":4096}',
        ),
        ("POST /v2/systemsharedmemory/region/r1/unregister HTTP/1.1", b""),
        ("GET /v2/systemsharedmemory/status HTTP/1.1", b""),
    ]


async def test_a_refused_registration() -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.answer("500 Oops", b'{"error":"Unable to open shared memory region: \'/r1\'"}')

    async with scripted(script) as host, predictor(host) as rest:
        with pytest.raises(PredictorError, match="Unable to open shared memory region"):
            await rest.register_region("r1", "/r1", 4096)
