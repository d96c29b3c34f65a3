"""Whether the service's memory stays flat over many requests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack

from benchmarks.speed.cases import CLASSIFIER, FILL_MASK, Case, Cell
from benchmarks.speed.lineup import IN_MEMORY
from benchmarks.speed.measuring import Say
from benchmarks.speed.options import SERVICES, UNBATCHED, Options
from benchmarks.speed.subjects import Ground, Service
from benchmarks.speed.usage import resident_bytes

CONNECTIONS = 32
SECONDS = 5
CASES = (Case(CLASSIFIER, "9"), Case(FILL_MASK, "4"))
"""Of fill_mask the shortest texts: with nine tokens its logits alone would keep two processors busy for minutes."""
WARM_UP_PARTS = 10
"""A tenth of the requests comes before the first look at the memory: buffers and caches fill up once."""
MOST_GROWTH = 2.0
"""Percent."""


def measure_memory(options: Options, ground: Ground, flags: Mapping[str, tuple[str, ...]], say: Say) -> int:
    """Prints one table row per form of the service and model; 1 if one grows by more than MOST_GROWTH, else 0."""
    rows, grown = [], False
    for name, case in _chosen(options, flags):
        say(f"{name}: {case.name}, {options.memory_requests} requests")
        began = time.monotonic()
        before, after = _grow(Service(name, ground, case.model, options.python, flags[name]), case, options)
        percent = 100 * (after - before) / before
        grown = grown or percent > MOST_GROWTH
        minutes = (time.monotonic() - began) / 60
        rows.append(
            f"| {name} | {case.name} | {before / 1e6:.1f} | {after / 1e6:.1f} | {percent:+.1f} % | {minutes:.1f} |"
        )
    print("| form | case | MB before | MB after | growth | minutes |\n|---|---|---:|---:|---:|---:|")
    print("\n".join(rows))
    return 1 if grown else 0


def _chosen(options: Options, flags: Mapping[str, tuple[str, ...]]) -> list[tuple[str, Case]]:
    """What --only names. Without it the forms that come by default, over REST and gRPC, and those of --service: the
    classifier's outputs are inline there too; with --full the others as well."""
    pairs = [(name, case) for name in flags for case in CASES if UNBATCHED not in name]
    for part in options.only:
        pairs = [pair for pair in pairs if part in pair[0] or part in pair[1].name]
    if options.only or options.full:
        return pairs
    return [(name, case) for name, case in pairs if IN_MEMORY in name or name not in SERVICES]


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
