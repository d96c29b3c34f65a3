"""How many batches are at one predictor at a time, whoever sent them.

Apart from the schedulers, because a model that is bound anew gets another scheduler, while requests still queue in the
last one: both together may send no more than one.
"""

from __future__ import annotations

from collections.abc import Callable

Wake = Callable[[], None]


class Places:
    """Places for ``count`` batches. Who finds none waits for one, and those who wait get theirs in turn.

    ``count`` may change; batches on their way keep the places that they have. For one event loop.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._taken = 0
        self._waiting: dict[Wake, None] = {}

    @property
    def free(self) -> bool:
        """Whether another batch may leave."""
        return self._taken < self.count

    def take(self) -> None:
        """A batch leaves."""
        self._taken += 1

    def await_free(self, wake: Wake) -> None:
        """Has ``wake`` called once, when a place is free; it takes one or leaves it to the next. Asking again changes
        nothing."""
        self._waiting[wake] = None

    def give_back(self) -> None:
        """A batch has ended."""
        self._taken -= 1
        while self._waiting and self.free:
            wake = next(iter(self._waiting))
            del self._waiting[wake]
            wake()
