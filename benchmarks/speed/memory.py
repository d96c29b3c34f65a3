"""Whether the service's memory stays flat over many requests."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from benchmarks.speed.cases import CLASSIFIER, FILL_MASK, Case, Cell
from benchmarks.speed.measuring import Say
from benchmarks.speed.options import UNBATCHED, Options
from benchmarks.speed.subjects import Ground, Service
from benchmarks.speed.usage import resident_bytes

CONNECTIONS = 32
SECONDS = 5
WARM_UP_PARTS = 10
"""A tenth of the requests comes before the first look at the memory: buffers and caches fill up once."""
MOST_GROWTH = 2.0
"""Percent."""


def measure_memory(options: Options, ground: Ground, flags: Mapping[str, tuple[str, ...]], say: Say) -> int:
    """Prints one table row per form of the service and model; 1 if one grows by more than MOST_GROWTH, else 0."""
    rows, grown = [], False
    for name, given in flags.items():
        if UNBATCHED in name:
            continue
        for case in (Case(CLASSIFIER, "mixed"), Case(FILL_MASK, "9")):
            say(f"{name}: {case.name}, {options.memory_requests} requests")
            before, after = _grow(Service(name, ground, case.model, options.python, given), case, options)
            percent = 100 * (after - before) / before
            grown = grown or percent > MOST_GROWTH
            rows.append(f"| {name} | {case.name} | {before / 1e6:.1f} | {after / 1e6:.1f} | {percent:+.1f} % |")
    print("| form | case | MB before | MB after | growth |\n|---|---|---:|---:|---:|")
    print("\n".join(rows))
    return 1 if grown else 0


def _grow(service: Service, case: Case, options: Options) -> tuple[int, int]:
    """Resident bytes after the warm-up, and after the requests."""
    cell = Cell(case, CONNECTIONS)
    with ExitStack() as stack:
        stack.callback(service.stop)
        service.start()
        service.wait()
        service.check(case)
        assert service.child is not None
        _send(service, cell, options.memory_requests // WARM_UP_PARTS)
        before = resident_bytes(service.child)
        _send(service, cell, options.memory_requests)
        return before, resident_bytes(service.child)


def _send(service: Service, cell: Cell, wanted: int) -> None:
    """At least so many requests."""
    sent = 0
    while sent < wanted:
        sent += service.measure(cell, SECONDS).requests
