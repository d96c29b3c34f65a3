"""Regions of shared memory, and the slots in them for the outputs of one call each.

Triton may write to a slot after its call has failed: neither a closed connection nor a cancelled call certainly stops a
model. So a slot whose call had no response from the predictor is quarantined for the life of its region.
"""

from __future__ import annotations

import mmap
import os
import shutil
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hf_transformer.predictor.base import Destination
from hf_transformer.predictor.region_files import (
    FOLDER,
    RESERVED_BYTES,
    free_bytes,
    new_file,
    no_space_error,
    remove_file,
)
from hf_transformer.protocol.tensors import Placement

ALIGNMENT_BYTES = 64
"""The alignment of slots and of the outputs in them: a cache line, and more than any element."""


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
            raise no_space_error(size, folder)
        self.size = size
        self.path, self._file = new_file(folder)
        self.name = self.path.name
        # Runs even if the interpreter ends without ``close``. After SIGKILL and os._exit, remove_leftovers and
        # remove_own_and_leftovers do the same.
        self._finalize = weakref.finalize(self, remove_file, self.path, self._file)
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
            raise no_space_error(self.size, folder)
        os.posix_fallocate(self._file, 0, self.size)
        if free_bytes(folder) < RESERVED_BYTES:  # another worker has allocated its memory meanwhile
            raise no_space_error(self.size, folder)
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


def aligned(size: int) -> int:
    """``size`` rounded up to a multiple of ALIGNMENT_BYTES."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
