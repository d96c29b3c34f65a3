"""Outputs through shared memory with the real Triton: the same numbers, whatever happens, and nothing left behind.

tests/integration/test_outages.py has a Triton that dies and comes back."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.errors import RequestError
from hf_transformer.predictor import open_transport
from hf_transformer.predictor.base import ModelCall, Predictor, PredictorSettings, Transport
from hf_transformer.predictor.region_files import FOLDER, PREFIX
from hf_transformer.predictor.registration import Pauses, is_disallowed
from hf_transformer.predictor.shared_memory import SharedMemory
from hf_transformer.types.tensors import Array, Tensor
from tests.support.polling import until
from tests.support.triton_26 import DISALLOWED

needs_regions = pytest.mark.only_triton_24
"""For tests of the regions themselves; with --triton=26 the two at the end say what is there instead of them."""
VOCABULARY = 1024
AT_ONCE = Pauses(unavailable=0.05, refused=0.05, registered=0.0, lost=0.0)


def transport(server: LocalTriton, protocol: str, model: str = "bert") -> Transport:
    address = server.http_address if protocol == "v2" else server.grpc_address
    return open_transport(protocol, PredictorSettings(model, address, timeout=30.0))


def shared(server: LocalTriton, protocol: str, size: int, model: str = "bert", **more: Any) -> SharedMemory:
    return SharedMemory(transport(server, protocol, model), size, 1, pauses=AT_ONCE, **more)


def ids(rows: int, tokens: int, seed: int = 0) -> Tensor:
    return Tensor("input_ids", "INT64", np.random.default_rng(seed).integers(5, 900, (rows, tokens)))


async def infer(
    predictor: Predictor, given: Sequence[Tensor], names: Sequence[str], sizes: Mapping[str, int]
) -> dict[str, Array]:
    """Copies of the outputs: the originals are gone when the reply is released."""
    reply = await predictor.infer(ModelCall(given, names, {}, sizes))
    try:
        return {name: np.array(tensor.data) for name, tensor in reply.tensors.items()}
    finally:
        reply.release()


async def logits(predictor: Predictor, given: Tensor) -> Array:
    return (await infer(predictor, [given], ["logits"], {"logits": given.data.size * VOCABULARY * 4}))["logits"]


async def registered(predictor: SharedMemory) -> None:
    await logits(predictor, ids(1, 2))
    await until(lambda: predictor.use().registered)


def region_of(predictor: SharedMemory) -> Path:
    region = predictor.registration.region
    assert region is not None
    return region.path


@pytest.fixture(scope="module")
def loaded(triton: LocalTriton, load: Callable[[str], None]) -> LocalTriton:
    for model in ("bert", "bert_two_outputs", "fault_slow"):
        load(model)
    return triton


@needs_regions
async def test_shared_memory_has_the_numbers_of_an_inline_response(loaded: LocalTriton, protocol: str) -> None:
    async with transport(loaded, protocol) as inline, shared(loaded, protocol, 16 * 2**20) as predictor:
        await registered(predictor)
        shapes = [(1, 1), (1, 9), (8, 2), (3, 77), (8, 120), (1, 1)]
        for seed, (rows, tokens) in enumerate(shapes):
            given = ids(rows, tokens, seed)
            assert np.array_equal(await logits(predictor, given), await logits(inline, given))
        use = predictor.use()
        assert (use.batches["shared"], use.slots["in_use"], use.slots["quarantined"]) == (len(shapes), 0, 0)


@needs_regions
async def test_one_of_several_outputs_may_be_inline(loaded: LocalTriton, protocol: str) -> None:
    names = ["logits", "pooled"]
    inputs = [ids(2, 6)]
    inputs += [
        Tensor(name, "INT64", np.full((2, 6), value)) for name, value in (("attention_mask", 1), ("token_type_ids", 0))
    ]
    async with (
        transport(loaded, protocol, "bert_two_outputs") as inline,
        shared(loaded, protocol, 2**20, "bert_two_outputs") as predictor,
    ):
        expected = await infer(inline, inputs, names, {})
        every = {name: array.nbytes for name, array in expected.items()}
        predictor.registration.want()
        await until(lambda: predictor.use().registered)
        for placed in (names, names[:1], names[1:]):
            sizes = {name: every[name] for name in placed}
            outputs = await infer(predictor, inputs, names, sizes)
            assert set(outputs) == set(names)
            assert all(np.array_equal(outputs[name], expected[name]) for name in names)
        assert predictor.use().batches["shared"] == 3


@needs_regions
async def test_many_calls_share_few_slots_without_mixing_their_numbers(loaded: LocalTriton, protocol: str) -> None:
    inputs = [ids(1, 8, seed) for seed in range(64)]
    async with transport(loaded, protocol) as inline, shared(loaded, protocol, 5 * 2**15) as predictor:
        expected = [await logits(inline, tensors) for tensors in inputs]
        await registered(predictor)
        for _ in range(3):
            found = await asyncio.gather(*(logits(predictor, tensors) for tensors in inputs))
            # Triton runs them together as it likes, so the last digit is not always the same.
            assert all(np.allclose(tensors, other, atol=1e-4) for tensors, other in zip(found, expected, strict=True))
        batches = predictor.use().batches
        assert batches["shared"] >= 15 and batches["inline_full"] > 0
        assert batches["shared"] + batches["inline_full"] == 3 * 64
        assert predictor.use().bytes == {"in_use": 0, "quarantined": 0, "free": 5 * 2**15}


@needs_regions
async def test_nobody_reads_what_an_abandoned_call_writes(loaded: LocalTriton, protocol: str) -> None:
    """Its slot is quarantined at once, while the model works on."""
    mine, later = ids(1, 16, 1), ids(1, 16, 2)
    room = 3 * mine.data.size * VOCABULARY * 4
    async with transport(loaded, protocol) as inline, shared(loaded, protocol, room, "fault_slow") as predictor:
        expected = await logits(inline, later)
        predictor.registration.want()
        await until(lambda: predictor.use().registered)
        call = asyncio.create_task(logits(predictor, mine))
        await until(lambda: predictor.use().slots["in_use"] == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert predictor.use().slots == {"in_use": 0, "quarantined": 1}
        for _ in range(2):
            assert np.array_equal(await logits(predictor, later), expected)
        assert predictor.use().slots == {"in_use": 0, "quarantined": 1}
        assert predictor.use().batches["shared"] == 2


@needs_regions
async def test_the_predictor_forgets_what_is_no_longer_used(loaded: LocalTriton, protocol: str) -> None:
    async with transport(loaded, protocol) as plain:
        async with shared(loaded, protocol, 2**20) as predictor:
            await registered(predictor)
            mine = region_of(predictor)
            assert mine.exists() and mine.name in await plain.region_names()
        assert not mine.exists() and mine.name not in await plain.region_names()

        leftover = await left_behind(plain)
        async with shared(loaded, protocol, 2**20) as predictor:
            assert not leftover.exists()
            await registered(predictor)
            for _ in range(2000):
                if leftover.name not in await plain.region_names():
                    break
                await asyncio.sleep(0.01)
            else:
                raise AssertionError("Triton still has it after 20 s")


async def left_behind(plain: Transport) -> Path:
    """A registered file whose owner has died. Until it is registered it is locked: others run tests here too.

    It is locked before it has its name, by which they would find it.
    """
    path = FOLDER / f"{PREFIX}{secrets.token_hex(16)}"
    with path.with_name(f"unnamed_{path.name}").open("xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(bytes(4096))
        file.flush()
        os.rename(file.name, path)
        await plain.register_region(path.name, 4096)
    return path


@pytest.mark.only_triton_26
async def test_refused_regions_change_no_number(
    loaded: LocalTriton, protocol: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every call is inline and right, the log has the refusal once, and no file stays."""
    predictor = SharedMemory(transport(loaded, protocol), 16 * 2**20, 1, folder=tmp_path)
    async with transport(loaded, protocol) as inline, predictor:
        await logits(predictor, ids(1, 2))
        await until(lambda: DISALLOWED in caplog.text)
        shapes = [(1, 1), (1, 9), (8, 2), (3, 77), (8, 120), (1, 1)]
        for seed, (rows, tokens) in enumerate(shapes):
            given = ids(rows, tokens, seed)
            assert np.array_equal(await logits(predictor, given), await logits(inline, given))
        use = predictor.use()
    assert not use.registered
    assert use.batches == {"shared": 0, "inline_full": 0, "inline_unregistered": len(shapes) + 1, "inline_resent": 0}
    assert caplog.text.count(DISALLOWED) == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.only_triton_26
async def test_a_triton_without_client_memory_refuses_regions_and_lists_none(
    loaded: LocalTriton, protocol: str
) -> None:
    """Regions are neither registered nor unregistered; the list of them is answered, and empty."""
    async with transport(loaded, protocol) as client:
        for refused in (client.register_region("region", 64), client.unregister_region("region")):
            with pytest.raises(RequestError) as caught:
                await refused
            assert is_disallowed(caught.value) and DISALLOWED in str(caught.value)
        assert list(await client.region_names()) == []
