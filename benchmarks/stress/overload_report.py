"""What came of an overload, and the page that says it."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.stress.open_loop import Outcome
from benchmarks.stress.overload_cases import NO_LIMITS, Case

GOAL: Final = 0.9


@dataclass(slots=True)
class Peak:
    """The most that was answered: instances and requests a second, and the service's CPU seconds for each request."""

    goodput: float
    rate: float
    cpu: float


@dataclass(slots=True)
class Round:
    """One overload. Memory in bytes: before, at most, after; cpu is the share of one CPU that the service took."""

    limits: str
    offered: float
    goodput: float
    outcomes: dict[str, Outcome]
    memory: tuple[int, int, int]
    cpu: float
    connections: int

    def latency(self, percent: int) -> float:
        """Of the answers that were right, in seconds; NaN where there are none."""
        right = [value for one in self.outcomes.values() for value in one.right]
        return statistics.quantiles(right, n=100)[percent - 1] if len(right) > 1 else float("nan")

    def count(self, what: str) -> int:
        return sum(int(getattr(one, what)) for one in self.outcomes.values())

    @property
    def failed(self) -> int:
        return sum(sum(one.other.values()) for one in self.outcomes.values())


def row_of(peak: Peak, one: Round) -> str:
    """One line of a case's table."""
    before, most, after = (value / 1e6 for value in one.memory)
    refused = sum(len(outcome.refused) for outcome in one.outcomes.values())
    return (
        f"| {one.limits} | {one.offered:.0f} | {one.goodput:.0f} | {one.goodput / peak.goodput:.2f} | "
        f"{1000 * one.latency(50):.0f} | {1000 * one.latency(99):.0f} | {100 * refused / one.count('sent'):.0f} % | "
        f"{one.count('gave_up')} ({one.count('not_connected')}) | "
        f"{one.count('lost')} | {one.failed} | {one.count('wrong')} | "
        f"{before:.0f}, {most:.0f}, {after:.0f} | {100 * one.cpu:.0f} % |"
    )


HEAD: Final = (
    "| limits | offered, requests/s | goodput, instances/s | of the peak | p50 ms | p99 ms | refused | "
    "gave up | lost | failed | wrong | "
    "MB before, most, after | CPU |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def missed(case: Case, peak: Peak, one: Round) -> list[str]:
    """What a form with limits must reach and did not."""
    if one.limits == NO_LIMITS:
        return []
    found = []
    if one.goodput < GOAL * peak.goodput:
        found.append(f"goodput {one.goodput:.0f}/s is under {GOAL} of the peak, {peak.goodput:.0f}/s")
    if bad := one.count("lost") + one.count("gave_up") + one.count("wrong") + one.failed:
        found.append(f"{bad} accepted requests did not get their answer")
    return [f"{case.name}, {one.limits}: {line}" for line in found]


def refused_alike(one: Round) -> str:
    """The share of each kind that was refused."""
    shares = (
        f"{kind} {100 * len(outcome.refused) / outcome.sent:.1f} %" for kind, outcome in sorted(one.outcomes.items())
    )
    return f"{one.limits}: " + ", ".join(shares)


def report(lines: Sequence[str], refusals: Sequence[str], misses: Sequence[str], seconds: float) -> str:
    """The whole page."""
    return "\n".join(
        [
            "# Overload\n",
            f"Written by `python -m benchmarks.overload --seconds {seconds:g}`. {platform.platform()}, "
            f"{os.cpu_count()} CPUs, Python {platform.python_version()}. "
            "The columns are explained in benchmarks/README.md.\n",
            *lines,
            "## Refusing\n",
            "One request holds the only place; all others are refused.\n",
            "| body | bytes | refused | microseconds of CPU each |\n|---|---:|---:|---:|",
            *refusals,
            "",
            "All goals were reached." if not misses else "Goals that were missed:\n\n- " + "\n- ".join(misses),
            "",
        ]
    )
