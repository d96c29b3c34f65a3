"""Slots of calls over REST, which go on without a task when their callers leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from hf_transformer.errors import PredictorUnavailable
from hf_transformer.predictor.base import PredictorSettings, UnknownRegion
from hf_transformer.predictor.rest import RestPredictor
from hf_transformer.predictor.retry_budget import RetryBudget
from hf_transformer.predictor.retrying import RetryingPredictor
from hf_transformer.predictor.shared_memory import SharedMemoryPredictor
from tests.predictor.fault_server import Connection, scripted
from tests.predictor.rest_calls import IDS, good_answer
from tests.predictor.shared_calls import AT_ONCE, until
from tests.predictor.test_held_calls import Gate, turns

pytestmark = pytest.mark.asyncio

SIZE = 64 * 2**10


class Shared:
    """A SharedMemoryPredictor over REST, whose server is a Gate for inferences."""

    def __init__(self, host: str, folder: Path, seconds: float) -> None:
        self.rest = RestPredictor(PredictorSettings("m", host, timeout=seconds))
        self.predictor = SharedMemoryPredictor(self.rest, SIZE, 1024, folder=folder, pauses=AT_ONCE)

    async def infer(self) -> None:
        async with self.predictor.infer([IDS], ["logits"], {}, sizes={"logits": 2048}):
            pass

    def slots(self) -> tuple[int, int]:
        use = self.predictor.use().slots
        return use["in_use"], use["quarantined"]


class ServerOfRegions(Gate):
    """Registers every region; an inference is answered by ``answer`` once the gate is open."""

    async def __call__(self, connection: Connection) -> None:
        while True:
            headers, _ = await connection.request()
            if "/infer" not in headers[""]:
                await connection.answer("200 OK", b"[]")
                continue
            self.requests += 1
            self.arrived.set()
            await self.opened.wait()
            await self.answer(connection)


@asynccontextmanager
async def shared_over(gate: Gate, folder: Path, seconds: float = 30.0) -> AsyncIterator[Shared]:
    """With a region that is registered."""
    async with scripted(gate) as host:
        shared = Shared(host, folder, seconds)
        async with shared.predictor:
            shared.predictor._keeper.want()
            await until(lambda: shared.predictor.use().registered)
            yield shared


LARGE = orjson.dumps({"outputs": [{"name": "logits", "datatype": "FP32", "shape": [512]}]})


async def left_behind(shared: Shared, gate: Gate) -> None:
    """A call under way whose caller has gone."""
    call = asyncio.create_task(shared.infer())
    await gate.arrived.wait()
    gate.arrived.clear()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert shared.slots() == (1, 0)


async def test_a_slot_is_kept_until_the_predictor_has_ended_the_call(tmp_path: Path) -> None:
    gate = ServerOfRegions(lambda connection: connection.answer("200 OK", LARGE))
    async with shared_over(gate, tmp_path) as shared:
        await left_behind(shared, gate)
        gate.opened.set()
        await until(lambda: shared.slots() == (0, 0))
        assert shared.rest._client.idle == 1, "the connection is as good as ever"
        await shared.infer()
        assert shared.predictor.use().batches["shared"] == 1


@pytest.mark.parametrize(
    ("answer", "lost"),
    [
        (lambda one: one.answer("400 Bad Request", b'{"error": "no"}'), 0),
        (lambda one: one.answer("502 Bad Gateway"), 1),
        (lambda one: one.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"), 1),
    ],
    ids=["an error of the predictor's", "a proxy's", "cut off"],
)
async def test_what_becomes_of_it_without_a_good_answer(
    tmp_path: Path, answer: Callable[[Connection], Awaitable[None]], lost: int
) -> None:
    async def then_end(connection: Connection) -> None:
        await answer(connection)
        connection.writer.close()

    gate = ServerOfRegions(then_end)
    async with shared_over(gate, tmp_path) as shared:
        await left_behind(shared, gate)
        gate.opened.set()
        await until(lambda: shared.slots() == (0, lost))


async def test_a_slot_of_a_call_that_times_out_is_lost(tmp_path: Path) -> None:
    gate = ServerOfRegions()
    async with shared_over(gate, tmp_path, seconds=0.1) as shared:
        await left_behind(shared, gate)
        await until(lambda: shared.slots() == (0, 1))


async def test_a_call_that_was_sent_again_inline_takes_its_slot_along(tmp_path: Path) -> None:
    """Its first connection was stale, so nobody knows what became of it, and then its caller has left."""

    async def hang_up_once(connection: Connection) -> None:
        if gate.requests == 1:
            await connection.answer("200 OK", LARGE)
        elif gate.requests == 2:
            connection.reset()
        else:
            await good_answer(connection)

    gate = ServerOfRegions(hang_up_once)
    gate.opened.set()
    async with shared_over(gate, tmp_path) as shared:
        await shared.infer()
        call = asyncio.create_task(shared.infer())
        await until(lambda: gate.requests == 2)
        gate.opened.clear()
        await until(lambda: gate.requests == 3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert shared.slots() == (1, 0)
        gate.opened.set()
        await until(lambda: shared.slots() == (0, 1))


async def test_calls_that_were_left_behind_end_with_the_predictor(tmp_path: Path) -> None:
    gate = ServerOfRegions()
    async with shared_over(gate, tmp_path) as shared:
        await left_behind(shared, gate)
        region = shared.predictor._keeper.region
        assert region is not None
    assert (region.taken_slots, region.lost_slots) == (0, 1)


async def test_a_slot_is_lost_with_the_connection(tmp_path: Path) -> None:
    async def hang_up(connection: Connection) -> None:
        connection.reset()

    gate = ServerOfRegions(hang_up)
    gate.opened.set()
    async with shared_over(gate, tmp_path) as shared:
        with pytest.raises(PredictorUnavailable) as caught:
            await shared.infer()
        assert not isinstance(caught.value, UnknownRegion)
        assert shared.slots() == (0, 1)


async def test_retries_over_shared_memory_wait_for_the_end(tmp_path: Path) -> None:
    gate = ServerOfRegions(lambda connection: connection.answer("200 OK", LARGE))
    async with shared_over(gate, tmp_path) as shared:
        tries = RetryingPredictor(shared.predictor, 3, 30.0, RetryBudget(1.0))

        async def infer() -> None:
            async with tries.infer([IDS], ["logits"], {}, sizes={"logits": 2048}):
                pass

        call = asyncio.create_task(infer())
        await gate.arrived.wait()
        call.cancel()
        await turns()
        assert not call.done() and shared.slots() == (1, 0)
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert shared.slots() == (0, 0)


async def test_an_unknown_region_is_asked_for_inline_and_held_too(tmp_path: Path) -> None:
    """Where retries have said so."""
    unknown = b'{"error": "Unable to find shared memory region: \'%s\'"}'
    inline = asyncio.Event()

    async def answer(connection: Connection) -> None:
        if gate.requests == 1:
            region = shared.predictor._keeper.region
            assert region is not None
            gate.opened.clear()
            await connection.answer("404 Not Found", unknown % region.name.encode())
            return
        inline.set()
        await good_answer(connection)

    gate = ServerOfRegions(answer)
    gate.opened.set()
    async with shared_over(gate, tmp_path) as shared:
        call = asyncio.create_task(retry_large(shared))
        await until(lambda: gate.requests == 2)
        call.cancel()
        await turns()
        assert not call.done()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert inline.is_set() and shared.slots() == (0, 0)
        assert shared.predictor.use().batches["inline_resent"] == 1


async def retry_large(shared: Shared) -> None:
    tries = RetryingPredictor(shared.predictor, 3, 30.0, RetryBudget(1.0))
    async with tries.infer([IDS], ["logits"], {}, sizes={"logits": 2048}):
        pass


async def test_calls_that_are_held_end_with_the_predictor(tmp_path: Path) -> None:
    gate = ServerOfRegions()
    async with shared_over(gate, tmp_path) as shared:
        calls = [asyncio.create_task(shared.infer()) for _ in range(3)]
        await until(lambda: gate.requests == 3)
        assert shared.slots() == (3, 0)
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 3
    assert shared.slots() == (0, 0)
