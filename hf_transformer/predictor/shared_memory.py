"""Large outputs in shared memory: the predictor writes them to /dev/shm, and its response has only their shapes.

Without free shared memory, outputs are inline, in the response. No request fails or waits for shared memory.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_transformer.observability.metrics import SharedMemoryUse
from hf_transformer.predictor.base import (
    ModelCall,
    Outputs,
    Predictor,
    Reply,
    StaleConnection,
    Transport,
    UnknownRegion,
)
from hf_transformer.predictor.region_files import FOLDER, remove_leftovers
from hf_transformer.predictor.regions import Slot, aligned
from hf_transformer.predictor.registration import Pauses, Registration
from hf_transformer.types.tensors import NUMPY_DTYPES, ModelSpec


class SharedMemory(Predictor):
    """A transport with outputs in shared memory, where their sizes are known. Other outputs are inline.

    Args:
        transport: the transport, whose context is entered and left with this one.
        size: the size of the shared memory in bytes.
        min_bytes: the smallest total size of a call's outputs that uses shared memory. It saves no time below.
        warns: whether to log problems as warnings; true in one worker.
        folder, pauses: replaced in tests.
    """

    def __init__(
        self,
        transport: Transport,
        size: int,
        min_bytes: int,
        *,
        warns: bool = True,
        folder: Path = FOLDER,
        pauses: Pauses | None = None,
        model_name: str = "",
    ) -> None:
        self.transport = transport
        self.streams_json = transport.streams_json
        settled = pauses or Pauses()
        self.registration = Registration(
            transport, size, warns=warns, folder=folder, pauses=settled, model_name=model_name
        )
        self._min_bytes = max(min_bytes, 1)
        self._folder = folder
        self._batches = {"shared": 0, "inline_full": 0, "inline_unregistered": 0, "inline_resent": 0}

    async def open(self) -> None:
        await self.transport.__aenter__()
        self.registration.unregister(*remove_leftovers(self._folder))  # even if this process never registers a region

    async def close(self) -> None:
        await self.registration.close()
        await self.transport.__aexit__(None, None, None)

    async def model_spec(self) -> ModelSpec:
        """Reads the description. If all outputs are large, starts a registration before the first request."""
        spec = await self.transport.model_spec()
        if not spec.decoupled and min_output_bytes(spec) >= self._min_bytes:
            self.registration.want()
        return spec

    async def model_ready(self) -> bool:
        return await self.transport.model_ready()

    def infer(self, call: ModelCall) -> Coroutine[Any, Any, Reply]:
        slot = self._take(call.outputs, call.sizes) if call.sizes else None
        return self.transport.infer(call) if slot is None else self._infer_into(slot, call)

    async def _infer_into(self, slot: Slot, call: ModelCall) -> Reply:
        """Runs the model once with the outputs in a slot, or inline if the slot can't be used."""
        try:
            reply = await self.transport.infer(call, slot.destination)
        except (UnknownRegion, StaleConnection) as error:
            self.registration.give_back(slot)
            if isinstance(error, UnknownRegion):
                self.registration.unknown(slot.region)
            self._batches["inline_resent"] += 1
        except BaseException:
            self.registration.give_back(slot)
            raise
        else:
            self._batches["shared"] += 1

            def release() -> None:
                reply.release()
                self.registration.give_back(slot)

            return Reply(reply.tensors, release)
        return await self.transport.infer(call)

    def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        return self.transport.stream(call)  # inline: several responses can't share one slot

    def shares(self, size: int) -> bool:
        region = self.registration.region
        return size >= self._min_bytes and region is not None and region.free_list.fits(aligned(size))

    def use(self) -> SharedMemoryUse:
        """The present use of shared memory, and the counts of batches with large outputs."""
        current = self.registration.region
        regions = self.registration.retired | ({current} if current else set())
        return SharedMemoryUse(
            registered=current is not None,
            slots={
                "in_use": sum(region.taken_slots for region in regions),
                "quarantined": sum(region.lost_slots for region in regions),
            },
            bytes={
                "in_use": sum(region.taken_bytes for region in regions),
                "quarantined": sum(region.lost_bytes for region in regions),
                "free": current.free_list.free_bytes if current else 0,
            },
            batches=self._batches,
        )

    def _take(self, outputs: Sequence[str], sizes: Mapping[str, int]) -> Slot | None:
        """A slot for the outputs of known size, None if all are inline."""
        if sum(sizes.values()) < self._min_bytes:
            return None
        region = self.registration.usable()
        if region is None:
            self._batches["inline_unregistered"] += 1
            return None
        slot = region.take({name: sizes[name] for name in outputs if name in sizes})
        if slot is None:
            self._batches["inline_full"] += 1
        return slot


def min_output_bytes(spec: ModelSpec) -> int:
    """Bytes of all outputs for one short text, estimated from a model's configuration.

    A free axis counts as 3: one word between two special tokens.
    """
    sizes = {"BF16": 2, **{name: dtype.itemsize for name, dtype in NUMPY_DTYPES.items()}}
    return sum(
        sizes.get(output.datatype, 0) * math.prod(size if size >= 0 else 3 for size in output.shape)
        for output in spec.outputs
    )
