"""Runs the benchmark: `make bench`, or `python -m benchmarks.speed` in the environment that scripts/bench makes."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.speed import cases
from benchmarks.speed.cases import Cell, Model
from benchmarks.speed.checkouts import MODELS, measure_checkouts
from benchmarks.speed.in_flight import measure_in_flight
from benchmarks.speed.lineup import analyzer_of, missing, service_flags, subjects_of, variables
from benchmarks.speed.load import LoadFailed
from benchmarks.speed.measuring import Result, count_runs, measure
from benchmarks.speed.memory import measure_memory
from benchmarks.speed.options import Options, parse
from benchmarks.speed.report import write_results
from benchmarks.speed.repository import lay_out
from benchmarks.speed.subjects import Ground
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.errors import LoadError


def say(text: str) -> None:
    """Progress, for people."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main(argv: Sequence[str]) -> int:
    """Measures and writes the results; the exit code."""
    options = parse(argv)
    if shutil.which("wrk") is None:
        print("The load comes from wrk (on Debian and Ubuntu: apt install wrk).", file=sys.stderr)
        return 1
    plots = not (options.memory or options.batches_in_flight or options.checkout)
    if plots and importlib.util.find_spec("matplotlib") is None:
        print("The plots need matplotlib: make bench has an environment with it (.venv-bench).", file=sys.stderr)
        return 1
    # As Ctrl-C does: all that was started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="hf-transformer-bench-"))
    try:
        return run(options, folder)
    except LoadError as exc:
        print(f"Triton did not start: {exc}", file=sys.stderr)
        return 1
    except LoadFailed as exc:
        print(exc, file=sys.stderr)
        return 1
    finally:
        if options.keep:
            say(f"models and logs are in {folder}")
        else:
            shutil.rmtree(folder)


def run(options: Options, folder: Path) -> int:
    """One Triton for all: 0, or 1 if a request has failed."""
    started = time.monotonic()
    minilm = options.minilm if options.minilm.is_dir() else None
    lay_out(folder, options.bench_environment / "triton", minilm)
    flags = service_flags(options, say)
    if not options.checkout:
        missing(options, say)
    results: list[Result] = []
    repository = LocalTriton(
        folder / "triton",
        environment=options.triton_environment,
        environ=variables(),
        log=folder / "triton.log",
        models=[model.name for model in MODELS] if options.checkout else None,
    )
    with repository as triton:
        ground = Ground(triton, folder, variables())
        if options.memory:
            return measure_memory(options, ground, flags, say)
        if options.batches_in_flight:
            return measure_in_flight(options, ground, say, started)
        if options.checkout:
            return measure_checkouts(options, ground, flags, analyzer_of(options), say, started)
        work = [
            (subjects_of(model, ground, options, flags), cells)
            for model, cells in plan(options, with_minilm=minilm is not None)
        ]
        runs = [count_runs(subjects, cells) for subjects, cells in work]
        say(f"{sum(runs) * options.rounds} runs; after {options.minutes:g} minutes no further round begins")
        for number, (subjects, cells) in enumerate(work):
            until = started + 60 * options.minutes * sum(runs[: number + 1]) / max(1, sum(runs))
            results += measure(subjects, cells, options.rounds, options.seconds, triton, say, until=until)
    paths = write_results(results, options, triton.description, time.monotonic() - started)
    say(f"written: {', '.join(path.name for path in paths)} in {options.results}")
    errors = sum(result.errors for result in results)
    if errors:
        say(f"{errors} requests failed; the table says which")
    return 1 if errors else 0


def plan(options: Options, *, with_minilm: bool) -> list[tuple[Model, list[Cell]]]:
    """The cells of each model."""
    chosen = cases.FULL if options.full else cases.QUICK if options.quick else cases.USUAL
    cells = [*chosen, *(cases.REAL if with_minilm else ())]
    names = [one for one in options.only if any(one in cell.case.name for cell in cells)]
    kept = [cell for cell in cells if not names or any(one in cell.case.name for one in names)]
    models = dict.fromkeys(cell.case.model for cell in kept)
    return [(model, [cell for cell in kept if cell.case.model is model]) for model in models]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
