"""The queue of instances that wait for their batch, and batch formation: which of them leave together.

No clock and no I/O: the scheduler says when there is room for a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

from hf_transformer.core.batch_costs import BatchCosts

MAX_PADDING = 0.25
"""The largest part of a batch that may be padding, unless a form of batches sets another one."""


class Queueable(Protocol):
    """One instance that can be queued, compared by identity. ``length`` is in tokens, at least 1. Instances with
    different keys never share a batch."""

    @property
    def length(self) -> int: ...
    @property
    def key(self) -> str: ...


One = TypeVar("One", bound=Queueable)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large a batch may be.

    Args:
        max_rows: instances.
        max_tokens: tokens, padding included.
        max_output_bytes: bytes of all outputs together.
        output_bytes: gives the bytes of one row's outputs by the width of the batch in tokens.
        padding: whether instances of different lengths may share a batch.
        fixed_length: the only width that the model takes; None if it takes any.
        max_padding: the largest part of a batch that may be padding.
        costs: tell whether padding is worth a larger batch; None if that is not learnt.
        more: tells whether outputs of so many bytes are allowed above ``max_output_bytes``; None if they never are.

    A batch of one instance is always allowed.
    """

    max_rows: int
    max_tokens: int
    max_output_bytes: int
    output_bytes: Callable[[int], int]
    padding: bool
    fixed_length: int | None = None
    max_padding: float = MAX_PADDING
    costs: BatchCosts | None = None
    allow_in_shared_memory: Callable[[int], bool] | None = None

    def allow(self, rows: int, width: int, tokens: int) -> bool:
        """Whether a batch may have so many rows, padded to ``width``, of which ``tokens`` are not padding.

        ``rows`` is at most ``max_rows``; see ``share_of``.
        """
        padded = rows * width
        if padded > self.max_tokens:
            return False
        size = rows * self.output_bytes(width)
        if size > self.max_output_bytes and (
            self.allow_in_shared_memory is None or not self.allow_in_shared_memory(size)
        ):
            return False
        if self.fixed_length is not None:
            return True
        if tokens < (1 - self.max_padding) * padded:
            return False
        return self.costs is None or self.costs.allow(padded, tokens)

    def allow_even(self, rows: int, width: int, length: int) -> bool:
        """Whether ``allow`` certainly says yes to so many rows of one length, and to any fewer of them.

        One call then stands for one per row. A no means nothing, since ``more`` may allow a part of the rows.
        """
        return rows * self.output_bytes(width) <= self.max_output_bytes and self.allow(rows, width, rows * length)

    def share_of(self, fair: int, width: int) -> int:
        """The most instances of a batch of this width, if a fair share of all instances is ``fair``; see Queue."""
        if fair < self.max_rows and self.allow_in_shared_memory is not None and self.costs is not None:
            if self.costs.outweighed(fair * width) and self.allow_in_shared_memory(self.output_bytes(width)):
                return fair
        return self.max_rows


class Queue(Generic[One]):
    """Instances in the order of their arrival.

    The oldest instance is always in the next batch, so none waits for ever. Instances of the nearest lengths fill the
    batch up, the oldest of each length first.

    Where the outputs of one instance already go through shared memory, so that moving them takes long, and a batch
    costs little beside its tokens, all batches get an equal share of the instances that wait, that are under way, or
    that were in the last batch (their clients send again). One batch is then with the clients while every other place
    has one. A batch as large as the limits allow would leave few instances for the next one, and an idle predictor
    after that.

    Args:
        limits: gives the limits of the batch that an instance is the oldest of; they are equal for equal keys.
    """

    def __init__(self, limits: Callable[[One], BatchLimits]) -> None:
        self._limits = limits
        self._waiting: dict[One, None] = {}  # an ordered set: taking one out costs the same wherever it is
        self._groups: dict[str, dict[int, dict[One, None]]] = {}  # the same instances by key and length
        self._under_way = self._answered = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[One]:
        return iter(self._waiting)

    def add(self, entry: One) -> None:
        """Puts an instance at the end."""
        self._waiting[entry] = None
        lengths = self._groups.get(entry.key)
        if lengths is None:
            lengths = self._groups[entry.key] = {}
        alike = lengths.get(entry.length)
        if alike is None:
            alike = lengths[entry.length] = {}
        alike[entry] = None

    def discard(self, entry: One) -> None:
        """Takes an instance out, if it is here."""
        if entry in self._waiting:
            self._remove(entry.key, entry.length, (entry,))

    def take(self, parts: int = 1) -> list[One]:
        """The next batch, the oldest instance first; empty if the queue is.

        Args:
            parts: the number of batches that share all instances.
        """
        if not self._waiting:
            return []
        fair = -(-(len(self._waiting) + self._under_way + self._answered) // parts)
        oldest = next(iter(self._waiting))
        batch = [oldest]
        lengths = self._groups[oldest.key]
        self._remove(oldest.key, oldest.length, batch)
        if lengths:
            self._fill(batch, lengths, fair)
        self._under_way += len(batch)
        return batch

    def answered(self, count: int) -> None:
        """Says that a batch of so many instances has ended."""
        self._under_way -= count
        self._answered = count

    def _remove(self, key: str, length: int, entries: Iterable[One]) -> None:
        """Takes out instances of one key and one length."""
        waiting, lengths = self._waiting, self._groups[key]
        alike = lengths[length]
        for entry in entries:
            del waiting[entry]
            del alike[entry]
        if not alike:
            del lengths[length]
            if not lengths:
                del self._groups[key]

    def _fill(self, batch: list[One], lengths: dict[int, dict[One, None]], fair: int) -> None:
        """Adds instances of the nearest lengths, which cost the least padding."""
        key, length = batch[0].key, batch[0].length
        limits = self._limits(batch[0])
        width = limits.fixed_length or length
        most = limits.share_of(fair, width)

        def add(length: int, count: int) -> None:
            found = list(islice(lengths[length], count))
            self._remove(key, length, found)
            batch.extend(found)

        rows = min(most, 1 + len(lengths.get(length, ())))
        if rows > 1 and length <= width and limits.allow_even(rows, width, length):
            add(length, rows - 1)
        tokens = len(batch) * length
        nearest = sorted(lengths, key=lambda other: (abs(other - length), other)) if limits.padding else [length]
        for other in nearest:
            wider = max(width, other)
            while len(batch) < most and other in lengths and limits.allow(len(batch) + 1, wider, tokens + other):
                add(other, 1)
                width = wider
                tokens += other
            if len(batch) >= most:
                break
