"""Outputs in shared memory: slots, quarantine, regions and their files, with a scripted transport."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable
from hf_transformer.observability.metrics import Metrics, SharedMemoryUse
from hf_transformer.predictor import regions
from hf_transformer.predictor.base import ModelCall, StaleConnection
from hf_transformer.predictor.region_files import PREFIX, RESERVED_BYTES, remove_leftovers
from hf_transformer.predictor.regions import ALIGNMENT_BYTES, FreeList, Region
from hf_transformer.predictor.registration import Pauses
from hf_transformer.predictor.shared_memory import SharedMemory
from hf_transformer.types.tensors import Tensor, TensorSpec
from tests.predictor.scripted import ScriptedTransport
from tests.support.polling import until
from tests.support.scripted_predictor import SPEC

SIZE = 64 * 2**10
QUARTER = SIZE // 16
"""The number of FP32 elements that fill a quarter of the region."""
NO_PAUSES = Pauses(unavailable=0.0, refused=0.0, registered=0.0, lost=0.0)
LOST = PredictorUnavailable("lost")


class Shared:
    """A SharedMemory with a scripted transport, in a temporary folder, for outputs of 1,024 bytes and more."""

    def __init__(self, folder: Path, size: int = SIZE, pauses: Pauses = NO_PAUSES) -> None:
        self.folder = folder
        self.transport = ScriptedTransport(folder)
        self.predictor = SharedMemory(self.transport, size, min_bytes=1024, folder=folder, pauses=pauses)

    async def infer(self, number: int, count: int = QUARTER, *, outputs: tuple[str, ...] = ("logits",)) -> list[float]:
        """Makes a call whose outputs have ``count`` elements with the value ``number``; returns the distinct values."""
        tensor = Tensor("input_ids", "INT64", np.full(count, number))
        sizes = {name: 4 * count for name in outputs if name != "unsized"}
        reply = await self.predictor.infer(ModelCall([tensor], outputs, {}, sizes))
        assert set(reply.tensors) == set(outputs)
        assert all(tensor.shape == (count,) for tensor in reply.tensors.values())
        values = sorted({float(value) for tensor in reply.tensors.values() for value in tensor.data})
        reply.release()
        return values

    async def registered(self) -> None:
        """Makes a first call and waits for the registration of a region."""
        assert await self.infer(99) == [99]
        await until(lambda: self.use.registered)

    async def attempted(self, times: int) -> None:
        """Waits for this number of failed registrations."""
        await until(lambda: self.transport.attempts == times and not self.files)

    async def start_call(self, number: int, count: int = QUARTER) -> asyncio.Task[list[float]]:
        """Starts a call that waits for its gate."""
        self.transport.gate(number)
        calls = len(self.transport.calls)
        task = asyncio.create_task(self.infer(number, count))
        await until(lambda: len(self.transport.calls) == calls + 1)
        return task

    async def lose(self, number: int, count: int = QUARTER) -> None:
        """Makes a call whose connection is lost."""
        self.transport.gate(number).set_exception(LOST)
        with pytest.raises(PredictorUnavailable):
            await self.infer(number, count)

    @property
    def files(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()]

    @property
    def use(self) -> SharedMemoryUse:
        return self.predictor.use()

    def batches(self, *transfers: str) -> list[int]:
        return [self.use.batches[transfer] for transfer in transfers]

    @property
    def slots(self) -> tuple[int, int]:
        """The numbers of slots in use and in quarantine."""
        return self.use.slots["in_use"], self.use.slots["quarantined"]


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return Shared(tmp_path)


# Calls and their slots


async def test_large_outputs_are_read_from_shared_memory(shared: Shared) -> None:
    metrics = Metrics()
    metrics.of("m").watch_shared_memory(shared.predictor.use)
    async with shared.predictor as predictor:
        assert b'hf_transformer_shared_memory_registered{model_name="m"} 0.0' in metrics.render()
        (shared.folder / f"{PREFIX}dead").touch()
        await shared.registered()
        assert shared.files == shared.transport.registered, "leftovers are removed"
        assert (await predictor.model_spec() is SPEC, await predictor.model_ready()) == (True, False)
        assert await shared.infer(3) == [3]
        assert await shared.infer(4, 300, outputs=("logits", "more", "unsized")) == [4, 5, 6]
        assert shared.batches("shared", "inline_full", "inline_unregistered", "inline_resent") == [2, 0, 1, 0]
        assert (shared.slots, shared.use.bytes["free"]) == ((0, 0), SIZE)
        samples = metrics.render().decode()
    for line in (
        'registered{model_name="m"} 1.0',
        'slots{model_name="m",state="quarantined"} 0.0',
        f'bytes{{model_name="m",state="free"}} {float(SIZE)}',
        'batches_total{model_name="m",transfer="shared"} 2.0',
        'batches_total{model_name="m",transfer="inline_unregistered"} 1.0',
    ):
        assert f"hf_transformer_shared_memory_{line}\n" in samples
    assert shared.files == [] and shared.transport.regions == {}
    assert shared.transport.events == ["open", *["released"] * 3, "close"]


async def test_a_slot_is_in_use_until_its_reply_is_released(shared: Shared) -> None:
    async with shared.predictor as predictor:
        await shared.registered()
        ids = Tensor("input_ids", "INT64", np.full(4 * QUARTER, 1))
        reply = await predictor.infer(ModelCall([ids], ["logits"], {}, {"logits": SIZE}))
        assert shared.slots == (1, 0)
        assert await shared.infer(2) == [2] and shared.batches("inline_full") == [1]
        assert set(reply.tensors["logits"].data) == {1}
        for _ in range(2):
            reply.release()
            assert shared.slots == (0, 0) and shared.use.bytes["free"] == SIZE


async def test_shares_tells_whether_outputs_fit_now(shared: Shared) -> None:
    sizes = (1023, 1024, SIZE // 2, SIZE // 2 + 1, SIZE, SIZE + 1)

    def shares() -> list[int]:
        return [size for size in sizes if shared.predictor.shares(size)]

    async with shared.predictor:
        assert shares() == []
        await shared.registered()
        assert shares() == [1024, SIZE // 2, SIZE // 2 + 1, SIZE]
        call = await shared.start_call(1, 2 * QUARTER)
        assert shares() == [1024, SIZE // 2]
        shared.transport.gate(1).set_result(None)
        await call
        assert shares() == [1024, SIZE // 2, SIZE // 2 + 1, SIZE]
        shared.transport.regions.clear()  # a restart, which the next call detects
        assert await shared.infer(2) == [2]
        assert shares() == []
        await until(lambda: shared.use.registered)
        assert shares() == [1024, SIZE // 2, SIZE // 2 + 1, SIZE]
    assert shares() == []


@pytest.mark.parametrize("end", [LOST, PredictorTimeout("late"), None], ids=["lost", "late", "cancelled"])
async def test_a_slot_without_a_response_is_quarantined(shared: Shared, end: Exception | None) -> None:
    async with shared.predictor:
        assert await shared.infer(1, 255) == [1]
        assert await shared.infer(2, QUARTER, outputs=("unsized",)) == [2]
        assert shared.transport.attempts == 0 and shared.files == [], "small outputs need no region"
        assert set(shared.use.batches.values()) == {0}
        await shared.registered()
        call = await shared.start_call(1)
        if end is None:
            call.cancel()
        else:
            shared.transport.gate(1).set_exception(end)
        with pytest.raises(asyncio.CancelledError if end is None else type(end)):
            await call
        assert shared.slots == (0, 1)
        assert shared.use.bytes == {"in_use": 0, "quarantined": SIZE // 4, "free": SIZE * 3 // 4}
        assert await shared.infer(2, 4 * QUARTER) == [2]
        assert shared.batches("inline_full") == [1]
        shared.transport.gate(3).set_exception(StaleConnection("it ended before an answer"))
        assert await shared.infer(3, QUARTER) == [3], "the retry is inline"
        assert (shared.batches("shared", "inline_resent"), shared.slots) == ([0, 1], (0, 2))
        assert await shared.infer(4, 2 * QUARTER) == [4]
        assert shared.batches("shared") == [1]
    assert shared.files == []
    assert len(shared.transport.regions) == 1, "a call may still use it"


# Regions: creation, loss, replacement, refusal and closing


@pytest.mark.parametrize(
    ("outputs", "decoupled", "at_start"),
    [
        ([TensorSpec("logits", "FP32", (-1, 86))], False, True),
        ([TensorSpec("logits", "FP32", (-1, 86))], True, False),
        ([TensorSpec("logits", "FP32", (-1, 85))], False, False),
        ([TensorSpec("logits", "FP16", (128, 4)), TensorSpec("more", "BYTES", (1000,))], False, True),
        ([TensorSpec("logits", "BF16", (-1, 171))], False, True),
        ([TensorSpec("first", "INT8", (512,)), TensorSpec("second", "INT8", (512,))], False, True),
        ([TensorSpec("text", "BYTES", (-1,))], False, False),
        ([], False, False),
    ],
    ids=["large", "decoupled", "small", "fp16", "bf16", "together", "bytes", "none"],
)
async def test_a_region_is_registered_at_start_if_all_outputs_are_large(
    shared: Shared, outputs: list[TensorSpec], decoupled: bool, at_start: bool
) -> None:
    shared.transport.spec = replace(SPEC, outputs=tuple(outputs), decoupled=decoupled)
    async with shared.predictor:
        for _ in range(3):
            assert await shared.predictor.model_spec() == shared.transport.spec
        if at_start:
            await until(lambda: shared.use.registered)
        assert await shared.infer(1) == [1]
        assert shared.batches("shared" if at_start else "inline_unregistered") == [1]
        assert shared.transport.attempts == at_start or not at_start


async def test_a_mostly_quarantined_region_is_replaced_and_unregistered_later(shared: Shared) -> None:
    async with shared.predictor:
        await shared.registered()
        last = await shared.start_call(1)
        await shared.lose(2)
        await shared.lose(3)
        assert shared.use.registered, "half of it is left"
        await shared.lose(4)
        assert not shared.use.registered and shared.slots == (1, 3)
        await shared.registered()
        assert len(shared.transport.registered) == len(shared.files) == 2, "a slot of the first is still in use"
        shared.transport.gate(1).set_result(None)
        assert await last == [1]
        assert shared.files == [shared.transport.registered[1]]
        await until(lambda: list(shared.transport.regions) == [shared.transport.registered[1]])
        assert shared.slots == (0, 0)


async def test_no_region_is_registered_while_two_lost_ones_remain(tmp_path: Path) -> None:
    shared = Shared(tmp_path, pauses=replace(NO_PAUSES, lost=3600.0))
    async with shared.predictor:
        for number in (1, 2):
            await shared.registered()
            await shared.lose(number, 3 * QUARTER)
        assert await shared.infer(3) == [3]
        await asyncio.sleep(0)
        assert len(shared.transport.registered) == 2 and not shared.use.registered
        assert shared.batches("inline_unregistered") == [3]


async def test_pauses_between_registrations_grow_and_are_reset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, loop = Shared(tmp_path, pauses=Pauses()), asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)

    async def attempts_after(seconds: float) -> int:
        nonlocal now
        now += seconds
        assert await shared.infer(1) == [1]
        await asyncio.sleep(0)
        return shared.transport.attempts

    shared.transport.refusal = LOST
    async with shared.predictor:
        assert await attempts_after(0) == 1
        for number, pause in ((1, 1), (2, 2), (3, 4)):
            await shared.attempted(number)
            assert await attempts_after(pause - 0.5) == number
            assert await attempts_after(0.6) == number + 1
        await shared.attempted(4)
        shared.transport.refusal = None
        await attempts_after(8)
        await until(lambda: shared.use.registered)
        shared.transport.refusal = LOST
        shared.transport.regions.clear()
        assert await attempts_after(9.5) == 5, "a recent registration delays the next one"
        assert shared.batches("inline_resent", "inline_unregistered") == [1, 8]
        assert await attempts_after(1) == 6
        await shared.attempted(6)
        assert await attempts_after(0.5) == 6
        assert await attempts_after(1) == 7


async def test_several_predictors_behind_one_address_get_no_further_region(
    shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    async with shared.predictor:
        await shared.registered()
        registration = shared.predictor.registration
        assert registration.region is not None
        registration.unknown(registration.region)  # reported by one predictor, while the other has the region
        for _ in range(3):
            await shared.attempted(2)
            assert await shared.infer(2) == [2]
        assert caplog.text.count("several predictors answer at one address") == 1


@pytest.mark.parametrize("error", [PredictorError("bad"), LOST, PredictorTimeout("late")], ids=repr)
async def test_outputs_are_inline_while_registrations_fail(
    shared: Shared, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shared.transport.refusal = error
    async with shared.predictor:
        for number in range(5):
            assert await shared.infer(number) == [number]
            await shared.attempted(number + 1)
        assert shared.batches("inline_unregistered") == [5]
        assert caplog.text.count("outputs travel inline") == 1
        shared.transport.refusal = None
        await shared.registered()
        assert await shared.infer(7) == [7]
        shared.transport.refusal = error
        shared.transport.regions.clear()
        assert await shared.infer(8) == [8]
        await shared.attempted(7)
        assert caplog.text.count("outputs travel inline") == 2, "once for each loss"
    assert caplog.text.count("large outputs travel through shared memory") == 1


async def test_after_a_refusal_there_is_a_pause_and_no_region_is_unregistered(tmp_path: Path) -> None:
    """A predictor with another /dev/shm has regions of processes on its own machine."""
    shared = Shared(tmp_path, pauses=Pauses())
    theirs = f"{PREFIX}theirs"
    shared.transport.regions = {theirs: tmp_path / theirs}
    shared.transport.refusal = PredictorError("Unable to open shared memory region")
    async with shared.predictor:
        assert await shared.infer(1) == [1]
        await shared.attempted(1)
        shared.transport.refusal = None
        assert await shared.infer(2) == [2]
        await asyncio.sleep(0.01)
        assert shared.transport.registered == [] and list(shared.transport.regions) == [theirs]


@pytest.mark.parametrize("missing", [False, True], ids=["no room", "no folder"])
async def test_without_room_for_a_region_outputs_are_inline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, missing: bool
) -> None:
    shared = Shared(tmp_path / "missing" if missing else tmp_path, size=SIZE if missing else 2**60)
    async with shared.predictor:
        for number in range(3):
            assert await shared.infer(number) == [number]
            await asyncio.sleep(0)
    assert caplog.text.count("--predictor_shared_memory_bytes") == 1
    assert ("No such file" if missing else "do not fit") in caplog.text
    assert missing or shared.files == []


async def test_without_room_registrations_are_rare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(tmp_path, pauses=Pauses(lost=0.0))
    monkeypatch.setattr(regions, "free_bytes", lambda folder: SIZE + RESERVED_BYTES - 1)
    async with shared.predictor:
        for number in range(3):
            assert await shared.infer(number) == [number]
            await until(lambda: shared.transport.attempts == 1 and not (shared.transport.regions or shared.files))


async def test_the_region_of_a_dead_process_is_unregistered_to_get_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Triton maps the region without a file, so the folder is full until Triton unmaps it."""
    shared = Shared(tmp_path, pauses=Pauses(lost=0.05))
    dead = f"{PREFIX}dead"
    shared.transport.regions = {dead: tmp_path / dead, "foreign": tmp_path}
    room = {True: 0, False: SIZE + RESERVED_BYTES}
    monkeypatch.setattr(regions, "free_bytes", lambda folder: room[dead in shared.transport.regions])
    async with shared.predictor:
        assert await shared.infer(1) == [1]
        await shared.attempted(1)
        await until(
            lambda: list(shared.transport.regions) == [dead, "foreign"]
        )  # the unused region is unregistered at once
        await until(lambda: shared.use.registered)  # without another call
        assert list(shared.transport.regions) == ["foreign", shared.transport.registered[1]]
        assert await shared.infer(2) == [2]
        assert caplog.text.count("do not fit") == 1


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "cancelled"])
async def test_closing_leaves_a_region_in_use_at_the_predictor(
    shared: Shared, caplog: pytest.LogCaptureFixture, answered: bool
) -> None:
    caplog.set_level(logging.INFO)
    async with shared.predictor:
        await shared.registered()
        call = await shared.start_call(1)
    assert shared.files == []
    (name,) = shared.transport.regions
    assert caplog.text.count(f"left at the predictor, since calls may still use them: {name}") == 1
    if answered:
        shared.transport.gate(1).set_result(None)
        assert await call == [1]
    else:
        call.cancel()
        await asyncio.wait([call])
    assert await shared.infer(2) == [2]
    assert shared.transport.attempts == 1


@pytest.mark.parametrize("fails", [False, True], ids=["half made", "refused"])
async def test_closing_ends_a_registration(shared: Shared, fails: bool) -> None:
    shared.transport.refusal = PredictorError("no") if fails else None
    async with shared.predictor:
        assert await shared.infer(1) == [1]
    assert shared.files == [] and shared.transport.regions == {}


# Files and slots


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), max_size=60))
def test_ranges_never_overlap_and_none_is_lost(steps: list[tuple[int, int]]) -> None:
    free_list = FreeList(32 * ALIGNMENT_BYTES + 5)
    in_use: list[tuple[int, int]] = []
    for count, ended in steps:
        size = count * ALIGNMENT_BYTES
        fits = free_list.fits(size)
        offset = free_list.take(size)
        assert fits == (offset is not None)
        if offset is not None:
            assert offset % ALIGNMENT_BYTES == 0 and 0 <= offset <= 32 * ALIGNMENT_BYTES - size
            assert all(offset + size <= start or offset >= start + length for start, length in in_use)
            in_use.append((offset, size))
        if ended < len(in_use):
            free_list.give_back(*in_use.pop(ended))
        assert free_list.free_bytes == 32 * ALIGNMENT_BYTES - sum(length for _, length in in_use)
    for allocated in in_use:
        free_list.give_back(*allocated)
    assert free_list.take(32 * ALIGNMENT_BYTES) == 0


def test_the_file_is_sparse_until_it_is_filled(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        region = Region(SIZE, tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(region.path.stat().st_mode) == 0o666, "every user can write, whatever the umask"
    assert (region.path.stat().st_size, region.path.stat().st_blocks) == (SIZE, 0)
    assert region.take({"a": 64}) is None and region.free_list.free_bytes == 0
    region.fill()
    assert region.path.stat().st_blocks * 512 >= SIZE
    assert region.free_list.free_bytes == SIZE
    region.close()


@pytest.mark.parametrize(
    "free", [[SIZE + RESERVED_BYTES - 1], [SIZE + RESERVED_BYTES, RESERVED_BYTES - 1]], ids=["before", "after"]
)
def test_a_region_leaves_room_for_the_predictor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: list[int]
) -> None:
    remaining = iter(free)
    monkeypatch.setattr(regions, "free_bytes", lambda folder: next(remaining))
    region = Region(SIZE, tmp_path)
    with pytest.raises(OSError, match=f"{SIZE} bytes do not fit") as caught:
        region.fill()
    assert caught.value.errno == errno.ENOSPC and region.take({"a": 64}) is None
    region.close()


def test_files_of_dead_processes_are_removed_and_others_stay(tmp_path: Path) -> None:
    living = Region(SIZE, tmp_path)
    (tmp_path / f"{PREFIX}dead").write_bytes(b"x")
    (tmp_path / "foreign").write_bytes(b"x")
    (tmp_path / f"{PREFIX}folder").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "foreign")
    before = {path.name for path in tmp_path.iterdir()}
    assert remove_leftovers(tmp_path) == [f"{PREFIX}dead"]
    assert {path.name for path in tmp_path.iterdir()} == before - {f"{PREFIX}dead"}
    living.close()


def test_a_new_file_that_is_removed_as_a_leftover_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    removed: list[list[str]] = []

    def interrupted(file: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        removed.append(remove_leftovers(tmp_path))
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", interrupted)
    region = Region(SIZE, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [region.name]
    assert len(removed[0]) == 1 and region.name not in removed[0]
    region.close()
