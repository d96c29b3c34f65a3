"""Outputs through shared memory: whether the predictor sees our /dev/shm."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from hf_transformer.commands.doctor import samples
from hf_transformer.commands.doctor.findings import Finding, ok, skipped, warning
from hf_transformer.commands.doctor.server import CALL_SECONDS
from hf_transformer.commands.doctor.subject import Subject, known
from hf_transformer.core.batch import EncodingForm
from hf_transformer.errors import RequestError
from hf_transformer.model_wiring import filling
from hf_transformer.pair import BoundPair
from hf_transformer.predictor.base import Transport
from hf_transformer.predictor.shared_memory import FOLDER, MARGIN, Region, aligned, free_bytes
from hf_transformer.types import Tensor

OTHERWISE = "or set --predictor_shared_memory=off; outputs travel in the responses until then, and work as well"
MIB = 2**20
_RELATIVE, _ABSOLUTE = 2e-2, 1e-3
"""How far the outputs of two runs of one batch may differ: some models' sums come in another order each time."""


async def shared_memory(subject: Subject) -> Sequence[Finding]:
    """Whether a region can be registered, and an output comes through it. Raises RequestError."""
    pair, admin = known(subject.bound), known(subject.admin)
    config = pair.config
    if config.predictor_shared_memory != "auto":
        return skipped("switched off (--predictor_shared_memory)")
    largest = pair.signature.max_rows * pair.signature.output_bytes(pair.length)
    if largest < config.predictor_shared_memory_min_bytes:
        return skipped(
            f"not needed: a batch's outputs have {largest} bytes at most, "
            f"--predictor_shared_memory_min_bytes={config.predictor_shared_memory_min_bytes}"
        )
    if any(output.row_bytes(pair.length) is None for output in pair.signature.outputs):
        return skipped("the outputs' dims are free in config.pbtxt, so nobody knows their size beforehand")
    try:
        there = free_bytes(FOLDER)
    except OSError as exc:
        return warning(f"{FOLDER}: {exc.strerror}", f"mount an emptyDir with medium: Memory there, {OTHERWISE}")
    if there < config.predictor_shared_memory_bytes + MARGIN:
        return warning(
            f"{FOLDER} has {there // MIB} MiB left, --predictor_shared_memory_bytes asks for "
            f"{config.predictor_shared_memory_bytes // MIB} MiB and {MARGIN // MIB} MiB have to stay free",
            f"enlarge {FOLDER} (sizeLimit of the emptyDir, --shm-size), lower the flag, {OTHERWISE}",
        )
    try:
        async with asyncio.timeout(CALL_SECONDS):
            return await _try_out(admin, pair)
    except (RequestError, OSError) as error:  # TimeoutError is an OSError
        return warning(
            f"the predictor can't use our {FOLDER}: {str(error) or f'it gave no answer in {CALL_SECONDS:g} s'}",
            f"mount one emptyDir with medium: Memory at {FOLDER} in both containers (or --ipc=host), {OTHERWISE}",
        )


async def _try_out(transport: Transport, pair: BoundPair) -> Sequence[Finding]:
    """The sample's outputs, inline and through a region of our own. Raises RequestError and OSError."""
    form = EncodingForm(pair.signature, filling(pair.config, pair.tokenizer, pair.signature))
    packed = form.pack([samples.encoding(pair)])
    if not await try_region(transport, packed.inputs, packed.sizes):
        return warning(
            f"what the predictor writes into {FOLDER} does not arrive here",
            f"mount the same {FOLDER} in both containers, {OTHERWISE}",
        )
    return ok(f"{sum(packed.sizes.values())} bytes came through {FOLDER}")


async def try_region(transport: Transport, inputs: Sequence[Tensor], sizes: Mapping[str, int]) -> bool:
    """Whether the outputs of one batch come through a region of our own as they come inline; the region is gone then.

    Args:
        transport: open.
        inputs: of the batch.
        sizes: bytes of each output.

    Raises:
        RequestError: the predictor refuses the region or the batch.
        OSError: /dev/shm is missing or full.
    """
    reply = await transport.infer(inputs, list(sizes), {})
    inline = {name: tensor.data.copy() for name, tensor in reply.tensors.items()}
    reply.release()
    region = Region(sum(map(aligned, sizes.values())), FOLDER)
    try:
        await transport.register_region(region.name, region.key, region.size)
        try:
            await asyncio.to_thread(region.fill)
            slot = region.take(sizes)
            if slot is None:
                raise OSError(f"the region of {region.size} bytes has no place for {sizes}")
            reply = await transport.infer(inputs, list(sizes), {}, destination=slot.destination)
            shared = {name: tensor.data.copy() for name, tensor in reply.tensors.items()}
            reply.release()
        finally:
            with suppress(RequestError):
                await transport.unregister_region(region.name)
    finally:
        region.close()
    return all(np.allclose(data, shared[name], rtol=_RELATIVE, atol=_ABSOLUTE) for name, data in inline.items())
