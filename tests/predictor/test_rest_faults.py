"""The REST transport when connections break."""

from __future__ import annotations

import asyncio
import gc
import weakref

import numpy as np
import pytest

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable
from hf_transformer.types import Tensor
from tests.predictor.fault_server import Connection, nobody, scripted
from tests.predictor.rest_calls import fails, good_answer, infer, predictor

pytestmark = pytest.mark.asyncio

FAULTS = [
    ("garbage", b"SSH-2.0-OpenSSH\r\n\r\n", PredictorError),
    ("closed at once", b"", PredictorUnavailable),
    ("closed in the head", b"HTTP/1.1 200 OK\r\nContent-Le", PredictorUnavailable),
    ("closed in the body", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc", PredictorUnavailable),
    ("closed in a chunk", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc", PredictorUnavailable),
    ("a chunk without a size", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", PredictorError),
]

EVENT_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'f\r\ndata: {"o":1}\n\n\r\n'
)


@pytest.mark.parametrize(("fault", "kind"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
async def test_broken_answers(fault: bytes, kind: type[Exception]) -> None:
    error = await fails(lambda connection: connection.send(fault))
    assert type(error) is kind
    assert error.__cause__ is not None


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"], ids=["head", "body"])
async def test_resets(head: bytes) -> None:
    async def reset(connection: Connection) -> None:
        await connection.send(head)
        connection.reset()

    assert type(await fails(reset)) is PredictorUnavailable


async def test_refused() -> None:
    async with predictor(nobody()) as rest:
        with pytest.raises(PredictorUnavailable, match=r"is unavailable: .*Connect call failed"):
            await infer(rest)


@pytest.mark.parametrize("end", ["refused", "hung up", "late"])
async def test_a_failed_call_leaves_its_inputs_to_nobody(end: str) -> None:
    """Megabytes that only the collector would find may be there for long."""

    async def script(connection: Connection) -> None:
        await connection.request()
        if end == "late":
            await connection.until_closed()

    data = np.zeros((1, 2**16), np.int64)
    inputs = weakref.ref(data)
    async with scripted(script) as host:
        async with predictor(nobody() if end == "refused" else host, 0.2 if end == "late" else 30.0) as rest:
            gc.collect()
            gc.disable()
            try:
                with pytest.raises((PredictorUnavailable, PredictorTimeout)):
                    await infer(rest, [Tensor("input_ids", "INT64", data)])
                del data
                await asyncio.sleep(0.01)  # what the event loop has of it
                assert inputs() is None
            finally:
                gc.enable()


@pytest.mark.parametrize("end", ["hung up", "late", "garbage", "late after some"])
async def test_a_failed_stream_leaves_its_inputs_to_nobody(end: str) -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        if end == "garbage":
            await connection.send(b"SSH-2.0-OpenSSH\r\n")
        if end == "late after some":
            await connection.send(EVENT_STREAM)
        if end != "hung up":
            await connection.until_closed()

    data = np.zeros((1, 64), np.int64)
    inputs = weakref.ref(data)
    async with scripted(script) as host, predictor(host, 0.2 if end.startswith("late") else 30.0) as rest:
        gc.collect()
        gc.disable()
        try:
            with pytest.raises((PredictorUnavailable, PredictorTimeout, PredictorError)):
                [one async for one in rest.stream([Tensor("input_ids", "INT64", data)], ["o"], {})]
            del data
            await asyncio.sleep(0.01)  # what the event loop has of it
            assert inputs() is None
        finally:
            gc.enable()


async def test_a_name_that_does_not_resolve() -> None:
    async with predictor("predictor.invalid") as rest:
        with pytest.raises(PredictorUnavailable, match=r"the predictor at predictor\.invalid:80 is unavailable"):
            await infer(rest)


@pytest.mark.parametrize(
    "beginning", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"], ids=len
)
async def test_no_answer_in_time(beginning: bytes) -> None:
    async def hang(connection: Connection) -> None:
        await connection.send(beginning)
        await connection.until_closed()

    error = await fails(hang, seconds=0.3)
    assert type(error) is PredictorTimeout


async def test_a_caller_that_goes_away_is_no_error_of_the_predictor() -> None:
    arrived = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        arrived.set()
        await connection.until_closed()

    async with scripted(script) as host, predictor(host) as rest:
        task = asyncio.create_task(infer(rest))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_stale_connection_is_replaced_once(end: str) -> None:
    requests: list[int] = []

    async def script(connection: Connection) -> None:
        await connection.request()
        requests.append(connection.number)
        await good_answer(connection)
        if connection.number == 0:  # the second request on this connection gets no byte of an answer
            await connection.request()
            requests.append(connection.number)
            if end == "reset":
                connection.reset()
        else:
            await connection.until_closed()

    async with scripted(script) as host, predictor(host) as rest:
        assert await infer(rest) == [0.25, 0.75]
        assert await infer(rest) == [0.25, 0.75]
    assert requests == [0, 0, 1]


async def test_a_large_body_is_sent_again_whole() -> None:
    bodies: list[bytes] = []

    async def script(connection: Connection) -> None:
        bodies.append((await connection.request())[1])
        if connection.number == 0:
            await good_answer(connection)
            bodies.append((await connection.request())[1])
        else:
            await good_answer(connection)

    large = Tensor("input_ids", "INT64", np.arange(200_000).reshape(1, -1))
    async with scripted(script) as host, predictor(host) as rest:
        await infer(rest, [large])
        await infer(rest, [large])
    assert len(bodies) == 3
    assert bodies[0] == bodies[1] == bodies[2]


async def test_a_predictor_that_always_hangs_up_is_asked_no_third_time() -> None:
    requests: list[int] = []

    async def script(connection: Connection) -> None:
        await connection.request()
        requests.append(connection.number)
        if connection.number == 0:
            await good_answer(connection)
            await connection.request()
            requests.append(connection.number)

    async with scripted(script) as host, predictor(host) as rest:
        await infer(rest)
        with pytest.raises(PredictorUnavailable):
            await infer(rest)
    assert requests == [0, 0, 1]


async def test_a_new_connection_is_not_tried_again() -> None:
    requests: list[int] = []

    async def script(connection: Connection) -> None:
        await connection.request()
        requests.append(connection.number)

    async with scripted(script) as host, predictor(host) as rest:
        with pytest.raises(PredictorUnavailable):
            await infer(rest)
    assert requests == [0]


async def test_a_started_answer_is_not_asked_for_again() -> None:
    requests: list[int] = []

    async def script(connection: Connection) -> None:
        await connection.request()
        requests.append(connection.number)
        await good_answer(connection)
        await connection.request()
        requests.append(connection.number)
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
        connection.reset()

    async with scripted(script) as host, predictor(host) as rest:
        await infer(rest)
        with pytest.raises(PredictorUnavailable):
            await infer(rest)
    assert requests == [0, 0]
