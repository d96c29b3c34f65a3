"""Compares this service with other checkouts: figures in alternating rounds, and their paired ratios."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from benchmarks.cases import CLASSIFIER, FILL_MASK, Case, Cell
from benchmarks.measuring import Result, Say, measure
from benchmarks.options import Options
from benchmarks.pairs import paired
from benchmarks.report import machine, shown
from benchmarks.systems import Service, Testbed, V2Service

OURS: Final = "service"
CLASSES, TOKENS = Case(CLASSIFIER, "9"), Case(FILL_MASK, "9")
CELLS: Final[Mapping[str, Sequence[Cell]]] = {
    "service, REST": (Cell(CLASSES, 32), Cell(CLASSES, 1)),
    "service, REST, shared memory": (Cell(TOKENS, 16), Cell(TOKENS, 1)),
    "service, gRPC": (Cell(CLASSES, 32),),
}
"""Configuration of the service -> its cells. Those of --service have the cells of the first."""
V2: Final = {"V2 over REST": "http", "V2 over gRPC": "grpc"}
"""Requests that perf_analyzer, if installed, sends in the first cell of the service over REST."""
MODELS: Final = tuple(dict.fromkeys(cell.case.model for cells in CELLS.values() for cell in cells))
FIGURES: Final = {"per_second": "requests/s", "p50_ms": "p50 ms", "own_cpu_ms": "own CPU ms"}


def measure_checkouts(
    options: Options, testbed: Testbed, forms: Mapping[str, Sequence[str]], say: Say, started: float
) -> int:
    """Prints and writes checkouts.md; returns 1 if a request failed, else 0.

    ``forms`` are the flags of each configuration of the service, ``started`` is of time.monotonic.
    """
    versions = {checkout.name: checkout.version(options.python, options.own_python) for checkout in options.checkout}
    rows: list[str] = []
    errors = 0
    for form, (make, cells) in _systems(options, testbed, forms).items():
        systems = [make(OURS), *(make(checkout.name, checkout=checkout) for checkout in options.checkout)]
        results = measure(systems, cells, options.rounds, options.seconds, testbed.triton, say)
        errors += sum(result.errors for result in results)
        rows += _rows(form, results)
    page = "\n".join(_page(options, versions, rows, errors, time.monotonic() - started)) + "\n"
    print(page)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "checkouts.md").write_text(page)
    say(f"written: {options.results / 'checkouts.md'}")
    return 1 if errors else 0


def _systems(
    options: Options, testbed: Testbed, forms: Mapping[str, Sequence[str]]
) -> dict[str, tuple[Callable[..., Service], Sequence[Cell]]]:
    """For each configuration that --only selects, a factory (name, checkout) -> Service, and its cells."""
    analyzer = options.perf_analyzer
    added = {text.partition(":")[0].strip() for text in options.service}
    systems: dict[str, tuple[Callable[..., Service], Sequence[Cell]]] = {}
    for form, flags in forms.items():
        if cells := CELLS.get(form) or (CELLS["service, REST"] if form in added else ()):
            model = cells[0].case.model
            systems[form] = partial(Service, testbed=testbed, model=model, flags=flags), cells
    for form, protocol in V2.items() if analyzer is not None else ():
        make = partial(V2Service, testbed=testbed, model=CLASSIFIER, analyzer=analyzer, protocol=protocol)
        systems[form] = make, (Cell(CLASSES, 32),)
    return {form: systems[form] for form in options.pick(systems, str)}


def _rows(form: str, results: Sequence[Result]) -> list[str]:
    """One row for each cell, other checkout and figure."""
    rows = []
    services = {result.cell: result for result in results if result.system == OURS}
    for result in results:
        if result.system == OURS or result.cell not in services:
            continue
        service = services[result.cell]
        for figure, name in FIGURES.items():
            new, old = ([getattr(sample, figure) for sample in one.samples] for one in (service, result))
            where = f"{result.cell.case.name} | {result.cell.connections} | {form} | {name}"
            medians = f"{shown(service.median(figure))} | {shown(result.median(figure))}"
            rows.append(f"| {where} | {result.system} | {medians} | {paired(new, old)} |")
    return rows


def _page(options: Options, versions: Mapping[str, str], rows: Sequence[str], errors: int, seconds: float) -> list[str]:
    return [
        "# This version and others",
        "",
        f"{time.strftime('%Y-%m-%d')}, {seconds / 60:.0f} minutes, {machine()}; {options.rounds} rounds of "
        f"{options.seconds} s in alternating order, {errors} requests failed. "
        + ", ".join(f"{name} is version {version}" for name, version in versions.items())
        + ". Own CPU is that of a request.",
        "",
        "| case | connections | form | figure | other | this | other | this / other | 95 % |",
        "|---|---:|---|---|---|---:|---:|---:|---|",
        *rows,
    ]
