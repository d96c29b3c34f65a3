"""Registration of a region of shared memory at the predictor, and its replacement, in the background."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.observability.logging import ModelLog
from hf_transformer.predictor.base import Transport
from hf_transformer.predictor.region_files import FOLDER, PREFIX, remove_leftovers
from hf_transformer.predictor.regions import Region, Slot

logger = logging.getLogger(__name__)

_REGISTER_SECONDS, _SHUTDOWN_SECONDS = 5.0, 1.0
"""Timeouts for registering a region, and for unregistering all regions at the end of the service."""

ALLOW_FLAG = "--allow-client-shm=true"
"""The flag of tritonserver that Triton 26.04 and newer need for regions; their error message names it. Older versions
don't start with it."""
ADVICE_TO_ALLOW = f"start Triton with {ALLOW_FLAG}, which 26.04 and newer need"

_MAX_LOST_REGIONS = 2
"""The most abandoned regions at the predictor. Beyond it, no new region is registered until one is unmapped."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Pauses in seconds; tests use shorter ones.

    Attributes:
        unavailable: after a registration that did not reach the predictor; doubles each time.
        refused: after a registration that the predictor refused.
        registered: after a successful registration.
        lost: before unregistering a region to which requests may still write.
    """

    unavailable: float = 1.0
    refused: float = 300.0
    registered: float = 10.0
    lost: float = 60.0


class Registration:
    """Registers one region in the background. No call waits for it.

    The region is created at the start if all outputs are large, else for the first large ones. A new region, with a new
    name, replaces it after a restart of the predictor, and when more than half of its bytes are quarantined. The
    arguments are SharedMemory's.
    """

    def __init__(
        self, transport: Transport, size: int, *, warns: bool, folder: Path, pauses: Pauses, model_name: str = ""
    ) -> None:
        self.region: Region | None = None
        self.retired: set[Region] = set()
        """Replaced regions with slots in use."""
        self._log = ModelLog(logger, model_name)
        self._transport = transport
        self._size = size
        self._level = logging.WARNING if warns else logging.INFO
        self._folder = folder
        self._pauses = pauses
        self._pause = pauses.unavailable
        self._not_before = -math.inf
        self._registering: asyncio.Task[None] | None = None
        self._unregistering: dict[str, asyncio.Task[None]] = {}
        """Tasks that unregister regions, by the region's name."""
        self._unused: set[str] = set()
        """Regions at the predictor that no call has used."""
        self._lost: set[str] = set()
        """Regions at the predictor that were replaced for their quarantined slots."""
        self._unknown: set[str] = set()
        """Regions that the predictor has lost in a restart."""
        self._no_space = False
        self._failure_logged = False
        self._stopped = False
        """Whether the registration of regions has ended permanently."""

    def usable(self) -> Region | None:
        """The region for a new call. If there is none, returns None and starts a registration."""
        if self.region is not None and not self.region.is_whole:
            self._log.warning("the shared memory %s was cut by another process; it is replaced", self.region.path)
            self._retire(self.region, self._lost)
        if self.region is None:
            self.want()
        return self.region

    def want(self) -> None:
        """Starts a registration, except during another registration or a pause."""
        if self.region is not None or self._registering is not None or self._stopped:
            return
        now = asyncio.get_running_loop().time()
        if now >= self._not_before and len(self._lost) < _MAX_LOST_REGIONS:
            self._not_before = now + self._pauses.refused  # in case a bug ends the task
            self._registering = asyncio.create_task(self._register())

    def unknown(self, region: Region) -> None:
        """Replaces a region that the predictor has lost in a restart."""
        if region is self.region:
            self._log.info("the predictor has lost its shared memory, as after a restart")
            self._retire(region, self._unknown)
            self.want()

    def give_back(self, slot: Slot) -> None:
        """Ends the use of a slot. Replaces its region if too much is quarantined, and removes it if it was replaced."""
        region = slot.region
        region.give_back(slot)
        if region is self.region and region.lost_bytes * 2 > region.size:
            self._log.warning("more than half of the shared memory is lost to calls that had no answer; it is replaced")
            self._retire(region, self._lost)
        elif region in self.retired:
            self._close_if_unused(region)

    def unregister(self, *names: str, at_once: bool = False) -> None:
        """Starts unregistering regions, after a pause in which requests can end."""
        for name in names:
            if name not in self._unregistering:
                pause = 0.0 if at_once else self._pauses.lost
                self._unregistering[name] = asyncio.create_task(self._unregister_when_unused(name, pause))

    async def close(self) -> None:
        """Ends the registration, unregisters unused regions, and removes the files.

        Regions in use stay at the predictor: Triton before 24.09 would unmap them during their calls.
        """
        self._stopped = True
        if self._registering is not None:
            await _cancel(self._registering)  # may start unregistering its region
        await _cancel(*self._unregistering.values())
        region, self.region = self.region, None
        idle, busy = self._unused, (self._unregistering.keys() - self._unused) | self._lost
        if region is not None:
            (busy if region.taken_slots or region.lost_slots else idle).add(region.name)
        with suppress(TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_SECONDS):
                for name in idle:
                    with suppress(RequestError):
                        await self._transport.unregister_region(name)
        for open_region in self.retired | ({region} if region else set()):
            open_region.close()
        self.retired.clear()
        if busy:
            self._log.info("left at the predictor, since calls may still use them: %s", ", ".join(sorted(busy)))

    async def _register(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self.region = await self._new_region()
        except (OSError, RequestError) as error:  # TimeoutError is an OSError
            unreachable = isinstance(error, PredictorUnavailable | PredictorTimeout | TimeoutError)
            self._no_space = isinstance(error, OSError) and not unreachable
            pause = self._pause if unreachable else self._pauses.refused
            if unreachable:
                self._pause = min(2 * pause, self._pauses.refused)
            self._not_before = loop.time() + pause
            if not self._failure_logged:
                self._failure_logged = True
                self._log.log(
                    self._level,
                    "outputs travel inline, not through shared memory, and work as well: %s",
                    _reason(error),
                )
        else:
            self._no_space = False
            self._pause = self._pauses.unavailable
            self._not_before = loop.time() + self._pauses.registered
            self._failure_logged = False
            self._log.info("large outputs travel through shared memory, %d bytes in %s", self._size, self.region.path)
        finally:
            self._registering = None

    async def _new_region(self) -> Region:
        """Creates a region, registers it and allocates its memory.

        The registration precedes the allocation: if the predictor finds the file, both share one /dev/shm. A region
        without a file then belongs to a dead process, and unregistering it may free the missing space.
        """
        remove_leftovers(self._folder)
        region = Region(self._size, self._folder)
        registered = False
        try:
            async with asyncio.timeout(_REGISTER_SECONDS):
                await self._transport.register_region(region.name, region.size)
                registered = True
                names = await self._transport.region_names()
            if self._unknown.intersection(names):
                self._stopped = True  # requests alternate between predictors
                raise PredictorError("several predictors answer at one address")
            ours = [name for name in names if name.startswith(PREFIX)]
            self.unregister(*[name for name in ours if not (self._folder / name).exists()])
            await _fill(region)
        except BaseException:
            region.close()
            if registered:  # else the next registration finds and unregisters it
                self._unused.add(region.name)
                self.unregister(region.name, at_once=True)
            raise
        return region

    def _retire(self, region: Region, names: set[str]) -> None:
        """Stops using the region, and adds it to the names of lost or of unknown regions."""
        names.add(region.name)
        self.region = None
        self.retired.add(region)
        self._close_if_unused(region)

    def _close_if_unused(self, region: Region) -> None:
        """Removes a region's file if no slot is in use. The memory is freed once the predictor unmaps the region."""
        if not region.taken_slots:
            self.retired.discard(region)
            region.close()
            if region.name in self._lost:
                self.unregister(region.name)

    async def _unregister_when_unused(self, name: str, pause: float) -> None:
        """Unregisters a region. Repeats it while Triton (24.09 and newer) refuses because of running calls."""
        while True:
            await asyncio.sleep(pause)
            pause = self._pauses.lost
            try:
                async with asyncio.timeout(_REGISTER_SECONDS):
                    await self._transport.unregister_region(name)
                break
            except (RequestError, TimeoutError) as error:
                if is_disallowed(error):  # the predictor then has no regions
                    break
        del self._unregistering[name]
        self._lost.discard(name)
        if name in self._unused:  # had no memory to free
            self._unused.remove(name)
        elif self._no_space:
            self._not_before = -math.inf
            self.want()


def is_disallowed(error: Exception) -> bool:
    """Whether an error means that the predictor refuses all regions of clients (501 or UNIMPLEMENTED)."""
    return isinstance(error, RequestError) and ALLOW_FLAG in str(error)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _fill(region: Region) -> None:
    """Allocates a region's memory in a thread. Waits for the thread even when cancelled, since it uses the file."""
    filling = asyncio.create_task(asyncio.to_thread(region.fill))
    try:
        await asyncio.shield(filling)
    finally:
        await asyncio.wait([filling])


def _reason(error: Exception) -> str:
    """The message for the log about a failed registration, with advice."""
    if isinstance(error, TimeoutError):
        return f"the predictor did not register it in {_REGISTER_SECONDS:g} s"
    if isinstance(error, OSError):
        advice = "make it larger, or lower " if error.errno == errno.ENOSPC else ""
        return f"{error.filename or FOLDER}: {error.strerror} ({advice}--predictor_shared_memory_bytes)"
    if is_disallowed(error):
        return f"{error} (26.04 and newer need that; or set --predictor_shared_memory=off)"
    return f"{error} (--predictor_shared_memory=off if it can't see our /dev/shm)"
