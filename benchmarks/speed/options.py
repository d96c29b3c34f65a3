"""The flags of the benchmark."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pairs import Checkout, add_flags

ROOT = Path(__file__).parents[2]
SHARED = "--predictor_shared_memory"
BATCHING_OFF = "--max_batch_tokens=1"
"""No two texts fit into a batch of one token, so each goes by itself."""

SERVICES: Mapping[str, tuple[str, ...]] = {
    "service, REST": (f"{SHARED}=off",),
    "service, gRPC": ("--predictor_protocol=grpc-v2", f"{SHARED}=off"),
    "service, REST, shared memory": (f"{SHARED}=auto",),
    "service, gRPC, shared memory": ("--predictor_protocol=grpc-v2", f"{SHARED}=auto"),
    "service, REST, shared memory, batching off": (f"{SHARED}=auto", BATCHING_OFF),
}
"""Name -> flags. A flag with the value off that the service does not know is dropped; any other unknown flag leaves
the subject out."""
UNBATCHED = "batching off"
USUAL_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Options:
    """What the flags say."""

    quick: bool
    full: bool
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
        """The flags that say how often and how long, as the results name them; empty where they were not given."""
        rounds = "" if self.rounds == usual_rounds(self.quick, self.checkout) else f" --rounds {self.rounds}"
        return rounds if self.seconds == USUAL_SECONDS else f"{rounds} --seconds {self.seconds}"

    @property
    def python(self) -> Path:
        """That of the service."""
        return self.service_environment / "bin" / "python"

    @property
    def perf_analyzer(self) -> Path | None:
        """The program, if scripts/bench has found one that runs here."""
        beside = self.bench_environment / "perf_analyzer"
        found = str(beside) if beside.is_file() else shutil.which("perf_analyzer")
        return Path(found) if found else None

    def services(self) -> dict[str, tuple[str, ...]]:
        """Name -> flags of each form of the service."""
        more = (one.partition(":") for one in self.service)
        return {**SERVICES, **{name.strip(): tuple(flags.split()) for name, _, flags in more}}


def usual_rounds(quick: bool, checkouts: Sequence[Checkout]) -> int:
    """How many there are unless a flag says it."""
    if checkouts:
        return 9
    return 1 if quick else 3


def parse(argv: Sequence[str]) -> Options:
    """Reads the flags. Exits with 2 for a bad one."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description="See benchmarks/README.md.")
    add = parser.add_argument
    add("--quick", action="store_true", help="a few cells, one round: some minutes")
    add("--full", action="store_true", help="every model, text and number of connections: an hour")
    add("--rounds", type=int, default=0, help="[3, quick: 1, checkout: 9]")
    add("--seconds", type=int, default=USUAL_SECONDS, help="per run, whole ones [1]")
    add("--minutes", type=float, default=40.0, help="after which no further round begins [40]")
    add("--only", action="append", default=[], help="only subjects, or cases, whose names hold this; may be repeated")
    add("--service", action="append", default=[], metavar="'NAME: FLAGS'", help="a further form of the service")
    add("--batches_in_flight", action="store_true", help="nothing but how many batches are best at a time")
    add("--memory", action="store_true", help="nothing but the memory after many requests")
    add("--memory_requests", type=int, default=200_000, help="[200000]")
    add_flags(parser)
    add("--service_environment", type=Path, default=ROOT / ".venv", help="[.venv]")
    add("--triton_environment", type=Path, default=ROOT / ".venv-triton", help="[.venv-triton]")
    add("--bench_environment", type=Path, default=ROOT / ".venv-bench", help="[.venv-bench]")
    add("--minilm", type=Path, default=ROOT / "build/minilm/minilm", help="what scripts/export_minilm wrote")
    add("--results", type=Path, default=ROOT / "benchmarks/results", help="where the table and the plots go")
    add("--keep", action="store_true", help="keep the folder with models and logs")
    options = parser.parse_args(argv)
    options.rounds = options.rounds or usual_rounds(options.quick, options.checkout)
    return Options(**vars(options))
