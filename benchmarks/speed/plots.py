"""Two plots as SVG: latency over throughput, and the CPU time of a request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from benchmarks.speed.cases import Case
from benchmarks.speed.measuring import Result

COLUMNS = 3
STYLES = {"service": "-", "inbound": "-.", "peer": "--", "bare": ":"}

matplotlib.rcParams.update({"svg.hashsalt": "speed", "svg.fonttype": "none", "font.size": 8})


def plot_latency(results: Sequence[Result], path: Path) -> None:
    """One panel per case: requests/s against p50, a line per subject, a point per number of connections."""
    cases = list(dict.fromkeys(one.cell.case for one in results))
    rows = max(1, math.ceil(len(cases) / COLUMNS))
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(5 * COLUMNS, 3.6 * rows), squeeze=False, layout="constrained")
    colours = _colours(results)
    for case, axis in zip(cases, axes.flat, strict=False):
        for subject in dict.fromkeys(one.subject for one in results if one.cell.case == case):
            points = [one for one in results if one.cell.case == case and one.subject == subject]
            rates, latencies = ([one.median(name) for one in points] for name in ("per_second", "p50_ms"))
            style = STYLES[points[0].kind]
            axis.plot(rates, latencies, style, marker="o", markersize=3, color=colours[subject], label=subject)
        axis.set(title=case.name, xlabel="requests per second", ylabel="p50, ms", xscale="log", yscale="log")
        axis.grid(True, which="major", alpha=0.3)
    for axis in list(axes.flat)[len(cases) :]:
        axis.set_axis_off()
    handles = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=COLUMNS)
    _save(figure, path)


def plot_cpu(results: Sequence[Result], path: Path) -> None:
    """One panel per case at its busiest: CPU ms per request of the subject's own processes and, on top, of Triton's."""
    cases = list(dict.fromkeys(one.cell.case for one in results))
    rows = max(1, math.ceil(len(cases) / COLUMNS))
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(5 * COLUMNS, 3.6 * rows), squeeze=False, layout="constrained")
    for case, axis in zip(cases, axes.flat, strict=False):
        shown = _busiest(results, case)
        names = [one.subject for one in shown]
        own = [0.0 if math.isnan(value := one.median("own_cpu_ms")) else value for one in shown]
        axis.barh(names, own, label="own processes")
        axis.barh(names, [one.median("triton_cpu_ms") for one in shown], left=own, label="Triton", alpha=0.5)
        axis.invert_yaxis()
        connections = shown[0].cell.connections
        axis.set(title=f"{case.name}, {connections} connections", xlabel="CPU ms per request", xscale="log")
    for axis in list(axes.flat)[len(cases) :]:
        axis.set_axis_off()
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    _save(figure, path)


def _busiest(results: Sequence[Result], case: Case) -> list[Result]:
    """All subjects at the most connections, 64 or fewer, that the case was measured with."""
    of_case = [one for one in results if one.cell.case == case]
    usual = [one.cell.connections for one in of_case if one.cell.connections <= 64]
    return [one for one in of_case if one.cell.connections == max(usual)]


def _colours(results: Sequence[Result]) -> dict[str, object]:
    palette = matplotlib.colormaps["tab20"]
    return {name: palette(index % 20) for index, name in enumerate(dict.fromkeys(one.subject for one in results))}


def _save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
