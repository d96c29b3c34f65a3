"""Which instances leave together: every one once, within the limits, none overtaken for ever."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.core.batch_costs import BatchCosts
from hf_transformer.core.queue import MAX_PADDING, BatchLimits, Waiting

UNLIMITED = 10**9


@dataclass(eq=False)
class Entry:
    length: int
    key: str = ""
    number: int = 0
    taken: bool = False
    gone: bool = False


def limits(
    rows: int = 4,
    tokens: int = UNLIMITED,
    output_bytes: int = UNLIMITED,
    padding: bool = True,
    fixed_length: int | None = None,
) -> BatchLimits:
    """Outputs of 10 bytes per token."""
    return BatchLimits(rows, tokens, output_bytes, lambda width: 10 * width, padding, fixed_length)


def batches(entries: list[Entry], within: BatchLimits) -> list[list[Entry]]:
    waiting: Waiting[Entry] = Waiting(lambda entry: within)
    for entry in entries:
        waiting.add(entry)
    found = []
    while batch := waiting.take():
        found.append(batch)
    return found


def lengths_of(found: list[list[Entry]]) -> list[list[int]]:
    return [[entry.length for entry in batch] for batch in found]


entries = st.lists(st.builds(Entry, st.integers(1, 60), st.sampled_from(["", "a"])), min_size=1, max_size=60)
any_limits = st.builds(limits, st.integers(1, 9), st.integers(20, 300), st.integers(100, 3000), st.booleans())


@given(entries, any_limits)
def test_every_instance_leaves_once_within_the_limits(given_entries: list[Entry], within: BatchLimits) -> None:
    found = batches(given_entries, within)
    assert sorted(map(id, (entry for batch in found for entry in batch))) == sorted(map(id, given_entries))
    for batch in found:
        width = max(entry.length for entry in batch)
        assert len({entry.key for entry in batch}) == 1
        if len(batch) > 1:
            assert len(batch) <= within.max_rows
            assert len(batch) * width <= within.max_tokens
            assert len(batch) * within.output_bytes(width) <= within.max_output_bytes
            assert sum(entry.length for entry in batch) >= (1 - MAX_PADDING) * width * len(batch)


class OneByOne(BatchLimits):
    """Limits that are asked about each row."""

    def allow_even(self, rows: int, width: int, tokens: int) -> bool:
        return False


LEARNT = st.none() | st.builds(lambda overhead: Known(overhead), st.floats(4.0, 50.0))
MORE = st.none() | st.builds(lambda least, most: lambda size: least <= size <= most, *[st.integers(0, 4000)] * 2)


@given(
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["", "", "a"])), min_size=1, max_size=60),
    st.sets(st.integers(0, 59)),
    st.tuples(st.integers(1, 20), st.integers(5, 200), st.integers(0, 3000), st.just(lambda width: 10 * width)),
    st.fixed_dictionaries(
        {
            "padding": st.booleans(),
            "fixed_length": st.none() | st.integers(6, 12),
            "max_padding": st.sampled_from([0.0, 0.25, 1.0]),
            "costs": LEARNT,
            "more": MORE,
        }
    ),
    st.integers(1, 3),
)
def test_asking_for_many_at_once_changes_no_batch(
    texts: list[tuple[int, str]], gone: set[int], sizes: tuple[Any, ...], rest: dict[str, Any], parts: int
) -> None:
    def left(within: BatchLimits) -> list[list[int]]:
        waiting: Waiting[Entry] = Waiting(lambda entry: within)
        everyone = [Entry(length, key, number) for number, (length, key) in enumerate(texts)]
        for entry in everyone:
            waiting.add(entry)
        batches = [waiting.take(parts)]
        for number in gone & set(range(len(texts))):
            everyone[number].gone = True
        while batch := waiting.take(parts):
            batches.append(batch)
        return [[entry.number for entry in batch] for batch in batches]

    assert left(BatchLimits(*sizes, **rest)) == left(OneByOne(*sizes, **rest))


def test_a_few_rows_may_be_refused_where_more_would_not_be() -> None:
    within = replace(limits(rows=9, output_bytes=200), more=lambda size: size >= 500)
    assert lengths_of(batches([Entry(10) for _ in range(8)], within)) == [[10, 10]] * 4


def test_more_bytes_are_allowed_for_as_long_as_they_are_said_to_be() -> None:
    room = 600
    within = replace(limits(rows=9, output_bytes=200), more=lambda size: size <= room)
    waiting: Waiting[Entry] = Waiting(lambda entry: within)
    for number in range(20):
        waiting.add(Entry(10, number=number))
    assert len(waiting.take()) == 6  # of 100 bytes each
    room = 0
    assert len(waiting.take()) == 2
    room = 400
    assert len(waiting.take()) == 4


@given(entries, any_limits)
def test_the_one_that_waited_longest_is_in_the_next_batch(given_entries: list[Entry], within: BatchLimits) -> None:
    left = list(given_entries)
    for batch in batches(given_entries, within):
        assert batch[0] is left[0]
        left = [entry for entry in left if entry not in batch]


@given(entries)
def test_without_padding_lengths_are_never_mixed(given_entries: list[Entry]) -> None:
    for batch in batches(given_entries, limits(padding=False)):
        assert len({entry.length for entry in batch}) == 1


@given(entries, st.sets(st.integers(0, 59)))
def test_those_that_nobody_waits_for_leave_nothing_behind(given_entries: list[Entry], cancelled: set[int]) -> None:
    waiting: Waiting[Entry] = Waiting(lambda entry: limits(rows=2))
    for number, entry in enumerate(given_entries):
        waiting.add(entry)
        entry.number = number
    for number in cancelled & set(range(len(given_entries))):
        given_entries[number].gone = True
    found = []
    while batch := waiting.take():
        found += [entry.number for entry in batch]
    assert sorted(found) == [number for number in range(len(given_entries)) if number not in cancelled]
    assert not waiting._groups and not waiting._arrived


def test_the_nearest_lengths_fill_a_batch_up() -> None:
    found = batches([Entry(length) for length in (20, 10, 21, 30, 19, 20, 11)], limits(rows=4))
    assert lengths_of(found) == [[20, 20, 19, 21], [10, 11], [30]]


def test_those_of_one_length_leave_in_the_order_of_their_arrival() -> None:
    found = batches([Entry(5, number=number) for number in range(10)], limits(rows=4))
    assert [[entry.number for entry in batch] for batch in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("within", "expected"),
    [
        (limits(rows=3), [3, 3, 2]),
        (limits(rows=9, tokens=40), [4, 4]),
        (limits(rows=9, output_bytes=500), [5, 3]),
        (limits(rows=9, tokens=5), [1] * 8),
        (limits(rows=9, fixed_length=20, tokens=100), [5, 3]),
    ],
)
def test_each_limit_closes_a_batch(within: BatchLimits, expected: list[int]) -> None:
    assert [len(batch) for batch in batches([Entry(10) for _ in range(8)], within)] == expected


def test_padding_does_not_count_where_the_length_is_fixed() -> None:
    found = batches([Entry(1), Entry(100)], limits(fixed_length=100))
    assert lengths_of(found) == [[1, 100]]
    assert lengths_of(batches([Entry(1), Entry(100)], limits())) == [[1], [100]]


def test_one_that_waits_alone_leaves_nothing_behind() -> None:
    waiting: Waiting[Entry] = Waiting(lambda entry: limits())
    for gone in (False, True, False):
        alone = Entry(3, gone=gone)
        waiting.add(alone)
        assert waiting.take() == ([] if gone else [alone])
        assert alone.taken
        assert waiting.take() == []
        assert not (waiting._groups or waiting._arrived or waiting._ungrouped)


def test_those_that_came_before_and_after_a_batch_leave_together() -> None:
    waiting: Waiting[Entry] = Waiting(lambda entry: limits(rows=3))
    early = [Entry(5, number=number) for number in range(5)]
    for entry in early:
        waiting.add(entry)
    assert waiting.take() == early[:3]
    late = [Entry(length, number=9) for length in (5, 60)]
    for entry in late:
        waiting.add(entry)
    early[3].gone = True
    assert waiting.take() == [early[4], late[0]]
    assert waiting.take() == [late[1]]
    assert waiting.take() == []


class Known(BatchCosts):
    """A batch costs as much as so many tokens, beside its own."""

    def __init__(self, overhead: float) -> None:
        super().__init__(1)
        self.overhead = self._learnt = overhead


def evenly(overhead: float, room: int, output_bytes: int = 50) -> BatchLimits:
    """Up to 9 rows of 100 bytes each, for texts of 10 tokens, while there is ``room`` in shared memory."""
    return replace(limits(rows=9, output_bytes=output_bytes), costs=Known(overhead), more=lambda size: size <= room)


def test_batches_with_large_outputs_are_shared_out_evenly() -> None:
    waiting: Waiting[Entry] = Waiting(lambda entry: evenly(20, UNLIMITED))
    for _ in range(16):
        waiting.add(Entry(10))
    sizes = [len(waiting.take(3)), len(waiting.take(3))]
    for _ in range(9):  # one comes back, and its clients ask again; one of each batch does so at once
        ended = sizes[-2]
        waiting.add(Entry(10))
        waiting.answered(ended)
        sizes.append(len(waiting.take(3)))
        for _ in range(ended - 1):
            waiting.add(Entry(10))
    assert all(5 <= size <= 7 for size in sizes), sizes


@pytest.mark.parametrize(
    ("within", "expected"),
    [
        pytest.param(evenly(20, UNLIMITED), 4, id="moving outputs takes longest"),
        pytest.param(evenly(20, 150, 10**6), 4, id="one row would not come inline"),
        pytest.param(evenly(41, UNLIMITED), 9, id="a batch costs more than its tokens"),
        pytest.param(evenly(20, 99, 10**6), 9, id="one row comes inline"),
        pytest.param(replace(evenly(20, UNLIMITED, 10**6), more=None), 9, id="a flag says it"),
        pytest.param(replace(evenly(20, UNLIMITED, 10**6), costs=None), 9, id="no costs"),
        pytest.param(replace(evenly(20, UNLIMITED, 10**6), costs=BatchCosts(1)), 9, id="not known yet"),
    ],
)
def test_when_batches_are_shared_out(within: BatchLimits, expected: int) -> None:
    waiting: Waiting[Entry] = Waiting(lambda entry: within)
    for _ in range(12):
        waiting.add(Entry(10))
    assert len(waiting.take(3)) == expected


def test_a_share_is_kept_where_a_batch_might_take_all() -> None:
    waiting: Waiting[Entry] = Waiting(lambda entry: evenly(20, 150, 10**6))
    for _ in range(8):
        waiting.add(Entry(10))
    assert len(waiting.take(3)) == 3


def test_those_that_have_gone_have_no_share() -> None:
    waiting: Waiting[Entry] = Waiting(lambda entry: evenly(20, UNLIMITED))
    everyone = [Entry(10) for _ in range(100)]
    for entry in everyone:
        waiting.add(entry)
    for gone, expected in ((everyone[:40], 9), (everyone[49:88], 7)):  # of 60; of 12 and the 9 before them
        for entry in gone:
            entry.gone = True
        waiting.left(gone)
        assert len(waiting.take(3)) == expected
