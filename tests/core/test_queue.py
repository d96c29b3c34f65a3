"""Which instances leave together: every one once, within the limits, none overtaken for ever."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.core.batch_costs import BatchCosts
from hf_transformer.core.queue import MAX_PADDING, BatchLimits, Queue

UNLIMITED = 10**9


@dataclass(eq=False)
class Entry:
    length: int
    key: str = ""
    number: int = 0


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
    queue: Queue[Entry] = Queue(lambda entry: within)
    for entry in entries:
        queue.add(entry)
    found = []
    while batch := queue.take():
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

    def allow_even(self, rows: int, width: int, length: int) -> bool:
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
        queue: Queue[Entry] = Queue(lambda entry: within)
        everyone = [Entry(length, key, number) for number, (length, key) in enumerate(texts)]
        for entry in everyone:
            queue.add(entry)
        batches = [queue.take(parts)]
        for number in gone & set(range(len(texts))):
            queue.discard(everyone[number])
        while batch := queue.take(parts):
            batches.append(batch)
        return [[entry.number for entry in batch] for batch in batches]

    assert left(BatchLimits(*sizes, **rest)) == left(OneByOne(*sizes, **rest))


def test_a_few_rows_may_be_refused_where_more_would_not_be() -> None:
    within = replace(limits(rows=9, output_bytes=200), more=lambda size: size >= 500)
    assert lengths_of(batches([Entry(10) for _ in range(8)], within)) == [[10, 10]] * 4


def test_more_bytes_are_allowed_for_as_long_as_they_are_said_to_be() -> None:
    room = 600
    within = replace(limits(rows=9, output_bytes=200), more=lambda size: size <= room)
    queue: Queue[Entry] = Queue(lambda entry: within)
    for number in range(20):
        queue.add(Entry(10, number=number))
    assert len(queue.take()) == 6  # of 100 bytes each
    room = 0
    assert len(queue.take()) == 2
    room = 400
    assert len(queue.take()) == 4


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
def test_discarded_instances_leave_nothing_behind(given_entries: list[Entry], discarded: set[int]) -> None:
    queue: Queue[Entry] = Queue(lambda entry: limits(rows=2))
    for number, entry in enumerate(given_entries):
        queue.add(entry)
        entry.number = number
    for number in discarded & set(range(len(given_entries))):
        for _ in range(2):  # the second time it is not there
            queue.discard(given_entries[number])
    found = []
    while batch := queue.take():
        found += [entry.number for entry in batch]
    assert sorted(found) == [number for number in range(len(given_entries)) if number not in discarded]
    assert len(queue) == 0 and not queue._groups


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


def test_those_that_came_before_and_after_a_batch_leave_together() -> None:
    queue: Queue[Entry] = Queue(lambda entry: limits(rows=3))
    early = [Entry(5, number=number) for number in range(5)]
    for entry in early:
        queue.add(entry)
    assert queue.take() == early[:3]
    late = [Entry(length, number=9) for length in (5, 60)]
    for entry in late:
        queue.add(entry)
    queue.discard(early[3])
    assert queue.take() == [early[4], late[0]]
    assert queue.take() == [late[1]]
    assert queue.take() == []


class Known(BatchCosts):
    """A batch costs as much as so many tokens, beside its own."""

    def __init__(self, overhead: float) -> None:
        super().__init__(1)
        self.overhead = self._learnt = overhead


def evenly(overhead: float, room: int, output_bytes: int = 50) -> BatchLimits:
    """Up to 9 rows of 100 bytes each, for texts of 10 tokens, while there is ``room`` in shared memory."""
    return replace(limits(rows=9, output_bytes=output_bytes), costs=Known(overhead), more=lambda size: size <= room)


def test_batches_with_large_outputs_are_shared_out_evenly() -> None:
    queue: Queue[Entry] = Queue(lambda entry: evenly(20, UNLIMITED))
    for _ in range(16):
        queue.add(Entry(10))
    sizes = [len(queue.take(3)), len(queue.take(3))]
    for _ in range(9):  # one comes back, and its clients ask again; one of each batch does so at once
        ended = sizes[-2]
        queue.add(Entry(10))
        queue.answered(ended)
        sizes.append(len(queue.take(3)))
        for _ in range(ended - 1):
            queue.add(Entry(10))
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
    queue: Queue[Entry] = Queue(lambda entry: within)
    for _ in range(12):
        queue.add(Entry(10))
    assert len(queue.take(3)) == expected


def test_a_share_is_kept_where_a_batch_might_take_all() -> None:
    queue: Queue[Entry] = Queue(lambda entry: evenly(20, 150, 10**6))
    for _ in range(8):
        queue.add(Entry(10))
    assert len(queue.take(3)) == 3


def test_discarded_instances_have_no_share() -> None:
    queue: Queue[Entry] = Queue(lambda entry: evenly(20, UNLIMITED))
    everyone = [Entry(10) for _ in range(100)]
    for entry in everyone:
        queue.add(entry)
    for gone, expected in ((everyone[:40], 9), (everyone[49:88], 7)):  # of 60; of 12 and the 9 before them
        for entry in gone:
            queue.discard(entry)
        assert len(queue.take(3)) == expected


steps = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 60), st.sampled_from(["", "a", "b"])),
    st.tuples(st.just("discard"), st.integers(0, 300)),
    st.tuples(st.just("take"), st.integers(1, 4)),
    st.tuples(st.just("answered"), st.integers(0, 300)),
)


@given(st.lists(steps, max_size=80), st.sampled_from([evenly(20, UNLIMITED), limits(), limits(padding=False)]))
def test_it_does_what_a_plain_list_would(sequence: list[tuple[Any, ...]], within: BatchLimits) -> None:
    queue: Queue[Entry] = Queue(lambda entry: within)
    everyone: list[Entry] = []
    plain: list[Entry] = []
    under_way: list[list[Entry]] = []
    last = 0
    for step in sequence:
        match step:
            case "add", length, key:
                everyone.append(Entry(length, key))
                plain.append(everyone[-1])
                queue.add(everyone[-1])
            case "discard", which:
                for entry in everyone[which % (len(everyone) or 1) :: 3]:
                    queue.discard(entry)
                    plain = [one for one in plain if one is not entry]
            case "take", parts:
                fair = -(-(len(plain) + sum(map(len, under_way)) + last) // parts)
                batch = queue.take(parts)
                assert bool(batch) is bool(plain)
                if batch:
                    assert batch[0] is plain[0] and all(entry in plain for entry in batch)
                    assert len(batch) <= within.share_of(fair, batch[0].length)
                    plain = [entry for entry in plain if entry not in batch]
                    under_way.append(batch)
            case "answered", which if under_way:
                ended = under_way.pop(which % len(under_way))
                queue.answered(len(ended))
                last = len(ended)
        assert list(queue) == plain
