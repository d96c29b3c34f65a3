"""The contributors' goals: ratios to peers within one run, `make bench ARGS=--goals`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.cases import MASKS, MINILM, SHORT_TEXTS, Case, Cell
from benchmarks.measuring import Result
from benchmarks.options import Options
from benchmarks.pairs import Ratio, interval, paired
from benchmarks.report import INTERVALS, figure_table, head
from benchmarks.systems import IN_MEMORY, IN_ONE_POD, KSERVE, PERF_ANALYZER, UNBATCHED, WRK

REST: Final = "service, REST"
GRPC: Final = "service, gRPC"
JSON: Final = f"{KSERVE}, REST (JSON)"
SDK: Final = f"{KSERVE}, gRPC"
ANALYZERS: Final = tuple(f"{PERF_ANALYZER}, {label}{more}" for label in ("REST", "gRPC") for more in ("", IN_MEMORY))


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal for a figure of one configuration of the service, relative to a peer in the same cell and run.

    Attributes:
        text: the goal on the page.
        figure: a field of Sample.
        bound: the largest value, with ``at_least`` the smallest.
        peers: names; the best one without errors counts. Empty compares the figure itself.
        inverse: divide the peer's figure by the service's.
    """

    text: str
    cell: Cell
    service: str
    figure: str
    bound: float
    peers: tuple[str, ...] = ()
    at_least: bool = False
    inverse: bool = False

    def value(self, results: Sequence[Result]) -> Ratio | None:
        """The ratio, by round; None if a figure is missing."""
        here = {result.system: result for result in results if result.cell == self.cell}
        service = here[self.service].values(self.figure) if self.service in here else []
        if not self.peers:
            return Ratio(statistics.median(service), interval(service)) if service else None
        peers = [here[name].values(self.figure) for name in self.peers if name in here and not here[name].errors]
        peers = [values for values in peers if values]
        if not service or not peers:
            return None
        best = (max if self.figure == "per_second" else min)(peers, key=statistics.median)
        return paired(best, service) if self.inverse else paired(service, best)

    def row(self, value: Ratio) -> str:
        """A row of the table."""
        reached = value.median >= self.bound if self.at_least else value.median <= self.bound
        bound = f"{'at least' if self.at_least else 'at most'} {self.bound:,g}"
        return f"| {self.text} | {bound} | {value} | {'yes' if reached else 'no'} |"


ONE_TEXT, TEXTS = Cell(SHORT_TEXTS, 1), Cell(SHORT_TEXTS, 32)
ONE_MASK, SEVERAL_MASKS = Cell(MASKS, 1), Cell(MASKS, 16)
REAL: Final = Cell(Case(MINILM, "mixed"), 64)
GOALS: Final = (
    Goal("classification, 1 connection: p50, times that of wrk straight to Triton", ONE_TEXT, REST, "p50_ms", 1.8,
         (WRK,)),
    Goal("classification, 32 connections: texts/s, times perf_analyzer's", TEXTS, REST, "per_second", 2, ANALYZERS,
         at_least=True),
    Goal("... times those of KServe's SDK, REST", TEXTS, REST, "per_second", 50, (JSON,), at_least=True),
    Goal("... CPU of the service, ms per request", TEXTS, REST, "own_cpu_ms", 0.06),
    Goal("fill_mask, shared memory, 1 connection: p50, times that of wrk straight to Triton", ONE_MASK, IN_ONE_POD,
         "p50_ms", 1.6, (WRK + IN_MEMORY,)),
    Goal("... times that of perf_analyzer", ONE_MASK, IN_ONE_POD, "p50_ms", 1.6, ANALYZERS),
    Goal("... p50 of KServe's SDK, REST, over it", ONE_MASK, IN_ONE_POD, "p50_ms", 500, (JSON,), at_least=True,
         inverse=True),
    Goal("fill_mask, shared memory, 16 connections: texts/s, times perf_analyzer's", SEVERAL_MASKS, IN_ONE_POD,
         "per_second", 1, ANALYZERS, at_least=True),
    Goal("fill_mask, REST, 1 connection: p50, times that of perf_analyzer over REST", ONE_MASK, REST, "p50_ms", 1.2,
         ANALYZERS[:1]),
    Goal("fill_mask, REST, 16 connections: texts/s, times perf_analyzer's over REST", SEVERAL_MASKS, REST,
         "per_second", 0.9, ANALYZERS[:1], at_least=True),
    Goal("fill_mask, gRPC, 1 connection: p50 of KServe's SDK, gRPC, over it", ONE_MASK, GRPC, "p50_ms", 2, (SDK,),
         at_least=True, inverse=True),
    Goal("real MiniLM, 8 to 256 tokens, 64 connections: texts/s, times those with batching off", REAL, IN_ONE_POD,
         "per_second", 1.5, (f"{IN_ONE_POD}, {UNBATCHED}",), at_least=True),
)  # fmt: skip


ONE_ROUND: Final = " There was one round, so no number has an interval."


def write_goals(results: Sequence[Result], options: Options, seconds: float) -> list[Path]:
    """Writes goals.md; returns its path in a list."""
    options.results.mkdir(parents=True, exist_ok=True)
    page = options.results / "goals.md"
    lines = [
        "# Goals",
        "",
        "For those who change the code. Users find their figures in [speed.md](speed.md). A number is the median of "
        f"the rounds' ratios.{ONE_ROUND if options.quick else ''}",
        "",
        *goal_table(results),
        "",
        "## All figures",
        "",
        *head(options, results, seconds, "--goals" + (" --quick" if options.quick else "")),
        "",
        f"[How each figure is made](../README.md#speed). CPU is in ms per request. {INTERVALS}",
        "",
        *figure_table(results),
    ]
    page.write_text("\n".join(lines) + "\n")
    return [page]


def goal_table(results: Sequence[Result]) -> list[str]:
    """One row for each measured goal."""
    values = [(goal, goal.value(results)) for goal in GOALS]
    return [
        "| goal | wanted | number | 95 % | reached |",
        "|---|---:|---:|---|---|",
        *(goal.row(value) for goal, value in values if value is not None),
    ]
