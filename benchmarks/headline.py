"""The README's figures: this service and KServe's SDK, with each path to Triton.

    make bench ARGS=--headline [ARGS="--headline --rounds 5 --seconds 2"]

One Triton, one worker of each system, V1 over HTTP, different texts of nine tokens. The systems of a model alternate,
in every second round backwards. One configuration of the service occurs twice: the difference is the noise.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks.cases import CLASSIFIER, FILL_MASK, REDUCED, Cell, Model, cells_of
from benchmarks.measuring import Result, measure
from benchmarks.options import Options
from benchmarks.report import head
from benchmarks.systems import KServeTransformer, Service, System, Testbed

OFF: Final = "--predictor_shared_memory=off"
GRPC: Final = "--predictor_protocol=grpc-v2"
WAYS: Final[Mapping[str, tuple[str, ...]]] = {
    "two pods, REST": (OFF,),
    "two pods, REST, again": (OFF,),
    "two pods, gRPC": (GRPC, OFF),
    "one pod, REST and shared memory": ("--predictor_shared_memory=auto",),
    "one pod, gRPC and shared memory": (GRPC, "--predictor_shared_memory=auto"),
}
"""The service's path to Triton, and its flags. Pods share no memory."""
REDUCED_WAY: Final = "two pods, REST, `export --reduce`"
KSERVE: Final = {"KServe's SDK, REST (JSON)": "v2", "KServe's SDK, gRPC": "grpc-v2"}
CELLS: Final = {FILL_MASK: (1, 16), CLASSIFIER: (1, 32)}
"""Model -> connections for p50, and for texts per second."""


def measure_headline(options: Options, testbed: Testbed, say: Callable[[str], None]) -> int:
    """Measures and writes headline.md; returns 1 if a request failed, else 0."""
    started, results = time.monotonic(), list[Result]()
    for model, connections in CELLS.items():
        systems: list[System] = [Service(name, testbed, model, flags) for name, flags in WAYS.items()]
        systems += [KServeTransformer(name, testbed, model, protocol) for name, protocol in KSERVE.items()]
        results += measure(
            systems, cells_of(model, "9", *connections), options.rounds, options.seconds, testbed.triton, say
        )
    reduced: list[System] = [Service(REDUCED_WAY, testbed, REDUCED, (OFF,))]
    cells = cells_of(REDUCED, "9", *CELLS[FILL_MASK])
    results += measure(reduced, cells, options.rounds, options.seconds, testbed.triton, say)
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / "headline.md"
    path.write_text(page(results, options, time.monotonic() - started), encoding="utf-8")
    say(f"written: {path}")
    return int(any(result.errors for result in results))


def page(results: Sequence[Result], options: Options, seconds: float) -> str:
    """The page: machine and versions, then one row for each system."""
    (lone, several), (single, crowd) = CELLS[FILL_MASK], CELLS[CLASSIFIER]
    columns = [
        *("way to Triton", f"fill_mask, {lone} connection: p50 ms", f"fill_mask, {several}: texts/s"),
        *(f"classifier, {single} connection: p50 ms", f"classifier, {crowd}: texts/s"),
        f"classifier, {crowd}: own CPU ms",
    ]
    lines = [
        "# The service beside KServe's SDK",
        "",
        *head(options, results, seconds, "--headline"),
        "",
        "Medians of the rounds, with the least and the most. *again* is the same system once more: what these two "
        "rows differ by is noise.",
        "",
        f"| {' | '.join(columns)} |",
        "|" + "---|" * len(columns),
    ]
    for name in (*WAYS, REDUCED_WAY, *KSERVE):
        fill, classify = (REDUCED if name == REDUCED_WAY else FILL_MASK), CLASSIFIER
        cells = [
            figure(results, name, fill, lone, "p50_ms"),
            figure(results, name, fill, several, "per_second"),
            figure(results, name, classify, single, "p50_ms"),
            figure(results, name, classify, crowd, "per_second"),
            figure(results, name, classify, crowd, "own_cpu_ms"),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def figure(results: Sequence[Result], system: str, model: Model, connections: int, field: str) -> str:
    """The median of a figure with minimum and maximum; a dash without samples."""
    [cell] = cells_of(model, "9", connections)
    values = [getattr(sample, field) for sample in samples_of(results, system, cell)]
    if not values:
        return "-"
    form = {"per_second": "{:,.0f}", "own_cpu_ms": "{:.3f}"}.get(field, "{:.2f}")
    median, least, most = (form.format(value) for value in (statistics.median(values), min(values), max(values)))
    return f"{median} ({least} to {most})"


def samples_of(results: Sequence[Result], system: str, cell: Cell) -> Sequence[object]:
    """The samples of a system in a cell."""
    return next((one.samples for one in results if (one.system, one.cell) == (system, cell)), ())
