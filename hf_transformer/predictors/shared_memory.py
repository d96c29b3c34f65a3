"""Large outputs through shared memory: the predictor writes them to where they are decoded, and sends their shapes.

Where there is no shared memory, or no room in it, outputs travel in the response as ever. No request fails for it, and
none waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hf_transformer.metrics import SharedMemoryUse
from hf_transformer.predictors.base import Destination, PlacingPredictor, Predictor, UnknownRegion
from hf_transformer.predictors.region_keeper import Pauses, RegionKeeper
from hf_transformer.predictors.shared_region import FOLDER, Region, aligned, remove_leftovers
from hf_transformer.types import NUMPY_DTYPES, ModelSpec, Tensor
from hf_transformer.wire.placements import Placement

Outputs = Mapping[str, Tensor]


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


@dataclass(frozen=True, slots=True)
class _Slot:
    """The slot of one call, with a place for each of its outputs."""

    region: Region
    offset: int
    size: int
    destination: Destination


class SharedMemoryPredictor(Predictor):
    """A transport, with outputs in shared memory where their sizes are known and together at least ``min_bytes``.

    A call that has a slot is never given up: when its caller goes away it runs on, because the predictor would write
    into the slot all the same (a REST call can't be cancelled there, and a model may ignore that a gRPC call is). The
    slot is free when the response has been read. If the call ends otherwise, with a lost connection or its own timeout,
    then the slot is lost for the life of the region.

    Args:
        transport: what talks to the predictor; entered and left with this.
        size: bytes of shared memory.
        min_bytes: below it the response is as fast.
        folder, pauses: for tests.
    """

    def __init__(
        self,
        transport: PlacingPredictor,
        size: int,
        min_bytes: int,
        *,
        folder: Path = FOLDER,
        pauses: Pauses | None = None,
    ) -> None:
        self._transport = transport
        self._min_bytes = max(min_bytes, 1)
        self._folder = folder
        self._keeper = RegionKeeper(transport, size, folder=folder, pauses=pauses)
        self._calls: set[asyncio.Future[Any]] = set()
        self._batches = {"shared": 0, "inline_full": 0, "inline_unregistered": 0, "inline_resent": 0}

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        remove_leftovers(self._folder)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._calls:
            calls = list(self._calls)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await asyncio.sleep(0)  # their callbacks
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
            batches=self._batches,
        )

    @asynccontextmanager
    async def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> AsyncIterator[Outputs]:
        slot = self._take(outputs, sizes) if sizes else None
        if slot is not None:
            context = self._transport.infer(inputs, outputs, headers, destination=slot.destination)
            tensors = await self._enter(slot, context)
            if tensors is not None:
                try:
                    yield tensors
                finally:
                    await self._leave(slot, context)
                return
        async with self._transport.infer(inputs, outputs, headers) as tensors:
            yield tensors

    @property
    def streams_json(self) -> bool:
        return self._transport.streams_json

    def stream(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]
    ) -> AsyncGenerator[Outputs, None]:
        """As the transport has it: many responses can't share one place."""
        return self._transport.stream(inputs, outputs, headers)

    def stops_when_cancelled(self, sizes: Mapping[str, int]) -> bool:
        """A call that may have a slot is left to run on, since the predictor may still write there."""
        return sum(sizes.values()) < self._min_bytes and self._transport.stops_when_cancelled(sizes)

    def _take(self, outputs: Sequence[str], sizes: Mapping[str, int]) -> _Slot | None:
        """A slot for the outputs with known sizes, None where they travel inline."""
        placed = [name for name in outputs if name in sizes]
        if sum(sizes[name] for name in placed) < self._min_bytes:
            return None
        region = self._keeper.region
        if region is None:
            self._keeper.want()
            self._batches["inline_unregistered"] += 1
            return None
        size = sum(aligned(sizes[name]) for name in placed)
        taken = region.take(size)
        if taken is None:
            self._batches["inline_full"] += 1
            return None
        offset, memory = taken
        placements, position = {}, 0
        for name in placed:
            place = memory[position : position + sizes[name]]
            placements[name] = Placement(region.name, offset + position, place)
            position += aligned(sizes[name])
        return _Slot(region, offset, size, Destination(region.name, placements))

    async def _enter(self, slot: _Slot, context: AbstractAsyncContextManager[Outputs]) -> Outputs | None:
        """The outputs; None where the predictor has no region, so that the call is to be made again, inline."""
        call = self._kept(asyncio.ensure_future(context.__aenter__()))
        try:
            tensors: Outputs = await asyncio.shield(call)
        except asyncio.CancelledError:
            call.add_done_callback(partial(self._abandoned, slot, context))
            raise
        except UnknownRegion:
            self._give_back(slot)
            self._keeper.unknown(slot.region)
            self._batches["inline_resent"] += 1
            return None
        except BaseException:
            self._give_back(slot)
            raise
        self._batches["inline_resent" if slot.destination.inline else "shared"] += 1
        return tensors

    def _abandoned(
        self, slot: _Slot, context: AbstractAsyncContextManager[Outputs], call: asyncio.Future[Outputs]
    ) -> None:
        """A call has ended whose caller has gone."""
        if call.cancelled() or call.exception() is not None:
            self._give_back(slot)
        else:
            self._kept(asyncio.ensure_future(self._leave(slot, context)))

    async def _leave(self, slot: _Slot, context: AbstractAsyncContextManager[Outputs]) -> None:
        try:
            await context.__aexit__(None, None, None)
        finally:
            self._give_back(slot)

    def _give_back(self, slot: _Slot) -> None:
        slot.region.give_back(slot.offset, slot.size, settled=slot.destination.settled)
        self._keeper.slot_ended(slot.region)

    def _kept(self, call: asyncio.Future[Any]) -> asyncio.Future[Any]:
        """The event loop alone would let it be collected."""
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call
