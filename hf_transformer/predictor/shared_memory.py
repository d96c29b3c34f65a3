"""Large outputs through shared memory: the predictor writes them where they are decoded, and sends only their shapes.

Without shared memory, or room in it, outputs travel inline, in the response. No request fails or waits for that.

Triton may write into a slot after its call was given up: neither a closed connection nor a cancelled call stops a model
for certain. So a slot whose call ended without the predictor's own answer is quarantined for the life of its region.

A file is locked (flock) while its owner lives, so a file without a lock is a killed process's leftover. Process ids
could not tell: containers that share /dev/shm share nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import math
import mmap
import os
import secrets
import shutil
import stat
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.observability.metrics import SharedMemoryUse
from hf_transformer.predictor.base import (
    Destination,
    ModelCall,
    Outputs,
    Predictor,
    Reply,
    StaleConnection,
    Transport,
    UnknownRegion,
)
from hf_transformer.protocol.tensors import Placement
from hf_transformer.types.tensors import NUMPY_DTYPES, ModelSpec

logger = logging.getLogger(__name__)

FOLDER = Path("/dev/shm")  # noqa: S108 - the folder of shm_open, which Triton opens a region's key with
PREFIX = "hf_transformer_outputs_"
"""Of our files and of the regions' names at the predictor, which are the same."""

ALIGNMENT = 64
"""Bytes, of slots and of the outputs in them: a cache line, and more than any element."""

MARGIN = 16 * 2**20
"""Bytes that stay free beside a region. A model in Triton's Python backend has its outputs in /dev/shm before they are
copied, so with none left its requests would fail. This is twice the default of ``--max_batch_output_bytes``."""

_CALL_SECONDS, _LAST_CALL_SECONDS = 5.0, 1.0
"""How long the predictor may take to register a region, and to unregister it at the end of the service."""

ALLOW_FLAG = "--allow-client-shm=true"
"""The flag of tritonserver without which Triton 26.04 and newer refuse every region; their message names it. Older ones
do not start with it."""
ADVICE_TO_ALLOW = f"start Triton with {ALLOW_FLAG}, which 26.04 and newer need"

_MOST_LOST = 2
"""Lost regions that the predictor may still have. With so many, outputs travel inline until one is unmapped."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds; tests have shorter ones.

    ``unavailable`` (doubling) follows a registration that did not reach the predictor, ``refused`` one that it refused,
    ``registered`` one that succeeded. After ``lost`` a region in which requests may still write is unregistered.
    """

    unavailable: float = 1.0
    refused: float = 300.0
    registered: float = 10.0
    lost: float = 60.0


class SharedMemory(Predictor):
    """A transport, with outputs in shared memory of ``size`` bytes where their sizes are known and together at least
    ``min_bytes``; of fewer the response is as fast. Other outputs travel inline.

    ``transport`` is entered and left with this. Unless it ``warns``, another worker does. ``folder`` and ``pauses`` are
    for tests.
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
    ) -> None:
        self.transport = transport
        self.streams_json = transport.streams_json
        self.registration = Registration(transport, size, warns=warns, folder=folder, pauses=pauses or Pauses())
        self._min_bytes = max(min_bytes, 1)
        self._folder = folder
        self._batches = {"shared": 0, "inline_full": 0, "inline_unregistered": 0, "inline_resent": 0}

    async def open(self) -> None:
        await self.transport.__aenter__()
        self.registration.forget(*remove_leftovers(self._folder))  # also where no region is ever wanted

    async def close(self) -> None:
        await self.registration.close()
        await self.transport.__aexit__(None, None, None)

    async def model_spec(self) -> ModelSpec:
        """Reads it, and has a region made now where all answers are large, before the first request."""
        spec = await self.transport.model_spec()
        if not spec.decoupled and least_output_bytes(spec) >= self._min_bytes:
            self.registration.want()
        return spec

    async def model_ready(self) -> bool:
        return await self.transport.model_ready()

    async def infer(self, call: ModelCall) -> Reply:
        slot = self._take(call.outputs, call.sizes) if call.sizes else None
        if slot is not None:
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
        return self.transport.stream(call)  # inline: many responses can't share one place

    def shares(self, size: int) -> bool:
        region = self.registration.region
        return size >= self._min_bytes and region is not None and region.gaps.fits(aligned(size))

    def use(self) -> SharedMemoryUse:
        """What there is in shared memory now, and how large batches have travelled."""
        current = self.registration.region
        regions = self.registration.retired | ({current} if current else set())
        return SharedMemoryUse(
            registered=current is not None,
            slots={
                "in_use": sum(one.taken_slots for one in regions),
                "quarantined": sum(one.lost_slots for one in regions),
            },
            bytes={
                "in_use": sum(one.taken_bytes for one in regions),
                "quarantined": sum(one.lost_bytes for one in regions),
                "free": current.gaps.free_bytes if current else 0,
            },
            batches=self._batches,
        )

    def _take(self, outputs: Sequence[str], sizes: Mapping[str, int]) -> Slot | None:
        """A slot for the outputs whose sizes are known, None where all travel inline."""
        lengths = {name: sizes[name] for name in outputs if name in sizes}
        if sum(lengths.values()) < self._min_bytes:
            return None
        region = self.registration.usable()
        if region is None:
            self._batches["inline_unregistered"] += 1
            return None
        slot = region.take(lengths)
        if slot is None:
            self._batches["inline_full"] += 1
        return slot


def least_output_bytes(spec: ModelSpec) -> int:
    """Bytes of all outputs for one short text, as far as a model's configuration tells: a free axis counts as 3, the
    tokens of one word with a special one on each side."""
    sizes = {"BF16": 2, **{name: dtype.itemsize for name, dtype in NUMPY_DTYPES.items()}}
    return sum(
        sizes.get(output.datatype, 0) * math.prod(size if size >= 0 else 3 for size in output.shape)
        for output in spec.outputs
    )


class Registration:
    """Has one region that is registered and filled, or none for now. No call waits for it.

    A region is made, and takes its memory, when it is wanted: at the start if the model's description says that all
    answers are large, else for the first large one. It is made again, under a new name, when the predictor has
    restarted, or when more than half of its bytes are quarantined. The arguments are SharedMemory's.
    """

    def __init__(self, transport: Transport, size: int, *, warns: bool, folder: Path, pauses: Pauses) -> None:
        self.region: Region | None = None
        self.retired: set[Region] = set()
        """Regions that are given up while slots of them are in use."""
        self._transport = transport
        self._size = size
        self._level = logging.WARNING if warns else logging.INFO
        self._folder = folder
        self._pauses = pauses
        self._pause = pauses.unavailable
        self._not_before = -math.inf
        self._registering: asyncio.Task[None] | None = None
        self._forgetting: dict[str, asyncio.Task[None]] = {}
        """The names of regions that the predictor is to unmap, and the tasks that ask it to."""
        self._unused: set[str] = set()
        """Those of them in which no call has ever been."""
        self._lost: set[str] = set()
        """Regions given up for their quarantined slots that the predictor still has."""
        self._unknown: set[str] = set()
        """Regions that the predictor has lost itself."""
        self._no_room = False
        self._failure_logged = False
        self._ended = False
        """No region is made any more."""

    def usable(self) -> Region | None:
        """The region, or None, and one is made if that may be."""
        if self.region is not None and not self.region.is_whole:
            logger.warning("the shared memory %s was cut by another process; it is replaced", self.region.path)
            self._retire(self.region, self._lost)
        if self.region is None:
            self.want()
        return self.region

    def want(self) -> None:
        """Starts a registration, unless one is under way or it is too early for one."""
        if self.region is not None or self._registering is not None or self._ended:
            return
        now = asyncio.get_running_loop().time()
        if now >= self._not_before and len(self._lost) < _MOST_LOST:
            self._not_before = now + self._pauses.refused  # in case the task fails by a mistake of ours
            self._registering = asyncio.create_task(self._register())

    def unknown(self, region: Region) -> None:
        """The predictor does not know the region any longer: it has restarted."""
        if region is self.region:
            logger.info("the predictor has lost its shared memory, as after a restart")
            self._retire(region, self._unknown)
            self.want()

    def give_back(self, slot: Slot) -> None:
        """Ends a slot. Its region may then be of no more use."""
        region = slot.region
        region.give_back(slot)
        if region is self.region and region.lost_bytes * 2 > region.size:
            logger.warning("more than half of the shared memory is lost to calls that had no answer; it is replaced")
            self._retire(region, self._lost)
        elif region in self.retired:
            self._bury(region)

    def forget(self, *names: str, at_once: bool = False) -> None:
        """Has the predictor unmap regions, after a pause in which requests may end."""
        for name in names:
            if name not in self._forgetting:
                pause = 0.0 if at_once else self._pauses.lost
                self._forgetting[name] = asyncio.create_task(self._unregister(name, pause))

    async def close(self) -> None:
        """Ends the registration, unregisters the regions that no call is in, and removes the files.

        Other regions stay at the predictor: a Triton before 24.09 would unmap them under their calls.
        """
        self._ended = True
        if self._registering is not None:
            await _cancelled(self._registering)  # it may leave a region to forget
        await _cancelled(*self._forgetting.values())
        region, self.region = self.region, None
        idle, busy = self._unused, (self._forgetting.keys() - self._unused) | self._lost
        if region is not None:
            (busy if region.taken_slots or region.lost_slots else idle).add(region.name)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_CALL_SECONDS):
                for name in idle:
                    with suppress(RequestError):
                        await self._transport.unregister_region(name)
        for one in self.retired | ({region} if region else set()):
            one.close()
        self.retired.clear()
        if busy:
            logger.info("left at the predictor, since calls may still use them: %s", ", ".join(sorted(busy)))

    async def _register(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self.region = await self._new_region()
        except (OSError, RequestError) as error:  # TimeoutError is an OSError
            absent = isinstance(error, PredictorUnavailable | PredictorTimeout | TimeoutError)
            self._no_room = isinstance(error, OSError) and not absent
            pause = self._pause if absent else self._pauses.refused
            if absent:
                self._pause = min(2 * pause, self._pauses.refused)
            self._not_before = loop.time() + pause
            if not self._failure_logged:
                self._failure_logged = True
                why = _reason(error)
                logger.log(self._level, "outputs travel inline, not through shared memory, and work as well: %s", why)
        else:
            self._no_room = False
            self._pause = self._pauses.unavailable
            self._not_before = loop.time() + self._pauses.registered
            self._failure_logged = False
            logger.info("large outputs travel through shared memory, %d bytes in %s", self._size, self.region.path)
        finally:
            self._registering = None

    async def _new_region(self) -> Region:
        """A region that is registered and has its memory.

        It is registered before it has any, even if there is no room. If the predictor finds our file, both see one
        /dev/shm, so regions there without a file belong to dead processes, and may be what takes the room.
        """
        remove_leftovers(self._folder)
        region = Region(self._size, self._folder)
        registered = False
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await self._transport.register_region(region.name, region.size)
                registered = True
                names = await self._transport.region_names()
            if self._unknown.intersection(names):
                self._ended = True  # requests go now to one predictor and now to another
                raise PredictorError("several predictors answer at one address")
            ours = [name for name in names if name.startswith(PREFIX)]
            self.forget(*[name for name in ours if not (self._folder / name).exists()])
            await _fill(region)
        except BaseException:
            region.close()
            if registered:  # else, if it was registered after all, the next registration has it unmapped
                self._unused.add(region.name)
                self.forget(region.name, at_once=True)
            raise
        return region

    def _retire(self, region: Region, why: set[str]) -> None:
        """Gives the region up; ``why`` is the set of those that are lost, or unknown."""
        why.add(region.name)
        self.region = None
        self.retired.add(region)
        self._bury(region)

    def _bury(self, region: Region) -> None:
        """Removes a region's file once no slot is in use; the memory goes when the predictor unmaps it too."""
        if not region.taken_slots:
            self.retired.discard(region)
            region.close()
            if region.name in self._lost:
                self.forget(region.name)

    async def _unregister(self, name: str, pause: float) -> None:
        """Unregisters a region in which calls may still be under way. Triton refuses then, but not before 24.09."""
        while True:
            await asyncio.sleep(pause)
            pause = self._pauses.lost
            try:
                async with asyncio.timeout(_CALL_SECONDS):
                    await self._transport.unregister_region(name)
                break
            except (RequestError, TimeoutError) as error:
                if is_disallowed(error):  # it has no region of anybody
                    break
        del self._forgetting[name]
        self._lost.discard(name)
        if name in self._unused:  # it had no memory
            self._unused.remove(name)
        elif self._no_room:
            self._not_before = -math.inf
            self.want()


def is_disallowed(error: Exception) -> bool:
    """Whether a predictor refuses all regions of clients, wherever they lie (501 or UNIMPLEMENTED)."""
    return isinstance(error, RequestError) and ALLOW_FLAG in str(error)


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _fill(region: Region) -> None:
    """Fills a region in a thread, and waits for the thread even when cancelled, since it uses the file."""
    filling = asyncio.create_task(asyncio.to_thread(region.fill))
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
    if is_disallowed(error):
        return f"{error} (26.04 and newer need that; or set --predictor_shared_memory=off)"
    return f"{error} (--predictor_shared_memory=off if it can't see our /dev/shm)"


class FreeList:
    """The free parts of a region of ``size`` bytes. First fit: the beginning of the region stays in the CPU's cache."""

    def __init__(self, size: int) -> None:
        size -= size % ALIGNMENT
        self._gaps = [(0, size)] if size else []  # (offset, length), by offset, never two side by side

    @property
    def free_bytes(self) -> int:
        return sum(length for _, length in self._gaps)

    def fits(self, size: int) -> bool:
        """Whether there is a gap of ``size`` bytes."""
        return any(length >= size for _, length in self._gaps)

    def take(self, size: int) -> int | None:
        """The offset of ``size`` bytes, None where no gap is as large; ``size`` is a multiple of ALIGNMENT."""
        for index, (offset, length) in enumerate(self._gaps):
            if length >= size:
                self._gaps[index : index + 1] = [(offset + size, length - size)] if length > size else []
                return offset
        return None

    def give_back(self, offset: int, size: int) -> None:
        """Ends what ``take`` gave; neighbouring gaps become one."""
        gaps: list[tuple[int, int]] = []
        for start, length in sorted([*self._gaps, (offset, size)]):
            if gaps and sum(gaps[-1]) == start:
                start, before = gaps.pop()
                length += before
            gaps.append((start, length))
        self._gaps = gaps


@dataclass(slots=True, eq=False)
class Slot:
    """The part of a region that one call has: ``size`` bytes from ``offset`` on."""

    region: Region
    offset: int
    size: int
    destination: Destination


class Region:
    """One file and its slots. It is registered at the predictor once at most, under its own random name.

    A file without pages is enough to register it, so a predictor on another machine costs no memory. ``fill`` gives it
    pages before the first slot is handed out: the predictor would die of SIGBUS at a page without memory.
    """

    def __init__(self, size: int, folder: Path = FOLDER) -> None:
        """Makes the file. Raises OSError if ``folder`` is missing, not writable, or, even if it were empty, too small
        (ENOSPC)."""
        if size + MARGIN > shutil.disk_usage(folder).total:
            raise _no_room(size, folder)
        self.size = size
        self.path, self._file = _new_file(folder)
        self.name = self.path.name
        # Runs also when the interpreter ends without ``close``; not after SIGKILL or os._exit, for which
        # there are remove_leftovers and remove_own_and_leftovers.
        self._end = weakref.finalize(self, _remove, self.path, self._file)
        self.gaps = FreeList(0)
        self._memory = memoryview(b"")
        self.taken_slots = self.taken_bytes = self.lost_slots = self.lost_bytes = 0
        os.fchmod(self._file, 0o666)  # Triton opens it for writing, and runs as another user
        os.ftruncate(self._file, size)

    def fill(self) -> None:
        """Gives the file its memory, all of it at once, and maps it read-only: blocks for some 0.2 ms per MiB. Raises
        OSError (ENOSPC) unless there is so much, and MARGIN beside it."""
        folder = self.path.parent
        if free_bytes(folder) < self.size + MARGIN:
            raise _no_room(self.size, folder)
        os.posix_fallocate(self._file, 0, self.size)
        if free_bytes(folder) < MARGIN:  # another worker has filled its own meanwhile
            raise _no_room(self.size, folder)
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)  # or every page's first use is a fault
        self._memory = memoryview(mmap.mmap(self._file, self.size, flags, mmap.PROT_READ))
        self.gaps = FreeList(self.size)

    def take(self, lengths: Mapping[str, int]) -> Slot | None:
        """A slot for outputs of so many bytes each, None where there is no room."""
        size = sum([aligned(length) for length in lengths.values()])
        offset = self.gaps.take(size)
        if offset is None:
            return None
        self.taken_slots += 1
        self.taken_bytes += size
        placements, position = {}, offset
        for name, length in lengths.items():
            memory = self._memory[position : position + length]
            placements[name] = Placement(self.name, position, memory, self._file)
            position += aligned(length)
        return Slot(self, offset, size, Destination(self.name, placements))

    def give_back(self, slot: Slot) -> None:
        """Ends a slot. It is quarantined if the predictor may still write into it (``destination`` is not settled)."""
        self.taken_slots -= 1
        self.taken_bytes -= slot.size
        if slot.destination.settled:
            self.gaps.give_back(slot.offset, slot.size)
        else:
            self.lost_slots += 1
            self.lost_bytes += slot.size

    @property
    def is_whole(self) -> bool:
        """Whether the file has its size. Whoever sees this /dev/shm may write it, and may cut it too."""
        return os.fstat(self._file).st_size >= self.size

    def close(self) -> None:
        """Removes the file. What is mapped stays readable as long as somebody holds a view of it; a call that is still
        under way keeps the file open until it is over."""
        if self.taken_slots:
            self.path.unlink(missing_ok=True)
        else:
            self._end()
        self._memory, self.gaps = memoryview(b""), FreeList(0)


def free_bytes(folder: Path = FOLDER) -> int:
    """What is left in a folder's file system. Raises OSError for a missing folder."""
    return shutil.disk_usage(folder).free


def aligned(size: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def remove_leftovers(folder: Path = FOLDER) -> list[str]:
    """Removes the files of processes that no longer live; their names."""
    removed = []
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError):  # gone meanwhile, locked, or another user's
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if stat.S_ISREG(os.fstat(file).st_mode):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                    removed.append(path.name)
            finally:
                os.close(file)
    return removed


def remove_own_and_leftovers(folder: Path = FOLDER) -> None:
    """Removes the files of this process too, for one that ends by os._exit."""
    with suppress(OSError):
        for file in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # that of the listing itself, or closed meanwhile
                path = Path(os.readlink(f"/proc/self/fd/{file}"))
                if path.parent == folder and path.name.startswith(PREFIX):
                    path.unlink()
    remove_leftovers(folder)


def _no_room(size: int, folder: Path) -> OSError:
    why = f"{size} bytes do not fit with {MARGIN} to spare, which the predictor itself may need there"
    return OSError(errno.ENOSPC, why, str(folder))


def _new_file(folder: Path) -> tuple[Path, int]:
    """An empty file with a fresh random name, locked; and its descriptor."""
    for _ in range(10):
        path = folder / f"{PREFIX}{secrets.token_hex(16)}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink:
                return path, file
        except BlockingIOError:
            pass
        # Between the two calls above another process has taken it for a leftover.
        _remove(path, file)
    raise OSError(errno.EAGAIN, "others remove our files as fast as we make them", str(folder))


def _remove(path: Path, file: int) -> None:
    path.unlink(missing_ok=True)
    os.close(file)
