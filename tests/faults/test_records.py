"""What the fault suite concludes from its records."""

from __future__ import annotations

import pytest

from tests.faults.clients import is_right
from tests.faults.records import Kind, Record, recovery, statuses
from tests.faults.texts import Text

ENDED = 100.0


def records(*parts: tuple[Kind, int]) -> list[Record]:
    """So many of each kind, one every 10 ms, beginning 10 ms after the fault has ended."""
    kinds = [kind for kind, count in parts for _ in range(count)]
    return [Record(0.0, ENDED + 0.01 * (number + 1), "rest", kind, 503) for number, kind in enumerate(kinds)]


def test_the_first_right_answer_and_the_time_from_which_on_nearly_all_are_right() -> None:
    found = recovery(records(("error", 50), ("right", 10), ("error", 40), ("right", 400)), ENDED)
    assert found == pytest.approx((0.51, 1.01))


def test_what_ended_before_the_end_of_the_fault_does_not_count() -> None:
    before = [Record(0.0, ENDED - 1.0, "rest", "error", 503)] * 1000
    assert recovery([*before, *records(("right", 300))], ENDED) == pytest.approx((0.01, 0.01))


def test_clients_that_left_do_not_count() -> None:
    found = recovery(records(("left", 100), ("right", 200), ("own deadline", 100)), ENDED)
    assert found == pytest.approx((1.01, 1.01))


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([("right", 199)], id="too few"),
        pytest.param([("right", 500), ("error", 3), ("right", 100)], id="errors among the last"),
        pytest.param([("right", 500), ("hang", 3)], id="hanging"),
    ],
)
def test_not_recovered(parts: list[tuple[Kind, int]]) -> None:
    assert recovery(records(*parts), ENDED) is None


def test_statuses_are_those_of_clean_errors() -> None:
    assert statuses(records(("error", 2), ("bad error", 1), ("right", 3))) == {503: 2}


def test_an_answer_is_right_only_for_its_own_text_in_its_place() -> None:
    one, two = (Text(name, {1: {"0": number}, 2: {"0": -number}}) for name, number in (("a", 1.0), ("b", 2.0)))
    assert is_right([{"0": 1.0}, {"0": 2.0}], [one, two], {1})
    assert is_right([{"0": -1.0}, {"0": -2.0}], [one, two], {1, 2})
    assert not is_right([{"0": 2.0}, {"0": 1.0}], [one, two], {1})
    assert not is_right([{"0": 1.0}], [one, two], {1})
    assert not is_right([{"0": 1.0}, {"0": -2.0}], [one, two], {1, 2})
    assert not is_right([{"0": 1.0}, {"0": 2.0}], [one, two], ())
