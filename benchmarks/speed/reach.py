"""The goals: ratios between figures of one run, so that they hold on any machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.speed.cases import CLASSIFIER, FILL_MASK, MINILM, MINILM_OPENVINO, Case, Cell
from benchmarks.speed.lineup import ASYNCIO, IN_MEMORY, KSERVE, PERF_ANALYZER, PYTHON_CLIENT, WRK
from benchmarks.speed.measuring import Result
from benchmarks.speed.options import UNBATCHED

SHORT_FILL = Case(FILL_MASK, "9")
SHORT_CLASS = Case(CLASSIFIER, "9")
Choose = Callable[[Sequence[float]], float]


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure of the service over one of something else in the same cell.

    ``other`` is how the names of the others begin and ``holding`` what they hold too; of several, the best. ``other``
    empty: the figure itself. ``at_most``: the goal is a most, else a least. ``inverse``: the other over the service.
    """

    said: str
    cell: Cell
    figure: str
    bound: float
    at_most: bool
    other: str = ""
    holding: str = ""
    inverse: bool = False

    def value(self, service: Result, others: Sequence[Result]) -> float:
        """The ratio; nan where nothing is there to compare with."""
        own = service.median(self.figure)
        if not self.other:
            return own
        best: Choose = max if self.figure == "per_second" else min
        figures = [one.median(self.figure) for one in others if self._means(one, service) and not one.errors]
        if not figures:
            return math.nan
        return best(figures) / own if self.inverse else own / best(figures)

    def _means(self, result: Result, service: Result) -> bool:
        name = f"{service.subject}, {UNBATCHED}" if self.other == UNBATCHED else self.other
        return result.subject.startswith(name) and self.holding in result.subject

    def reached(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound


GOALS = (
    Goal("fill_mask, 9 tokens, 1 connection: p50 / that of wrk calling Triton with shared memory",
         Cell(SHORT_FILL, 1), "p50_ms", 1.6, True, WRK, IN_MEMORY),
    Goal("the same / that of perf_analyzer with shared memory, REST or gRPC",
         Cell(SHORT_FILL, 1), "p50_ms", 1.6, True, PERF_ANALYZER, IN_MEMORY),
    Goal("the same / that of tritonclient with shared memory, REST or gRPC",
         Cell(SHORT_FILL, 1), "p50_ms", 1.6, True, PYTHON_CLIENT, IN_MEMORY),
    Goal("the same / that of the least asyncio client with shared memory",
         Cell(SHORT_FILL, 1), "p50_ms", 1.6, True, ASYNCIO, IN_MEMORY),
    Goal("the KServe SDK's p50 / the same",
         Cell(SHORT_FILL, 1), "p50_ms", 500, False, KSERVE, inverse=True),
    Goal("fill_mask, 9 tokens, 16 connections: requests/s / perf_analyzer's with shared memory, 16 in flight",
         Cell(SHORT_FILL, 16), "per_second", 1.0, False, PERF_ANALYZER, IN_MEMORY),
    Goal("the same / the KServe SDK's",
         Cell(SHORT_FILL, 16), "per_second", 2000, False, KSERVE),
    Goal("classifier, 9 tokens, 32 connections: texts/s / perf_analyzer's, 32 in flight",
         Cell(SHORT_CLASS, 32), "per_second", 2.0, False, PERF_ANALYZER),
    Goal("the same / the KServe SDK's",
         Cell(SHORT_CLASS, 32), "per_second", 50, False, KSERVE),
    Goal("classifier, 9 tokens, 32 connections: CPU of the service, ms per request",
         Cell(SHORT_CLASS, 32), "own_cpu_ms", 0.06, True),
    Goal("classifier, 9 tokens, 1 connection: p50 / that of wrk calling Triton",
         Cell(SHORT_CLASS, 1), "p50_ms", 1.8, True, WRK),
    Goal("the same / that of tritonclient",
         Cell(SHORT_CLASS, 1), "p50_ms", 1.8, True, PYTHON_CLIENT),
    Goal("the same / that of the least asyncio client",
         Cell(SHORT_CLASS, 1), "p50_ms", 1.8, True, ASYNCIO),
    Goal("real MiniLM in ONNX Runtime, 8 to 256 tokens, 64 connections: texts/s / the same service's with batching off",
         Cell(Case(MINILM, "mixed"), 64), "per_second", 1.5, False, UNBATCHED),
    Goal("the same in OpenVINO, widths in multiples of 16",
         Cell(Case(MINILM_OPENVINO, "mixed"), 64), "per_second", 1.5, False, UNBATCHED),
)  # fmt: skip


def reach_table(results: Sequence[Result]) -> list[str]:
    """Markdown: a row per goal, a column per form of the service; reached goals are bold."""
    names = list(
        dict.fromkeys(one.subject for one in results if one.kind == "service" and UNBATCHED not in one.subject)
    )
    lines = [f"| goal | bound | {' | '.join(names)} |", f"|---|---:|{'---:|' * len(names)}"]
    for goal in GOALS:
        there = [one for one in results if one.cell == goal.cell]
        row = {one.subject: goal.value(one, there) for one in there if one.subject in names}
        shown = [_shown(goal, row.get(name, math.nan)) for name in names]
        if any(text != "-" for text in shown):
            bound = f"{'at most' if goal.at_most else 'at least'} {goal.bound:g}"
            lines.append(f"| {goal.said} | {bound} | {' | '.join(shown)} |")
    return lines


def _shown(goal: Goal, value: float) -> str:
    if math.isnan(value):
        return "-"
    text = f"{value:.0f}" if value >= 100 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"
    return f"**{text}**" if goal.reached(value) else text
