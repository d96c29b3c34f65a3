"""What becomes of slots, whatever becomes of the calls; the real predictor is in tests/integration."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import PROTOCOLS, open_predictor
from hf_transformer.predictor.base import PlacingPredictor, PredictorSettings
from hf_transformer.predictor.circuit import CircuitPredictor
from hf_transformer.predictor.retry_budget import RetryBudget
from hf_transformer.predictor.retrying import RetryingPredictor
from hf_transformer.predictor.shared_memory import SharedMemoryPredictor
from hf_transformer.types import Tensor
from tests.predictor.placing_transport import SPEC
from tests.predictor.shared_calls import ERRORS, QUARTER, SIZE, Shared, until

pytestmark = pytest.mark.asyncio


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return Shared(tmp_path)


async def test_large_outputs_are_read_where_they_were_written(shared: Shared) -> None:
    async with shared.predictor as predictor:
        await shared.registered()
        assert (await predictor.model_spec() is SPEC, await predictor.model_ready()) == (True, True)
        assert await shared.infer(3) == [3]
        assert await shared.infer(4, outputs=("logits", "more", "unsized")) == [4]
        assert shared.predictor.use().batches == {
            "shared": 2,
            "inline_full": 0,
            "inline_unregistered": 1,
            "inline_resent": 0,
        }
        assert (shared.slots("in_use"), shared.predictor.use().bytes["free"]) == (0, SIZE)
    assert shared.files == [] and shared.transport.regions == {} and not shared.transport.open


async def test_nothing_is_made_for_small_outputs_or_unknown_sizes(shared: Shared) -> None:
    async with shared.predictor:
        assert await shared.infer(1, 255) == [1]
        assert await shared.infer(2, QUARTER, outputs=("unsized",)) == [2]
        assert shared.transport.registered == [] and shared.files == []
        assert sum(shared.predictor.use().batches.values()) == 0


async def test_calls_side_by_side_have_their_own_slots_and_the_rest_goes_inline(shared: Shared) -> None:
    async with shared.predictor:
        await shared.registered()
        gates = [shared.transport.gate(number) for number in range(6)]
        calls = [asyncio.create_task(shared.infer(number)) for number in range(6)]
        await until(lambda: shared.transport.entered == 7)
        assert (shared.slots("in_use"), shared.predictor.use().bytes["free"]) == (4, 0)
        assert shared.batches("inline_full") == 2
        for gate in reversed(gates):
            gate.set_result(None)
        assert await asyncio.gather(*calls) == [[number] for number in range(6)]
        assert shared.batches("shared") == 4
        assert shared.predictor.use().bytes == {"in_use": 0, "quarantined": 0, "free": SIZE}


async def test_what_would_travel_through_it_at_this_moment(shared: Shared) -> None:
    assert not shared.predictor.shares(SIZE)
    async with shared.predictor as predictor:
        assert not predictor.shares(SIZE)
        await shared.registered()
        sizes = (1023, 1024, SIZE // 2, SIZE // 2 + 1, SIZE, SIZE + 1)
        assert [size for size in sizes if predictor.shares(size)] == [1024, SIZE // 2, SIZE // 2 + 1, SIZE]
        gate = shared.transport.gate(1)
        call = asyncio.create_task(shared.infer(1, 2 * QUARTER))
        await until(lambda: shared.slots("in_use") == 1)
        assert [size for size in sizes if predictor.shares(size)] == [1024, SIZE // 2]
        gate.set_result(None)
        await call
        assert predictor.shares(SIZE)
        shared.transport.regions.clear()  # a restart: the next call finds out
        assert await shared.infer(2) == [2]
        assert not predictor.shares(1024)
        await until(lambda: shared.predictor.use().registered)
        assert predictor.shares(SIZE)
    assert not shared.predictor.shares(1024)


async def test_wrappers_ask_what_they_wrap(shared: Shared) -> None:
    wrapped = CircuitPredictor(RetryingPredictor(shared.predictor, 1, 60.0, RetryBudget(0.1)), 1, Metrics("m"))
    async with wrapped:
        assert not wrapped.shares(SIZE)
        await shared.registered()
        assert wrapped.shares(SIZE) and not wrapped.shares(SIZE + 1)


async def test_an_output_larger_than_the_region_goes_inline(shared: Shared) -> None:
    async with shared.predictor:
        await shared.registered()
        assert await shared.infer(1, 8 * QUARTER) == [1]
        assert shared.batches("inline_full") == 1


async def test_a_slot_is_kept_while_a_call_runs_on_whose_caller_has_gone(shared: Shared) -> None:
    async with shared.predictor:
        await shared.registered()
        gate = shared.transport.gate(1)
        call = asyncio.create_task(shared.infer(1, 4 * QUARTER))
        await until(lambda: shared.transport.entered == 2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (shared.slots("in_use"), shared.slots("quarantined")) == (1, 0)
        assert await shared.infer(2) == [2]
        assert shared.batches("inline_full") == 1
        gate.set_result(None)
        await until(lambda: shared.slots("in_use") == 0)
        assert await shared.infer(3, 4 * QUARTER) == [3]
        assert shared.transport.entered == shared.transport.left == 4
        assert shared.batches("shared") == 1


@pytest.mark.parametrize("cancelled", [False, True], ids=["waited for", "abandoned"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_call_that_ends_without_a_word_takes_its_slot_along(
    shared: Shared, error: Exception, cancelled: bool
) -> None:
    async with shared.predictor:
        await shared.registered()
        gate = shared.transport.gate(1)
        call = asyncio.create_task(shared.infer(1))
        await until(lambda: shared.transport.entered == 2)
        if cancelled:
            call.cancel()
            await asyncio.wait([call])
        gate.set_exception(error)
        with pytest.raises(asyncio.CancelledError if cancelled else type(error)):
            await call
        await until(lambda: shared.slots("quarantined") == 1)
        assert shared.predictor.use().bytes == {"in_use": 0, "quarantined": SIZE // 4, "free": SIZE * 3 // 4}
        assert await shared.infer(2, 4 * QUARTER) == [2]
        assert shared.batches("inline_full") == 1
    assert shared.files == []
    assert len(shared.transport.regions) == 1, "a request may be under way in it, so the predictor keeps it"


async def test_a_call_that_was_sent_twice_takes_its_slot_along(shared: Shared) -> None:
    async with shared.predictor:
        await shared.registered()
        shared.transport.resends = True
        assert await shared.infer(1) == [1]
        assert (shared.batches("shared"), shared.batches("inline_resent")) == (0, 1)
        assert (shared.slots("in_use"), shared.slots("quarantined")) == (0, 1)


async def test_an_output_that_outgrows_its_slot_is_an_error(shared: Shared) -> None:
    async with shared.predictor as predictor:
        await shared.registered()
        tensor = Tensor("input_ids", "INT64", np.zeros(1024))
        with pytest.raises(Exception, match="4096 bytes, but has room for 4000"):
            async with predictor.infer([tensor], ["logits"], {}, sizes={"logits": 4000}):
                pass


async def test_an_error_in_the_callers_own_code_gives_the_slot_back(shared: Shared) -> None:
    async with shared.predictor as predictor:
        await shared.registered()
        with pytest.raises(UnicodeError):
            async with predictor.infer([Tensor("i", "INT64", np.zeros(1024))], ["logits"], {}, sizes={"logits": 4096}):
                raise UnicodeError
        assert (shared.slots("in_use"), shared.slots("quarantined")) == (0, 0)
        assert shared.transport.left == 2


@pytest.mark.parametrize("protocol", list(PROTOCOLS))
async def test_it_is_opened_between_the_retries_and_the_transport(protocol: str) -> None:
    with_it, without = (PredictorSettings("m", "triton", shared_memory_bytes=size) for size in (SIZE, 0))
    metrics = Metrics("m")
    guarded = open_predictor(protocol, with_it, 0, metrics)
    assert isinstance(guarded, CircuitPredictor) and type(guarded._inner) is SharedMemoryPredictor
    assert b"hf_transformer_shared_memory_registered 0.0" in metrics.render()
    retrying = open_predictor(protocol, with_it, 1)
    assert isinstance(retrying, RetryingPredictor) and type(retrying._inner) is SharedMemoryPredictor
    assert isinstance(open_predictor(protocol, without, 0), PlacingPredictor)


async def test_metrics(shared: Shared) -> None:
    metrics = Metrics("m")
    metrics.watch_shared_memory(shared.predictor.use)
    async with shared.predictor:
        assert b"hf_transformer_shared_memory_registered 0.0" in metrics.render()
        await shared.registered()
        assert await shared.infer(1) == [1]
        lines = metrics.render().decode().splitlines()
    for line in (
        "hf_transformer_shared_memory_registered 1.0",
        'hf_transformer_shared_memory_slots{state="quarantined"} 0.0',
        f'hf_transformer_shared_memory_bytes{{state="free"}} {float(SIZE)}',
        'hf_transformer_shared_memory_batches_total{transfer="shared"} 1.0',
        'hf_transformer_shared_memory_batches_total{transfer="inline_unregistered"} 1.0',
    ):
        assert line in lines
