"""Command-line flags of the speed benchmark, and the configurations of the service that it compares."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from benchmarks.pairs import Checkout, add_flags, environment
from benchmarks.processes import QUICK_RESULTS, RESULTS, ROOT
from benchmarks.systems import IN_ONE_POD, UNBATCHED

SHARED: Final = "--predictor_shared_memory"
SERVICES: Final[Mapping[str, tuple[str, ...]]] = {
    "service, REST": (f"{SHARED}=off",),
    "service, gRPC": ("--predictor_protocol=grpc-v2", f"{SHARED}=off"),
    IN_ONE_POD: (f"{SHARED}=auto",),
    "service, gRPC, shared memory": ("--predictor_protocol=grpc-v2", f"{SHARED}=auto"),
    # A batch of one token holds one text.
    f"{IN_ONE_POD}, {UNBATCHED}": (f"{SHARED}=auto", "--max_batch_tokens=1"),
}
"""Flags of each configuration of the service."""
USUAL_SECONDS: Final = 1
Named = TypeVar("Named")


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed flags."""

    quick: bool
    goals: bool
    rounds: int
    seconds: int
    only: list[str]
    service: list[str]
    minutes: float
    batches_in_flight: bool
    instructions: bool
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
    def non_default(self) -> str:
        """--rounds, --seconds and --only for the results page; empty if all have their defaults."""
        rounds = "" if self.rounds == usual_rounds(self.quick, self.checkout) else f" --rounds {self.rounds}"
        seconds = "" if self.seconds == USUAL_SECONDS else f" --seconds {self.seconds}"
        return rounds + seconds + "".join(f" --only {shlex.quote(part)}" for part in self.only)

    @property
    def python(self) -> Path:
        """The Python of the service."""
        return self.service_environment / "bin" / "python"

    @property
    def perf_analyzer(self) -> list[str] | None:
        """The command of perf_analyzer, with the path of its libraries; None if it is not installed."""
        local = self.bench_environment / "perf_analyzer"
        program = str(local) if local.is_file() else shutil.which("perf_analyzer")
        folders = sorted(self.bench_environment.glob("lib/python*/site-packages/nvidia/*/lib"))
        return ["env", f"LD_LIBRARY_PATH={os.pathsep.join(map(str, folders))}", program] if program else None

    def services(self) -> dict[str, tuple[str, ...]]:
        """Flags of each configuration of the service, including --service."""
        added = (text.partition(":") for text in self.service)
        return {**SERVICES, **{name.strip(): tuple(flags.split()) for name, _, flags in added}}

    def forms(self) -> dict[str, tuple[str, ...]]:
        """The same without those with batching off."""
        return {name: flags for name, flags in self.services().items() if UNBATCHED not in name}

    def pick(self, items: Iterable[Named], name: Callable[[Named], str]) -> list[Named]:
        """The items whose names contain a part in --only; all items if none does."""
        items = list(items)
        return [item for item in items if any(part in name(item) for part in self.only)] or items


def usual_rounds(quick: bool, checkouts: Sequence[Checkout]) -> int:
    """The default of --rounds. Fewer than six have no interval."""
    if quick:
        return 1
    return 9 if checkouts else 6


def parse(argv: Sequence[str]) -> Options:
    """Reads the flags. Exits with code 2 for a bad flag."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description="See benchmarks/README.md.")
    add = parser.add_argument
    add("--quick", action="store_true", help="one round, without intervals; takes some minutes")
    add("--goals", action="store_true", help="instead the contributors' goals, with further peers")
    add("--rounds", type=int, default=0, help="number of rounds [6, with --checkout 9, with --quick 1]")
    add("--seconds", type=int, default=USUAL_SECONDS, help="duration of each run, whole seconds [1]")
    add("--minutes", type=float, default=22.0, help="no round begins later than this [22]")
    add("--only", action="append", default=[], help="only systems, or cases, whose names contain this; repeatable")
    add(
        "--service",
        action="append",
        default=[],
        metavar="'NAME: FLAGS'",
        help="a further configuration of the service; repeatable",
    )
    add("--batches_in_flight", action="store_true", help="instead measure the best number of batches in flight")
    add("--instructions", action="store_true", help="instead count the instructions of a request by callgrind")
    add("--memory", action="store_true", help="instead measure the memory after many requests")
    add("--memory_requests", type=int, default=200_000, help="requests for --memory [200000]")
    add_flags(parser)
    add("--service_environment", type=environment, default=ROOT / ".venv", help="environment of the service [.venv]")
    add(
        "--triton_environment",
        type=environment,
        default=ROOT / ".venv-triton",
        help="environment of Triton [.venv-triton]",
    )
    add(
        "--bench_environment",
        type=environment,
        default=ROOT / ".venv-bench",
        help="environment of peers and load generators [.venv-bench]",
    )
    add(
        "--minilm",
        type=Path,
        default=ROOT / "build/minilm/minilm",
        help="model written by scripts/export_minilm [build/minilm/minilm]",
    )
    add("--results", type=Path, help="folder for page and plot [benchmarks/results; with --quick build/bench]")
    add("--keep", action="store_true", help="keep the folder with models and logs")
    options = parser.parse_args(argv)
    options.results = options.results or (QUICK_RESULTS if options.quick else RESULTS)
    options.rounds = options.rounds or usual_rounds(options.quick, options.checkout)
    return Options(**vars(options))
