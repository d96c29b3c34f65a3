"""Outputs through shared memory: whether the predictor sees our /dev/shm."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, closing, suppress

import numpy as np

from hf_transformer.app.wiring import BoundPair
from hf_transformer.commands.doctor.advice import GENERATES
from hf_transformer.commands.doctor.examination import Finding, Subject, ok, skipped, warning
from hf_transformer.commands.doctor.inference import form_of, sample
from hf_transformer.commands.doctor.model import CALL_SECONDS
from hf_transformer.core.batch import Packed
from hf_transformer.errors import RequestError
from hf_transformer.predictor.base import Transport
from hf_transformer.predictor.shared_memory import FOLDER, MARGIN, Region, aligned, free_bytes

OTHERWISE = "or set --predictor_shared_memory=off; outputs travel in the responses until then, and work as well"
MIB = 2**20
_RELATIVE, _ABSOLUTE = 2e-2, 1e-3
"""How far the outputs of two runs of one batch may differ: some models' sums come in another order each time."""


async def shared_memory(subject: Subject) -> list[Finding]:
    """Whether a region can be registered, and an output comes through it. Raises RequestError."""
    pair, config = subject.pair, subject.config
    if not isinstance(pair, BoundPair):
        return skipped(GENERATES)
    if config.predictor_shared_memory != "auto":
        return skipped("switched off (--predictor_shared_memory)")
    largest = pair.signature.max_rows * pair.signature.output_bytes(pair.length)
    if largest < config.predictor_shared_memory_min_bytes:
        return skipped(
            f"not needed: a batch's outputs have {largest} bytes at most, "
            f"--predictor_shared_memory_min_bytes={config.predictor_shared_memory_min_bytes}"
        )
    if any(output.row_bytes(pair.length) is None for output in pair.signature.outputs):
        return skipped("the outputs' dims are free in config.pbtxt, so their size is not known beforehand")
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
    packed = form_of(pair).pack([sample(pair)])
    try:
        async with asyncio.timeout(CALL_SECONDS):
            arrived = await _arrives(subject.admin, packed)
    except (RequestError, OSError) as error:  # TimeoutError is an OSError
        return warning(
            f"the predictor can't use our {FOLDER}: {str(error) or f'it gave no answer in {CALL_SECONDS:g} s'}",
            f"mount one emptyDir with medium: Memory at {FOLDER} in both containers (or --ipc=host), {OTHERWISE}",
        )
    if not arrived:
        return warning(
            f"what the predictor writes into {FOLDER} does not arrive here",
            f"mount the same {FOLDER} in both containers, {OTHERWISE}",
        )
    return ok(f"{sum(packed.sizes.values())} bytes came through {FOLDER}")


async def _arrives(transport: Transport, packed: Packed) -> bool:
    """Whether a batch's outputs come through a region of our own as they come inline.

    Raises:
        RequestError: the predictor refuses the region or the batch.
        OSError: /dev/shm is missing or full.
    """
    outputs = list(packed.sizes)
    with ExitStack() as stack:
        inline = await transport.infer(packed.inputs, outputs, {})
        stack.callback(inline.release)
        region = stack.enter_context(closing(Region(sum(map(aligned, packed.sizes.values())), FOLDER)))
        await transport.register_region(region.name, region.key, region.size)
        try:
            await asyncio.to_thread(region.fill)
            slot = region.take(packed.sizes)
            if slot is None:
                raise OSError(f"the region of {region.size} bytes has no place for {packed.sizes}")
            shared = await transport.infer(packed.inputs, outputs, {}, destination=slot.destination)
            stack.callback(shared.release)
        finally:
            with suppress(RequestError):
                await transport.unregister_region(region.name)
        return all(
            np.allclose(tensor.data, shared.tensors[name].data, rtol=_RELATIVE, atol=_ABSOLUTE)
            for name, tensor in inline.tensors.items()
        )
