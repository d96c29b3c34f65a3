"""How many retries there may be."""

from __future__ import annotations

import time
from collections.abc import Callable

RESERVE = 10.0
"""The most retries in hand, and how many there are at first: enough for a restart under little load."""

PER_SECOND = 1.0
"""Retries that come with time, without which a service with few calls would run out of them for long."""


class RetryBudget:
    """A bucket of retries: each call puts ``ratio`` of one in, and each second one; each retry takes one out.

    So while every call fails there are at most 1 + ratio times as many, beside one a second.
    """

    def __init__(self, ratio: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds, for tests."""
        self._ratio = ratio
        self._clock = clock
        self._most = max(RESERVE, ratio)
        self._left = RESERVE
        self._since = clock()

    def deposit(self) -> None:
        """A call begins."""
        self._left = min(self._left + self._ratio, self._most)

    def withdraw(self) -> bool:
        """Takes one retry; False if there is none."""
        now = self._clock()
        self._left = min(self._left + (now - self._since) * PER_SECOND, self._most)
        self._since = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
