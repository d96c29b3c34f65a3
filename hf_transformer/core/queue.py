"""The queue of instances, and batch formation, without a clock and without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

from hf_transformer.core.batch_costs import MAX_PADDING, BatchCosts


class Queueable(Protocol):
    """An instance in the queue, compared by identity.

    ``length`` is the number of tokens, at least 1. Instances with different keys never share a batch.
    """

    @property
    def length(self) -> int: ...
    @property
    def key(self) -> str: ...


Instance = TypeVar("Instance", bound=Queueable)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The size limits of a batch. A batch of one instance is always allowed.

    Args:
        max_rows: the maximum number of instances.
        max_tokens: the maximum number of tokens, including padding.
        max_output_bytes: the maximum bytes of all outputs.
        max_learnt_output_bytes: the same, for a batch whose time is mostly the learnt fixed cost.
        output_bytes: returns the bytes of one row's outputs for the width of the batch in tokens.
        padding: whether instances of different lengths may share a batch.
        fixed_length: the model's fixed width; None if the width may vary.
        max_padding: the maximum padding, as a fraction of the batch's tokens.
        costs: the estimated cost of a batch, as a further limit of padding. None sets no further limit.
        allow_in_shared_memory: reports whether outputs of a given size may currently use shared memory. None forbids
            shared memory.
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
    max_learnt_output_bytes: int = 0

    def allow(self, rows: int, width: int, tokens: int) -> bool:
        """Whether a batch may have ``rows`` rows of ``width`` tokens, and ``tokens`` tokens in total without padding.

        ``row_limit`` limits the number of rows.
        """
        padded = rows * width
        if padded > self.max_tokens:
            return False
        size = rows * self.output_bytes(width)
        if size > self.max_output_bytes and not self._allow_more_bytes(size, padded):
            return False
        if self.fixed_length is not None:
            return True
        if self.costs is not None:
            return self.costs.allow(padded, tokens)
        return tokens >= (1 - self.max_padding) * padded

    def _allow_more_bytes(self, size: int, padded: int) -> bool:
        if self.allow_in_shared_memory is not None and self.allow_in_shared_memory(size):
            return True
        return size <= self.max_learnt_output_bytes and self.costs is not None and self.costs.is_mostly_fixed(padded)

    def allow_even(self, rows: int, width: int, length: int) -> bool:
        """Whether ``allow`` is true for ``rows`` rows of the same length, and for every smaller number of rows.

        One such call replaces a call per row. If the result is False, a smaller number may still be allowed.
        """
        return rows * self.output_bytes(width) <= self.max_output_bytes and self.allow(rows, width, rows * length)

    def row_limit(self, share: int, width: int) -> int:
        """Returns the maximum number of rows of ``width`` tokens. ``share`` is an equal share of all instances."""
        if share < self.max_rows and self.allow_in_shared_memory is not None and self.costs is not None:
            if self.costs.outweighed(share * width) and self.allow_in_shared_memory(self.output_bytes(width)):
                return share
        return self.max_rows


class Queue(Generic[Instance]):
    """Instances in their order of arrival.

    The oldest instance is always in the next batch, so no instance starves. Instances of the nearest lengths fill the
    batch, the oldest of each length first.

    Batches are equal shares of all instances under two conditions. The outputs of each instance go through shared
    memory, and the tokens of a share take longer than the overhead of a batch. During the slow transfer of such outputs
    the predictor runs the other shares, but would be idle with batches of maximum size. Instances of the last ended
    batch count too, since their clients usually send another request.

    Args:
        limits: returns the limits of a batch for its oldest instance. Instances with equal keys have equal limits.
    """

    def __init__(self, limits: Callable[[Instance], BatchLimits]) -> None:
        self._limits = limits
        self._waiting: dict[Instance, None] = {}  # an ordered set, with removal in constant time
        self._groups: dict[str, dict[int, dict[Instance, None]]] = {}  # the same instances by key and length
        self._in_flight = self._last_ended = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tokens(self) -> int:
        """The tokens of the queued instances, which are their lengths."""
        groups = self._groups.values()
        return sum(length * len(same) for lengths in groups for length, same in lengths.items())

    @property
    def outstanding(self) -> int:
        """The number of instances that are queued or in batches."""
        return len(self._waiting) + self._in_flight

    @property
    def recent(self) -> int:
        """``outstanding``, and the number of instances of the last ended batch, whose clients usually ask again."""
        return self.outstanding + self._last_ended

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._waiting)

    def add(self, entry: Instance) -> None:
        """Appends an instance."""
        self._waiting[entry] = None
        lengths = self._groups.get(entry.key)
        if lengths is None:
            lengths = self._groups[entry.key] = {}
        same_length = lengths.get(entry.length)
        if same_length is None:
            same_length = lengths[entry.length] = {}
        same_length[entry] = None

    def discard(self, entry: Instance) -> None:
        """Removes an instance if it is queued."""
        if entry in self._waiting:
            self._remove(entry.key, entry.length, (entry,))

    def take(self, shares: int = 1, most: int | None = None) -> list[Instance]:
        """Removes and returns the next batch with its oldest instance first, or an empty list.

        ``shares`` is the number of equal shares of all instances, and ``most`` a further limit of the rows.
        """
        if not self._waiting:
            return []
        share = -(-self.recent // shares)
        oldest = next(iter(self._waiting))
        batch = [oldest]
        lengths = self._groups[oldest.key]
        self._remove(oldest.key, oldest.length, batch)
        if lengths:
            self._fill(batch, lengths, share, len(self._waiting) + 1 if most is None else most)
        self._in_flight += len(batch)
        return batch

    def answered(self, count: int) -> None:
        """Records the end of a batch of ``count`` instances."""
        self._in_flight -= count
        self._last_ended = count

    def _remove(self, key: str, length: int, entries: Iterable[Instance]) -> None:
        """Removes instances with the same key and length."""
        waiting, lengths = self._waiting, self._groups[key]
        same_length = lengths[length]
        for entry in entries:
            del waiting[entry]
            del same_length[entry]
        if not same_length:
            del lengths[length]
            if not lengths:
                del self._groups[key]

    def _fill(self, batch: list[Instance], lengths: dict[int, dict[Instance, None]], share: int, most: int) -> None:
        """Adds instances of the nearest lengths, for the least padding."""
        key, length = batch[0].key, batch[0].length
        limits = self._limits(batch[0])
        width = limits.fixed_length or length
        max_rows = min(limits.row_limit(share, width), max(most, 1))

        def add(length: int, count: int) -> None:
            entries = list(islice(lengths[length], count))
            self._remove(key, length, entries)
            batch.extend(entries)

        rows = min(max_rows, 1 + len(lengths.get(length, ())))
        if rows > 1 and length <= width and limits.allow_even(rows, width, length):
            add(length, rows - 1)
        tokens = len(batch) * length
        nearest = sorted(lengths, key=lambda size: (abs(size - length), size)) if limits.padding else [length]
        for size in nearest:
            wider = max(width, size)
            while len(batch) < max_rows and size in lengths and limits.allow(len(batch) + 1, wider, tokens + size):
                add(size, 1)
                width = wider
                tokens += size
            if len(batch) >= max_rows:
                break
