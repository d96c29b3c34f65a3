"""The metrics of several workers as one: whichever of them answers /metrics speaks for all.

Each worker keeps a copy of its metrics in memory that all share, renewed every PERIOD, and the one that is asked adds
them up: nobody waits for anybody, and a worker that hangs or has died still counts. What a worker has counted when it
dies stays counted, save for what came after its last copy; the worker that replaces it goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import reduction
from types import TracebackType
from typing import Any, Self

import orjson
from prometheus_client import Metric
from prometheus_client.registry import Collector

from hf_transformer.workers import Roster

logger = logging.getLogger(__name__)

PERIOD = 1.0
"""Seconds after which a worker's copy is renewed; what the others say is at most that old."""
HALF = 256 * 1024
"""Bytes that a copy may have; two of each worker take turns, so that no reader sees half of one. Memory that is not
written is not taken; a copy has some 20 KiB."""
HEADER = struct.Struct("<QQI")
"""One for each of a worker's two copies, in front of both: which copy it is, counted from 1, its length and CRC-32."""
TRIES = 100
"""Times that a copy is read that was being replaced each time; its worker replaces it once in PERIOD."""
PLACE = mmap.PAGESIZE + 2 * HALF

Sample = list[Any]
"""Name, labels and value."""
Family = list[Any]
"""Name, text, type and samples, as a copy has them."""

SMALLEST = frozenset(
    (
        "hf_transformer_model_ready",
        "hf_transformer_shared_memory_registered",
        "process_max_fds",
    )
)
"""Gauges of which the smallest is that of all workers: what is true of all of them."""
LARGEST = frozenset(("hf_transformer_predictor_circuit_open", "process_open_fds", "process_start_time_seconds"))
"""Gauges of which the largest is: what is true of any, what has a limit for each, and the last start. All other numbers
are added up."""
COUNTED = frozenset(("counter", "histogram"))
"""What is still true of a worker that has died."""


class Board:
    """The workers' copies, in a file without a name that all of them inherit."""

    def __init__(self, roster: Roster, file: int | None = None) -> None:
        self._roster = roster
        self._file = os.memfd_create("metrics") if file is None else file
        if file is None:
            os.ftruncate(self._file, roster.count * PLACE)

    def __reduce__(self) -> tuple[Any, ...]:
        """For a process that is being spawned, which gets the open file with it."""
        return _rebuild, (self._roster, reduction.DupFd(self._file))

    @property
    def own(self) -> int | None:
        """This worker's place; None while there are more workers than places."""
        return self._roster.place

    def others(self) -> Iterator[tuple[bytes, bool]]:
        """The copies of the other places that have one, and whether their worker lives."""
        for place in range(self._roster.count):
            if place != self.own and (copy := self.read(place)):
                yield copy, self._roster.alive(place)

    def read(self, place: int) -> bytes:
        """The last whole copy of a place, empty if there is none.

        Nobody is kept from writing meanwhile: copies that do not have their sum are read again. A worker that dies
        while it writes leaves the copy before that one.
        """
        for _ in range(TRIES):
            headers = sorted(((*self._header(place, half), half) for half in (0, 1)), reverse=True)
            if not headers[0][0]:
                return b""
            for number, length, checksum, half in headers:
                copy = os.pread(self._file, min(length, HALF), self._start(place, half))
                if number and zlib.crc32(copy) == checksum:
                    return copy
        return b""

    def write(self, copy: bytes) -> None:
        """Replaces this worker's copy. Raises ValueError for one that is too long."""
        if self.own is None:
            return
        if len(copy) > HALF:
            raise ValueError(f"{len(copy)} bytes of metrics, at most {HALF} can be shared")
        number = max(self._header(self.own, half)[0] for half in (0, 1)) + 1
        os.pwrite(self._file, copy, self._start(self.own, number % 2))
        header = HEADER.pack(number, len(copy), zlib.crc32(copy))
        os.pwrite(self._file, header, self.own * PLACE + number % 2 * HEADER.size)

    def _header(self, place: int, half: int) -> tuple[int, int, int]:
        number, length, checksum = HEADER.unpack(os.pread(self._file, HEADER.size, place * PLACE + half * HEADER.size))
        return number, length, checksum

    def _start(self, place: int, half: int) -> int:
        return place * PLACE + mmap.PAGESIZE + half * HALF


def _rebuild(roster: Roster, file: Any) -> Board:
    return Board(roster, file.detach())


class SharedMetrics(Collector):
    """All workers' metrics, seen from one of them; an async context manager that keeps its copy new.

    Args:
        own: gives this worker's.
        board: where the others' are.
    """

    def __init__(self, own: Callable[[], Iterable[Metric]], board: Board) -> None:
        self._own = own
        self._board = board
        before = b"" if board.own is None else board.read(board.own)
        self._before: list[Family] = orjson.loads(before) if before else []
        self._failed = False
        self._keeping: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._keeping = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keeping.cancel()
        self._renew()

    async def _keep(self) -> None:
        while True:
            self._renew()
            await asyncio.sleep(PERIOD)

    def _renew(self) -> None:
        try:
            self._write(self._copy())
        except Exception:  # of whatever tells a number: the last resort, or the copy would never be renewed again
            if not self._failed:
                logger.exception("this worker's metrics can't be collected")
            self._failed = True

    def _write(self, copy: bytes) -> None:
        try:
            self._board.write(copy)
        except (OSError, ValueError) as error:
            if not self._failed:
                logger.error("this worker's metrics can't be shared with the others: %s", error)
            self._failed = True

    def collect(self) -> Iterator[Metric]:
        """The sums. The own copy is renewed too, so that no count is ever smaller when another worker is asked."""
        own = self._copy()
        self._write(own)
        total = Total()
        total.add(orjson.loads(own))
        for copy, alive in self._board.others():
            total.add(orjson.loads(copy), only_counted=not alive)
        yield from total.metrics()

    def _copy(self) -> bytes:
        """This worker's metrics, with what the one before it in this place had counted."""
        total = Total()
        total.add([as_family(metric) for metric in self._own()])
        total.add(self._before, only_counted=True)
        return orjson.dumps([as_family(metric) for metric in total.metrics()])


def as_family(metric: Metric) -> Family:
    samples = [[one.name, one.labels, one.value] for one in metric.samples]
    return [metric.name, metric.documentation, metric.type, samples]


class Total:
    """The sum of several workers' metrics."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[Metric, dict[Any, float]]] = {}

    def add(self, families: Iterable[Family], only_counted: bool = False) -> None:
        """Adds one worker's; ``only_counted`` of what it has counted, not of how it is."""
        for name, text, kind, samples in families:
            if only_counted and kind not in COUNTED:
                continue
            _, values = self._families.setdefault(name, (Metric(name, text, kind), {}))
            for sample, labels, value in samples:
                key = sample, tuple(labels.items())
                known = values.get(key)
                if known is None:
                    values[key] = value
                elif name in SMALLEST or sample.endswith("_created"):
                    values[key] = min(known, value)
                elif name in LARGEST:
                    values[key] = max(known, value)
                else:
                    values[key] = known + value

    def metrics(self) -> Iterator[Metric]:
        for metric, values in self._families.values():
            metric.samples = []
            for (sample, labels), value in values.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric
