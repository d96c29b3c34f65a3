"""Several workers as one service: they become ready together, and each shows the metrics of all.

The workers share a board in memory. Each writes to it whether it is ready, and every PERIOD a copy of its metrics. The
worker that answers /metrics adds up all copies, so no worker waits for another, and one that hangs or has died still
counts. Counts of a dead worker stay, except those after its last copy; its replacement continues from there.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import chain
from multiprocessing import reduction
from operator import add
from typing import Any

import orjson
from prometheus_client import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

logger = logging.getLogger(__name__)

FLOCK = "hhqqi"  # struct flock of 64-bit Linux: type, whence, start, length, process
HEADER = struct.Struct("<QII")
"""In front of a copy: its number, counted from 1, its length, and the CRC-32 of its content and number."""
ROOM = 1 << 30  # bytes from one copy to the next; a copy has some 20 KiB, and only written pages take memory
TRIES = 100  # reads of a copy that is replaced each time; its worker does that once in PERIOD, and at each scrape
PERIOD = 1.0  # seconds between two copies of a worker's metrics: the other workers show none that are older

Family = list[Any]
"""A metric in a copy: name, text, type and samples; a sample is its name, labels and value."""

MERGED: dict[str, Callable[[float, float], float]] = {
    "hf_transformer_model_ready": min,
    "hf_transformer_shared_memory_registered": min,
    "process_max_fds": min,
    "hf_transformer_build_info": max,
    "hf_transformer_last_inference_timestamp_seconds": max,
    "hf_transformer_memory_limit_bytes": max,  # of all workers together
    "hf_transformer_predictor_circuit_open": max,
    "process_open_fds": max,  # limited for each worker
    "process_start_time_seconds": max,
}
"""How the values of two workers become one, if not by adding: min for what must hold for all workers, max for what may
hold for any."""
COUNTED = ("counter", "histogram")  # types of metrics that outlive their worker
LASTING = ("hf_transformer_last_inference_timestamp_seconds",)  # gauges that do


class WorkerBoard:
    """Readiness and metrics of ``count`` workers, in an anonymous file that all of them inherit.

    The file starts with one byte per worker: 1 if it is ready. A worker claims an index by locking that byte. The
    kernel releases the lock when the process ends, so a replacement gets the index of the dead worker. Another byte is
    set once all workers were ready at the same time. From then on each worker's readiness counts for itself, and a
    replacement does not take the others out of service.

    Two copies of each worker's metrics follow, written in turn: if a worker dies while writing one, the other remains.
    """

    def __init__(self, count: int, inherited: Any = None) -> None:
        self.count = count
        self.index = -1  # this worker's, once claimed
        self._file = os.memfd_create("workers") if inherited is None else inherited.detach()
        os.ftruncate(self._file, self._start(count, 0))

    def __reduce__(self) -> tuple[Any, ...]:
        """Hands the open file to a process that is being spawned."""
        return WorkerBoard, (self.count, reduction.DupFd(self._file))

    def claim(self) -> None:
        """Claim an index for this process, not ready yet. Raises RuntimeError if all are taken."""
        for index in range(self.count):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
            except OSError:
                continue
            self.index = index
            self.set_ready(ready=False)
            return
        raise RuntimeError(f"there are more than {self.count} workers")

    def is_alive(self, index: int) -> bool:
        """Whether a worker holds this index. The data of a dead worker stays until it is replaced."""
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, index, 1, 0)
        kind: int = struct.unpack(FLOCK, fcntl.fcntl(self._file, fcntl.F_GETLK, asked))[0]
        return index == self.index or kind != fcntl.F_UNLCK

    def set_ready(self, *, ready: bool) -> None:
        """Publish whether this worker is ready."""
        os.pwrite(self._file, bytes([ready]), self.index)

    @property
    def another_is_ready(self) -> bool:
        """True if another live worker is ready."""
        flags = os.pread(self._file, self.count, 0)
        return any(ready and index != self.index and self.is_alive(index) for index, ready in enumerate(flags))

    @property
    def waiting_for(self) -> int:
        """Number of workers that were never ready; 0 once all have been ready together."""
        *flags, all_have_been = os.pread(self._file, self.count + 1, 0)
        if all_have_been:
            return 0
        missing = sum(not (ready and self.is_alive(index)) for index, ready in enumerate(flags))
        if not missing:
            os.pwrite(self._file, b"\1", self.count)
        return missing

    def write(self, families: list[Family]) -> None:
        """Replace the older copy of this worker's metrics. Raises OSError if memory is short."""
        number = max(self._header(self.index, half)[0] for half in (0, 1)) + 1
        copy = orjson.dumps(families)
        header = HEADER.pack(number, len(copy), zlib.crc32(copy, number))
        os.pwrite(self._file, header + copy, self._start(self.index, number % 2))

    def read(self, index: int) -> list[Family]:
        """The last whole copy of a worker's metrics, empty if there is none. Copies whose checksum is wrong, because
        the worker is writing, are read again."""
        for _ in range(TRIES):
            found = sorted(((*self._header(index, half), half) for half in (0, 1)), reverse=True)
            for number, length, checksum, half in found:
                copy = os.pread(self._file, length, self._start(index, half) + HEADER.size)
                if number and zlib.crc32(copy, number) == checksum:
                    families: list[Family] = orjson.loads(copy)
                    return families
        return []

    def _header(self, index: int, half: int) -> tuple[int, ...]:
        return HEADER.unpack(os.pread(self._file, HEADER.size, self._start(index, half)))

    def _start(self, index: int, half: int) -> int:
        return (2 * index + half + 1) * ROOM


class SharedMetrics(Collector):
    """The metrics of all workers: ``own`` gives this worker's, ``board`` has those of the others."""

    def __init__(self, own: Callable[[], Iterable[Metric]], board: WorkerBoard) -> None:
        self._own = own
        self._board = board
        self._before = counted(board.read(board.index))
        """Counts of the workers that had this index before."""
        self._failed = False

    @asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Renew this worker's copy every PERIOD seconds, and at the end."""
        renewing = asyncio.create_task(self._renew_for_ever())
        try:
            yield
        finally:
            renewing.cancel()
            self._renew()

    async def _renew_for_ever(self) -> None:
        while True:
            self._renew()
            await asyncio.sleep(PERIOD)

    def _renew(self) -> None:
        try:
            own = [
                [one.name, one.documentation, one.type, [sample[:3] for sample in one.samples]] for one in self._own()
            ]
            self._board.write(added_up(own, self._before))
        except Exception:  # raised by a gauge's function; without this the copy would never be renewed again
            if not self._failed:
                logger.exception("this worker's metrics can't be collected, or shared with the other workers")
            self._failed = True

    def collect(self) -> Iterator[Metric]:
        """Sum of all copies. Renews this worker's first, so counts never shrink when another worker is scraped."""
        self._renew()
        copies = [(self._board.read(place), self._board.is_alive(place)) for place in range(self._board.count)]
        for name, text, kind, samples in added_up(*(copy if alive else counted(copy) for copy, alive in copies)):
            metric = Metric(name, text, kind)
            metric.samples = [Sample(*sample) for sample in samples]
            yield metric


def counted(families: list[Family]) -> list[Family]:
    """The metrics that outlive their worker."""
    return [family for family in families if family[2] in COUNTED or family[0] in LASTING]


def added_up(*workers: list[Family]) -> list[Family]:
    """The merged metrics of several workers."""
    total: dict[str, tuple[str, str, dict[Any, float]]] = {}
    for name, text, kind, samples in chain.from_iterable(workers):
        values = total.setdefault(name, (text, kind, {}))[2]
        for sample, labels, value in samples:
            merge = min if sample.endswith("_created") else MERGED.get(name, add)
            key = sample, tuple(labels.items())
            values[key] = merge(values[key], value) if key in values else value
    return [
        [name, text, kind, [(sample, dict(labels), value) for (sample, labels), value in values.items()]]
        for name, (text, kind, values) in total.items()
    ]
