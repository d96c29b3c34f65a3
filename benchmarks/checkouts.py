"""Compares this service with other checkouts: figures in alternating rounds, and their paired ratios."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.cases import CLASSIFIER, FILL_MASK, MASKS, MINILM, SHORT_TEXTS, Case, Cell, Model
from benchmarks.measuring import Result, Say, measure
from benchmarks.options import Options
from benchmarks.pairs import paired
from benchmarks.report import machine, shown
from benchmarks.systems import (
    IN_ONE_POD,
    PERF_ANALYZER,
    WRK,
    Service,
    System,
    Testbed,
    TritonWithPerfAnalyzer,
    TritonWithWrk,
)

OURS: Final = "this"
REST: Final = "service, REST"
GRPC: Final = "service, gRPC"
WORDS_400, WORDS_270 = Case(CLASSIFIER, "400 words"), Case(CLASSIFIER, "270 words")
BACKGROUNDS: Final = (
    Cell(WORDS_400, 16),
    Cell(WORDS_270, 1),
    Cell(SHORT_TEXTS, 32, "V2, gRPC"),
    Cell(Case(CLASSIFIER, "400 words", texts=16), 1),
    Cell(Case(CLASSIFIER, "short", texts=1000), 1),
)
"""Other clients beside one connection with short texts."""
CELLS: Final[Mapping[str, Sequence[Cell]]] = {
    REST: (
        *(Cell(SHORT_TEXTS, 32), Cell(SHORT_TEXTS, 1)),
        *(Cell(WORDS_400, 16), Cell(WORDS_270, 1)),
        *(Cell(SHORT_TEXTS, 32, "V2, REST"), Cell(SHORT_TEXTS, 32, "V2, gRPC")),
        *(Cell(SHORT_TEXTS, 1, beside=other) for other in BACKGROUNDS),
        *(Cell(MASKS, 16), Cell(MASKS, 1)),
        *(Cell(Case(MINILM, "400 words"), 16), Cell(Case(MINILM, "270 words"), 1)),
    ),
    GRPC: (Cell(SHORT_TEXTS, 32), Cell(MASKS, 16), Cell(MASKS, 1)),
    IN_ONE_POD: (Cell(MASKS, 16), Cell(MASKS, 1)),
}
"""Configuration of the service -> its cells. Those of --service have the first one."""
MODELS: Final = tuple(dict.fromkeys(cell.case.model for cells in CELLS.values() for cell in cells))
FIGURES: Final = {
    "per_second": "requests/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "own_cpu_ms": "own CPU ms",
    "rows": "rows per batch",
    "beside": "others' requests/s",
}
BARE: Final[Mapping[str, Sequence[str]]] = {
    REST: (f"{PERF_ANALYZER}, REST", WRK),
    GRPC: (f"{PERF_ANALYZER}, gRPC",),
}
"""Configuration of the service -> Triton alone, with which fill_mask without shared memory is compared."""


def measure_checkouts(
    options: Options, testbed: Testbed, forms: Mapping[str, Sequence[str]], say: Say, started: float, *,
    with_minilm: bool,
) -> int:  # fmt: skip
    """Prints and writes checkouts.md; returns 1 if a request failed, else 0.

    ``forms`` are the flags of each configuration of the service, ``started`` is of time.monotonic. Raises SystemExit
    if --only selects nothing.
    """
    versions = {checkout.name: checkout.version(options.python, options.own_python) for checkout in options.checkout}
    plan = chosen_cells(options, forms)
    models = [model for model in MODELS if with_minilm or model is not MINILM]
    rows: list[str] = []
    bare: list[str] = []
    errors = 0
    for model in models:
        here = {form: [cell for cell in cells if cell.case.model is model] for form, cells in plan.items()}
        cells = list(dict.fromkeys(cell for cells in here.values() for cell in cells))
        if not cells:
            continue
        systems = _systems(options, testbed, forms, model, here)
        results = measure(systems, cells, options.rounds, options.seconds, testbed.triton, say)
        errors += sum(result.errors for result in results)
        found = {(result.system, result.cell): result for result in results}
        for form, cells in here.items():
            rows += _rows(form, cells, found, list(versions))
            bare += _rows_beside_triton(form, cells, found, [OURS, *versions])
    page = "\n".join(_page(options, versions, rows, bare, errors, time.monotonic() - started)) + "\n"
    print(page)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "checkouts.md").write_text(page)
    say(f"written: {options.results / 'checkouts.md'}")
    return 1 if errors else 0


def chosen_cells(options: Options, forms: Mapping[str, Sequence[str]]) -> dict[str, list[Cell]]:
    """The cells of each configuration whose "configuration; cell" contains a part in --only; all without --only.

    Raises SystemExit if there are none.
    """
    added = {text.partition(":")[0].strip() for text in options.service}
    plan: dict[str, list[Cell]] = {}
    for form in forms:
        cells = CELLS.get(form) or (CELLS[REST][:1] if form in added else ())
        names = {f"{form}; {cell.name}": cell for cell in cells}
        kept = [cell for name, cell in names.items() if not options.only or any(part in name for part in options.only)]
        if kept:
            plan[form] = kept
    if not plan:
        every = "\n".join(f"{form}; {cell.name}" for form, cells in CELLS.items() for cell in cells)
        raise SystemExit(f"--only selects nothing of\n{every}")
    return plan


def _system_name(form: str, version: str) -> str:
    return f"{form} [{version}]"


def _systems(
    options: Options, testbed: Testbed, forms: Mapping[str, Sequence[str]], model: Model,
    cells: Mapping[str, Sequence[Cell]],
) -> list[System]:  # fmt: skip
    """The versions of each configuration, one after the other, and for fill_mask Triton alone."""
    systems: list[System] = []
    for form, here in cells.items():
        if not here:
            continue
        for checkout in (None, *options.checkout):
            name = _system_name(form, checkout.name if checkout else OURS)
            systems.append(Service(name, testbed, model, forms[form], checkout, here))
        for name in BARE.get(form, ()) if model is FILL_MASK else ():
            if name == WRK:
                systems.append(TritonWithWrk(name, testbed, model, False))
            elif (analyzer := options.perf_analyzer) is not None:
                protocol = "http" if name.endswith("REST") else "grpc"
                systems.append(TritonWithPerfAnalyzer(name, testbed, model, analyzer, protocol, False))
    return systems


def _rows(
    form: str, cells: Sequence[Cell], results: Mapping[tuple[str, Cell], Result], versions: Sequence[str]
) -> list[str]:
    """One row for each cell, other checkout and figure."""
    rows = []
    for cell in cells:
        for version in versions:
            pair = [results.get((_system_name(form, name), cell)) for name in (OURS, version)]
            service, peer = pair
            if service is None or peer is None:
                continue
            for figure, name in FIGURES.items():
                new, old = service.values(figure), peer.values(figure)
                if not new or not old or 0 in old:  # not measured in this cell, or less than a tick of CPU
                    continue
                medians = f"{shown(service.median(figure))} | {shown(peer.median(figure))}"
                rows.append(f"| {cell.name} | {form} | {name} | {version} | {medians} | {paired(new, old)} |")
    return rows


def _rows_beside_triton(
    form: str, cells: Sequence[Cell], results: Mapping[tuple[str, Cell], Result], versions: Sequence[str]
) -> list[str]:
    """One row for each cell, version, way to Triton alone, and figure."""
    rows = []
    for cell in cells:
        for peer in BARE.get(form, ()):
            for version in versions:
                service, alone = results.get((_system_name(form, version), cell)), results.get((peer, cell))
                if service is None or alone is None:
                    continue
                for figure in ("per_second", "p50_ms"):
                    medians = f"{shown(service.median(figure))} | {shown(alone.median(figure))}"
                    ratio = paired(service.values(figure), alone.values(figure))
                    rows.append(
                        f"| {cell.name} | {form} | {FIGURES[figure]} | {version} | {peer} | {medians} | {ratio} |"
                    )
    return rows


def _page(
    options: Options, versions: Mapping[str, str], rows: Sequence[str], bare: Sequence[str], errors: int,
    seconds: float,
) -> list[str]:  # fmt: skip
    lines = [
        "# This version and others",
        "",
        f"{time.strftime('%Y-%m-%d')}, {seconds / 60:.0f} minutes, {machine()}; {options.rounds} rounds of "
        f"{options.seconds} s in alternating order, {errors} requests failed. "
        + ", ".join(f"{name} is version {version}" for name, version in versions.items())
        + ". Own CPU is that of a request. Each request has a text and a trace header of its own. A cell with "
        "*beside* has the figures of its one connection while the others send, too.",
        "",
        "| cell | form | figure | other | this | other | this / other | 95 % |",
        "|---|---|---|---|---:|---:|---:|---|",
        *rows,
    ]
    if bare:
        lines += [
            "",
            "## Beside Triton alone",
            "",
            "| cell | form | figure | version | Triton alone | service | alone | service / alone | 95 % |",
            "|---|---|---|---|---|---:|---:|---:|---|",
            *bare,
        ]
    return lines
