"""Tries out whether a predictor can write outputs into our shared memory, with a region that is gone afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from hf_transformer.errors import RequestError
from hf_transformer.predictor.base import Destination, PlacingPredictor
from hf_transformer.predictor.shared_region import FOLDER, Region, aligned
from hf_transformer.protocol.tensors import Placement
from hf_transformer.types import Tensor

_RELATIVE, _ABSOLUTE = 2e-2, 1e-3
"""How far the outputs of two runs of one batch may differ: some models' sums come in another order each time."""


async def try_region(
    predictor: PlacingPredictor, inputs: Sequence[Tensor], sizes: Mapping[str, int], folder: Path = FOLDER
) -> bool:
    """Whether the outputs of one batch come through a region as they come inline.

    Args:
        predictor: open.
        inputs: of the batch.
        sizes: bytes of each output.
        folder: where the region's file is made, which the predictor looks for in its own /dev/shm.

    Raises:
        RequestError: the predictor refuses the region or the batch.
        OSError: /dev/shm is missing or full.
    """
    async with predictor.infer(inputs, list(sizes), {}) as tensors:
        inline = {name: tensor.data.copy() for name, tensor in tensors.items()}
    region = Region(sum(map(aligned, sizes.values())), folder)
    try:
        await predictor.register_region(region.name, region.key, region.size)
        try:
            await asyncio.to_thread(region.fill)
            destination = Destination(region.name, _places(region, sizes))
            async with predictor.infer(inputs, list(sizes), {}, destination=destination) as tensors:
                return not destination.inline and all(
                    np.allclose(data, tensors[name].data, rtol=_RELATIVE, atol=_ABSOLUTE)
                    for name, data in inline.items()
                )
        finally:
            with suppress(RequestError):
                await predictor.unregister_region(region.name)
    finally:
        region.close()


def _places(region: Region, sizes: Mapping[str, int]) -> dict[str, Placement]:
    places = {}
    for name, size in sizes.items():
        taken = region.take(size)
        if taken is None:
            raise OSError(f"the region of {region.size} bytes has no place for {size}")
        offset, memory = taken
        places[name] = Placement(region.name, offset, memory[:size])
    return places
