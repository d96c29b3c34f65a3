"""Instances that wait for a place at the predictor, and which of them leave together.

No clock, no I/O: the scheduler says when a place is free.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from hf_transformer.core.batch_costs import BatchCosts

MAX_PADDING = 0.25
"""The largest part of a batch that may be padding, where nothing else is said."""


MOST_GONE = 64
"""Instances that nobody waits for and that may stay in the queue until their turn."""


class Entry(Protocol):
    """One instance that waits. ``length`` is in tokens; instances of different ``key`` never share a batch; ``taken``
    says that it waits no more, be it in a batch or given up; ``gone`` that nobody wants its answer any more."""

    length: int
    key: str
    taken: bool

    @property
    def gone(self) -> bool: ...


One = TypeVar("One", bound=Entry)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large a batch may be: rows, tokens with padding, and bytes of its outputs.

    ``output_bytes`` gives the bytes of one row's outputs by the batch's width in tokens. With ``padding`` false only
    instances of one length share a batch, else ``max_padding`` is the largest part of it that may be padding, and
    ``costs`` say whether that is worth it. More bytes of outputs than ``max_output_bytes`` are allowed where ``more``
    says so of them. A batch of one instance is always allowed.
    """

    max_rows: int
    max_tokens: int
    max_output_bytes: int
    output_bytes: Callable[[int], int]
    padding: bool
    fixed_length: int | None = None
    max_padding: float = MAX_PADDING
    costs: BatchCosts | None = None
    more: Callable[[int], bool] | None = None

    def allow(self, rows: int, width: int, tokens: int) -> bool:
        """Whether a batch may have so many rows, padded to ``width``, with ``tokens`` that are no padding."""
        padded = rows * width
        if rows > self.max_rows or padded > self.max_tokens:
            return False
        size = rows * self.output_bytes(width)
        if size > self.max_output_bytes and (self.more is None or not self.more(size)):
            return False
        if self.fixed_length is not None:
            return True
        if tokens < (1 - self.max_padding) * padded:
            return False
        return self.costs is None or self.costs.allow(padded, tokens)

    def allow_even(self, rows: int, width: int, tokens: int) -> bool:
        """``allow`` for a batch whose rows are all of one length, and for any of fewer rows: what they need grows with
        their number. So one question stands for all; a no does not, where ``more`` may allow a part of them."""
        return rows * self.output_bytes(width) <= self.max_output_bytes and self.allow(rows, width, tokens)

    def most(self, share: int, width: int) -> int:
        """The most instances of a batch of this width whose fair share is ``share``; see Waiting."""
        if share < self.max_rows and self.more is not None and self.costs is not None:
            if self.costs.outweighed(share * width) and self.more(self.output_bytes(width)):
                return share
        return self.max_rows


class Waiting(Generic[One]):
    """The queue. The instance that has waited longest is always in the next batch, so none is overtaken for ever;
    those nearest to it in length fill the batch up, in the order of their arrival.

    ``limits`` gives those of the batch that an instance is the oldest in; one key's are all the same.

    Where already one instance's outputs go through shared memory, so that moving them takes long, and a batch costs
    little beside, instances share batches evenly: each has its part of all that wait or are under way, those of the
    last batch included, since their clients ask again. Then one batch is with the clients while each place has another.
    A batch that takes as many as it may leaves few to the next one, and the predictor idle after that.
    """

    def __init__(self, limits: Callable[[One], BatchLimits]) -> None:
        self._limits = limits
        self._arrived: deque[One] = deque()
        self._ungrouped: list[One] = []
        """Those that have arrived since the last batch: one that leaves alone, as most do, needs no group."""
        self._gone = 0
        self._groups: dict[str, _Group[One]] = {}
        self._count = self._under_way = self._answered = 0
        """Instances that wait, that have left and are not answered, and of the batch that was answered last."""

    def add(self, entry: One) -> None:
        """Puts an instance at the end of the queue."""
        self._arrived.append(entry)
        self._ungrouped.append(entry)
        self._count += 1

    def left(self, entries: Iterable[One]) -> None:
        """Says that nobody waits any more for those of these instances that are here; once such are many they are taken
        out."""
        for entry in entries:
            if not entry.taken:
                self._give_up(entry)
                self._gone += 1
        if self._gone > MOST_GONE and self._gone * 2 > len(self._arrived):
            waited, self._count = [entry for entry in self._arrived if not entry.taken], 0
            self._clear()
            for entry in waited:
                self.add(entry)

    def _give_up(self, entry: One) -> None:
        """Counts an instance out, once: ``left`` may be told of it before or after its turn."""
        entry.taken = True
        self._count -= 1

    def take(self, parts: int = 1) -> list[One]:
        """The next batch, oldest instance first; empty if nobody waits.

        Args:
            parts: batches that all instances are shared by.
        """
        if not self._arrived:
            return []
        batch = self._take(-(-(self._count + self._under_way + self._answered) // parts))
        self._count -= len(batch)
        self._under_way += len(batch)
        return batch

    def answered(self, count: int) -> None:
        """A batch of so many instances that has left has ended."""
        self._under_way -= count
        self._answered = count

    def _take(self, share: int) -> list[One]:
        while self._arrived:
            first = self._arrived.popleft()
            if first.taken:
                continue
            batch: list[One] = []
            if first.gone:
                self._give_up(first)
            else:
                first.taken = True
                batch = [first]
            if not self._arrived:  # nobody else waits
                self._clear()
                return batch
            self._group()
            if batch:
                self._fill(batch, self._groups[first.key], share)
            self._forget(first)
            if batch:
                return batch
        self._clear()  # those that were given up are in there yet
        return []

    def _clear(self) -> None:
        self._arrived.clear()
        self._ungrouped.clear()
        self._groups.clear()
        self._gone = 0

    def _group(self) -> None:
        """Puts those that have arrived into their groups."""
        for entry in self._ungrouped:
            group = self._groups.get(entry.key)
            if group is None:
                group = self._groups[entry.key] = _Group()
            group.add(entry)
        self._ungrouped.clear()

    def _forget(self, entry: One) -> None:
        """Takes an instance that has left the queue, and those of its length that left before, out of its group."""
        group = self._groups.get(entry.key)
        if group is not None:
            group.prune(entry.length)
            if not group:
                del self._groups[entry.key]

    def _fill(self, batch: list[One], group: _Group[One], share: int) -> None:
        """Adds the nearest lengths, first those that cost the least padding."""
        usual = batch[0].length
        limits = self._limits(batch[0])
        width = limits.fixed_length or usual
        most = limits.most(share, width)
        rows = min(most, group.count(usual))
        if rows > 1 and usual <= width and limits.allow_even(rows, width, rows * usual):
            batch += group.take(usual, rows - 1)
        tokens = len(batch) * usual
        for length in group.nearest(usual) if limits.padding else (usual,):
            wider = max(width, length)
            while len(batch) < most and limits.allow(len(batch) + 1, wider, tokens + length):
                found = group.take(length, 1)
                if not found:
                    break
                batch += found
                width = wider
                tokens += length
            if len(batch) >= most:
                break


class _Group(Generic[One]):
    """Waiting instances by length."""

    def __init__(self) -> None:
        self._by_length: dict[int, deque[One]] = {}
        self._lengths: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._lengths)

    def add(self, entry: One) -> None:
        waiting = self._by_length.get(entry.length)
        if waiting is None:
            waiting = self._by_length[entry.length] = deque()
            insort(self._lengths, entry.length)
        waiting.append(entry)

    def count(self, length: int) -> int:
        """How many instances of this length there are, some of which may have left the queue."""
        return len(self._by_length.get(length, ()))

    def take(self, length: int, most: int) -> list[One]:
        """The instances of this length that have waited longest, ``most`` of them if there are so many; they wait no
        more."""
        waiting = self._by_length.get(length)
        found: list[One] = []
        if waiting is None:
            return found
        while waiting and len(found) < most:
            entry = waiting.popleft()
            if not (entry.taken or entry.gone):
                entry.taken = True
                found.append(entry)
        if not waiting:
            self._drop(length)
        return found

    def prune(self, length: int) -> None:
        """Drops the instances of this length that have left the queue, up to the first that has not."""
        waiting = self._by_length.get(length)
        if waiting is None:
            return
        while waiting and (waiting[0].taken or waiting[0].gone):
            waiting.popleft()
        if not waiting:
            self._drop(length)

    def _drop(self, length: int) -> None:
        del self._by_length[length]
        del self._lengths[bisect_left(self._lengths, length)]

    def nearest(self, length: int) -> list[int]:
        """The lengths that wait, from the nearest to the farthest."""
        return sorted(self._lengths, key=lambda other: abs(other - length))
