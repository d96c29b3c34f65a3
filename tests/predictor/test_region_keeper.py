"""What becomes of regions: made, lost, replaced, refused, closed; the real predictor is in tests/integration."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from hf_transformer.errors import PredictorError, PredictorUnavailable
from hf_transformer.predictor import shared_region
from hf_transformer.predictor.region_keeper import Pauses
from hf_transformer.predictor.shared_region import MARGIN, PREFIX
from hf_transformer.types import TensorSpec
from tests.predictor.shared_calls import ERRORS, QUARTER, SIZE, Shared, until

pytestmark = pytest.mark.asyncio


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return Shared(tmp_path)


async def test_a_region_that_is_mostly_lost_is_replaced_and_let_go_later(shared: Shared) -> None:
    async with shared.predictor:
        await shared.registered()
        (first,) = shared.transport.registered
        gates = [shared.transport.gate(number) for number in range(4)]
        calls = [asyncio.create_task(shared.infer(number)) for number in range(4)]
        await until(lambda: shared.transport.entered == 5)
        for gate in gates[:3]:
            gate.set_exception(PredictorUnavailable("lost"))
        await asyncio.wait(calls[:3])
        assert not shared.predictor.use().registered
        assert (shared.slots("in_use"), shared.slots("quarantined")) == (1, 3)
        await shared.registered()
        assert shared.transport.registered[0] == first and len(shared.transport.registered) == 2
        assert len(shared.files) == 2, "a slot of the first is still in use"
        gates[3].set_result(None)
        assert await calls[3] == [3]
        assert shared.files == [shared.transport.registered[1]]
        await until(lambda: list(shared.transport.regions) == [shared.transport.registered[1]])
        assert (shared.slots("in_use"), shared.slots("quarantined")) == (0, 0)


@pytest.mark.parametrize(
    ("outputs", "at_start"),
    [
        ([TensorSpec("logits", "FP32", (-1, 86))], True),
        ([TensorSpec("logits", "FP32", (-1, 85))], False),
        ([TensorSpec("logits", "FP16", (128, 4)), TensorSpec("more", "BYTES", (1000,))], True),
        ([TensorSpec("logits", "BF16", (-1, 171))], True),
        ([TensorSpec("first", "INT8", (512,)), TensorSpec("second", "INT8", (512,))], True),
        ([TensorSpec("text", "BYTES", (-1,))], False),
        ([], False),
    ],
)
async def test_a_region_is_there_at_start_where_all_answers_are_large(
    shared: Shared, outputs: list[TensorSpec], at_start: bool
) -> None:
    """From 1,024 bytes on, here."""
    shared.transport.spec = replace(shared.transport.spec, outputs=tuple(outputs))
    async with shared.predictor:
        assert shared.files == []
        for _ in range(3):
            assert await shared.predictor.model_spec() == shared.transport.spec
        if at_start:
            await until(lambda: shared.predictor.use().registered)
        assert await shared.infer(1) == [1]
        assert shared.batches("shared" if at_start else "inline_unregistered") == 1
        assert shared.transport.attempts == at_start or not at_start


async def test_a_decoupled_model_has_no_region_at_start(shared: Shared) -> None:
    logits = TensorSpec("logits", "FP32", (-1, 30522))
    shared.transport.spec = replace(shared.transport.spec, outputs=(logits,), decoupled=True)
    async with shared.predictor:
        await shared.predictor.model_spec()
        await asyncio.sleep(0)
        assert shared.transport.attempts == 0 and shared.files == []


async def test_no_more_regions_are_made_than_the_predictor_lets_go_of(tmp_path: Path) -> None:
    shared = Shared(tmp_path, pauses=Pauses(unavailable=0.0, refused=0.0, registered=0.0, lost=3600.0))
    async with shared.predictor:
        for number in (1, 2):
            await shared.registered()
            shared.transport.gate(number).set_exception(PredictorUnavailable("lost"))
            with pytest.raises(PredictorUnavailable):
                await shared.infer(number, 3 * QUARTER)
        assert await shared.infer(3) == [3]
        await asyncio.sleep(0)
        assert len(shared.transport.registered) == 2 and not shared.predictor.use().registered


async def test_a_restarted_predictor_gets_one_new_region_and_every_call_is_answered(shared: Shared) -> None:
    async with shared.predictor:
        await shared.registered()
        shared.transport.regions.clear()
        answers = await asyncio.gather(*(shared.infer(number) for number in range(4)))
        assert answers == [[number] for number in range(4)]
        assert shared.batches("inline_resent") == 4
        await until(lambda: shared.predictor.use().registered)
        assert await shared.infer(5) == [5]
        assert len(shared.transport.registered) == len(set(shared.transport.registered)) == 2
        assert shared.files == [shared.transport.registered[1]]
        assert shared.slots("quarantined") == 0


async def test_registrations_do_not_follow_one_another_at_once(tmp_path: Path) -> None:
    shared = Shared(tmp_path, pauses=Pauses(registered=3600.0))
    async with shared.predictor:
        await shared.registered()
        shared.transport.regions.clear()
        for number in (1, 2):
            assert await shared.infer(number) == [number]
        await asyncio.sleep(0)
        assert len(shared.transport.registered) == 1
        assert (shared.batches("inline_resent"), shared.batches("inline_unregistered")) == (1, 2)


async def test_several_predictors_behind_one_address(shared: Shared, caplog: pytest.LogCaptureFixture) -> None:
    async with shared.predictor:
        await shared.registered()
        first = dict(shared.transport.regions)
        shared.transport.regions.clear()
        assert await shared.infer(1) == [1]
        shared.transport.regions.update(first)  # the next call goes to the other one
        for _ in range(3):
            assert await shared.infer(2) == [2]
            await shared.attempted(2)
        assert len(shared.transport.registered) == 2
        assert caplog.text.count("several predictors answer at one address") == 1


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_predictor_that_registers_nothing(
    shared: Shared, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shared.transport.refusal = error
    async with shared.predictor:
        for number in range(5):
            assert await shared.infer(number) == [number]
            await shared.attempted(number + 1)
        assert shared.batches("inline_unregistered") == 5
        assert caplog.text.count("outputs travel inline") == 1
        shared.transport.refusal = None
        await shared.registered()
        assert await shared.infer(7) == [7]
    assert caplog.text.count("large outputs travel through shared memory") == 1


async def test_a_refusal_is_not_asked_for_again_soon(tmp_path: Path) -> None:
    shared = Shared(tmp_path, pauses=Pauses())
    shared.transport.refusal = PredictorError("Unable to open shared memory region")
    async with shared.predictor:
        assert await shared.infer(1) == [1]
        await shared.attempted(1)
        shared.transport.refusal = None
        assert await shared.infer(2) == [2]
        await asyncio.sleep(0)
        assert shared.transport.registered == []


@pytest.mark.parametrize("missing", [False, True], ids=["no room", "no folder"])
async def test_no_room_for_a_region(tmp_path: Path, caplog: pytest.LogCaptureFixture, missing: bool) -> None:
    shared = Shared(tmp_path / "missing" if missing else tmp_path, size=SIZE if missing else 2**60)
    async with shared.predictor:
        for number in range(3):
            assert await shared.infer(number) == [number]
            await asyncio.sleep(0)
    assert caplog.text.count("--predictor_shared_memory_bytes") == 1
    assert ("No such file" if missing else "do not fit") in caplog.text
    assert missing or shared.files == []


async def test_closing_with_calls_under_way(shared: Shared) -> None:
    async with shared.predictor:
        await shared.registered()
        shared.transport.gate(1)
        call = asyncio.create_task(shared.infer(1))
        await until(lambda: shared.transport.entered == 2)
        call.cancel()
        await asyncio.wait([call])
    assert shared.files == []
    assert len(shared.transport.regions) == 1, "the predictor may still write"


async def test_closing_while_a_region_is_made(shared: Shared) -> None:
    async with shared.predictor:
        assert await shared.infer(1) == [1]
    assert shared.files == []


async def test_leftovers_of_a_killed_predecessor_go_here_and_at_the_predictor(shared: Shared) -> None:
    leftover = f"{PREFIX}dead"
    (shared.folder / leftover).write_bytes(b"x")
    shared.transport.regions = {leftover: shared.folder / leftover, "of others": shared.folder}
    async with shared.predictor:
        assert shared.files == []
        await shared.registered()
        await until(lambda: leftover not in shared.transport.regions)
        assert list(shared.transport.regions) == ["of others", *shared.transport.registered]


async def test_room_that_a_dead_predecessor_takes_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Triton maps the region whose file is gone, so the folder is full until Triton is told to let go of it."""
    shared = Shared(tmp_path, pauses=Pauses(lost=0.05))
    dead = f"{PREFIX}dead"
    shared.transport.regions = {dead: tmp_path / dead, "of others": tmp_path}
    monkeypatch.setattr(
        shared_region, "free_bytes", lambda folder: 0 if dead in shared.transport.regions else SIZE + MARGIN
    )
    async with shared.predictor:
        assert await shared.infer(1) == [1]
        await shared.attempted(1)
        await until(lambda: list(shared.transport.regions) == [dead, "of others"])  # the one of no use is gone at once
        await until(lambda: shared.predictor.use().registered)  # without another call
        assert list(shared.transport.regions) == ["of others", shared.transport.registered[1]]
        assert await shared.infer(2) == [2]
        assert caplog.text.count("do not fit") == 1


async def test_nothing_is_forgotten_at_a_predictor_that_does_not_see_our_folder(shared: Shared) -> None:
    """Its regions are those of processes that may well live, on its own machine."""
    theirs = f"{PREFIX}theirs"
    shared.transport.regions = {theirs: shared.folder / theirs}
    shared.transport.refusal = PredictorError("Unable to open shared memory region")
    async with shared.predictor:
        assert await shared.infer(1) == [1]
        await shared.attempted(1)
        await asyncio.sleep(0.01)
        assert list(shared.transport.regions) == [theirs]


async def test_leftovers_go_where_no_region_is_wanted(shared: Shared) -> None:
    leftover = f"{PREFIX}dead"
    (shared.folder / leftover).write_bytes(b"x")
    shared.transport.regions = {leftover: shared.folder / leftover}
    async with shared.predictor:
        await until(lambda: not shared.transport.regions)
    assert shared.transport.attempts == 0


async def test_no_room_is_asked_for_seldom_where_nothing_gives_any_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Shared(tmp_path, pauses=Pauses(lost=0.0))
    monkeypatch.setattr(shared_region, "free_bytes", lambda folder: SIZE + MARGIN - 1)
    async with shared.predictor:
        for number in range(3):
            assert await shared.infer(number) == [number]
            await asyncio.sleep(0.01)
        assert shared.transport.attempts == 1 and shared.transport.regions == {} and shared.files == []


async def test_what_is_left_at_the_predictor_is_said(shared: Shared, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with shared.predictor:
        await shared.registered()
        shared.transport.gate(1).set_exception(PredictorUnavailable("lost"))
        with pytest.raises(PredictorUnavailable):
            await shared.infer(1)
    (name,) = shared.transport.regions
    assert caplog.text.count(f"left at the predictor, since calls may still use them: {name}") == 1
