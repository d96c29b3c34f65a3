"""What gRPC calls wait for, without a server: others to share a batch with, and room in a stream."""

from __future__ import annotations

import asyncio

import pytest

from hf_transformer.api.grpc.infer import RAREST_TRIAL, Gathering
from hf_transformer.api.grpc.stream import STREAMS_AT_MOST, HeldBytes, StreamRoom
from hf_transformer.observability.metrics import Metrics
from tests.integration.api.grpc_model import ScriptedModel, service_of

INFER = "hf_transformer.api.grpc.infer"


async def joined(gathering: Gathering, count: int) -> list[asyncio.Task[None]]:
    """Calls that have joined one after the other."""
    tasks = [asyncio.create_task(gathering.join()) for _ in range(count)]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_a_call_that_is_alone_waits_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{INFER}.QUIET_SECONDS", 0.0001)
    gathering, waited = Gathering(), 0
    calls = 4 * RAREST_TRIAL
    async with asyncio.timeout(20):
        for _ in range(calls):
            [task] = await joined(gathering, 1)
            waited += not task.done()
            await task
    assert 0 < waited <= 12


async def test_a_burst_begins_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a trial that has found seven more calls, a group waits for seven."""
    monkeypatch.setattr(f"{INFER}.BURST_SECONDS", 3600)
    gathering = Gathering()
    async with asyncio.timeout(20):
        await asyncio.gather(*await joined(gathering, 8))
        six = await joined(gathering, 6)
        assert not any(task.done() for task in six)
        seventh = await joined(gathering, 1)
        assert all(task.done() for task in (*six, *seventh))


async def test_calls_that_are_far_apart_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{INFER}.BURST_SECONDS", -1)
    gathering = Gathering()
    async with asyncio.timeout(20):
        await asyncio.gather(*await joined(gathering, 8))
        assert [task.done() for task in await joined(gathering, 1)] == [True]


async def test_a_call_that_is_cancelled_holds_up_nobody() -> None:
    gathering = Gathering()
    async with asyncio.timeout(20):
        for _ in range(50):
            tasks = await joined(gathering, 3)
            tasks[1].cancel()
            await asyncio.wait(tasks)
            assert [task.cancelled() for task in (tasks[0], tasks[2])] == [False, False]


async def test_room_in_bytes() -> None:
    held = HeldBytes(5 << 20)
    assert (held.most_of_one, held.most) == (5 << 20, STREAMS_AT_MOST * 5 << 20)
    held.most = 5 << 20
    admission = service_of(ScriptedModel(), Metrics("bert")).admission
    first, second = StreamRoom(held, admission), StreamRoom(held, admission)
    first.hold("1", 1)
    await first.until_free()
    first.hold("1", 3 << 20, answered=True)
    assert held.bytes == 3 << 20
    first.hold("2", 1)
    assert held.bytes == 6 << 20, "the next answer is expected to be as long as the last one"
    waiting = asyncio.create_task(first.until_free())
    await second.until_free()  # it holds nothing
    second.hold("3", 1)
    others = asyncio.create_task(second.until_free())
    await asyncio.sleep(0)
    assert not waiting.done() and not others.done()
    first.drop("1")
    await waiting
    second.drop("3")
    await others
    first.drop("2")
    assert held.bytes == 0
