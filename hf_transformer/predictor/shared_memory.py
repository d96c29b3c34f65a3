"""Large outputs in shared memory: the predictor writes them to /dev/shm, and its response has only their shapes.

Without free shared memory, outputs are inline, in the response. No request fails or waits for shared memory.

Triton may write to a slot after its call has failed: neither a closed connection nor a cancelled call certainly stops a
model. So a slot whose call had no response from the predictor is quarantined for the life of its region.

A live owner locks its file (flock), so a file without a lock is the leftover of a killed process. Process ids can't
identify the owner: containers that share /dev/shm have separate process namespaces.
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
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.observability.logging import ModelLog
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

FOLDER = Path("/dev/shm")  # noqa: S108 - the folder of shm_open, with which Triton opens a region's key
PREFIX = "hf_transformer_outputs_"
"""The prefix of file names, which are also the regions' names at the predictor."""

ALIGNMENT_BYTES = 64
"""The alignment of slots and of the outputs in them: a cache line, and more than any element."""

RESERVED_BYTES = 16 * 2**20
"""The free space that regions leave in /dev/shm, twice the default of ``--max_batch_output_bytes``. Triton's Python
backend stores outputs there, and its requests fail without free space."""

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


class FreeList:
    """Free ranges of a region of ``size`` bytes. First fit keeps the start of the region in the CPU's cache."""

    def __init__(self, size: int) -> None:
        size -= size % ALIGNMENT_BYTES
        self._ranges = [(0, size)] if size else []  # (offset, length), sorted, never adjacent

    @property
    def free_bytes(self) -> int:
        return sum(length for _, length in self._ranges)

    def fits(self, size: int) -> bool:
        """Whether a free range has ``size`` bytes."""
        return any(length >= size for _, length in self._ranges)

    def take(self, size: int) -> int | None:
        """Allocates ``size`` bytes, a multiple of ALIGNMENT_BYTES; returns the offset, None if no free range fits."""
        for index, (offset, length) in enumerate(self._ranges):
            if length >= size:
                self._ranges[index : index + 1] = [(offset + size, length - size)] if length > size else []
                return offset
        return None

    def give_back(self, offset: int, size: int) -> None:
        """Frees an allocated range, and merges adjacent ranges."""
        ranges: list[tuple[int, int]] = []
        for start, length in sorted([*self._ranges, (offset, size)]):
            if ranges and sum(ranges[-1]) == start:
                start, preceding = ranges.pop()
                length += preceding
            ranges.append((start, length))
        self._ranges = ranges


@dataclass(slots=True, eq=False)
class Slot:
    """The part of a region for the outputs of one call: ``size`` bytes from ``offset`` on."""

    region: Region
    offset: int
    size: int
    destination: Destination


class Region:
    """One file in /dev/shm and its slots. It is registered at most once, under its own random name.

    A sparse file is enough for the registration, so a predictor on another machine costs no memory. ``fill`` allocates
    the pages before the first slot is allocated: a missing page would kill the predictor (SIGBUS).
    """

    def __init__(self, size: int, folder: Path = FOLDER) -> None:
        """Creates the file. Raises OSError if ``folder`` is missing, not writable, or smaller than ``size``
        (ENOSPC)."""
        if size + RESERVED_BYTES > shutil.disk_usage(folder).total:
            raise _no_space_error(size, folder)
        self.size = size
        self.path, self._file = _new_file(folder)
        self.name = self.path.name
        # Runs even if the interpreter ends without ``close``. After SIGKILL and os._exit, remove_leftovers and
        # remove_own_and_leftovers do the same.
        self._finalize = weakref.finalize(self, _remove, self.path, self._file)
        self.free_list = FreeList(0)
        self._memory = memoryview(b"")
        self.taken_slots = self.taken_bytes = self.lost_slots = self.lost_bytes = 0
        os.fchmod(self._file, 0o666)  # Triton opens it for writing, and runs as another user
        os.ftruncate(self._file, size)

    def fill(self) -> None:
        """Allocates all of the file's memory and maps it read-only. Blocks for about 0.2 ms per MiB.

        Raises OSError (ENOSPC) unless there is room for it and for RESERVED_BYTES.
        """
        folder = self.path.parent
        if free_bytes(folder) < self.size + RESERVED_BYTES:
            raise _no_space_error(self.size, folder)
        os.posix_fallocate(self._file, 0, self.size)
        if free_bytes(folder) < RESERVED_BYTES:  # another worker has allocated its memory meanwhile
            raise _no_space_error(self.size, folder)
        # otherwise, the first use of each page is a page fault
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        self._memory = memoryview(mmap.mmap(self._file, self.size, flags, mmap.PROT_READ))
        self.free_list = FreeList(self.size)

    def take(self, lengths: Mapping[str, int]) -> Slot | None:
        """Allocates a slot for outputs of these lengths in bytes; None if no free range fits."""
        size = sum([aligned(length) for length in lengths.values()])
        offset = self.free_list.take(size)
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
        """Frees a slot, or quarantines it if the predictor may still write to it (``destination`` is not settled)."""
        self.taken_slots -= 1
        self.taken_bytes -= slot.size
        if slot.destination.settled:
            self.free_list.give_back(slot.offset, slot.size)
        else:
            self.lost_slots += 1
            self.lost_bytes += slot.size

    @property
    def is_whole(self) -> bool:
        """Whether the file has its full size. Other users of /dev/shm can truncate it."""
        return os.fstat(self._file).st_size >= self.size

    def close(self) -> None:
        """Removes the file. Mapped memory stays readable while a view of it exists, and calls in flight keep the file
        open."""
        if self.taken_slots:
            self.path.unlink(missing_ok=True)
        else:
            self._finalize()
        self._memory, self.free_list = memoryview(b""), FreeList(0)


def free_bytes(folder: Path = FOLDER) -> int:
    """Free bytes in a folder's file system. Raises OSError for a missing folder."""
    return shutil.disk_usage(folder).free


def aligned(size: int) -> int:
    """``size`` rounded up to a multiple of ALIGNMENT_BYTES."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def remove_leftovers(folder: Path = FOLDER) -> list[str]:
    """Removes the files of dead processes, and returns their names."""
    removed = []
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError):  # removed meanwhile, locked, or another user's
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
    """Removes the files of dead processes and of this one, before os._exit."""
    with suppress(OSError):
        for file in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the listing's own descriptor, or closed meanwhile
                path = Path(os.readlink(f"/proc/self/fd/{file}"))
                if path.parent == folder and path.name.startswith(PREFIX):
                    path.unlink()
    remove_leftovers(folder)


def _no_space_error(size: int, folder: Path) -> OSError:
    reason = f"{size} bytes do not fit with {RESERVED_BYTES} to spare, which the predictor itself may need there"
    return OSError(errno.ENOSPC, reason, str(folder))


def _new_file(folder: Path) -> tuple[Path, int]:
    """Creates an empty, locked file with a random name; returns its path and descriptor."""
    for _ in range(10):
        path = folder / f"{PREFIX}{secrets.token_hex(16)}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink:
                return path, file
        except BlockingIOError:
            pass
        # Between open and flock, another process has removed it as a leftover.
        _remove(path, file)
    raise OSError(errno.EAGAIN, "other processes remove each new file", str(folder))


def _remove(path: Path, file: int) -> None:
    path.unlink(missing_ok=True)
    os.close(file)
