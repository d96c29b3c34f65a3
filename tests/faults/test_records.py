"""What the fault suite concludes from its records."""

from __future__ import annotations

import pytest

from tests.faults.load import is_right
from tests.faults.records import Kind, Record, recovery, statuses
from tests.faults.texts import Text

ENDED = 100.0


def records(*parts: tuple[Kind, int]) -> list[Record]:
    """Records of each kind by their number, one every 10 ms, from 10 ms after the end of the fault."""
    kinds = [kind for kind, count in parts for _ in range(count)]
    return [Record(0.0, ENDED + 0.01 * (number + 1), "rest", kind, 503) for number, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("before", "parts", "times"),
    [
        (0, [("error", 50), ("right", 10), ("error", 40), ("right", 400)], (0.51, 1.01)),
        (1000, [("right", 300)], (0.01, 0.01)),
        (0, [("left", 100), ("right", 200), ("own deadline", 100)], (1.01, 1.01)),
        (0, [("right", 199)], None),
        (0, [("right", 500), ("error", 3), ("right", 100)], None),
        (0, [("right", 500), ("hang", 3)], None),
    ],
    ids=["errors between", "errors before the end", "clients that left", "too few", "errors among the last", "hanging"],
)
def test_the_first_right_answer_and_the_time_from_which_on_nearly_all_are_right(
    before: int, parts: list[tuple[Kind, int]], times: tuple[float, float] | None
) -> None:
    """Counted from the end of the fault."""
    early = [Record(0.0, ENDED - 1.0, "rest", "error", 503)] * before
    assert recovery([*early, *records(*parts)], ENDED) == (times and pytest.approx(times))


def test_statuses_are_those_of_clean_errors() -> None:
    assert statuses(records(("error", 2), ("bad error", 1), ("right", 3))) == {503: 2}


def test_an_answer_is_right_only_for_its_own_text_in_its_place() -> None:
    first, two = (Text(name, {1: {"0": number}, 2: {"0": -number}}) for name, number in (("a", 1.0), ("b", 2.0)))
    assert is_right([{"0": 1.0}, {"0": 2.0}], [first, two], {1})
    assert is_right([{"0": -1.0}, {"0": -2.0}], [first, two], {1, 2})
    assert not is_right([{"0": 2.0}, {"0": 1.0}], [first, two], {1})
    assert not is_right([{"0": 1.0}], [first, two], {1})
    assert not is_right([{"0": 1.0}, {"0": -2.0}], [first, two], {1, 2})
    assert not is_right([{"0": 1.0}, {"0": 2.0}], [first, two], ())
