"""Compares the service with Triton alone and with other systems: `make bench`, or `python -m benchmarks.speed`.

--checkout, --batches_in_flight and --memory run other measurements on the same models, see README.md.
"""

from __future__ import annotations

import importlib.util
import itertools
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks import cases
from benchmarks.cases import FILL_MASK, MINILM, REDUCED, Cell, Model
from benchmarks.checkouts import MODELS, measure_checkouts
from benchmarks.goals import write_goals
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
)
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.errors import LoadError

APIS: Final = {"REST": "http", "gRPC": "grpc"}
PROTOCOLS: Final = {f"{KSERVE}, REST (JSON)": "v2", f"{KSERVE}, gRPC": "grpc-v2"}
"""KServe's SDK: the protocol to Triton."""
REDUCED_MODEL: Final = "service, REST, export --reduce"


def say(text: str) -> None:
    """Prints a line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main(argv: Sequence[str]) -> int:
    """Measures and writes the results; returns the exit code."""
    options = parse(argv)
    if not options.instructions and shutil.which("wrk") is None:
        print("wrk is not installed (on Debian and Ubuntu: apt install wrk).", file=sys.stderr)
        return 1
    others = (options.goals, options.memory, options.batches_in_flight, options.checkout, options.instructions)
    plots = not any(others)
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
    in_pairs = [model.name for model in MODELS if model is not MINILM or minilm is not None]
    models = in_pairs if options.checkout else None
    with LocalTriton(
        folder / "triton",
        environment=options.triton_environment,
        environ=variables(),
        log=folder / "triton.log",
        models=models,
    ) as triton:
        testbed = Testbed(triton, folder, options.python, options.own_python)
        if options.memory:
            return measure_memory(options, testbed, flags, say)
        if options.batches_in_flight:
            return measure_in_flight(options, testbed, say, started)
        if options.checkout:
            return measure_checkouts(options, testbed, flags, say, started, with_minilm=minilm is not None)
        return compare(options, testbed, started, with_minilm=minilm is not None)


def compare(options: Options, testbed: Testbed, started: float, *, with_minilm: bool) -> int:
    """Compares the service, Triton alone and peers; writes the page for users, or with --goals that of the goals."""
    for lacks, missing in (
        (
            options.goals and options.perf_analyzer is None,
            "perf_analyzer, which scripts/bench did not find in a form that runs here",
        ),
        (importlib.util.find_spec("kserve") is None, "the KServe SDK's transformer: the package kserve is missing"),
        (not with_minilm, f"the real MiniLM: there is no {options.minilm.name}, see scripts/export_minilm"),
    ):
        if lacks:
            say(f"left out: {missing}")
    work = [(systems_of(model, testbed, options), cells) for model, cells in plan(options, with_minilm=with_minilm)]
    runs = [count_runs(systems, cells) for systems, cells in work]
    say(f"{sum(runs) * options.rounds} runs; after {options.minutes:g} minutes no further round begins")
    results: list[Result] = []
    for number, (systems, cells) in enumerate(work):
        until = started + 60 * options.minutes * sum(runs[: number + 1]) / max(1, sum(runs))
        results += measure(systems, cells, options.rounds, options.seconds, testbed.triton, say, until=until)
    write = write_goals if options.goals else write_results
    paths = write(results, options, time.monotonic() - started)
    say(f"written: {', '.join(path.name for path in paths)} in {options.results}")
    errors = sum(result.errors for result in results)
    if errors:
        say(f"{errors} requests failed; the table says which")
    return 1 if errors else 0


def plan(options: Options, *, with_minilm: bool) -> list[tuple[Model, list[Cell]]]:
    """The cells of each model."""
    chosen = cases.FOR_GOALS if options.goals else cases.USUAL
    cells = [cell for cell in chosen if with_minilm or cell.case.model is not MINILM]
    kept = options.pick(cells, lambda cell: cell.case.name)
    models = dict.fromkeys(cell.case.model for cell in kept)
    return [(model, [cell for cell in kept if cell.case.model is model]) for model in models]


def systems_of(model: Model, testbed: Testbed, options: Options) -> list[System]:
    """All systems for a model."""
    forms = options.services() if options.goals else options.forms()
    systems: list[System] = [
        (UnbatchedService if UNBATCHED in name else Service)(name, testbed, model, flags)
        for name, flags in forms.items()
        # The time of a real model hides the way of its outputs.
        if options.goals or model is not MINILM or IN_MEMORY not in name
    ]
    if model is FILL_MASK and not options.goals:
        systems.append(Service(REDUCED_MODEL, testbed, REDUCED, forms["service, REST"]))
    if importlib.util.find_spec("kserve") is not None:
        systems += [KServeTransformer(name, testbed, model, protocol) for name, protocol in PROTOCOLS.items()]
    for more in ("", IN_MEMORY) if model is not MINILM else ("",):
        systems.append(TritonWithWrk(WRK + more, testbed, model, bool(more)))
    if options.goals and model is not MINILM:
        systems.append(Ensemble(ENSEMBLE, testbed, model))
    if options.goals and model is not MINILM and (analyzer := options.perf_analyzer) is not None:
        for (label, protocol), more in itertools.product(APIS.items(), ("", IN_MEMORY)):
            name = f"{PERF_ANALYZER}, {label}{more}"
            systems.append(TritonWithPerfAnalyzer(name, testbed, model, analyzer, protocol, bool(more)))
    return options.pick(systems, lambda system: system.name)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
