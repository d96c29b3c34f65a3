"""The results page of the speed benchmark: a table for users, a plot, the machine and all figures."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.cases import LONG_PASSAGES, MASKS, PASSAGES, REAL_PASSAGES, SHORT_TEXTS, Cell
from benchmarks.measuring import Result
from benchmarks.options import Options
from benchmarks.pairs import interval
from benchmarks.systems import IN_MEMORY, IN_ONE_POD, KSERVE, MAX_IN_FLIGHT, WRK

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


LINES: Final = {
    IN_ONE_POD: "this service, shared memory",
    "service, REST": "this service, REST",
    "service, gRPC": "this service, gRPC",
    WRK: "Triton alone",
    f"{KSERVE}, gRPC": "KServe's SDK, gRPC",
    f"{KSERVE}, REST (JSON)": "KServe's SDK, REST",
}
"""System -> label in the plot, which has room for six lines without a legend."""
COLUMNS: Final[Sequence[tuple[Cell, str, str]]] = (
    (Cell(SHORT_TEXTS, 1), "p50_ms", "short classification, p50 ms"),
    (Cell(SHORT_TEXTS, 32), "per_second", "32 clients, requests/s"),
    (Cell(PASSAGES, 1), "p50_ms", "embedding of 270 words, p50 ms"),
    (Cell(LONG_PASSAGES, 16), "per_second", "of 400 words, 16 clients, requests/s"),
    (Cell(MASKS, 1), "p50_ms", "fill_mask, p50 ms"),
    (Cell(MASKS, 16), "per_second", "16 clients, requests/s"),
    (Cell(REAL_PASSAGES, 16), "per_second", "MiniLM on a CPU, 16 clients, requests/s"),
)
"""The columns of the users' table: cell, field of Sample, title."""
INTERVALS: Final = "In brackets: 95 percent interval of the median, by order statistics of the rounds."


def write_results(results: Sequence[Result], options: Options, seconds: float) -> list[Path]:
    """Writes speed.md and its plot, into build/bench with --quick; returns their paths."""
    options.results.mkdir(parents=True, exist_ok=True)
    page, picture = (options.results / f"speed.{ending}" for ending in ("md", "svg"))
    plot(results, picture)
    lines = [
        "# Speed\n",
        *user_table(results),
        "",
        f"{INTERVALS} All texts differ, and each request has a traceparent of its own. Without shared memory "
        "service and Triton are in two pods, or Triton refuses it, which is the default from 26.04 on. Triton alone "
        "gets tensors from wrk in place of texts.\n",
        f"![requests per second by connections]({picture.name})\n",
        "## All figures\n",
        *head(options, results, seconds, "--quick" if options.quick else ""),
        "",
        "[How each figure is made](../README.md#speed). CPU is in ms per request.\n",
        *figure_table(results),
    ]
    page.write_text("\n".join(lines) + "\n")
    return [page, picture]


def user_table(results: Sequence[Result]) -> list[str]:
    """One row for each system, in groups without and with shared memory."""
    by_cell = {(result.system, result.cell): result for result in results}
    columns = [column for column in COLUMNS if any(cell == column[0] for _, cell in by_cell)]
    names = list(dict.fromkeys(result.system for result in results))
    lines = [
        f"| | {' | '.join(title for _, _, title in columns)} |",
        "|---" + "|---:" * len(columns) + "|",
    ]
    for name in [*(name for name in names if IN_MEMORY not in name), *(name for name in names if IN_MEMORY in name)]:
        cells = [
            spread(result, field) if (result := by_cell.get((name, cell))) is not None else "-"
            for cell, field, _ in columns
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def spread(result: Result, name: str) -> str:
    """The median of a figure with its interval, if there is one."""
    limits = interval(result.values(name))
    return shown(result.median(name)) + (f" ({shown(limits[0])} to {shown(limits[1])})" if limits else "")


def figure_table(results: Sequence[Result], column: str = "system") -> list[str]:
    """One row for each system and cell."""
    names = ("per_second", "p50_ms", "p99_ms", "own_cpu_ms", "triton_cpu_ms", "rows", "generator")
    titles = ("requests/s", "p50 ms", "p99 ms", "own CPU ms", "Triton's CPU ms", "rows per batch", "generator's CPUs")
    lines = [
        f"| case | connections | {column} | {' | '.join(titles)} | errors |",
        "|---|---:|---" + "|---:" * (len(titles) + 1) + "|",
    ]
    for result in results:
        figures = " | ".join(spread(result, name) for name in names)
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
    case = SHORT_TEXTS if SHORT_TEXTS in cases else next(iter(cases), SHORT_TEXTS)
    here = [result for result in results if result.cell.case == case and result.cell.connections <= MAX_IN_FLIGHT]
    figure, axis = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    counts = sorted({result.cell.connections for result in here}) or [1]
    ends: list[tuple[float, str, str]] = []
    for system, label in LINES.items():
        points = sorted(
            (result.cell.connections, result.median("per_second")) for result in here if result.system == system
        )
        if points:
            colour = {IN_ONE_POD: "#c0392b"}.get(system, "#e59866" if system.startswith("service") else "#888888")
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
