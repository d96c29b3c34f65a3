"""That the queue knows at every moment how many wait and how many are under way, whatever becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hf_transformer.core.queue import MOST_GONE, BatchLimits, Waiting
from tests.core.test_waiting import UNLIMITED, Entry, evenly, limits


class Watched:
    """A queue beside the plainest one that can be thought of: a list of those that wait, oldest first."""

    def __init__(self, within: BatchLimits) -> None:
        self.within = within
        self.queue: Waiting[Entry] = Waiting(lambda entry: within)
        self.everyone: list[Entry] = []
        self.wait: list[Entry] = []
        self.under_way: list[list[Entry]] = []
        self.last = 0

    def add(self, length: int, key: str) -> None:
        entry = Entry(length, key)
        self.queue.add(entry)
        self.everyone.append(entry)
        self.wait.append(entry)

    def go(self, some: Sequence[Entry]) -> None:
        """Those who wait for these have gone; the queue is told later."""
        for entry in some:
            entry.gone = True

    def leave(self, some: Sequence[Entry]) -> None:
        """The queue is told, also of those who are in a batch or were told of before."""
        self.go(some)
        self.queue.left(some)
        self.wait = [entry for entry in self.wait if entry not in some]

    def take(self, parts: int) -> list[Entry]:
        share = -(-(len(self.wait) + sum(map(len, self.under_way)) + self.last) // parts)
        batch = self.queue.take(parts)
        while self.wait and self.wait[0].gone:
            del self.wait[0]
        if not batch:
            assert not self.wait
            return batch
        assert batch[0] is self.wait[0], "the oldest leaves first"
        assert all(entry in self.wait and not entry.gone for entry in batch)
        assert len(batch) <= self.within.most(share, batch[0].length)
        self.wait = [entry for entry in self.wait if entry not in batch]
        self.under_way.append(batch)
        return batch

    def answer(self, which: int) -> None:
        if self.under_way:
            batch = self.under_way.pop(which % len(self.under_way))
            self.queue.answered(len(batch))
            self.last = len(batch)

    def check(self) -> None:
        queue = self.queue
        assert (queue._count, queue._under_way) == (len(self.wait), sum(map(len, self.under_way)))


def some_of(entries: Sequence[Entry], begin: int, step: int) -> list[Entry]:
    return list(entries[begin % (len(entries) or 1) :: step])


numbers = st.integers(0, 300)
steps = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 60), st.integers(1, 9), st.sampled_from(["", "a", "b"])),
    st.tuples(st.sampled_from(["go", "leave"]), numbers, st.integers(1, 5)),
    st.tuples(st.just("take"), st.integers(1, 4)),
    st.tuples(st.just("answer"), numbers),
)


def perform(watched: Watched, step: tuple[Any, ...]) -> None:
    match step:
        case "add", length, count, key:
            for _ in range(count):
                watched.add(length, key)
        case "go", begin, every:
            watched.go(some_of(watched.wait, begin, every))
        case "leave", begin, every:
            watched.leave(some_of(watched.everyone, begin, every))
        case "take", parts:
            watched.take(parts)
        case "answer", which:
            watched.answer(which)


@settings(max_examples=300)
@given(st.lists(steps, max_size=60), st.sampled_from([evenly(20, UNLIMITED), limits(), limits(padding=False)]))
def test_no_instance_is_counted_twice_or_for_ever(sequence: list[tuple[Any, ...]], within: BatchLimits) -> None:
    watched = Watched(within)
    for step in sequence:
        perform(watched, step)
        watched.check()
    while watched.take(3):
        watched.check()
    while watched.under_way:
        watched.answer(0)
        watched.check()
    queue = watched.queue
    assert not (queue._count or queue._under_way or queue._arrived or queue._ungrouped or queue._groups)


def test_those_that_are_given_up_together_leave_at_once_and_are_counted_out_once() -> None:
    watched = Watched(limits())
    for number in range(4 * MOST_GONE):
        watched.add(1 + number % 7, str(number % 3))
    watched.take(3)
    watched.go(watched.wait[: MOST_GONE // 2])
    watched.take(3)
    watched.leave(watched.everyone[: 3 * MOST_GONE])
    watched.check()
    assert list(watched.queue._arrived) == watched.wait
    watched.leave(watched.everyone)
    watched.check()
    assert watched.take(3) == []
