"""Registers a region of shared memory at the predictor, in the background, and replaces it when it is lost."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.predictor.base import PlacingPredictor
from hf_transformer.predictor.shared_region import FOLDER, PREFIX, Region, is_alive, remove_leftovers

logger = logging.getLogger(__name__)

_CALL_SECONDS = 5.0
"""How long the predictor may take to register a region."""

_LAST_CALL_SECONDS = 1.0
"""How long it may hold up the end of the service."""

_MOST_LOST = 2
"""Lost regions that the predictor may still hold; with more of them outputs travel inline until it has let go."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds between things that are tried again; tests have shorter ones.

    ``unavailable`` (doubling) follows an attempt that did not reach the predictor, ``refused`` one that it refused.
    ``registered`` lies between two registrations at least, so that a predictor that keeps forgetting them is not given
    one after the other. ``lost`` is how long a region rests in which requests may be under way that nobody waits for,
    and so how long it takes until there may be more room.
    """

    unavailable: float = 1.0
    refused: float = 300.0
    registered: float = 10.0
    lost: float = 60.0


class _SeveralPredictors(PredictorError):
    """A region is known again that was not: requests go now to one predictor and now to another."""


class RegionKeeper:
    """Has one region that is registered and filled, or none for now. Nobody ever waits for it.

    A region is made when it is wanted: by the model's description, where that says that all answers are large, else by
    the first large one. It takes its memory then, and not before. It is made again, with a new name, when the predictor
    has restarted or when more than half of it is lost to calls that ended without a word.

    Args:
        predictor: where regions are registered; already open.
        size: bytes of a region.
        warns: that there can be none is a warning of this process; else another worker's, and only information here.
    """

    def __init__(
        self,
        predictor: PlacingPredictor,
        size: int,
        *,
        warns: bool = True,
        folder: Path = FOLDER,
        pauses: Pauses | None = None,
    ) -> None:
        self.region: Region | None = None
        self.retired: set[Region] = set()
        """Regions that are given up, but of which slots are in use."""
        self._predictor = predictor
        self._size = size
        self._level = logging.WARNING if warns else logging.INFO
        self._folder = folder
        self._pauses = pauses or Pauses()
        self._pause = self._pauses.unavailable
        self._not_before = -math.inf
        self._registering: asyncio.Task[None] | None = None
        self._forgetting: dict[str, asyncio.Task[None]] = {}
        self._resting: set[str] = set()
        """Those of them that take memory for as long as the predictor maps them."""
        self._no_room = False
        self._closing = False
        self._lost: set[str] = set()
        self._unknown: set[str] = set()
        self._said = False

    def want(self) -> None:
        """Starts a registration, unless one is under way or it is too early for one."""
        now = asyncio.get_running_loop().time()
        free = self.region is None and self._registering is None and not self._closing
        if free and now >= self._not_before:
            if len(self._lost) < _MOST_LOST:
                self._not_before = now + self._pauses.refused  # should the task end in a fault of ours
                self._registering = asyncio.create_task(self._register())

    def unknown(self, region: Region) -> None:
        """The predictor does not know the region any longer: it has restarted."""
        if region is self.region:
            logger.info("the predictor has lost its shared memory, as after a restart")
            self._unknown.add(region.name)
            self._retire(region)
            self.want()

    def slot_ended(self, region: Region) -> None:
        """A slot was given back: a region may be of no more use."""
        if region is self.region and region.lost_bytes * 2 > region.size:
            logger.warning("more than half of the shared memory is lost to calls that had no answer; it is replaced")
            self._lost.add(region.name)
            self._retire(region)
        elif region in self.retired:
            self._bury(region)

    def forget(self, names: Iterable[str]) -> None:
        """Has the predictor unmap, later, the regions of processes that are dead."""
        for name in names:
            self._forget(name)

    async def close(self) -> None:
        """Ends the registration, and removes the files."""
        self._closing = True
        if self._registering is not None:
            await _cancelled(self._registering)
        await _cancelled(*self._forgetting.values())
        idle = list(self._forgetting.keys() - self._resting)
        busy = self._resting | {region.name for region in self.retired if region.name in self._lost}
        region, self.region = self.region, None
        if region is not None:
            (busy.add if region.taken_slots or region.lost_slots else idle.append)(region.name)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_CALL_SECONDS):
                for name in idle:
                    with suppress(RequestError):
                        await self._predictor.unregister_region(name)
        for closed in (region, *self.retired):
            if closed is not None:
                closed.close()
        if busy:  # a Triton before 24.09 would unmap them under its calls
            logger.info("left at the predictor, since calls may still use them: %s", ", ".join(sorted(busy)))

    async def _register(self) -> None:
        loop = asyncio.get_running_loop()
        rested = bool(self._resting)
        try:
            self.region = await self._new_region()
        except (OSError, RequestError) as error:  # TimeoutError is an OSError
            self._no_room = isinstance(error, OSError) and not isinstance(error, TimeoutError)
            soon = self._no_room and (rested or bool(self._resting))
            self._not_before = loop.time() + (self._pauses.lost if soon else self._pause_after(error))
            if not self._said:
                self._said = True
                said = "outputs travel inline, not through shared memory, and work as well: %s"
                logger.log(self._level, said, _reason(error))
        else:
            self._no_room = False
            self._pause = self._pauses.unavailable
            self._not_before = loop.time() + self._pauses.registered
            self._said = False
            logger.info("large outputs travel through shared memory, %d bytes in %s", self._size, self.region.path)
        finally:
            self._registering = None

    def _pause_after(self, error: Exception) -> float:
        """Seconds until the next attempt."""
        if isinstance(error, PredictorUnavailable | PredictorTimeout | TimeoutError):
            pause = self._pause
            self._pause = min(2 * pause, self._pauses.refused)
            return pause
        return math.inf if isinstance(error, _SeveralPredictors) else self._pauses.refused

    async def _new_region(self) -> Region:
        """A region that is registered and has its memory.

        It is registered while it has none, also where there is no room for it: that the predictor finds our file tells
        that both see one /dev/shm, so that regions there whose file is gone are those of the dead. These may be what
        takes the room.

        Raises:
            OSError: /dev/shm is missing or too small.
            RequestError: the predictor refuses, or is not there.
        """
        remove_leftovers(self._folder)
        region = Region(self._size, self._folder)
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await self._predictor.register_region(region.name, region.key, region.size)
        except BaseException:
            region.close()  # if it was registered after all, the next registration finds it
            raise
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                names = await self._predictor.region_names()
            if self._unknown.intersection(names):
                raise _SeveralPredictors("several predictors answer at one address")
            self.forget(name for name in names if name.startswith(PREFIX) and not is_alive(name, self._folder))
            await _filled(region)
        except BaseException:
            region.close()
            self._forget(region.name, unused=True)
            raise
        return region

    def _retire(self, region: Region) -> None:
        self.region = None
        self.retired.add(region)
        self._bury(region)

    def _bury(self, region: Region) -> None:
        """Removes a region's file once nobody uses a slot; the memory goes when the predictor unmaps it too."""
        if not region.taken_slots:
            self.retired.discard(region)
            region.close()
            if region.name in self._lost:
                self._forget(region.name)

    def _forget(self, name: str, *, unused: bool = False) -> None:
        """Has the predictor unmap a region: at once where no call has ever been in it (``unused``), later one that was
        lost, or that a killed predecessor has left there."""
        if name not in self._forgetting:
            if not unused:
                self._resting.add(name)
            self._forgetting[name] = asyncio.create_task(self._unregister(name, 0.0 if unused else self._pauses.lost))

    async def _unregister(self, name: str, pause: float) -> None:
        """Calls may still be under way in it. Triton refuses then since 24.09; for older versions we wait first."""
        done = False
        while not done:
            await asyncio.sleep(pause)
            pause = self._pauses.lost
            with suppress(RequestError, TimeoutError):
                async with asyncio.timeout(_CALL_SECONDS):
                    await self._predictor.unregister_region(name)
                done = True
        self._lost.discard(name)
        del self._forgetting[name]
        if name in self._resting:
            self._resting.remove(name)
            if self._no_room:
                self._not_before = -math.inf
                self.want()


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _filled(region: Region) -> None:
    """Fills it in a thread, and waits for that in any case: the thread uses the file."""
    filling = asyncio.ensure_future(asyncio.to_thread(region.fill))
    try:
        await asyncio.shield(filling)
    finally:
        await asyncio.wait([filling])


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"the predictor did not register it in {_CALL_SECONDS:g} s"
    if isinstance(error, OSError):
        advice = "make it larger, or lower " if error.errno == errno.ENOSPC else ""
        return f"{error.filename or FOLDER}: {error.strerror} ({advice}--predictor_shared_memory_bytes)"
    return f"{error} (--predictor_shared_memory=off if it can't see our /dev/shm)"
