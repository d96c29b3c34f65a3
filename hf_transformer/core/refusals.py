"""When the requests of a shared batch that the model has refused are asked for one by one."""

from __future__ import annotations

MOST_REFUSED = 8
"""Shared batches that the model refuses in a row before their requests are no longer asked for one by one: then it
seems not to be the instances that break it, and to ask more would multiply the trouble."""

ALONE_AGAIN_SECONDS = 2.0
"""Then one batch in so many seconds is asked for one by one all the same. One client may have sent so many instances
that break the model: that must not cost others their answers for longer than this, nor until he stops. A single answer,
of whatever batch, shows that the model works, and begins the count anew. What a request gets that was alone from the
start is not counted: it is about nobody else."""


class Refusals:
    """Counts the shared batches that a model refuses: ``in_a_row`` is to be set to 0 with each answer."""

    __slots__ = ("_alone_again", "in_a_row")

    def __init__(self) -> None:
        self.in_a_row = 0
        self._alone_again = 0.0

    def may_ask_again(self, now: float) -> bool:
        """Whether the requests of a shared batch that was refused just ``now`` are asked for one by one. Counts it."""
        self.in_a_row += 1
        if self.in_a_row > MOST_REFUSED and now < self._alone_again:
            return False
        self._alone_again = now + ALONE_AGAIN_SECONDS
        return True
