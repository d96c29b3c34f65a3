"""Throughput and latency in front of a device, simulated and measured (docs/decisions/0008).

    .venv-bench/bin/python -m benchmarks.departures [--simulate] [--checkout NAME=PATH ...] [--rounds 3] [--seconds 3]

Clients ask in turn for the class of one text each (a closed loop), or at random moments (an open loop, simulated only).
A batch of the model takes a + b * rows. *best*: texts per second of the best plan that knows all times in advance, see
``best_rate``. With --checkout it measures this and other checkouts in alternating rounds, in front of
benchmarks/device.py, and writes results/departures.md; wrk is the load generator. --simulate writes the simulation
alone, over all a and b.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, cast

from benchmarks.cases import CLASSIFIER, NON_WORDS
from benchmarks.load import run_wrk, v1_bodies
from benchmarks.pairs import Checkout, add_flags
from benchmarks.processes import RESULTS, ROOT, ServiceProcess
from benchmarks.repository import write_hugging_face
from benchmarks.simulation import (
    BatchSettings,
    Cores,
    Load,
    Process,
    Service,
    ServiceTimes,
    Simulation,
    Triton,
    offer,
    offer_in_turn,
)
from benchmarks.texts import Words
from hf_transformer import __version__

TIMES: Final = ServiceTimes(request=130e-6, answer=50e-6, batch=150e-6, reply=80e-6, call=500e-6)
"""CPU times of the service and of the kernel for it, from V1 requests of 9 tokens at 1 and 256 connections on the
machine of the results, where wrk and the device share two cores with it."""
THINK: Final = 0.0002
"""Mean seconds between an answer and the next request of a client: two ways through the kernel, and the client."""
MIXED: Final = (8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
LENGTHS: Final = {"9 tokens": (9,), "mixed": MIXED}
"""Texts -> their lengths in tokens, all equally probable."""
DEVICES: Final = ((3.0, 0.01), (8.0, 0.05))
"""Milliseconds of a batch and of a row, as measured for MiniLM and BERT-large on an H100 (results/gpu.md)."""
CLIENTS: Final = (1, 4, 16, 64, 256)
FIXED: Final = (0.1, 3.0, 8.0, 20.0)
ROW: Final = (0.001, 0.05, 1.0)
"""Milliseconds of a batch and of a row in the simulation alone."""
ALL_CLIENTS: Final = (1, 16, 64, 256)
SHARES: Final = (0.1, 0.5)
"""Rates of the open loop, as shares of the highest possible one."""
MAX_ROWS: Final = 1024
MAX_TURNS: Final = 8
BATCHES: Final = 1500
"""Simulated batches of a cell, and limits of its seconds."""
SECONDS: Final = (2.0, 6.0)
TEXTS: Final = 40_000
"""Different texts of a run, more than it has requests."""


@dataclass(frozen=True, slots=True)
class LoadCell:
    """A device in milliseconds, the number of clients, and their texts."""

    fixed: float
    row: float
    clients: int
    texts: str

    @property
    def best_rate(self) -> float:
        """Texts per second of the best plan that knows all times in advance.

        k batches of C / k rows take turns. A cycle takes the longest of: k batches in the model; one batch and the
        return of its clients; the CPU time of the service. One batch of all rows is k = 1.
        """
        fixed, row = self.fixed / 1000, self.row / 1000
        request, batch = TIMES.request + TIMES.answer, TIMES.batch + TIMES.reply
        cycles = []
        for turns in range(1, min(self.clients, MAX_TURNS) + 1):
            rows = self.clients / turns
            model = fixed + row * rows
            returning = rows * request + batch + TIMES.call + THINK
            cycles.append(max(turns * model, model + returning, self.clients * request + turns * batch))
        return self.clients / min(cycles)


@dataclass(frozen=True, slots=True)
class Figures:
    """Texts per second, median latency in milliseconds, and mean rows of a batch."""

    rate: float
    p50: float
    rows: float


def simulate(cell: LoadCell, *, holds: bool, rate: float | None = None) -> Figures:
    """Simulates a cell. ``rate`` in texts per second makes an open loop. Without ``holds`` no batch waits."""
    simulation, chance = Simulation(), random.Random(1)
    fixed, row = cell.fixed / 1000, cell.row / 1000
    device = Triton(simulation, lambda rows, tokens: fixed + row * rows)
    settings = BatchSettings(max_rows=MAX_ROWS, in_flight=2, holds=holds)
    service = Service(simulation, Process(Cores(simulation, 1)), TIMES, settings, device.call)
    lengths = LENGTHS[cell.texts]
    least, most = SECONDS
    seconds = min(max(least, BATCHES * (fixed + row * cell.clients)), most)
    if rate is None:
        outcome = offer_in_turn(simulation, cell.clients, seconds, lengths, service.ask, chance, think=THINK)
    else:
        outcome = offer(simulation, Load(rate, seconds, lengths), service.ask, chance)
    return Figures(outcome.rate, outcome.percentile(0.5) * 1000, service.rows / max(1, service.batches))


# Measured


class DeviceProcess:
    """benchmarks/device.py; a context manager. ``http_address`` is its address."""

    def __init__(self, fixed: float, row: float, *, dynamic_batching: bool = False) -> None:
        flags = ["--dynamic_batching"] if dynamic_batching else []
        command = [sys.executable, "-P", "-m", "benchmarks.device", str(fixed), str(row), *flags]
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ)
        self.http_address = f"127.0.0.1:{self._line()}"
        self.grpc_address = self.http_address

    def _line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()

    def counts(self) -> tuple[int, int]:
        """Batches and rows so far."""
        self._child.send_signal(signal.SIGUSR1)
        batches, rows = self._line().split()
        return int(batches), int(rows)

    def __enter__(self) -> DeviceProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.terminate()
        self._child.wait()


def bodies_of(texts: str, folder: Path) -> list[Any]:
    """Requests with TEXTS different texts."""
    words = Words((folder / "vocab.txt").read_text().splitlines(), texts)
    chosen = random.Random(texts)
    return v1_bodies([[f"{words.whole(chosen.choice(LENGTHS[texts]) - NON_WORDS)} ."] for _ in range(TEXTS)])


def measure(cell: LoadCell, service: ServiceProcess, device: DeviceProcess, bodies: list[Any], seconds: int) -> Figures:
    before = device.counts()
    load = run_wrk(f"http://127.0.0.1:{service.port}/v1/models/{service.model}:predict", bodies, cell.clients, seconds)
    batches, rows = (after - earlier for after, earlier in zip(device.counts(), before, strict=True))
    if load.errors:
        raise SystemExit(f"{load.errors} requests failed in {cell}")
    return Figures(load.requests / load.seconds, load.p50_ms, rows / max(1, batches))


def medians(runs: Sequence[Figures]) -> Figures:
    return Figures(*(statistics.median(getattr(run, name) for run in runs) for name in ("rate", "p50", "rows")))


def measured_rows(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Table rows of the closed loop: the service of each checkout in alternating rounds, beside the simulation."""
    checkouts: list[Checkout | None] = [*options.checkout, None]
    for (fixed, row), texts in product(DEVICES, LENGTHS):
        bodies = bodies_of(texts, folder / CLASSIFIER.name)
        for dynamic_batching in options.dynamic_batching:
            with ExitStack() as stack:
                pairs = []
                for checkout in checkouts:
                    device = stack.enter_context(DeviceProcess(fixed, row, dynamic_batching=dynamic_batching))
                    service = ServiceProcess(
                        cast(Any, device), folder, CLASSIFIER.name, python=options.python, checkout=checkout,
                        own_python=options.own_python,
                    )  # fmt: skip
                    pairs.append((stack.enter_context(service).wait(), device))
                for clients in CLIENTS:
                    cell = LoadCell(fixed, row, clients, texts)
                    runs: list[list[Figures]] = [[] for _ in pairs]
                    for number in range(options.rounds + 1):
                        for index, (service, device) in enumerate(pairs):
                            figures = measure(cell, service, device, bodies, options.seconds)
                            if number:  # the first round is for learning
                                runs[index].append(figures)
                    *others, ours = map(medians, runs)
                    predicted = simulate(cell, holds=True)
                    before = [f"{other.rate:,.0f} | {other.p50:.2f} | {other.rows:.1f}" for other in others]
                    yield " | ".join(
                        [
                            f"| {fixed:g} + {row:g}{', dynamic batching' if dynamic_batching else ''}",
                            f"{texts} | {clients}",
                            *before,
                            f"{ours.rate:,.0f} | {ours.p50:.2f} | {ours.rows:.1f} | {predicted.rate:,.0f}",
                            f"{cell.best_rate:,.0f} | {ours.rate / cell.best_rate:.2f} |",
                        ]
                    )
                    print(f"{cell}: {[other.rate for other in others]} {ours}", flush=True)


def simulated_rows() -> Iterator[str]:
    """Table rows of the closed loop: without and with holds, relative to the best plan."""
    for fixed, row, texts in product(FIXED, ROW, LENGTHS):
        parts = []
        for clients in ALL_CLIENTS:
            cell = LoadCell(fixed, row, clients, texts)
            never, held = (simulate(cell, holds=holds).rate / cell.best_rate for holds in (False, True))
            parts.append(f"{never:.2f}, {held:.2f}")
        yield f"| {fixed:g} + {row:g} | {texts} | {' | '.join(parts)} |"


def open_rows() -> Iterator[str]:
    """Table rows of the open loop: p50 with holds relative to p50 without."""
    for fixed, row, texts in product(FIXED, ROW, LENGTHS):
        rate = min(1 / (TIMES.request + TIMES.answer), MAX_ROWS / (fixed + row * MAX_ROWS) * 1000)
        cell = LoadCell(fixed, row, 1, texts)
        parts = []
        for share in SHARES:
            never, held = (simulate(cell, holds=holds, rate=share * rate).p50 for holds in (False, True))
            parts.append(f"{held / never:.2f}")
        yield f"| {fixed:g} + {row:g} | {texts} | {' | '.join(parts)} |"


def table(columns: Sequence[str], rows: Iterator[str]) -> list[str]:
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *rows, ""]


def main() -> None:
    """Writes results/departures.md, or with --simulate results/departures_simulated.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="write the simulation alone")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds [3]")
    parser.add_argument("--seconds", type=int, default=3, help="seconds of a cell in a round [3]")
    parser.add_argument("--dynamic_batching", action="append_const", const=True, default=[False], help="measure both")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv/bin/python", help="the Python of the services")
    add_flags(parser)
    options = parser.parse_args()
    arguments = " ".join(part.partition("=")[0] for part in sys.argv[1:])
    about = (
        f"hf-transformer {__version__}, {platform.platform()}, {os.cpu_count()} CPUs, Python "
        f"{platform.python_version()}; `python -m benchmarks.departures {arguments}`; load average "
        f"{os.getloadavg()[0]:.1f} at the start.\n"
    )
    if options.simulate:
        page, lines = RESULTS / "departures_simulated.md", [
            "# Departures, simulated\n", about,
            "Texts per second in a closed loop, relative to the best plan: batches that never wait, and batches that "
            "wait as core/departures.py says. Columns are numbers of clients.\n",
            *table(["ms of a batch + a row", "texts", *map(str, ALL_CLIENTS)], simulated_rows()),
            "p50 in an open loop, relative to batches that never wait, by the share of the highest rate.\n",
            *table(["ms of a batch + a row", "texts", *map(str, SHARES)], open_rows()),
        ]  # fmt: skip
    else:
        with tempfile.TemporaryDirectory() as folder:
            write_hugging_face(Path(folder) / CLASSIFIER.name, CLASSIFIER)
            names = [
                f"{checkout.name} {figure}" for checkout in options.checkout for figure in ("texts/s", "p50", "rows")
            ]
            columns = ["ms of a batch + a row", "texts", "clients", *names, "texts/s", "p50 ms", "rows"]
            rows = table(
                [*columns, "simulated texts/s", "best texts/s", "of the best"], measured_rows(options, Path(folder))
            )
        page, lines = RESULTS / "departures.md", ["# Departures, measured\n", about, *rows]
    page.write_text("\n".join(lines))
    print(f"written to {page}")


if __name__ == "__main__":
    main()
