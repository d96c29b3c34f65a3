"""Compares the speed of the service with Triton alone and with others: `make bench`, or `python -m benchmarks.speed`.

--checkout, --batches_in_flight and --memory measure something else instead, on the same models. README.md has it all.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from benchmarks import cases
from benchmarks.cases import MINILM, Cell, Model
from benchmarks.checkouts import MODELS, measure_checkouts
from benchmarks.headline import measure_headline
from benchmarks.load import LoadFailed
from benchmarks.measuring import Result, count_runs, measure
from benchmarks.modes import measure_in_flight, measure_memory
from benchmarks.pairs import Checkout, add_flags, environment
from benchmarks.processes import RESULTS, ROOT, variables
from benchmarks.report import (
    DEFAULT,
    ENSEMBLE,
    IN_MEMORY,
    KSERVE,
    PERF_ANALYZER,
    UNBATCHED,
    WRK,
    write_results,
)
from benchmarks.repository import lay_out
from benchmarks.subjects import (
    Direct,
    Ensemble,
    Ground,
    Inbound,
    KServeTransformer,
    PerfAnalyzer,
    Service,
    Subject,
    Unbatched,
)
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.errors import LoadError

SHARED: Final = "--predictor_shared_memory"
SERVICES: Final[Mapping[str, tuple[str, ...]]] = {
    "service, REST": (f"{SHARED}=off",),
    "service, gRPC": ("--predictor_protocol=grpc-v2", f"{SHARED}=off"),
    DEFAULT: (f"{SHARED}=auto",),
    "service, gRPC, shared memory": ("--predictor_protocol=grpc-v2", f"{SHARED}=auto"),
    # No two texts fit into a batch of one token.
    f"{DEFAULT}, {UNBATCHED}": (f"{SHARED}=auto", "--max_batch_tokens=1"),
}
"""Name -> flags of each form of the service."""
APIS: Final = {"REST": "http", "gRPC": "grpc"}
USUAL_SECONDS: Final = 1
Named = TypeVar("Named")


@dataclass(frozen=True, slots=True)
class Options:
    """The flags."""

    quick: bool
    headline: bool
    rounds: int
    seconds: int
    only: list[str]
    service: list[str]
    minutes: float
    batches_in_flight: bool
    memory: bool
    memory_requests: int
    checkout: list[Checkout]
    own_python: bool
    service_environment: Path
    triton_environment: Path
    bench_environment: Path
    minilm: Path
    results: Path
    keep: bool

    @property
    def more(self) -> str:
        """The flags that say how often, how long and what, as the results name them; empty without them."""
        rounds = "" if self.rounds == usual_rounds(self.quick, self.checkout) else f" --rounds {self.rounds}"
        seconds = "" if self.seconds == USUAL_SECONDS else f" --seconds {self.seconds}"
        return rounds + seconds + "".join(f" --only {shlex.quote(one)}" for one in self.only)

    @property
    def python(self) -> Path:
        """That of the service."""
        return self.service_environment / "bin" / "python"

    @property
    def perf_analyzer(self) -> list[str] | None:
        """Its command with the libraries that it needs, where scripts/bench found one that runs here."""
        beside = self.bench_environment / "perf_analyzer"
        found = str(beside) if beside.is_file() else shutil.which("perf_analyzer")
        folders = sorted(self.bench_environment.glob("lib/python*/site-packages/nvidia/*/lib"))
        return ["env", f"LD_LIBRARY_PATH={os.pathsep.join(map(str, folders))}", found] if found else None

    def services(self) -> dict[str, tuple[str, ...]]:
        """Name -> flags of each form of the service, those of --service included."""
        more = (one.partition(":") for one in self.service)
        return {**SERVICES, **{name.strip(): tuple(flags.split()) for name, _, flags in more}}

    def pick(self, found: Iterable[Named], name: Callable[[Named], str]) -> list[Named]:
        """Those whose names hold one of --only; all of them where none does, since it names something else then."""
        named = list(found)
        return [one for one in named if any(part in name(one) for part in self.only)] or named


def usual_rounds(quick: bool, checkouts: Sequence[Checkout]) -> int:
    """How many there are without --rounds."""
    if checkouts:
        return 9
    return 1 if quick else 3


def parse(argv: Sequence[str]) -> Options:
    """Reads the flags. Exits with 2 for a bad one."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description="See benchmarks/README.md.")
    add = parser.add_argument
    add("--quick", action="store_true", help="a few cells, one round: some minutes")
    add("--headline", action="store_true", help="the README's table alone: ten minutes")
    add("--rounds", type=int, default=0, help="[3, quick: 1, checkout: 9]")
    add("--seconds", type=int, default=USUAL_SECONDS, help="per run, whole ones [1]")
    add("--minutes", type=float, default=40.0, help="after which no further round begins [40]")
    add("--only", action="append", default=[], help="only subjects, or cases, whose names hold this; may be repeated")
    add("--service", action="append", default=[], metavar="'NAME: FLAGS'", help="a further form of the service")
    add("--batches_in_flight", action="store_true", help="nothing but how many batches are best at a time")
    add("--memory", action="store_true", help="nothing but the memory after many requests")
    add("--memory_requests", type=int, default=200_000, help="[200000]")
    add_flags(parser)
    add("--service_environment", type=environment, default=ROOT / ".venv", help="[.venv]")
    add("--triton_environment", type=environment, default=ROOT / ".venv-triton", help="[.venv-triton]")
    add("--bench_environment", type=environment, default=ROOT / ".venv-bench", help="[.venv-bench]")
    add("--minilm", type=Path, default=ROOT / "build/minilm/minilm", help="what scripts/export_minilm wrote")
    add("--results", type=Path, default=RESULTS, help="where the page and the plot go")
    add("--keep", action="store_true", help="keep the folder with models and logs")
    options = parser.parse_args(argv)
    options.rounds = options.rounds or usual_rounds(options.quick, options.checkout)
    return Options(**vars(options))


def say(text: str) -> None:
    """Prints progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main(argv: Sequence[str]) -> int:
    """Measures and writes the results; returns the exit code."""
    options = parse(argv)
    if shutil.which("wrk") is None:
        print("The load comes from wrk (on Debian and Ubuntu: apt install wrk).", file=sys.stderr)
        return 1
    plots = not (options.headline or options.memory or options.batches_in_flight or options.checkout)
    if plots and importlib.util.find_spec("matplotlib") is None:
        print("The plot needs matplotlib: make bench has an environment with it (.venv-bench).", file=sys.stderr)
        return 1
    # As Ctrl-C does: all that was started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="hf-transformer-bench-"))
    try:
        return run(options, folder)
    except (LoadError, LoadFailed) as exc:
        print(exc, file=sys.stderr)
        return 1
    finally:
        if options.keep:
            say(f"models and logs are in {folder}")
        else:
            shutil.rmtree(folder)


def run(options: Options, folder: Path) -> int:
    """Measures with one Triton for all; 1 if a request failed, else 0."""
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
        ground = Ground(triton, folder, options.python, options.own_python)
        if options.headline:
            return measure_headline(options, ground, say)
        if options.memory:
            return measure_memory(options, ground, flags, say)
        if options.batches_in_flight:
            return measure_in_flight(options, ground, say, started)
        if options.checkout:
            return measure_checkouts(options, ground, flags, say, started)
        return compare(options, ground, flags, started, with_minilm=minilm is not None)


def compare(
    options: Options, ground: Ground, flags: Mapping[str, tuple[str, ...]], started: float, *, with_minilm: bool
) -> int:
    """The service, Triton alone and the peers; writes the page and the plot."""
    for lacks, what in (
        (options.perf_analyzer is None, "perf_analyzer, which scripts/bench did not find in a form that runs here"),
        (importlib.util.find_spec("kserve") is None, "the KServe SDK's transformer: the package kserve is missing"),
        (not with_minilm, f"the real MiniLM: there is no {options.minilm.name}, see scripts/export_minilm"),
    ):
        if lacks:
            say(f"left out: {what}")
    work = [
        (subjects_of(model, ground, options, flags), cells) for model, cells in plan(options, with_minilm=with_minilm)
    ]
    runs = [count_runs(subjects, cells) for subjects, cells in work]
    say(f"{sum(runs) * options.rounds} runs; after {options.minutes:g} minutes no further round begins")
    results: list[Result] = []
    for number, (subjects, cells) in enumerate(work):
        until = started + 60 * options.minutes * sum(runs[: number + 1]) / max(1, sum(runs))
        results += measure(subjects, cells, options.rounds, options.seconds, ground.triton, say, until=until)
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


def subjects_of(model: Model, ground: Ground, options: Options, flags: Mapping[str, tuple[str, ...]]) -> list[Subject]:
    """All that can be measured for a model, with these forms of the service."""
    found: list[Subject] = [
        (Unbatched if UNBATCHED in name else Service)(name, ground, model, given)
        for name, given in flags.items()
        if not (options.quick and UNBATCHED in name and model is not MINILM)
    ]
    if model is not MINILM:
        found += _others(model, ground, options)
    return options.pick(found, lambda subject: subject.name)


def _others(model: Model, ground: Ground, options: Options) -> list[Subject]:
    """The service's V2 API, the peers, and Triton alone."""
    found: list[Subject] = [Ensemble(ENSEMBLE, ground, model)]
    if importlib.util.find_spec("kserve") is not None:
        found.append(KServeTransformer(KSERVE, ground, model))
    found += [Direct(WRK + more, ground, model, bool(more)) for more in ("", IN_MEMORY)]
    for label, protocol in APIS.items() if (analyzer := options.perf_analyzer) else ():
        found.append(Inbound(f"service asked over {label} (V2)", ground, model, analyzer, protocol))
        for more in ("", IN_MEMORY) if protocol == "http" or not options.quick else ():
            name = f"{PERF_ANALYZER}, {label}{more}"
            found.append(PerfAnalyzer(name, ground, model, analyzer, protocol, bool(more)))
    return found


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
