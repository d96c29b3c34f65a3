"""How the checks follow each other."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from hf_transformer.commands.doctor.findings import Finding, failed, ok, warning
from hf_transformer.commands.doctor.subject import Subject
from hf_transformer.commands.doctor.table import CHECKS, Check, examine
from hf_transformer.errors import PredictorTimeout
from tests.doctor.askable import Askable, subject_with


async def fine(subject: Subject) -> Sequence[Finding]:
    return ok("fine")


async def doubtful(subject: Subject) -> Sequence[Finding]:
    return warning("doubtful", "change it")


async def broken(subject: Subject) -> Sequence[Finding]:
    return [*failed("broken", "mend it"), *failed("broken twice", "mend it again")]


async def slow(subject: Subject) -> Sequence[Finding]:
    raise PredictorTimeout("too slow")


async def faulty(subject: Subject) -> Sequence[Finding]:
    raise ZeroDivisionError


async def told(*checks: Check) -> list[tuple[str, str, str, str]]:
    found = examine(subject_with(Askable()), checks)
    return [(one.name, one.status, one.found, one.change) async for one in found]


async def test_what_needs_a_failed_check_is_not_made() -> None:
    results = await told(Check("a", broken), Check("b", faulty, ("a",)), Check("c", faulty, ("b",)), Check("d", fine))
    assert [one[:3] for one in results] == [
        ("a", "failed", "broken"),
        ("a", "failed", "broken twice"),
        ("b", "skipped", "not made: a comes first"),
        ("c", "skipped", "not made: b comes first"),
        ("d", "ok", "fine"),
    ]


async def test_a_warning_keeps_nothing_from_being_made() -> None:
    results = await told(Check("a", doubtful), Check("b", fine, ("a",)))
    assert [one[1] for one in results] == ["warning", "ok"]


async def test_an_error_is_a_finding() -> None:
    assert await told(Check("a", slow, hint="wait")) == [("a", "failed", "too slow", "wait")]


async def test_a_fault_of_a_check_keeps_no_other_from_being_made(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        results = await told(Check("a", faulty), Check("b", fine))
    assert results[0][1:3] == ("failed", "the check itself failed: ZeroDivisionError")
    assert results[1][1] == "ok"
    assert caplog.records[0].exc_info is not None


def test_what_is_needed_comes_before() -> None:
    seen: set[str] = set()
    for check in CHECKS:
        assert check.name not in seen
        assert seen.issuperset(check.needs)
        seen.add(check.name)
