"""Files in /dev/shm that the predictor writes outputs into, and the slots that they are handed out in.

A file is locked (flock) for as long as its owner lives. That tells the leftovers of a killed process, which have no
lock, from the files of a living one, across containers that share /dev/shm and nothing else: process ids mean nothing
there.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import stat
import weakref
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from hf_transformer.protocol.tensors import Placement

FOLDER = Path("/dev/shm")  # noqa: S108 - the folder of shm_open, which Triton opens a region's key with
PREFIX = "hf_transformer_outputs_"
"""Of our files and of the regions' names at the predictor, which are the same."""

ALIGNMENT = 64
"""Bytes, of slots and of the outputs in them: a cache line, and more than any element."""

MARGIN = 16 * 2**20
"""Bytes that stay free beside a region. A model in Triton's Python backend has its outputs in memory of /dev/shm first,
before they are copied into the region, so with none left its requests fail that work inline. These are two batches of
8 MiB, what ``--max_batch_output_bytes`` is without the flag. Twice the default region and this fit into 256 MiB,
the manifests' sizeLimit, with 112 MiB to spare."""

_ATTEMPTS = 10

_MOST_KEPT, _MOST_OUTPUTS = 256, 8
"""Ways to divide a slot that are kept, and outputs of one: those of more, such as caches, grow with each call."""


class Slots:
    """The free parts of a region of ``size`` bytes, first fit: those at the beginning stay in the cache.

    All sizes are in bytes. With a handful of slots taken there is a handful of gaps, so a list is enough.
    """

    def __init__(self, size: int) -> None:
        self._gaps = [(0, size - size % ALIGNMENT)]  # (offset, length), by offset, never two side by side

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
        gaps = self._gaps
        if gaps and gaps[0][0] == offset + size:  # as usual: no gap lies before it
            gaps[0] = (offset, gaps[0][1] + size)
            return
        index = bisect_left(gaps, (offset, 0))
        first, last, begin, end = index, index, offset, offset + size
        if index and sum(self._gaps[index - 1]) == offset:
            first, begin = index - 1, self._gaps[index - 1][0]
        if index < len(self._gaps) and self._gaps[index][0] == end:
            last, end = index + 1, sum(self._gaps[index])
        self._gaps[first:last] = [(begin, end - begin)]


class Region:
    """One file and its slots. It is registered at the predictor once at most, under its own random name.

    Made in two steps, so that a predictor on another machine costs no memory: first a file with no pages, which is
    enough to register it; then ``fill`` gives it memory, before the first slot is handed out. It is never made shorter:
    the predictor would die of SIGBUS, as it would of a page for which there is no memory.
    """

    def __init__(self, size: int, folder: Path = FOLDER) -> None:
        """Makes the file.

        Raises:
            OSError: ``folder`` is missing, not writable or too small (ENOSPC) even if it were empty. Whether there is
                room at this moment is for ``fill`` to say.
        """
        space = os.statvfs(folder)
        if size + MARGIN > space.f_blocks * space.f_frsize:
            raise _no_room(size, folder)
        self.size = size
        self.path, self._file = _new_file(folder)
        self.name = self.path.name
        # Also when the interpreter ends without ``close``; not after SIGKILL or os._exit, for which
        # there are remove_leftovers and remove_own_and_leftovers.
        self._end = weakref.finalize(self, _remove, self.path, self._file)
        self._slots = Slots(size)
        self._memory = memoryview(b"")
        self._sizes: dict[tuple[tuple[str, int], ...], int] = {}
        self._placements: dict[tuple[int, tuple[tuple[str, int], ...]], Mapping[str, Placement]] = {}
        self.taken_slots = self.taken_bytes = 0
        self.lost_slots = self.lost_bytes = 0
        os.fchmod(self._file, 0o666)  # Triton opens it for writing, and runs as another user
        os.ftruncate(self._file, size)

    @property
    def key(self) -> str:
        """What the predictor opens."""
        return f"/{self.name}"

    @property
    def free_bytes(self) -> int:
        return self._slots.free_bytes if self._memory else 0

    def fits(self, size: int) -> bool:
        """Whether there is room for ``size`` bytes more, in one piece."""
        return bool(self._memory) and self._slots.fits(aligned(size))

    def fill(self) -> None:
        """Gives the file its memory, all of it at once, and maps it read-only: blocks for some 0.2 ms per MiB.

        Raises:
            OSError: there is not so much, and MARGIN beside it (ENOSPC).
        """
        folder = self.path.parent
        if free_bytes(folder) < self.size + MARGIN:
            raise _no_room(self.size, folder)
        os.posix_fallocate(self._file, 0, self.size)
        if free_bytes(folder) < MARGIN:  # another worker has filled its own meanwhile
            raise _no_room(self.size, folder)
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)  # or every page's first use is a fault
        self._memory = memoryview(mmap.mmap(self._file, self.size, flags, mmap.PROT_READ))

    def take(self, size: int) -> tuple[int, memoryview] | None:
        """A slot of at least ``size`` bytes: its offset and its memory. None where there is none."""
        size = aligned(size)
        offset = self._take(size)
        return None if offset is None else (offset, self._memory[offset : offset + size])

    def _take(self, size: int) -> int | None:
        offset = self._slots.take(size) if self._memory else None
        if offset is not None:
            self.taken_slots += 1
            self.taken_bytes += size
        return offset

    def place(self, lengths: tuple[tuple[str, int], ...]) -> tuple[int, int, Mapping[str, Placement]] | None:
        """A slot for outputs of so many bytes each: its offset, its size, and each output's own place in it. None where
        there is no room."""
        size = self._sizes.get(lengths) or self._size_of(lengths)
        offset = self._take(size)
        if offset is None:
            return None
        # Slots of the same few sizes begin at the same few offsets again and again.
        return offset, size, self._placements.get((offset, lengths)) or self._placed(lengths, offset)

    def _size_of(self, lengths: tuple[tuple[str, int], ...]) -> int:
        size = sum([aligned(length) for _, length in lengths])
        if len(lengths) <= _MOST_OUTPUTS:
            if len(self._sizes) >= _MOST_KEPT:
                self._sizes.clear()
            self._sizes[lengths] = size
        return size

    def _placed(self, lengths: tuple[tuple[str, int], ...], offset: int) -> Mapping[str, Placement]:
        places, position = {}, offset
        for name, length in lengths:
            places[name] = Placement(self.name, position, self._memory[position : position + length])
            position += aligned(length)
        placements = MappingProxyType(places)
        if len(lengths) <= _MOST_OUTPUTS:
            if len(self._placements) >= _MOST_KEPT:
                self._placements.clear()
            self._placements[offset, lengths] = placements
        return placements

    def give_back(self, offset: int, size: int, *, settled: bool) -> None:
        """Ends a slot; one that the predictor may still write into (not ``settled``) is never handed out again."""
        self.taken_slots -= 1
        self.taken_bytes -= size
        if settled:
            self._slots.give_back(offset, size)
        else:
            self.lost_slots += 1
            self.lost_bytes += size

    def close(self) -> None:
        """Removes the file. What is mapped stays readable for as long as somebody holds a view of it."""
        self._end()
        self._memory = memoryview(b"")
        self._placements.clear()  # they hold views


def free_bytes(folder: Path = FOLDER) -> int:
    """What is left in a folder's file system.

    Raises:
        OSError: the folder is missing.
    """
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


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
    """Removes the files of this process too: for one that ends without a word, when nothing else will."""
    with suppress(OSError):
        for file in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # that of the listing itself, or closed meanwhile
                path = Path(os.readlink(f"/proc/self/fd/{file}"))
                if path.parent == folder and path.name.startswith(PREFIX):
                    path.unlink()
    remove_leftovers(folder)


def is_alive(name: str, folder: Path = FOLDER) -> bool:
    """Whether the region of this name may still be used by the process that made it."""
    return (folder / name).exists()


def _no_room(size: int, folder: Path) -> OSError:
    why = f"{size} bytes do not fit with {MARGIN} to spare, which the predictor itself may need there"
    return OSError(errno.ENOSPC, why, str(folder))


def _new_file(folder: Path) -> tuple[Path, int]:
    """An empty file with a name that nobody has had, locked; and its descriptor."""
    for _ in range(_ATTEMPTS):
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
