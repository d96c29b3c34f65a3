"""The results page of the speed benchmark: goals, a plot, the machine and all figures."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.cases import CLASSIFIER, FILL_MASK, MINILM, Case, Cell
from benchmarks.measuring import Result
from benchmarks.options import Options
from benchmarks.systems import DEFAULT, ENSEMBLE, IN_MEMORY, KSERVE, MAX_IN_FLIGHT, PERF_ANALYZER, UNBATCHED, WRK

PACKAGES = ("hf-transformer", "transformers", "tokenizers", "numpy", "uvicorn", "uvloop", "orjson", "grpcio")
TRITON_PACKAGES = ("nvidia-pytriton", "numpy")
BENCH_PACKAGES = ("kserve", "transformers")
_VERSIONS = """
import importlib.metadata as m, json, platform, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
print(json.dumps({"Python": platform.python_version()} | {name: version(name) for name in sys.argv[1:]}))
"""


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal for a figure of the service with default flags, relative to a peer in the same cell and run.

    Attributes:
        text: the goal on the page.
        figure: a field of Sample.
        bound: the largest value, with ``at_least`` the smallest.
        peer: the start of the peer's name. The best peer without errors counts; empty compares the figure itself.
        holding: a part of the peer's name.
        inverse: divide the peer's figure by the service's.
    """

    text: str
    cell: Cell
    figure: str
    bound: float
    peer: str = ""
    holding: str = ""
    at_least: bool = False
    inverse: bool = False

    def value(self, results: Sequence[Result]) -> float:
        """The ratio; NaN if a figure is missing."""
        here = [result for result in results if result.cell == self.cell]
        service = next((result.median(self.figure) for result in here if result.system == DEFAULT), math.nan)
        if not self.peer:
            return service
        peers = [result for result in here if result.system.startswith(self.peer) and self.holding in result.system]
        figures = [result.median(self.figure) for result in peers if not result.errors]
        if not figures:
            return math.nan
        best = max(figures) if self.figure == "per_second" else min(figures)
        return best / service if self.inverse else service / best

    def row(self, value: float) -> str:
        """A row of the table."""
        shown = f"{value:.0f}" if value >= 100 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"
        reached = value >= self.bound if self.at_least else value <= self.bound
        bound = f"{'at least' if self.at_least else 'at most'} {self.bound:,g}"
        return f"| {self.text} | {bound} | {shown} | {'yes' if reached else 'no'} |"


ONE_MASK, MASKS = Cell(Case(FILL_MASK, "9"), 1), Cell(Case(FILL_MASK, "9"), 16)
ONE_TEXT, TEXTS = Cell(Case(CLASSIFIER, "9"), 1), Cell(Case(CLASSIFIER, "9"), 32)
REAL: Final = Cell(Case(MINILM, "mixed"), 64)
GOALS: Final = (
    Goal("fill_mask, 1 connection: p50, times that of wrk straight to Triton", ONE_MASK, "p50_ms", 1.6, WRK, IN_MEMORY),
    Goal("... times that of perf_analyzer", ONE_MASK, "p50_ms", 1.6, PERF_ANALYZER, IN_MEMORY),
    Goal("... the KServe SDK's over it", ONE_MASK, "p50_ms", 500, KSERVE, at_least=True, inverse=True),
    Goal("fill_mask, 16 connections: texts/s, times perf_analyzer's", MASKS, "per_second", 1, PERF_ANALYZER, IN_MEMORY,
         at_least=True),
    Goal("... times the KServe SDK's", MASKS, "per_second", 2000, KSERVE, at_least=True),
    Goal("classifier, 32 connections: texts/s, times perf_analyzer's", TEXTS, "per_second", 2, PERF_ANALYZER,
         at_least=True),
    Goal("... times the KServe SDK's", TEXTS, "per_second", 50, KSERVE, at_least=True),
    Goal("... CPU of the service, ms per request", TEXTS, "own_cpu_ms", 0.06),
    Goal("classifier, 1 connection: p50, times that of wrk straight to Triton", ONE_TEXT, "p50_ms", 1.8, WRK),
    Goal("real MiniLM, 64 connections: texts/s, times those with batching off", REAL, "per_second", 1.5,
         f"{DEFAULT}, {UNBATCHED}", at_least=True),
)  # fmt: skip

LINES: Final = {
    DEFAULT: "this service",
    "service, gRPC, shared memory": "this service, gRPC to Triton",
    f"{PERF_ANALYZER}, REST": "Triton alone, perf_analyzer",
    WRK: "Triton alone, wrk",
    ENSEMBLE: "ensemble in Triton",
    KSERVE: "KServe SDK",
}
"""System -> label in the plot, which has room for six lines without a legend."""


def write_results(results: Sequence[Result], options: Options, seconds: float) -> list[Path]:
    """Writes speed.md and its plot, with --quick speed_quick.md; returns their paths."""
    stem = "speed_quick" if options.quick else "speed"
    options.results.mkdir(parents=True, exist_ok=True)
    page, picture = (options.results / f"{stem}.{ending}" for ending in ("md", "svg"))
    plot(results, picture)
    lines = [
        "# Speed\n",
        *goal_table(results),
        f"![requests per second by connections]({picture.name})\n",
        "## Figures\n",
        *head(options, results, seconds, "--quick" if options.quick else ""),
        "",
        "[How each figure is made](../README.md#speed). CPU is in ms per request.\n",
        *figure_table(results),
    ]
    page.write_text("\n".join(lines) + "\n")
    return [page, picture]


def goal_table(results: Sequence[Result]) -> list[str]:
    """One row for each measured goal."""
    values = [(goal, goal.value(results)) for goal in GOALS]
    return [
        f'Goals, for texts of 9 tokens (MiniLM: 8 to 256) and "{DEFAULT}", the default:\n',
        "| goal | wanted | number | reached |",
        "|---|---:|---:|---|",
        *(goal.row(value) for goal, value in values if not math.isnan(value)),
        "",
    ]


def figure_table(results: Sequence[Result], column: str = "system") -> list[str]:
    """One row for each system and cell."""
    lines = [
        f"| case | connections | {column} | requests/s | p50 ms | p99 ms | own CPU ms | Triton's CPU ms | errors |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        names = ("per_second", "p50_ms", "p99_ms", "own_cpu_ms", "triton_cpu_ms")
        figures = " | ".join(shown(result.median(name)) for name in names)
        lines.append(
            f"| {result.cell.case.name} | {result.cell.connections} | {result.system} | {figures} | {result.errors} |"
        )
    return lines


def plot(results: Sequence[Result], path: Path) -> None:
    """A plot of requests/s by connections, for the classifier or the first case."""
    import matplotlib  # here, because the service's environment lacks it

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "speed", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    cases = dict.fromkeys(result.cell.case for result in results)
    case = TEXTS.case if TEXTS.case in cases else next(iter(cases), TEXTS.case)
    here = [result for result in results if result.cell.case == case and result.cell.connections <= MAX_IN_FLIGHT]
    figure, axis = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    counts = sorted({result.cell.connections for result in here}) or [1]
    ends: list[tuple[float, str, str]] = []
    for system, label in LINES.items():
        points = sorted(
            (result.cell.connections, result.median("per_second")) for result in here if result.system == system
        )
        if points:
            colour = {DEFAULT: "#c0392b"}.get(system, "#e59866" if system.startswith("service") else "#888888")
            axis.plot(
                *zip(*points, strict=True), "-o", color=colour, markersize=3, zorder=3 if "service" in label else 2
            )
            ends.append((points[-1][1], label, colour))
    apart = 0.07 * max((rate for rate, _, _ in ends), default=1)
    height = -apart
    for rate, label, colour in sorted(ends):
        height = max(rate, height + apart)
        axis.text(counts[-1] * 1.12, height, label, color=colour, va="center")
    axis.set(title=f"{case.name}: requests per second by connections", xscale="log", ylim=(0, None))
    axis.set_xticks(counts, labels=map(str, counts))
    axis.tick_params(which="minor", bottom=False)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def head(options: Options, results: Sequence[Result], seconds: float, arguments: str) -> list[str]:
    """The command, date, machine and versions of a run."""
    rounds = max((len(one.samples) for one in results), default=0)  # fewer than --rounds after the time limit
    return [
        f"`{command_of((arguments + options.non_default).strip())}`, {time.strftime('%Y-%m-%d')}, "
        f"{seconds / 60:.0f} minutes; medians of {rounds} rounds of {options.seconds} s.",
        "",
        f"- {machine()}",
        f"- load when it was done: {os.getloadavg()[2]:.1f} (15 minutes; the load of the benchmark itself is in it)",
        f"- service: {_versions(options.service_environment, PACKAGES)}",
        f"- Triton: {_versions(options.triton_environment, TRITON_PACKAGES)}",
        f"- peers and clients: {_versions(options.bench_environment, BENCH_PACKAGES)}, {_program(['wrk', '-v'])}"
        + (", perf_analyzer" if options.perf_analyzer else ""),
    ]


def machine() -> str:
    """Processor, number of CPUs, memory and kernel."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    kernel = platform.release().partition("-")[0]
    return f"{(names or [platform.machine()])[0]}, {os.cpu_count()} CPUs, {memory:.0f} GiB, Linux {kernel}"


def _program(command: list[str]) -> str:
    output = subprocess.run(command, capture_output=True, text=True).stdout
    return " ".join(output.split()[:2]) or command[0]


def _versions(environment: Path, names: Sequence[str]) -> str:
    command = [str(environment / "bin" / "python"), "-c", _VERSIONS, *names]
    versions = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


def command_of(arguments: str) -> str:
    """The command line of make bench with these arguments."""
    quotes = '"' if " " in arguments else ""
    return f"make bench ARGS={quotes}{arguments}{quotes}" if arguments else "make bench"


def shown(value: float) -> str:
    """A figure with three significant digits; a dash for NaN."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
