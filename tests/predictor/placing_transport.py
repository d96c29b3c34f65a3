"""A transport without a network: outputs go into the file of the region, as the predictor would write them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from hf_transformer.errors import PredictorError
from hf_transformer.predictor.base import Destination, PlacingPredictor, UnknownRegion
from hf_transformer.protocol.tensors import placed_tensor
from hf_transformer.types import ModelSpec, Tensor

SPEC = ModelSpec("m", "1", (), (), 0)


class PlacingTransport(PlacingPredictor):
    """``logits`` is the first input as FP32, ``more`` the same once again.

    A call waits for ``gates[id]``, where its first element is a key of ``gates``, and then writes and answers, or
    raises what the gate has. ``refusal`` is raised by every registration. With ``resends`` each call is sent twice,
    since its connection was stale.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.regions: dict[str, Path] = {}
        self.registered: list[str] = []
        self.gates: dict[int, asyncio.Future[None]] = {}
        self.refusal: Exception | None = None
        self.entered = self.left = self.attempts = 0
        self.open = False
        self.resends = False
        self.spec = SPEC

    async def __aenter__(self) -> Self:
        self.open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.open = False

    async def model_spec(self) -> ModelSpec:
        return self.spec

    async def model_ready(self) -> bool:
        return True

    def gate(self, number: int) -> asyncio.Future[None]:
        """Holds up calls whose input begins with ``number`` until the gate has a result or an exception."""
        return self.gates.setdefault(number, asyncio.get_running_loop().create_future())

    @asynccontextmanager
    async def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
        destination: Destination | None = None,
    ) -> AsyncIterator[Mapping[str, Tensor]]:
        assert self.open
        self.entered += 1
        data = inputs[0].data.astype("<f4")
        if destination is not None and destination.region not in self.regions:
            destination.settled = True
            raise UnknownRegion(f"Unable to find shared memory region: '{destination.region}'")
        if int(data.flat[0]) in self.gates:
            await self.gates[int(data.flat[0])]
        if destination is not None and self.resends:
            destination.inline = True
            yield {name: self.tensor(name, data, None) for name in outputs}
            return
        tensors = {name: self.tensor(name, data, destination) for name in outputs}
        if destination is not None:
            destination.settled = True
        yield tensors
        self.left += 1

    async def stream(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]
    ) -> AsyncGenerator[Mapping[str, Tensor], None]:
        """As ``infer`` without a destination, in one response."""
        async with self.infer(inputs, outputs, headers) as tensors:
            yield tensors

    def tensor(self, name: str, data: np.ndarray, destination: Destination | None) -> Tensor:
        if destination is None or name not in destination.placements:
            return Tensor(name, "FP32", data)
        place = destination.placements[name]
        with self.regions[place.region].open("r+b") as file:
            file.seek(place.offset)
            file.write(data.tobytes())
        return placed_tensor(name, "FP32", data.shape, place)

    async def register_region(self, name: str, key: str, byte_size: int) -> None:
        self.attempts += 1
        if self.refusal is not None:
            raise self.refusal
        path = self.folder / key.removeprefix("/")
        if name in self.registered or not path.is_file() or path.stat().st_size < byte_size:
            raise PredictorError(f"Unable to open shared memory region: '{key}'")
        self.registered.append(name)
        self.regions[name] = path

    async def unregister_region(self, name: str) -> None:
        self.regions.pop(name, None)

    async def region_names(self) -> Sequence[str]:
        return list(self.regions)
