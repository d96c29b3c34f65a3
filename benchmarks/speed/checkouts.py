"""This service and those of other checkouts, which take turns: the figures of both, and their ratios in pairs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.pairs import Checkout, paired
from benchmarks.speed.analyzer import Inbound
from benchmarks.speed.cases import CLASSIFIER, FILL_MASK, Case, Cell, Model
from benchmarks.speed.measuring import Result, Say, measure
from benchmarks.speed.options import Options
from benchmarks.speed.report import machine, shown
from benchmarks.speed.subjects import Ground, Service

CLASSES, TOKENS = Case(CLASSIFIER, "9"), Case(FILL_MASK, "9")
V2: Final = {"V2 over REST": "http", "V2 over gRPC": "grpc"}
"""Forms of requests that perf_analyzer sends, where there is one, in the first cell of the service over REST."""
CELLS: Final[Mapping[str, Sequence[Cell]]] = {
    "service, REST": (Cell(CLASSES, 32), Cell(CLASSES, 1)),
    "service, REST, shared memory": (Cell(TOKENS, 16), Cell(TOKENS, 1)),
    "service, gRPC": (Cell(CLASSES, 32),),
}
"""Form of the service -> what it is compared in. Forms of --service have the cells of the first one."""
MODELS: Final = tuple(dict.fromkeys(cell.case.model for cells in CELLS.values() for cell in cells))
FIGURES: Final = {"per_second": "requests/s", "p50_ms": "p50 ms", "own_cpu_ms": "own CPU ms"}


class OtherService(Service):
    """The service of another checkout."""

    def __init__(
        self, checkout: Checkout, ground: Ground, model: Model, python: Path, flags: Sequence[str], own_python: bool
    ) -> None:
        super().__init__(checkout.name, ground, model, python, flags)
        self._start = checkout.command(python, own_python)
        self.environ = checkout.environ(ground.environ)

    def command(self, port: int) -> list[str]:
        return [*self._start, *super().command(port)[1:]]


class OtherInbound(Inbound):
    """The service of another checkout, asked by perf_analyzer."""

    def __init__(
        self,
        checkout: Checkout,
        ground: Ground,
        model: Model,
        python: Path,
        own_python: bool,
        analyzer: Sequence[str],
        protocol: str,
    ) -> None:
        super().__init__(checkout.name, ground, model, python, (), analyzer, protocol)
        self._start = checkout.command(python, own_python)
        self.environ = checkout.environ(ground.environ)

    def command(self, port: int) -> list[str]:
        return [*self._start, *super().command(port)[1:]]


def measure_checkouts(
    options: Options,
    ground: Ground,
    forms: Mapping[str, Sequence[str]],
    analyzer: Sequence[str] | None,
    say: Say,
    started: float,
) -> int:
    """Prints checkouts.md and writes it; 1 if a request has failed, else 0.

    Args:
        analyzer: the command of perf_analyzer, None where there is none.
        started: of time.monotonic.
    """
    versions = {one.name: one.version(options.python, options.own_python) for one in options.checkout}
    rows: list[str] = []
    errors = 0
    for form, flags in _chosen(options, forms).items():
        cells = CELLS.get(form, CELLS["service, REST"])
        model = cells[0].case.model
        subjects = [
            Service("service", ground, model, options.python, flags),
            *(OtherService(one, ground, model, options.python, flags, options.own_python) for one in options.checkout),
        ]
        results = measure(subjects, cells, options.rounds, options.seconds, ground.triton, say)
        errors += sum(result.errors for result in results)
        rows += _rows(form, results)
    for form, protocol in V2.items() if analyzer is not None else ():
        if options.only and not any(one in form for one in options.only):
            continue
        asked = [
            Inbound("service", ground, CLASSIFIER, options.python, (), analyzer or (), protocol),
            *(
                OtherInbound(one, ground, CLASSIFIER, options.python, options.own_python, analyzer or (), protocol)
                for one in options.checkout
            ),
        ]
        results = measure(asked, [Cell(CLASSES, 32)], options.rounds, options.seconds, ground.triton, say)
        errors += sum(result.errors for result in results)
        rows += _rows(form, results)
    page = "\n".join(_page(options, versions, rows, errors, time.monotonic() - started)) + "\n"
    print(page)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "checkouts.md").write_text(page)
    say(f"written: {options.results / 'checkouts.md'}")
    return 1 if errors else 0


def _chosen(options: Options, forms: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Those with cells here, as --only wants them."""
    own = {one.partition(":")[0].strip() for one in options.service}
    wanted = options.only or [""]
    return {
        form: flags
        for form, flags in forms.items()
        if (form in CELLS or form in own) and any(one in form for one in wanted)
    }


def _rows(form: str, results: Sequence[Result]) -> list[str]:
    """A row per cell, other checkout and figure."""
    rows = []
    own = {result.cell: result for result in results if result.subject == "service"}
    for other in results:
        if other.subject == "service" or other.cell not in own:
            continue
        service = own[other.cell]
        for figure, name in FIGURES.items():
            new, old = ([getattr(sample, figure) for sample in one.samples] for one in (service, other))
            where = f"{other.cell.case.name} | {other.cell.connections} | {form} | {name}"
            medians = f"{shown(service.median(figure))} | {shown(other.median(figure))}"
            rows.append(f"| {where} | {other.subject} | {medians} | {paired(new, old)} |")
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
