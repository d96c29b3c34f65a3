"""How many batches are best at a time, and how large: what two defaults of the service come from."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.speed.cases import CLASSIFIER, FILL_MASK, Case, Cell, Model
from benchmarks.speed.measuring import Result, Say, measure
from benchmarks.speed.options import Options
from benchmarks.speed.report import head, shown
from benchmarks.speed.subjects import Ground, Service
from hf_transformer.commands.local_triton import SHARED_MEMORY

COUNTS = (1, 2, 3, 4)
MIB = 2**20
REGION_BYTES = 64 * MIB
"""Of each service, the default: as much as four batches of the largest kind need."""


@dataclass(frozen=True, slots=True)
class Form:
    """One form of the service: batches in flight, and the most MiB of a batch's outputs; None where it has no effect,
    since the outputs are small."""

    count: int
    output_mib: int | None

    @property
    def name(self) -> str:
        return f"{self.count} in flight" + (f", {self.output_mib} MiB" if self.output_mib else "")

    @property
    def flags(self) -> list[str]:
        found = [f"--max_batches_in_flight={self.count}", f"--predictor_shared_memory_bytes={REGION_BYTES}"]
        return [*found, f"--max_batch_output_bytes={self.output_mib * MIB}"] if self.output_mib else found


SIZES: dict[Model, tuple[int | None, ...]] = {FILL_MASK: (4, 8, 16), CLASSIFIER: (None,)}
"""MiB. A row of fill_mask with nine tokens has 1.05."""
CELLS = (
    *(Cell(Case(FILL_MASK, "9"), connections) for connections in (8, 16, 64)),
    *(Cell(Case(CLASSIFIER, "9"), connections) for connections in (32, 128)),
    Cell(Case(CLASSIFIER, "mixed"), 32),
)


def measure_in_flight(options: Options, ground: Ground, say: Say, started: float) -> int:
    """Writes batches_in_flight.md; 1 if a request has failed, else 0. ``started`` is of time.monotonic."""
    results = []
    for model, sizes in SIZES.items():
        cells = [cell for cell in CELLS if cell.case.model is model and _chosen(cell, options)]
        forms = [Form(count, size) for size in sizes for count in COUNTS]
        if not cells:
            continue
        if shutil.disk_usage(SHARED_MEMORY).free < len(forms) * REGION_BYTES:
            say(f"{SHARED_MEMORY} is too small for {len(forms)} services: some of their outputs will travel inline")
        subjects = [Service(one.name, ground, model, options.python, one.flags) for one in forms]
        results += measure(subjects, cells, options.rounds, options.seconds, ground.triton, say)
    options.results.mkdir(parents=True, exist_ok=True)
    page = options.results / "batches_in_flight.md"
    page.write_text("\n".join(_page(options, results, time.monotonic() - started)) + "\n")
    say(f"written: {page}")
    return 1 if any(result.errors for result in results) else 0


def _chosen(cell: Cell, options: Options) -> bool:
    return not options.only or any(one in cell.case.name for one in options.only)


def _page(options: Options, results: Sequence[Result], seconds: float) -> list[str]:
    """A row per cell and form; the most requests/s of a cell are bold."""
    lines = [
        "# Batches in flight",
        "",
        *head(options, results, seconds, "--batches_in_flight" + (" --quick" if options.quick else "")),
        "",
        "[How each figure is made.](../README.md#batches-in-flight)",
        "",
        "| case | connections | form | requests/s | p50 ms | p99 ms | own CPU ms | Triton's CPU ms | errors |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    best = {
        cell: max(one.median("per_second") for one in results if one.cell == cell)
        for cell in {one.cell: None for one in results}
    }
    for one in results:
        rate = one.median("per_second")
        figures = [shown(one.median(name)) for name in ("p50_ms", "p99_ms", "own_cpu_ms", "triton_cpu_ms")]
        rates = f"**{shown(rate)}**" if rate == best[one.cell] else shown(rate)
        row = [one.cell.case.name, str(one.cell.connections), one.subject, rates, *figures, str(one.errors)]
        lines.append(f"| {' | '.join(row)} |")
    return lines
