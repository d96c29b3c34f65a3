"""Calls whose outputs go into slots of shared memory, and what becomes of a slot when its call ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, cast

from hf_transformer.predictor.base import Destination, DetachableCall, HeldCall, PlacingPredictor, UnknownRegion
from hf_transformer.predictor.region_keeper import RegionKeeper
from hf_transformer.predictor.shared_region import Region
from hf_transformer.types import Tensor

Outputs = Mapping[str, Tensor]
Context = AbstractAsyncContextManager[Outputs]


@dataclass(slots=True, eq=False)
class Slot:
    """The slot of one call, with a place for each of its outputs."""

    region: Region
    offset: int
    size: int
    destination: Destination


class Slots:
    """Hands out the slots of the region that there is, and knows the calls that have one."""

    def __init__(self, transport: PlacingPredictor, keeper: RegionKeeper) -> None:
        self.transport = transport
        self.keeper = keeper
        self.batches = {"shared": 0, "inline_full": 0, "inline_unregistered": 0, "inline_resent": 0}
        """How many large batches have travelled how."""
        self.held: set[DetachableCall] = set()
        """Calls that are being entered."""
        self._left: set[Slot] = set()
        self._calls: set[asyncio.Future[Any]] = set()

    def take(self, lengths: tuple[tuple[str, int], ...]) -> Slot | None:
        """A slot for outputs of so many bytes each, None where they travel inline."""
        region = self.keeper.region
        if region is None:
            self.keeper.want()
            self.batches["inline_unregistered"] += 1
            return None
        taken = region.place(lengths)
        if taken is None:
            self.batches["inline_full"] += 1
            return None
        offset, size, placements = taken
        return Slot(region, offset, size, Destination(region.name, placements))

    def give_back(self, slot: Slot) -> None:
        """A slot's call has ended, as far as we know."""
        slot.region.give_back(slot.offset, slot.size, settled=slot.destination.settled)
        self.keeper.slot_ended(slot.region)

    def unknown(self, slot: Slot) -> None:
        """The predictor has no such region."""
        self.give_back(slot)
        self.keeper.unknown(slot.region)
        self.batches["inline_resent"] += 1

    def kept(self, call: asyncio.Future[Any]) -> asyncio.Future[Any]:
        """A task of ours, which the event loop alone would let be collected."""
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    def abandoned(self, slot: Slot, context: Context, call: asyncio.Future[Outputs]) -> None:
        """A call has ended whose caller has gone."""
        if call.cancelled() or call.exception() is not None:
            self.give_back(slot)
        else:
            self.kept(asyncio.ensure_future(self.leave(slot, context)))

    def stays(self, slot: Slot) -> None:
        """A call goes on whose caller has gone; ``ended`` tells of its end."""
        self._left.add(slot)

    def ended(self, slot: Slot) -> None:
        """Such a call has ended."""
        if slot in self._left:
            self._left.remove(slot)
            self.give_back(slot)

    async def leave(self, slot: Slot, context: Context) -> None:
        """The outputs were read."""
        try:
            await context.__aexit__(None, None, None)
        finally:
            self.give_back(slot)

    async def close(self) -> None:
        """Breaks off the calls that are under way."""
        while self.held:
            for held in tuple(self.held):
                held.break_off()
            await asyncio.sleep(0)
        for slot in tuple(self._left):
            self.ended(slot)
        while self._calls:
            calls = list(self._calls)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await asyncio.sleep(0)  # their callbacks


class PlacedCall(AbstractAsyncContextManager[Outputs]):
    """A call of ``infer`` with large outputs: with a slot where there is one, else inline.

    One that has a slot runs on, in a task of its own, when its caller goes away.
    """

    __slots__ = ("_context", "_deadline", "_headers", "_inputs", "_lengths", "_outputs", "_slot", "_slots")

    def __init__(
        self,
        slots: Slots,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        lengths: tuple[tuple[str, int], ...],
    ) -> None:
        """lengths: the outputs that go into the slot, and their bytes; the other arguments are those of ``infer``."""
        self._slots = slots
        self._inputs = inputs
        self._outputs = outputs
        self._headers = headers
        self._lengths = lengths
        self._slot: Slot | None = None
        self._deadline: float | None = None
        self._context: Context

    async def __aenter__(self) -> Outputs:
        slots = self._slots
        slot = slots.take(self._lengths)
        if slot is not None:
            context = self._context = self._placed(slot)
            try:
                outputs = await self._entered(slot, context)
            except UnknownRegion:
                slots.unknown(slot)
            else:
                self._answered(slot)
                return outputs
        self._context = self._inline()
        return await self._context.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._slot is None:
            return await self._context.__aexit__(kind, error, trace)
        await self._slots.leave(self._slot, self._context)
        return None

    async def _entered(self, slot: Slot, context: Context) -> Outputs:
        """The outputs of a call with a slot, which is given back if there are none."""
        slots = self._slots
        call = slots.kept(asyncio.ensure_future(context.__aenter__()))
        try:
            outputs: Outputs = await asyncio.shield(call)
        except asyncio.CancelledError:
            call.add_done_callback(partial(slots.abandoned, slot, context))
            raise
        except UnknownRegion:
            raise
        except BaseException:
            slots.give_back(slot)
            raise
        return outputs

    def _answered(self, slot: Slot) -> None:
        """The outputs are there, in the slot unless they were asked for inline after all."""
        self._slot = slot
        self._slots.batches["inline_resent" if slot.destination.inline else "shared"] += 1

    def _placed(self, slot: Slot) -> Context:
        transport = self._slots.transport
        return transport.infer(self._inputs, self._outputs, self._headers, destination=slot.destination)

    def _inline(self) -> Context:
        return self._slots.transport.infer(self._inputs, self._outputs, self._headers)


class HeldPlacedCall(PlacedCall, HeldCall):
    """The same over a transport whose calls are DetachableCalls, without a task."""

    __slots__ = ()

    def hold(self, deadline: float) -> None:
        self._deadline = deadline

    async def __aenter__(self) -> Outputs:
        slots = self._slots
        slot = slots.take(self._lengths)
        if slot is not None:
            context = cast(DetachableCall, self._placed(slot))
            if self._deadline is None:
                context.let_go(partial(slots.ended, slot))
            else:
                context.hold(self._deadline)
            slots.held.add(context)
            try:
                outputs = await context.__aenter__()
            except UnknownRegion:
                slots.unknown(slot)
            except BaseException:
                if context.goes_on:
                    slots.stays(slot)
                else:
                    slots.give_back(slot)
                raise
            else:
                self._answered(slot)
                return outputs
            finally:
                slots.held.discard(context)
        self._context = self._inline()
        return await self._context.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._slot is None:
            return await self._context.__aexit__(kind, error, trace)
        self._slots.give_back(self._slot)  # the call itself has nothing to give back
        return None

    def _inline(self) -> Context:
        context = super()._inline()
        if self._deadline is not None and isinstance(context, HeldCall):
            context.hold(self._deadline)
        return context
