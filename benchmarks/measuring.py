"""The rounds: all subjects of a model run side by side and take turns."""

from __future__ import annotations

import math
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
from benchmarks.subjects import Subject
from hf_transformer.commands.local_triton import ChildProcess, LocalTriton
from hf_transformer.errors import LoadError

Say = Callable[[str], None]
FAILURES = (LoadFailed, LoadError, ValueError, OSError, HTTPException)
"""Errors of a subject or its load; the other subjects go on."""
MOST_FAILURES = 3
"""After so many a subject is not asked again: each may have cost the time of a run that hangs."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one run. CPU is in ms per request: of the subject's own processes, and of Triton."""

    per_second: float
    p50_ms: float
    p99_ms: float
    own_cpu_ms: float | None
    triton_cpu_ms: float
    errors: int


@dataclass(frozen=True, slots=True)
class Result:
    """All rounds of one subject in one cell."""

    cell: Cell
    subject: str
    samples: tuple[Sample, ...]

    def median(self, name: str) -> float:
        """The median of a field of Sample; nan where it was not measured."""
        values = [getattr(sample, name) for sample in self.samples]
        return float("nan") if None in values else float(statistics.median(values))

    @property
    def errors(self) -> int:
        return sum(sample.errors for sample in self.samples)


def measure(
    subjects: Sequence[Subject],
    cells: Sequence[Cell],
    rounds: int,
    seconds: int,
    triton: LocalTriton,
    say: Say,
    *,
    until: float = math.inf,
) -> list[Result]:
    """Runs every subject in every cell that it takes, ``rounds`` times in turn.

    A subject that fails or hangs in a cell is not tried there again, and after MOST_FAILURES nowhere. No round but the
    first begins after ``until``, of time.monotonic. ``say`` hears of all that is left out. A Triton that died is
    started again.
    """
    found: dict[tuple[Cell, Subject], list[Sample]] = {}
    failed: Counter[Subject] = Counter()
    with ExitStack() as stack:
        for subject in subjects:
            stack.callback(_end, subject, say)
            subject.start()
        running = [subject for subject in subjects if _works(subject, cells, say)]
        for number in range(rounds):
            if number and time.monotonic() > until:
                say(f"the time is over: {number} of {rounds} rounds are done")
                break
            for cell in cells:
                say(f"round {number + 1} of {rounds}: {cell.case.name}, {cell.connections} connections")
                # Every second round goes backwards, so that no subject always follows the same neighbour.
                for subject in reversed(running) if number % 2 else running:
                    samples = found.setdefault((cell, subject), [])
                    if failed[subject] >= MOST_FAILURES or len(samples) < number or not subject.takes(cell):
                        continue
                    sample = _sample(subject, cell, seconds, triton.child, say)
                    if sample is not None:
                        samples.append(sample)
                    elif triton.child.exit_code is not None:
                        # On the same ports, so that all who use it find it again.
                        say(f"Triton ended with {triton.child.exit_code} and is started again; the end of its log:")
                        say(triton.child.output()[-2000:])
                        triton.restart()
                    else:
                        failed[subject] += 1
    return [
        Result(cell, subject.name, tuple(found[cell, subject]))
        for cell in cells
        for subject in running
        if found.get((cell, subject))
    ]


def count_runs(subjects: Sequence[Subject], cells: Sequence[Cell]) -> int:
    """The runs of one round."""
    return sum(subject.takes(cell) for subject in subjects for cell in cells)


def _end(subject: Subject, say: Say) -> None:
    try:
        subject.stop()
    except FAILURES as exc:
        say(f"{subject.name} could not be ended tidily: {exc}")


def _works(subject: Subject, cells: Sequence[Cell], say: Say) -> bool:
    """Waits for it, checks an answer to each kind of text, and warms it up."""
    try:
        subject.wait()
        for case in dict.fromkeys(cell.case for cell in cells if subject.takes(cell)):
            subject.check(case)
        for cell in {cell.case: cell for cell in cells if subject.takes(cell)}.values():
            subject.warm_up(cell)
    except FAILURES as exc:
        say(f"left out: {subject.name}: {exc}")
        _end(subject, say)
        return False
    return True


def _sample(subject: Subject, cell: Cell, seconds: int, triton: ChildProcess, say: Say) -> Sample | None:
    """One run; None, with a line, if it failed."""
    try:
        child = subject.child
        processes = [triton, *([child] if child else [])]
        settle(processes)
        subject.prepare(cell.case)
        settle(processes)
        triton_before, own_before = cpu_seconds(triton), cpu_seconds(child) if child else 0.0
        load = subject.measure(cell, seconds)
        own = cpu_seconds(child) - own_before if child else None
        triton_cpu = cpu_seconds(triton) - triton_before
    except FAILURES as exc:
        say(f"a run failed: {subject.name}: {exc}")
        return None
    per_request = 1000 / max(1, load.served or load.requests)
    return Sample(
        per_second=load.requests / load.seconds,
        p50_ms=load.p50_ms,
        p99_ms=load.p99_ms,
        own_cpu_ms=None if own is None else own * per_request,
        triton_cpu_ms=triton_cpu * per_request,
        errors=load.errors,
    )
