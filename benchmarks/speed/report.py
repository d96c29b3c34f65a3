"""One Markdown page: machine, versions, the goals and every figure; and the plots beside it."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.speed.measuring import Result
from benchmarks.speed.options import Options
from benchmarks.speed.reach import reach_table

PACKAGES = ("hf-transformer", "transformers", "tokenizers", "numpy", "uvicorn", "uvloop", "orjson", "grpcio")
TRITON_PACKAGES = ("nvidia-pytriton", "numpy")
BENCH_PACKAGES = ("kserve", "transformers", "tritonclient")
_VERSIONS = """
import importlib.metadata as m, json, platform, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
print(json.dumps({"Python": platform.python_version()} | {name: version(name) for name in sys.argv[1:]}))
"""


def write_results(results: Sequence[Result], options: Options, triton: str, seconds: float) -> list[Path]:
    """Writes speed.md and its plots (with --quick: speed_quick...) and returns their paths."""
    # Imported here: --help and what makes no plots work in the service's own environment too.
    from benchmarks.speed.plots import plot_cpu, plot_latency

    stem = "speed_quick" if options.quick else "speed"
    options.results.mkdir(parents=True, exist_ok=True)
    plots = [options.results / f"{stem}_latency.svg", options.results / f"{stem}_cpu.svg"]
    plot_latency(results, plots[0])
    plot_cpu(results, plots[1])
    page = options.results / f"{stem}.md"
    lines = [
        "# Speed",
        "",
        *head(options, results, seconds, "--quick" if options.quick else ""),
        "",
        "## Goals",
        "",
        "Figures of the service over those of the others, of this run; a reached goal is bold.",
        "[How each figure is made.](../README.md)",
        "",
        *reach_table(results),
        "",
        "## Figures",
        "",
        *(f"![{path.stem}]({path.name})\n" for path in plots),
        *_table(results),
    ]
    page.write_text("\n".join(lines) + "\n")
    return [page, *plots]


def head(options: Options, results: Sequence[Result], seconds: float, arguments: str) -> list[str]:
    """How it was measured, with these arguments of make bench, and on what."""
    rounds = max((len(one.samples) for one in results), default=0)  # fewer than wanted where the time was over
    return [
        f"`{command_of((arguments + options.more).strip())}`, {time.strftime('%Y-%m-%d')}, "
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
    """What it is measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{_processor()}, {os.cpu_count()} CPUs, {memory:.0f} GiB, Linux {platform.release().partition('-')[0]}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _program(command: list[str]) -> str:
    said = subprocess.run(command, capture_output=True, text=True).stdout
    return " ".join(said.split()[:2]) or command[0]


def _versions(environment: Path, names: Sequence[str]) -> str:
    command = [str(environment / "bin" / "python"), "-c", _VERSIONS, *names]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def _table(results: Sequence[Result]) -> list[str]:
    """A row per subject and cell. CPU in ms per request: own processes, Triton's."""
    lines = [
        "| case | connections | subject | requests/s | p50 ms | p99 ms | own CPU ms | Triton's CPU ms | errors |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for one in results:
        figures = [
            shown(one.median(name)) for name in ("per_second", "p50_ms", "p99_ms", "own_cpu_ms", "triton_cpu_ms")
        ]
        cells = [one.cell.case.name, str(one.cell.connections), one.subject, *figures, str(one.errors)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def command_of(arguments: str) -> str:
    """make bench with arguments."""
    quotes = '"' if " " in arguments else ""
    return f"make bench ARGS={quotes}{arguments}{quotes}" if arguments else "make bench"


def shown(value: float) -> str:
    """A figure with three digits."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
