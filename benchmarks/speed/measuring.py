"""The rounds: all subjects of a model run side by side, and take turns."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPException

from benchmarks.speed.cases import Cell
from benchmarks.speed.load import LoadFailed
from benchmarks.speed.subjects import Subject
from benchmarks.speed.usage import cpu_seconds, settle
from hf_transformer.commands.local_triton import ChildProcess, LocalTriton

Say = Callable[[str], None]
FAILURES = (LoadFailed, ValueError, OSError, HTTPException)
"""Of a subject or its load; the other ones go on."""
MOST_FAILURES = 3
"""Of a subject, each of which may have cost the time of a run that hangs."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run gave. CPU is in ms per request: of the subject's own processes, of Triton. Errors are requests."""

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
    kind: str
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
    """Every subject in every cell that it takes, ``rounds`` times in turn.

    A subject that fails in a cell, or hangs, is not tried there again, and after MOST_FAILURES nowhere. No round but
    the first begins after ``until``, of time.monotonic. Of what is left out there is a line. A Triton that has died
    is started again.
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
                for subject in _in_turn(running, number):
                    samples = found.setdefault((cell, subject), [])
                    if failed[subject] >= MOST_FAILURES or len(samples) < number or not subject.takes(cell):
                        continue
                    sample = _sample(subject, cell, seconds, triton.child, say)
                    if sample is not None:
                        samples.append(sample)
                    elif triton.child.exit_code is not None:
                        _start_again(triton, say)
                    else:
                        failed[subject] += 1
    return [
        Result(cell, subject.name, subject.kind, tuple(found[cell, subject]))
        for cell in cells
        for subject in running
        if found.get((cell, subject))
    ]


def count_runs(subjects: Sequence[Subject], cells: Sequence[Cell]) -> int:
    """Of one round."""
    return sum(subject.takes(cell) for subject in subjects for cell in cells)


def _start_again(triton: LocalTriton, say: Say) -> None:
    """On the same ports, so that all who use it find it again."""
    say(f"Triton has ended with {triton.child.exit_code} and is started again; the end of its log:")
    say(triton.child.output_tail(15))
    triton.restart()


def _end(subject: Subject, say: Say) -> None:
    try:
        subject.stop()
    except FAILURES as exc:
        say(f"{subject.name} could not be ended tidily: {exc}")


def _in_turn(subjects: Sequence[Subject], number: int) -> Iterable[Subject]:
    """Every second round goes backwards, so that nobody always follows the same neighbour."""
    return reversed(subjects) if number % 2 else subjects


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
        return _run(subject, cell, seconds, triton)
    except FAILURES as exc:
        say(f"a run failed: {subject.name}: {exc}")
        return None


def _run(subject: Subject, cell: Cell, seconds: int, triton: ChildProcess) -> Sample:
    child = subject.child
    settle([triton, *([child] if child else [])])
    subject.prepare(cell.case)
    settle([triton, *([child] if child else [])])
    triton_before, own_before = cpu_seconds(triton), cpu_seconds(child) if child else 0.0
    load = subject.measure(cell, seconds)
    own = cpu_seconds(child) - own_before if child else None
    per_request = 1000 / max(1, load.served or load.requests)
    return Sample(
        per_second=load.requests / load.seconds,
        p50_ms=load.p50_ms,
        p99_ms=load.p99_ms,
        own_cpu_ms=None if own is None else own * per_request,
        triton_cpu_ms=(cpu_seconds(triton) - triton_before) * per_request,
        errors=load.errors,
    )
