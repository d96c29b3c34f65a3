"""Shared state of all workers: they become ready together, and each worker exports the metrics of all.

The workers share a board in memory. Each worker writes its readiness, and a copy of its metrics every PERIOD_SECONDS.
The worker that answers /metrics merges all copies, so no worker waits for another. The metrics of hung and dead workers
are included. The counters of a dead worker keep the values of its last copy, and its replacement continues from them.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import chain
from multiprocessing import reduction
from operator import add
from typing import Any

import orjson

from hf_transformer.observability.series import Family

logger = logging.getLogger(__name__)

FLOCK = "hhqqi"  # struct flock of 64-bit Linux: type, whence, start, length, process
HEADER = struct.Struct("<QII")
"""Header of a copy: its number, starting at 1, its length in bytes, and the CRC-32 of its content and number."""
COPY_BYTES = 1 << 30  # size reserved per copy; a copy has some 20 KiB, and only written pages take memory
MAX_READS = 100  # attempts to read a copy; one fails if the worker writes then, every PERIOD_SECONDS or at a scrape
NAMES_HEADER_BYTES = 4  # length of a list of models
PERIOD_SECONDS = 1.0  # between two copies of a worker's metrics; the maximum age of another worker's metrics

MERGES: dict[str, Callable[[float, float], float]] = {
    "hf_transformer_model_ready": min,
    "hf_transformer_model_entries_valid": min,
    "hf_transformer_model_unserved_timestamp_seconds": max,
    "hf_transformer_shared_memory_registered": min,
    "process_max_fds": min,
    "hf_transformer_build_info": max,
    "hf_transformer_last_inference_timestamp_seconds": max,
    "hf_transformer_memory_limit_bytes": max,  # one limit for all workers together
    "hf_transformer_predictor_circuit_open": max,
    "process_open_fds": max,  # each worker has its own limit
    "process_start_time_seconds": max,
}
"""Functions that merge the values of two workers, for metrics that are not summed.

``min`` applies to conditions of all workers, ``max`` to conditions of any worker.
"""
CUMULATIVE_TYPES = ("counter", "histogram")  # metric types that remain valid after their worker's death
LASTING_GAUGES = ("hf_transformer_last_inference_timestamp_seconds",)  # gauges that remain valid, too


class WorkerBoard:
    """Readiness and metrics of ``count`` workers, in an anonymous file that all workers inherit.

    The file begins with a byte for each worker: 1 if it is ready. A worker claims its slot by a lock on that byte. The
    kernel releases the lock when the process ends, so a replacement gets the slot of the dead worker. Another byte is
    set once all workers have been ready at the same time. From then on, the readiness of each worker is independent,
    and a replacement does not make the other workers unready.

    Two copies of each worker's metrics follow. Writes alternate between them: if a worker dies while writing one copy,
    the other copy remains valid. The names of unloaded models, and of those that don't count for readiness, are at the
    end.

    Args:
        batches: whether another process forms the batches of all workers. It has the slot after theirs, for its metrics
            and its lock. It has no readiness of its own: it is ready as long as it is alive.
    """

    def __init__(self, count: int, inherited: Any = None, *, batches: bool = False) -> None:
        self.count = count
        self.slots = count + batches
        self.index = -1  # this worker's slot, once claimed
        if inherited is not None:
            self._file = inherited.detach()
            return
        self._file = os.memfd_create("workers")
        # Only the file's creator sets its size: a worker that starts later would cut off the last names.
        os.ftruncate(self._file, self._start(self.slots, 1) + NAMES_HEADER_BYTES)

    def __reduce__(self) -> tuple[Any, ...]:
        """Passes the open file to a spawned process."""
        return _inherited_board, (self.count, reduction.DupFd(self._file), self.slots > self.count)

    def claim(self) -> None:
        """Claims a slot for this process, and marks it as not ready. Raises RuntimeError if no slot is free."""
        for slot in range(self.count):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
            except OSError:
                continue
            self.index = slot
            self.set_ready(False)
            return
        raise RuntimeError(f"there are more than {self.count} workers")

    def claim_batcher(self) -> None:
        """Claims the slot of the process that forms the batches."""
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, self.count)
        self.index = self.count

    @property
    def lacks_batcher(self) -> bool:
        """Whether the process that forms the batches is missing."""
        return self.slots > self.count and not self.is_alive(self.count)

    def is_alive(self, slot: int) -> bool:
        """Whether a live worker has this slot. The data of a dead worker persists until its replacement starts."""
        query = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0)
        lock_type: int = struct.unpack(FLOCK, fcntl.fcntl(self._file, fcntl.F_GETLK, query))[0]
        return slot == self.index or lock_type != fcntl.F_UNLCK

    def set_ready(self, ready: bool) -> None:
        """Publishes the readiness of this worker."""
        os.pwrite(self._file, bytes([ready]), self.index)

    @property
    def another_is_ready(self) -> bool:
        """Whether another live worker is ready."""
        states = os.pread(self._file, self.count, 0)
        return any(ready and slot != self.index and self.is_alive(slot) for slot, ready in enumerate(states))

    @property
    def waiting_for(self) -> int:
        """Number of workers that are not ready; always 0 once all workers have been ready at the same time."""
        *states, all_have_been = os.pread(self._file, self.count + 1, 0)
        if all_have_been:
            return 0
        missing = sum(not (ready and self.is_alive(slot)) for slot, ready in enumerate(states))
        if not missing:
            os.pwrite(self._file, b"\1", self.count)
        return missing

    @property
    def unloaded(self) -> list[str]:
        """The models that clients have unloaded, in all workers."""
        return self._names(0)

    @unloaded.setter
    def unloaded(self, names: list[str]) -> None:
        self._set_names(0, names)

    @property
    def uncounted(self) -> list[str]:
        """The models that don't count for readiness in the worker that wrote last, for the replacement of a worker."""
        return self._names(1)

    @uncounted.setter
    def uncounted(self, names: list[str]) -> None:
        self._set_names(1, names)

    def _names(self, number: int) -> list[str]:
        start = self._start(self.slots, number)
        size = int.from_bytes(os.pread(self._file, NAMES_HEADER_BYTES, start))
        names: list[str] = orjson.loads(os.pread(self._file, size, start + NAMES_HEADER_BYTES)) if size else []
        return names

    def _set_names(self, number: int, names: list[str]) -> None:
        text = orjson.dumps(names)
        # One write, so that another worker reads either the old or the new names.
        os.pwrite(self._file, len(text).to_bytes(NAMES_HEADER_BYTES) + text, self._start(self.slots, number))

    def write(self, families: Iterable[Family]) -> None:
        """Replaces the older copy of this worker's metrics. Raises OSError if the system is out of memory."""
        number = max(self._header(self.index, half)[0] for half in (0, 1)) + 1
        copy = orjson.dumps(
            [(each.name, each.text, each.kind, each.labels, each.bounds, [*each.series.items()]) for each in families]
        )
        header = HEADER.pack(number, len(copy), zlib.crc32(copy, number))
        os.pwrite(self._file, header + copy, self._start(self.index, number % 2))

    def read(self, slot: int) -> list[Family]:
        """Returns the last complete copy of a worker's metrics, or an empty list.

        Reads again if the checksum is wrong, since the worker may be writing.
        """
        for _ in range(MAX_READS):
            newest_first = sorted(((*self._header(slot, half), half) for half in (0, 1)), reverse=True)
            for number, length, checksum, half in newest_first:
                copy = os.pread(self._file, length, self._start(slot, half) + HEADER.size)
                if number and zlib.crc32(copy, number) == checksum:
                    return [
                        Family(
                            name, text, kind, tuple(labels), bounds, {tuple(values): each for values, each in series}
                        )
                        for name, text, kind, labels, bounds, series in orjson.loads(copy)
                    ]
        return []

    def _header(self, slot: int, half: int) -> tuple[int, ...]:
        return HEADER.unpack(os.pread(self._file, HEADER.size, self._start(slot, half)))

    def _start(self, slot: int, half: int) -> int:
        return (2 * slot + half + 1) * COPY_BYTES


def _inherited_board(count: int, inherited: Any, batches: bool) -> WorkerBoard:
    return WorkerBoard(count, inherited, batches=batches)


class SharedMetrics:
    """Metrics of all workers. ``local`` collects this worker's metrics; ``board`` has copies from all workers."""

    def __init__(self, local: Callable[[], Iterable[Family]], board: WorkerBoard) -> None:
        self._local = local
        self._board = board
        self._inherited = cumulative(board.read(board.index))
        """Metrics of previous, dead workers with this slot."""
        self._failed = False

    def forget(self, model_name: str) -> None:
        """Removes a model from the metrics of previous workers."""
        self._inherited = [
            replace(family, series={key: each for key, each in family.series.items() if key[0] != model_name})
            if family.labels and family.labels[0] == "model_name"
            else family
            for family in self._inherited
        ]

    @asynccontextmanager
    async def written(self) -> AsyncIterator[None]:
        """Writes this worker's copy every PERIOD_SECONDS, and once more on exit."""

        async def keep_writing() -> None:
            while True:
                self._write()
                await asyncio.sleep(PERIOD_SECONDS)

        writing = asyncio.create_task(keep_writing())
        try:
            yield
        finally:
            writing.cancel()
            self._write()

    def _write(self) -> None:
        try:
            self._board.write(merged(self._local(), self._inherited))
        except Exception:  # raised by a gauge's function; an unhandled error would end the periodic writes
            if not self._failed:
                logger.exception("this worker's metrics can't be collected, or shared with the other workers")
            self._failed = True

    def families(self) -> list[Family]:
        """Merges all copies.

        Writes this worker's copy first, so that counters do not decrease if the next scrape reaches another worker.
        """
        self._write()
        copies = [(self._board.read(slot), self._board.is_alive(slot)) for slot in range(self._board.slots)]
        return merged(*(copy if alive else cumulative(copy) for copy, alive in copies))


def cumulative(families: list[Family]) -> list[Family]:
    """Selects the metrics that remain valid after their worker's death."""
    return [family for family in families if family.kind in CUMULATIVE_TYPES or family.name in LASTING_GAUGES]


def merged(*workers: Iterable[Family]) -> list[Family]:
    """Merges the metrics of several workers by their labels."""
    total: dict[str, tuple[Family, dict[tuple[str, ...], list[float]]]] = {}
    for family in chain.from_iterable(workers):
        merge: Callable[[float, float], float] = MERGES.get(family.name, add)
        series = total.setdefault(family.name, (family, {}))[1]
        for values, numbers in family.series.items():
            if (known := series.get(values)) is None:
                series[values] = numbers
                continue
            series[values] = [merge(*pair) for pair in zip(known, numbers, strict=True)]
            if family.kind == "counter" and len(numbers) > 1:  # with the time of creation
                series[values][1] = min(known[1], numbers[1])
    return [replace(family, series=series) for family, series in total.values()]
