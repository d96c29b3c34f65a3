"""Batch formation: each instance leaves once, within the limits, and none starves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.core.batch_costs import MAX_PADDING, MAX_PADDING_OVERHEADS, BatchCosts
from hf_transformer.core.queue import BatchLimits, Queue

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


def queue_of(within: BatchLimits, *lengths: int) -> Queue[Entry]:
    queue: Queue[Entry] = Queue(lambda entry: within)
    for number, length in enumerate(lengths):
        queue.add(Entry(length, number=number))
    return queue


def batches(within: BatchLimits, *lengths: int) -> list[list[int]]:
    """The lengths in each batch."""
    queue = queue_of(within, *lengths)
    return [[entry.length for entry in batch] for batch in iter(queue.take, [])]


class OneByOne(BatchLimits):
    """Limits that are checked for each row."""

    def allow_even(self, rows: int, width: int, length: int) -> bool:
        return False


class Known(BatchCosts):
    """Costs with a known overhead."""

    def __init__(self, overhead: float) -> None:
        super().__init__(1)
        self.overhead = self._fitted = overhead


COSTS = st.none() | st.builds(lambda overhead: Known(overhead), st.floats(4.0, 50.0))
SHARED = st.none() | st.builds(lambda least, most: lambda size: least <= size <= most, *[st.integers(0, 4000)] * 2)


@given(
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from(["", "", "a"])), min_size=1, max_size=60),
    st.sets(st.integers(0, 59)),
    st.tuples(st.integers(1, 20), st.integers(5, 200), st.integers(0, 3000), st.just(lambda width: 10 * width)),
    st.fixed_dictionaries(
        {
            "padding": st.booleans(),
            "fixed_length": st.none() | st.integers(6, 12),
            "max_padding": st.sampled_from([0.0, 0.25, 1.0]),
            "costs": COSTS,
            "allow_in_shared_memory": SHARED,
        }
    ),
    st.integers(1, 3),
)
def test_checking_many_rows_at_once_changes_no_batch(
    texts: list[tuple[int, str]], gone: set[int], sizes: tuple[Any, ...], rest: dict[str, Any], shares: int
) -> None:
    def numbers(within: BatchLimits) -> list[list[int]]:
        queue = queue_of(within)
        entries = [Entry(length, key, number) for number, (length, key) in enumerate(texts)]
        for entry in entries:
            queue.add(entry)
        batches = [queue.take(shares)]
        for number in gone & set(range(len(texts))):
            queue.discard(entries[number])
        batches += iter(lambda: queue.take(shares), [])
        return [[entry.number for entry in batch] for batch in batches]

    assert numbers(BatchLimits(*sizes, **rest)) == numbers(OneByOne(*sizes, **rest))


def evenly(overhead: float, room: int, output_bytes: int = 50) -> BatchLimits:
    """Up to 9 rows of 100 bytes each, for texts of 10 tokens, while there is ``room`` in shared memory."""
    return replace(
        limits(rows=9, output_bytes=output_bytes),
        costs=Known(overhead),
        allow_in_shared_memory=lambda size: size <= room,
    )


steps = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 60), st.sampled_from(["", "a", "b"])),
    st.tuples(st.just("discard"), st.integers(0, 300)),
    st.tuples(st.just("take"), st.integers(1, 4)),
    st.tuples(st.just("answered"), st.integers(0, 300)),
)
any_limits = st.builds(limits, st.integers(1, 9), st.integers(20, 300), st.integers(100, 3000), st.booleans())


@given(st.lists(steps, max_size=80), any_limits | st.just(evenly(20, UNLIMITED)))
def test_the_queue_behaves_like_a_plain_list(sequence: list[tuple[Any, ...]], within: BatchLimits) -> None:
    """The oldest instance is in the next batch, with others that fit, until the queue is empty."""
    queue = queue_of(within)
    entries: list[Entry] = []
    plain: list[Entry] = []
    in_flight: list[list[Entry]] = []
    last = 0
    for step in [*sequence, *[("take", 1)] * 80]:
        match step:
            case "add", length, key:
                entries.append(Entry(length, key))
                plain.append(entries[-1])
                queue.add(entries[-1])
            case "discard", which:
                for entry in entries[which % (len(entries) or 1) :: 3]:
                    queue.discard(entry)
                    plain = [left for left in plain if left is not entry]
            case "take", shares:
                share = -(-(len(plain) + sum(map(len, in_flight)) + last) // shares)
                batch = queue.take(shares)
                assert bool(batch) is bool(plain)
                if batch:
                    assert batch[0] is plain[0] and all(entry in plain for entry in batch)
                    assert len(batch) <= within.row_limit(share, batch[0].length)
                    check_limits(batch, within)
                    plain = [entry for entry in plain if entry not in batch]
                    in_flight.append(batch)
            case "answered", which if in_flight:
                ended = in_flight.pop(which % len(in_flight))
                queue.answered(len(ended))
                last = len(ended)
        assert list(queue) == plain and len(queue) == len(plain)
        assert queue.tokens == sum(entry.length for entry in plain)
    assert not plain and not queue._groups


def check_limits(batch: list[Entry], within: BatchLimits) -> None:
    width, size = max(entry.length for entry in batch), len(batch)
    assert len({entry.key for entry in batch}) == 1
    assert within.padding or len({entry.length for entry in batch}) == 1
    if size > 1:
        assert size <= within.max_rows and size * width <= within.max_tokens
        assert within.allow_in_shared_memory or size * within.output_bytes(width) <= within.max_output_bytes
        tokens = sum(entry.length for entry in batch)
        if within.costs is None:
            assert tokens >= (1 - MAX_PADDING) * width * size
        else:  # learnt costs limit the padding alone
            assert width * size - tokens <= MAX_PADDING_OVERHEADS * within.costs.overhead


def test_the_nearest_lengths_fill_a_batch_up() -> None:
    assert batches(limits(rows=4), 20, 10, 21, 30, 19, 20, 11) == [[20, 20, 19, 21], [10, 11], [30]]
    queue = queue_of(limits(rows=3), 5, 5, 5, 5, 5)  # of equal length, so first in, first out
    assert [entry.number for entry in queue.take()] == [0, 1, 2]
    queue.add(Entry(5, number=9))
    queue.discard(next(iter(queue)))
    assert [entry.number for entry in queue.take()] == [4, 9]
    assert queue.take() == []


@pytest.mark.parametrize(
    ("within", "lengths", "expected"),
    [
        (limits(rows=3), [10] * 8, [3, 3, 2]),
        (limits(rows=9, tokens=40), [10] * 8, [4, 4]),
        (limits(rows=9, output_bytes=500), [10] * 8, [5, 3]),
        (limits(rows=9, tokens=5), [10] * 8, [1] * 8),
        (limits(rows=9, fixed_length=20, tokens=100), [10] * 8, [5, 3]),
        # Padding does not count where the length is fixed.
        (limits(fixed_length=100), [1, 100], [2]),
        (limits(), [1, 100], [1, 1]),
        # A batch may have a quarter of padding, and no more.
        (limits(), [100, 50], [2]),
        (limits(), [100, 49], [1, 1]),
        # A few rows may be refused where more would not be.
        (replace(limits(rows=9, output_bytes=200), allow_in_shared_memory=lambda size: size >= 500), [10] * 8, [2] * 4),
    ],
)
def test_each_limit_closes_a_batch(within: BatchLimits, lengths: list[int], expected: list[int]) -> None:
    assert [*map(len, batches(within, *lengths))] == expected


def test_shared_memory_is_asked_anew_for_each_batch() -> None:
    room = 600
    queue = queue_of(
        replace(limits(rows=9, output_bytes=200), allow_in_shared_memory=lambda size: size <= room), *[10] * 20
    )
    assert len(queue.take()) == 6  # of 100 bytes each
    room = 0
    assert len(queue.take()) == 2
    room = 400
    assert len(queue.take()) == 4


def test_batches_with_large_outputs_are_equal_shares() -> None:
    queue = queue_of(evenly(20, UNLIMITED), *[10] * 16)
    sizes = [len(queue.take(3)), len(queue.take(3))]
    for _ in range(9):  # a batch ends, and its clients send again: the first at once, the others later
        ended = sizes[-2]
        queue.add(Entry(10))
        queue.answered(ended)
        sizes.append(len(queue.take(3)))
        for _ in range(ended - 1):
            queue.add(Entry(10))
    assert all(5 <= size <= 7 for size in sizes), sizes
    queue = queue_of(evenly(20, UNLIMITED), *[10] * 100)
    entries = list(queue)
    for gone, expected in ((entries[:40], 9), (entries[49:88], 7)):  # of 60; of 12 and the 9 before them
        for entry in gone:
            queue.discard(entry)
        assert len(queue.take(3)) == expected, "discarded instances have no share"


@pytest.mark.parametrize(
    ("within", "count", "expected"),
    [
        pytest.param(evenly(20, UNLIMITED), 12, 4, id="moving outputs takes longest"),
        pytest.param(evenly(20, 150, 10**6), 12, 4, id="one row would not come inline"),
        pytest.param(evenly(20, 150, 10**6), 8, 3, id="a batch could take all"),
        pytest.param(evenly(41, UNLIMITED), 12, 9, id="a batch costs more than its tokens"),
        pytest.param(evenly(20, 99, 10**6), 12, 9, id="one row comes inline"),
        pytest.param(
            replace(evenly(20, UNLIMITED, 10**6), allow_in_shared_memory=None), 12, 9, id="a flag sets the limit"
        ),
        pytest.param(replace(evenly(20, UNLIMITED, 10**6), costs=None), 12, 9, id="no costs"),
        pytest.param(replace(evenly(20, UNLIMITED, 10**6), costs=BatchCosts(1)), 12, 9, id="no fit yet"),
    ],
)
def test_when_batches_are_equal_shares(within: BatchLimits, count: int, expected: int) -> None:
    assert len(queue_of(within, *[10] * count).take(3)) == expected
