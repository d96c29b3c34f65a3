"""Compares the service with Triton alone and with other systems: `make bench`, or `python -m benchmarks.speed`.

--checkout, --batches_in_flight and --memory run other measurements on the same models, see README.md.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks import cases
from benchmarks.cases import MINILM, Cell, Model
from benchmarks.checkouts import MODELS, measure_checkouts
from benchmarks.headline import measure_headline
from benchmarks.instructions import measure_instructions
from benchmarks.load import LoadFailed
from benchmarks.measuring import Result, count_runs, measure
from benchmarks.modes import measure_in_flight, measure_memory
from benchmarks.options import Options, parse
from benchmarks.processes import variables
from benchmarks.report import write_results
from benchmarks.repository import lay_out
from benchmarks.systems import (
    ENSEMBLE,
    IN_MEMORY,
    KSERVE,
    PERF_ANALYZER,
    UNBATCHED,
    WRK,
    Ensemble,
    KServeTransformer,
    Service,
    System,
    Testbed,
    TritonWithPerfAnalyzer,
    TritonWithWrk,
    UnbatchedService,
    V2Service,
)
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.errors import LoadError

APIS: Final = {"REST": "http", "gRPC": "grpc"}


def say(text: str) -> None:
    """Prints a line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main(argv: Sequence[str]) -> int:
    """Measures and writes the results; returns the exit code."""
    options = parse(argv)
    if not options.instructions and shutil.which("wrk") is None:
        print("wrk is not installed (on Debian and Ubuntu: apt install wrk).", file=sys.stderr)
        return 1
    plots = not (
        options.headline or options.memory or options.batches_in_flight or options.checkout or options.instructions
    )
    if plots and importlib.util.find_spec("matplotlib") is None:
        print("The plot needs matplotlib: make bench has an environment with it (.venv-bench).", file=sys.stderr)
        return 1
    # Like Ctrl-C: unwinding ends all child processes.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="hf-transformer-bench-"))
    try:
        return measure_instructions(options, folder) if options.instructions else run(options, folder)
    except (LoadError, LoadFailed) as exc:
        print(exc, file=sys.stderr)
        return 1
    finally:
        if options.keep:
            say(f"models and logs are in {folder}")
        else:
            shutil.rmtree(folder)


def run(options: Options, folder: Path) -> int:
    """Starts one Triton for all measurements; returns 1 if a request failed, else 0."""
    started = time.monotonic()
    minilm = options.minilm if options.minilm.is_dir() else None
    lay_out(folder, options.bench_environment / "triton", minilm)
    flags = options.services()
    models = [model.name for model in MODELS] if options.checkout else None
    with LocalTriton(
        folder / "triton",
        environment=options.triton_environment,
        environ=variables(),
        log=folder / "triton.log",
        models=models,
    ) as triton:
        testbed = Testbed(triton, folder, options.python, options.own_python)
        if options.headline:
            return measure_headline(options, testbed, say)
        if options.memory:
            return measure_memory(options, testbed, flags, say)
        if options.batches_in_flight:
            return measure_in_flight(options, testbed, say, started)
        if options.checkout:
            return measure_checkouts(options, testbed, flags, say, started)
        return compare(options, testbed, flags, started, with_minilm=minilm is not None)


def compare(
    options: Options, testbed: Testbed, flags: Mapping[str, tuple[str, ...]], started: float, *, with_minilm: bool
) -> int:
    """Compares the service, Triton alone and peers; writes page and plot."""
    for lacks, missing in (
        (options.perf_analyzer is None, "perf_analyzer, which scripts/bench did not find in a form that runs here"),
        (importlib.util.find_spec("kserve") is None, "the KServe SDK's transformer: the package kserve is missing"),
        (not with_minilm, f"the real MiniLM: there is no {options.minilm.name}, see scripts/export_minilm"),
    ):
        if lacks:
            say(f"left out: {missing}")
    work = [
        (systems_of(model, testbed, options, flags), cells) for model, cells in plan(options, with_minilm=with_minilm)
    ]
    runs = [count_runs(systems, cells) for systems, cells in work]
    say(f"{sum(runs) * options.rounds} runs; after {options.minutes:g} minutes no further round begins")
    results: list[Result] = []
    for number, (systems, cells) in enumerate(work):
        until = started + 60 * options.minutes * sum(runs[: number + 1]) / max(1, sum(runs))
        results += measure(systems, cells, options.rounds, options.seconds, testbed.triton, say, until=until)
    paths = write_results(results, options, time.monotonic() - started)
    say(f"written: {', '.join(path.name for path in paths)} in {options.results}")
    errors = sum(result.errors for result in results)
    if errors:
        say(f"{errors} requests failed; the table says which")
    return 1 if errors else 0


def plan(options: Options, *, with_minilm: bool) -> list[tuple[Model, list[Cell]]]:
    """The cells of each model."""
    chosen = cases.QUICK if options.quick else cases.USUAL
    cells = [*chosen, *(cases.REAL if with_minilm else ())]
    kept = options.pick(cells, lambda cell: cell.case.name)
    models = dict.fromkeys(cell.case.model for cell in kept)
    return [(model, [cell for cell in kept if cell.case.model is model]) for model in models]


def systems_of(model: Model, testbed: Testbed, options: Options, flags: Mapping[str, tuple[str, ...]]) -> list[System]:
    """All systems for a model, with these configurations of the service."""
    systems: list[System] = [
        (UnbatchedService if UNBATCHED in name else Service)(name, testbed, model, settings)
        for name, settings in flags.items()
        if not (options.quick and UNBATCHED in name and model is not MINILM)
    ]
    if model is not MINILM:
        systems += _peers(model, testbed, options)
    return options.pick(systems, lambda system: system.name)


def _peers(model: Model, testbed: Testbed, options: Options) -> list[System]:
    """The service's V2 API, peers, and Triton alone."""
    systems: list[System] = [Ensemble(ENSEMBLE, testbed, model)]
    if importlib.util.find_spec("kserve") is not None:
        systems.append(KServeTransformer(KSERVE, testbed, model))
    systems += [TritonWithWrk(WRK + more, testbed, model, bool(more)) for more in ("", IN_MEMORY)]
    for label, protocol in APIS.items() if (analyzer := options.perf_analyzer) else ():
        systems.append(V2Service(f"service asked over {label} (V2)", testbed, model, analyzer, protocol))
        for more in ("", IN_MEMORY) if protocol == "http" or not options.quick else ():
            name = f"{PERF_ANALYZER}, {label}{more}"
            systems.append(TritonWithPerfAnalyzer(name, testbed, model, analyzer, protocol, bool(more)))
    return systems


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
