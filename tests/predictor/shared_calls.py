"""A SharedMemoryPredictor over a transport without a network, in a folder of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable
from hf_transformer.predictor.region_keeper import Pauses
from hf_transformer.predictor.shared_memory import SharedMemoryPredictor
from hf_transformer.types import Tensor
from tests.predictor.placing_transport import PlacingTransport

SIZE = 64 * 2**10
AT_ONCE = Pauses(unavailable=0.0, refused=0.0, registered=0.0, lost=0.0)
QUARTER = SIZE // 16
"""Elements of an output that takes a quarter of the region."""
ERRORS = [PredictorError("bad"), PredictorUnavailable("lost"), PredictorTimeout("late")]


class Shared:
    """A SharedMemoryPredictor over a PlacingTransport, in a folder of the test's own."""

    def __init__(self, folder: Path, size: int = SIZE, pauses: Pauses = AT_ONCE) -> None:
        self.folder = folder
        self.transport = PlacingTransport(folder)
        self.predictor = SharedMemoryPredictor(self.transport, size, min_bytes=1024, folder=folder, pauses=pauses)

    async def infer(self, number: int, count: int = QUARTER, *, outputs: tuple[str, ...] = ("logits",)) -> list[float]:
        """One call, whose outputs are ``count`` times ``number``; gives the values that there are."""
        tensor = Tensor("input_ids", "INT64", np.full(count, number))
        sizes = {name: 4 * count for name in outputs if name != "unsized"}
        async with self.predictor.infer([tensor], outputs, {}, sizes=sizes) as tensors:
            assert set(tensors) == set(outputs)
            assert all(tensor.shape == (count,) for tensor in tensors.values())
            return sorted({float(value) for tensor in tensors.values() for value in tensor.data})

    async def registered(self) -> None:
        """Has a region made by a first call."""
        assert await self.infer(99) == [99]
        await until(lambda: self.predictor.use().registered)

    async def attempted(self, times: int) -> None:
        """Waits until so many registrations were tried, and the last one has failed."""
        await until(lambda: self.transport.attempts == times and not self.files)

    @property
    def files(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()]

    def batches(self, transfer: str) -> int:
        return self.predictor.use().batches[transfer]

    def slots(self, state: str) -> int:
        return self.predictor.use().slots[state]


async def until(condition: Callable[[], bool]) -> None:
    end = asyncio.get_running_loop().time() + 10.0
    for _ in iter(condition, True):
        assert asyncio.get_running_loop().time() < end, "it did not happen in 10 s"
        await asyncio.sleep(0)
