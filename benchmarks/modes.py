"""Two further measurements: the best number of batches in flight, and growth of memory."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final

from benchmarks.cases import CLASSIFIER, FILL_MASK, Case, Cell, Model, cells_of
from benchmarks.measuring import Result, Say, measure
from benchmarks.options import Options
from benchmarks.processes import resident_bytes
from benchmarks.report import figure_table, head
from benchmarks.systems import IN_MEMORY, UNBATCHED, Service, Testbed

MIB: Final = 2**20
IN_FLIGHT: Final = (1, 2, 3, 4)
OUTPUT_MIB: Final[Mapping[Model, Sequence[int]]] = {FILL_MASK: (4, 8, 16), CLASSIFIER: (0,)}
"""--max_batch_output_bytes in MiB. The output of a fill_mask text of nine tokens has 1.05 MiB."""
CELLS: Final = (
    *cells_of(FILL_MASK, "9 tokens", 8, 16, 64),
    *cells_of(CLASSIFIER, "short", 32, 128),
    *cells_of(CLASSIFIER, "mixed", 32),
)

CONNECTIONS: Final = 32
SECONDS: Final = 5
GROWING: Final = (Case(CLASSIFIER, "short"), Case(FILL_MASK, "4 tokens"))
"""Cases of the memory measurement. fill_mask has its shortest texts, because its large logits take minutes."""
MAX_GROWTH_PERCENT: Final = 2.0


def measure_in_flight(options: Options, testbed: Testbed, say: Say, started: float) -> int:
    """Writes batches_in_flight.md; returns 1 if a request failed, else 0. ``started`` is of time.monotonic."""
    results: list[Result] = []
    for model, sizes in OUTPUT_MIB.items():
        cells = [cell for cell in options.pick(CELLS, lambda cell: cell.case.name) if cell.case.model is model]
        if not cells:
            continue
        systems = []
        for size in sizes:
            for count in IN_FLIGHT:
                name, flags = f"{count} in flight", [f"--max_batches_in_flight={count}"]
                if size:
                    name, flags = f"{name}, {size} MiB", [*flags, f"--max_batch_output_bytes={size * MIB}"]
                systems.append(Service(name, testbed, model, flags))
        results += measure(systems, cells, options.rounds, options.seconds, testbed.triton, say)
    options.results.mkdir(parents=True, exist_ok=True)
    page = options.results / "batches_in_flight.md"
    arguments = "--batches_in_flight" + (" --quick" if options.quick else "")
    lines = [
        "# Batches in flight",
        "",
        *head(options, results, time.monotonic() - started, arguments),
        "",
        "[How each figure is made.](../README.md#batches-in-flight)",
        "",
        *figure_table(results, "form"),
    ]
    page.write_text("\n".join(lines) + "\n")
    say(f"written: {page}")
    return 1 if any(result.errors for result in results) else 0


def measure_memory(options: Options, testbed: Testbed, flags: Mapping[str, tuple[str, ...]], say: Say) -> int:
    """Prints a row for each configuration and model; returns 1 if memory grows by more than MAX_GROWTH_PERCENT, else 0.

    Configurations are those with shared memory, the default, and those of --service, or those in --only.
    """
    rows, has_grown = [], False
    added = [one.partition(":")[0].strip() for one in options.service]
    usual = [name for name in flags if (IN_MEMORY in name and UNBATCHED not in name) or name in added]
    names = options.pick(flags, str)
    cases = options.pick(GROWING, lambda case: case.name)
    for name, case in product(usual if len(names) == len(flags) else names, cases):
        say(f"{name}: {case.name}, {options.memory_requests} requests")
        began = time.monotonic()
        before, after = _grow(Service(name, testbed, case.model, flags[name]), case, options.memory_requests)
        percent = 100 * (after - before) / before
        has_grown = has_grown or percent > MAX_GROWTH_PERCENT
        sizes = f"{before / 1e6:.1f} | {after / 1e6:.1f} | {percent:+.1f} %"
        rows.append(f"| {name} | {case.name} | {sizes} | {(time.monotonic() - began) / 60:.1f} |")
    print("| form | case | MB before | MB after | growth | minutes |\n|---|---|---:|---:|---:|---:|")
    print("\n".join(rows))
    return 1 if has_grown else 0


def _grow(service: Service, case: Case, requests: int) -> tuple[int, int]:
    """Resident bytes after a warm-up with a tenth of the requests, which fills caches, and after all requests."""
    try:
        service.start()
        service.wait()
        service.check(case)
        _send(service, case, requests // 10)
        before = resident_bytes(service.child)
        _send(service, case, requests)
        return before, resident_bytes(service.child)
    finally:
        service.stop()


def _send(service: Service, case: Case, wanted: int) -> None:
    """Sends at least ``wanted`` requests."""
    sent = 0
    while sent < wanted:
        sent += service.measure(Cell(case, CONNECTIONS), SECONDS).requests
