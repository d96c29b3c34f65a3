"""Rounds of measurements: the systems of a model run at the same time, and get load in turn."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPException

from benchmarks.cases import Cell
from benchmarks.load import LoadFailed
from benchmarks.processes import cpu_seconds, settle
from benchmarks.systems import System
from hf_transformer.commands.child_process import ChildProcess
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.errors import LoadError

Say = Callable[[str], None]
FAILURES = (LoadFailed, LoadError, ValueError, OSError, HTTPException)
"""Errors of one system or its load, which do not stop the others."""
MAX_FAILURES = 3
"""Failed runs until a system is left out; each may take the time of a hanging run."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one run. CPU time is in ms per request, for the system's own processes and for Triton.

    Attributes:
        own_cpu_ms: None without processes of its own, and beside other clients, whose requests cost CPU, too.
        generator: share of a CPU that the load generators took.
        rows: texts per batch of the service; None if it does not say.
        beside: requests/s of other clients.
    """

    per_second: float
    p50_ms: float
    p99_ms: float
    own_cpu_ms: float | None
    triton_cpu_ms: float | None
    errors: int
    generator: float
    rows: float | None
    beside: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """All rounds of one system in one cell."""

    cell: Cell
    system: str
    samples: tuple[Sample, ...]

    def values(self, name: str) -> list[float]:
        """A field of each sample; empty if one has none."""
        values = [getattr(sample, name) for sample in self.samples]
        return [] if None in values else values

    def median(self, name: str) -> float:
        """The median of a field of Sample; NaN without values."""
        values = self.values(name)
        return float(statistics.median(values)) if values else math.nan

    @property
    def errors(self) -> int:
        return sum(sample.errors for sample in self.samples)


def measure(
    systems: Sequence[System],
    cells: Sequence[Cell],
    rounds: int,
    seconds: int,
    triton: LocalTriton,
    say: Say,
    *,
    until: float = math.inf,
) -> list[Result]:
    """Runs every system in each of its cells, ``rounds`` times in turn.

    A system that fails or hangs in a cell is skipped there, and after MAX_FAILURES everywhere. After ``until``, of
    time.monotonic, no further round begins. ``say`` gets a line about each omission. Restarts a dead Triton.
    """
    samples_by_cell: dict[tuple[Cell, System], list[Sample]] = {}
    failed: Counter[System] = Counter()
    with ExitStack() as stack:
        for system in systems:
            stack.callback(_end, system, say)
            system.start()
        running = [system for system in systems if _works(system, cells, say)]
        for number in range(rounds):
            if number and time.monotonic() > until:
                say(f"the time is over: {number} of {rounds} rounds are done")
                break
            for cell in cells:
                say(f"round {number + 1} of {rounds}: {cell.name}")
                # Every second round is reversed, so that no system always follows the same one.
                for system in reversed(running) if number % 2 else running:
                    samples = samples_by_cell.setdefault((cell, system), [])
                    if failed[system] >= MAX_FAILURES or len(samples) < number or not system.takes(cell):
                        continue
                    sample = _sample(system, cell, seconds, triton.child, say)
                    if sample is not None:
                        samples.append(sample)
                    elif triton.child.exit_code is not None:
                        # The restart keeps the ports, which all systems use.
                        say(f"Triton ended with {triton.child.exit_code} and is started again; the end of its log:")
                        say(triton.child.output()[-2000:])
                        triton.restart()
                    else:
                        failed[system] += 1
    return [
        Result(cell, system.name, tuple(samples_by_cell[cell, system]))
        for cell in cells
        for system in running
        if samples_by_cell.get((cell, system))
    ]


def count_runs(systems: Sequence[System], cells: Sequence[Cell]) -> int:
    """The number of runs in one round."""
    return sum(system.takes(cell) for system in systems for cell in cells)


def _end(system: System, say: Say) -> None:
    try:
        system.stop()
    except FAILURES as exc:
        say(f"{system.name} could not be ended tidily: {exc}")


def _works(system: System, cells: Sequence[Cell], say: Say) -> bool:
    """Waits for a system, checks an answer for each case, and warms it up; returns whether that worked."""
    try:
        system.wait()
        for case in dict.fromkeys(cell.case for cell in cells if system.takes(cell)):
            system.check(case)
        for cell in {cell.case: cell for cell in cells if system.takes(cell)}.values():
            system.warm_up(cell)
    except FAILURES as exc:
        say(f"left out: {system.name}: {exc}")
        _end(system, say)
        return False
    return True


def _sample(system: System, cell: Cell, seconds: int, triton: ChildProcess, say: Say) -> Sample | None:
    """One run; None after a failure."""
    try:
        child = system.child
        processes = [triton, *([child] if child else [])]
        settle(processes)
        system.prepare(cell.case)
        settle(processes)
        batches = system.batches()
        before = [cpu_seconds(triton), cpu_seconds(child) if child else 0.0, _generator_seconds(), time.monotonic()]
        load = system.measure(cell, seconds)
        after = [cpu_seconds(triton), cpu_seconds(child) if child else 0.0, _generator_seconds(), time.monotonic()]
        batches_after = system.batches()
    except FAILURES as exc:
        say(f"a run failed: {system.name}: {exc}")
        return None
    triton_cpu, own_cpu, generator, wall = (later - earlier for earlier, later in zip(before, after, strict=True))
    rows = None
    if batches is not None and batches_after is not None and cell.beside is None and batches_after[1] > batches[1]:
        rows = (batches_after[0] - batches[0]) / (batches_after[1] - batches[1])
    per_request = 1000 / max(1, load.served or load.requests)
    return Sample(
        per_second=load.requests / load.seconds,
        p50_ms=load.p50_ms,
        p99_ms=load.p99_ms,
        own_cpu_ms=own_cpu * per_request if child and cell.beside is None else None,
        triton_cpu_ms=triton_cpu * per_request if cell.beside is None else None,
        errors=load.errors,
        generator=generator / wall,
        rows=rows,
        beside=load.beside,
    )


def _generator_seconds() -> float:
    """CPU time of this process and of the load generators that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
