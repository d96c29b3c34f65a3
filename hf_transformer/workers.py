"""What the worker processes of one service know of each other: how many are ready."""

from __future__ import annotations

import fcntl
import os
import struct
from multiprocessing import reduction
from typing import Any

FLOCK = "hhqqi"
"""struct flock of 64-bit Linux: type, whence, start, length, process."""
NOT_READY, READY = b"\0", b"\1"


class Roster:
    """One byte for each of ``count`` workers, in a file without a name that all of them inherit.

    A worker claims its byte by a lock that the kernel releases when the process ends, so the worker that replaces a
    dead one gets the byte of that one. Once all have been ready at the same time the service is ready for good: later
    each worker speaks for itself alone, and a replacement does not take the others out of service.
    """

    def __init__(self, count: int, file: int | None = None) -> None:
        self._count = count
        self._place: int | None = None
        self._file = os.memfd_create("workers") if file is None else file
        if file is None:
            os.pwrite(self._file, NOT_READY * (count + 1), 0)

    def __reduce__(self) -> tuple[Any, ...]:
        """For a process that is being spawned, which gets the open file with it."""
        return _rebuild, (self._count, reduction.DupFd(self._file))

    def claim(self) -> None:
        """Takes a place for this process, not ready yet; without one, where there are more workers for a while (a new
        one comes before the old one goes), it is ready for itself."""
        for place in range(self._count):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except OSError:
                continue
            self._place = place
            self.say(ready=False)
            return

    def say(self, *, ready: bool) -> None:
        """Tells the others whether this worker is ready."""
        if self._place is not None:
            os.pwrite(self._file, READY if ready else NOT_READY, self._place)

    @property
    def count(self) -> int:
        return self._count

    @property
    def place(self) -> int | None:
        """This process's place."""
        return self._place

    @property
    def waiting_for(self) -> int:
        """How many workers are still to become ready for the first time; 0 once all have been."""
        if os.pread(self._file, 1, self._count) == READY:
            return 0
        said = os.pread(self._file, self._count, 0)
        left = sum(said[place : place + 1] == NOT_READY or not self.alive(place) for place in range(self._count))
        if not left:
            os.pwrite(self._file, READY, self._count)
        return left

    def alive(self, place: int) -> bool:
        """Whether a worker holds a place. A dead one's byte stays until it is replaced."""
        if place == self._place:
            return True
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
        kind: int = struct.unpack(FLOCK, fcntl.fcntl(self._file, fcntl.F_GETLK, asked))[0]
        return kind != fcntl.F_UNLCK


def _rebuild(count: int, file: Any) -> Roster:
    return Roster(count, file.detach())
