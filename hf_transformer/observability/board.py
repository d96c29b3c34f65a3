"""Shared state of all workers: they become ready together, and each worker exports the metrics of all.

The workers share a board in memory. Each worker publishes its readiness there, and a copy of its metrics every PERIOD.
The worker that answers /metrics adds up all copies, so no worker waits for another. Metrics of hung and dead workers
are included. The counts of a dead worker persist up to its last copy, and its replacement continues from them.
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
"""Header of a copy: its number, starting at 1, its length, and the CRC-32 of its content and number."""
ROOM = 1 << 30  # bytes reserved per copy; a copy has some 20 KiB, and only written pages take memory
TRIES = 100  # attempts to read a copy; each fails only if the worker writes at that time, every PERIOD or at a scrape
PERIOD = 1.0  # seconds between two copies of a worker's metrics, and maximum age of the metrics of other workers

Family = list[Any]
"""A metric in a copy: name, help text, type and samples. A sample is a list of name, labels and value."""

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
"""Functions that merge the values of two workers, for metrics that are not summed.

``min`` applies to conditions of all workers, ``max`` to conditions of any worker.
"""
COUNTED = ("counter", "histogram")  # types of metrics that persist after their worker's death
LASTING = ("hf_transformer_last_inference_timestamp_seconds",)  # gauges that persist


class WorkerBoard:
    """Readiness and metrics of ``count`` workers, in an anonymous file that all workers inherit.

    The file starts with one byte per worker: 1 if the worker is ready. A worker claims an index by locking its byte.
    The kernel releases the lock when the process ends, so a replacement gets the index of the dead worker. Another byte
    is set once all workers have been ready at the same time. From then on, the readiness of each worker is independent,
    and a replacement does not make the other workers unready.

    Two copies of each worker's metrics follow. Writes alternate between them: if a worker dies while writing one copy,
    the other copy remains valid.
    """

    def __init__(self, count: int, inherited: Any = None) -> None:
        self.count = count
        self.index = -1  # index of this worker, set by ``claim``
        self._file = os.memfd_create("workers") if inherited is None else inherited.detach()
        os.ftruncate(self._file, self._start(count, 0))

    def __reduce__(self) -> tuple[Any, ...]:
        """Passes the open file to a spawned process."""
        return WorkerBoard, (self.count, reduction.DupFd(self._file))

    def claim(self) -> None:
        """Claims an index for this process, and marks it as not ready. Raises RuntimeError if no index is free."""
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
        """Whether a live worker has this index. The data of a dead worker persists until its replacement starts."""
        request = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, index, 1, 0)
        kind: int = struct.unpack(FLOCK, fcntl.fcntl(self._file, fcntl.F_GETLK, request))[0]
        return index == self.index or kind != fcntl.F_UNLCK

    def set_ready(self, *, ready: bool) -> None:
        """Publishes whether this worker is ready."""
        os.pwrite(self._file, bytes([ready]), self.index)

    @property
    def another_is_ready(self) -> bool:
        """Whether another live worker is ready."""
        flags = os.pread(self._file, self.count, 0)
        return any(ready and index != self.index and self.is_alive(index) for index, ready in enumerate(flags))

    @property
    def waiting_for(self) -> int:
        """Number of workers that are not ready; always 0 once all workers have been ready at the same time."""
        *flags, all_have_been = os.pread(self._file, self.count + 1, 0)
        if all_have_been:
            return 0
        missing = sum(not (ready and self.is_alive(index)) for index, ready in enumerate(flags))
        if not missing:
            os.pwrite(self._file, b"\1", self.count)
        return missing

    def write(self, families: list[Family]) -> None:
        """Replaces the older copy of this worker's metrics. Raises OSError if the system is out of memory."""
        number = max(self._header(self.index, half)[0] for half in (0, 1)) + 1
        copy = orjson.dumps(families)
        header = HEADER.pack(number, len(copy), zlib.crc32(copy, number))
        os.pwrite(self._file, header + copy, self._start(self.index, number % 2))

    def read(self, index: int) -> list[Family]:
        """Returns the last complete copy of a worker's metrics, or an empty list.

        A wrong checksum means that the worker is writing the copy. In this case the method tries again.
        """
        for _ in range(TRIES):
            headers = sorted(((*self._header(index, half), half) for half in (0, 1)), reverse=True)
            for number, length, checksum, half in headers:
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
    """Metrics of all workers. ``collect_own`` collects the metrics of this worker, ``board`` has copies of all."""

    def __init__(self, collect_own: Callable[[], Iterable[Metric]], board: WorkerBoard) -> None:
        self._collect_own = collect_own
        self._board = board
        self._before = counted(board.read(board.index))
        """Counts of previous workers with this index."""
        self._failed = False

    @asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Updates this worker's copy every PERIOD seconds, and once more on exit."""
        renewing = asyncio.create_task(self._renew_periodically())
        try:
            yield
        finally:
            renewing.cancel()
            self._renew()

    async def _renew_periodically(self) -> None:
        while True:
            self._renew()
            await asyncio.sleep(PERIOD)

    def _renew(self) -> None:
        try:
            families = [
                [metric.name, metric.documentation, metric.type, [sample[:3] for sample in metric.samples]]
                for metric in self._collect_own()
            ]
            self._board.write(added_up(families, self._before))
        except Exception:  # raised by a gauge's function; an unhandled error would end the periodic updates
            if not self._failed:
                logger.exception("this worker's metrics can't be collected, or shared with the other workers")
            self._failed = True

    def collect(self) -> Iterator[Metric]:
        """Returns the merged metrics of all workers.

        Updates this worker's copy first, so that counts do not decrease if the next scrape reaches another worker.
        """
        self._renew()
        copies = [(self._board.read(index), self._board.is_alive(index)) for index in range(self._board.count)]
        for name, text, kind, samples in added_up(*(copy if alive else counted(copy) for copy, alive in copies)):
            metric = Metric(name, text, kind)
            metric.samples = [Sample(*sample) for sample in samples]
            yield metric


def counted(families: list[Family]) -> list[Family]:
    """Selects the metrics that persist after their worker's death."""
    return [family for family in families if family[2] in COUNTED or family[0] in LASTING]


def added_up(*workers: list[Family]) -> list[Family]:
    """Merges the metrics of several workers."""
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
