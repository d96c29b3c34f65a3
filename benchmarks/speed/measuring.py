"""The rounds: all subjects of a model run side by side, and take turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.speed.cases import Cell
from benchmarks.speed.load import LoadFailed
from benchmarks.speed.subjects import Subject
from benchmarks.speed.usage import cpu_seconds, settle
from hf_transformer.local_triton.child_process import ChildProcess

Say = Callable[[str], None]


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
    subjects: Sequence[Subject], cells: Sequence[Cell], rounds: int, seconds: int, triton: ChildProcess, say: Say
) -> list[Result]:
    """Every subject in every cell that it takes, ``rounds`` times in turn; one that fails is left out, with a line."""
    with ExitStack() as stack:
        for subject in subjects:
            stack.callback(subject.stop)
            subject.start()
        running = [subject for subject in subjects if _works(subject, cells, say)]
        found: dict[tuple[Cell, Subject], list[Sample]] = {}
        for number in range(rounds):
            for cell in cells:
                say(f"round {number + 1} of {rounds}: {cell.case.name}, {cell.connections} connections")
                for subject in _in_turn(running, number):
                    if subject.takes(cell) and (sample := _sample(subject, cell, seconds, triton, say)):
                        found.setdefault((cell, subject), []).append(sample)
    return [
        Result(cell, subject.name, subject.kind, tuple(samples))
        for cell in cells
        for subject in running
        if (samples := found.get((cell, subject)))
    ]


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
    except (LoadFailed, ValueError, OSError) as exc:
        say(f"left out: {subject.name}: {exc}")
        subject.stop()
        return False
    return True


def _sample(subject: Subject, cell: Cell, seconds: int, triton: ChildProcess, say: Say) -> Sample | None:
    """One run; None, with a line, if it failed."""
    try:
        return _run(subject, cell, seconds, triton)
    except (LoadFailed, ValueError, OSError) as exc:
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
