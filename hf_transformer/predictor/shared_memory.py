"""Large outputs through shared memory: the predictor writes them to where they are decoded, and sends their shapes.

Where there is no shared memory, or no room in it, outputs travel in the response as ever. No request fails for it, and
none waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Self

from hf_transformer.following import Items
from hf_transformer.observability.metrics import SharedMemoryUse
from hf_transformer.predictor.base import PlacingPredictor, Predictor
from hf_transformer.predictor.placed_calls import Context, HeldPlacedCall, Outputs, PlacedCall, Slots
from hf_transformer.predictor.region_keeper import Pauses, RegionKeeper
from hf_transformer.predictor.responses import Watch
from hf_transformer.predictor.shared_region import FOLDER, remove_leftovers
from hf_transformer.types import NUMPY_DTYPES, ModelSpec, Tensor

SHORTEST_TEXT = 3
"""Tokens: one, and a special one on each side."""


def least_output_bytes(spec: ModelSpec) -> int:
    """Bytes of all outputs for one short text, as far as a model's configuration tells: an axis that it leaves free
    counts as SHORTEST_TEXT."""
    sizes = {"BF16": 2, **{name: dtype.itemsize for name, dtype in NUMPY_DTYPES.items()}}
    return sum(
        sizes.get(output.datatype, 0) * prod(size if size >= 0 else SHORTEST_TEXT for size in output.shape)
        for output in spec.outputs
    )


class SharedMemoryPredictor(Predictor):
    """A transport, with outputs in shared memory where their sizes are known and together at least ``min_bytes``.

    A call that has a slot is never given up: when its caller is cancelled it runs on, because the predictor would write
    into the slot all the same (a REST call can't be cancelled there, and a model may ignore that a gRPC call is). The
    slot is free when the response has been read. If the call ends otherwise, with a lost connection or its own timeout,
    then the slot is lost for the life of the region.

    Args:
        transport: what talks to the predictor; entered and left with this.
        size: bytes of shared memory.
        min_bytes: below it the response is as fast.
        warns: see RegionKeeper.
        folder, pauses: for tests.
    """

    def __init__(
        self,
        transport: PlacingPredictor,
        size: int,
        min_bytes: int,
        *,
        warns: bool = True,
        folder: Path = FOLDER,
        pauses: Pauses | None = None,
    ) -> None:
        self._transport = transport
        self._min_bytes = max(min_bytes, 1)
        self._folder = folder
        self._keeper = RegionKeeper(transport, size, warns=warns, folder=folder, pauses=pauses)
        self._slots = Slots(transport, self._keeper)

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        self._keeper.forget(remove_leftovers(self._folder))  # also where no region is ever wanted
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._slots.close()
        await self._keeper.close()
        await self._transport.__aexit__(kind, error, trace)

    async def model_spec(self) -> ModelSpec:
        """As the transport has it. Where every answer will be large a region is made now, not by the first request."""
        spec = await self._transport.model_spec()
        if not spec.decoupled and least_output_bytes(spec) >= self._min_bytes:
            self._keeper.want()
        return spec

    async def model_ready(self) -> bool:
        return await self._transport.model_ready()

    def use(self) -> SharedMemoryUse:
        """What there is in shared memory now, and how batches have travelled."""
        current = self._keeper.region
        regions = [*self._keeper.retired, *([current] if current else [])]
        return SharedMemoryUse(
            registered=current is not None,
            slots={
                "in_use": sum(region.taken_slots for region in regions),
                "quarantined": sum(region.lost_slots for region in regions),
            },
            bytes={
                "in_use": sum(region.taken_bytes for region in regions),
                "quarantined": sum(region.lost_bytes for region in regions),
                "free": current.free_bytes if current else 0,
            },
            batches=self._slots.batches,
        )

    def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> Context:
        if not sizes:
            return self._transport.infer(inputs, outputs, headers)
        lengths, total = [], 0
        for name in outputs:
            if name in sizes:
                lengths.append((name, sizes[name]))
                total += sizes[name]
        if total < self._min_bytes:
            return self._transport.infer(inputs, outputs, headers)
        call = HeldPlacedCall if self._transport.holds else PlacedCall
        return call(self._slots, inputs, outputs, headers, tuple(lengths))

    def shares(self, size: int) -> bool:
        region = self._keeper.region
        return size >= self._min_bytes and region is not None and region.fits(size)

    @property
    def streams_json(self) -> bool:
        return self._transport.streams_json

    def watches_streams(self, watch: Watch) -> bool:
        return self._transport.watches_streams(watch)

    def stream(self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]) -> Items[Outputs]:
        """As the transport has it: many responses can't share one place."""
        return self._transport.stream(inputs, outputs, headers)
