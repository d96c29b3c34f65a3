"""Tells in the log that requests fail, and that they no longer do: the metrics count them, the log says why."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from hf_transformer.errors import RequestError

logger = logging.getLogger(__name__)

PAUSE = 10.0
"""Seconds between two lines on failures. Where good and bad requests alternate, each would begin a row of its own."""


class FailureLog:
    """A line for the first of a row of failures, and one for the end of each row that had one.

    The second needs the first, so there is at most one of each in PAUSE seconds, and the last line is true of the last
    row of which it tells. ``clock`` gives seconds, for tests.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.failing = False
        """Whether the last request has failed."""
        self._clock = clock
        self._told = False
        self._untold = 0
        self._not_before = -math.inf

    def failed(self, error: RequestError) -> None:
        """A request has failed."""
        self.failing = True
        now = self._clock()
        if self._told or now < self._not_before:
            self._untold += 1
            return
        others = f" ({self._untold} more have failed since the last such line)" if self._untold else ""
        logger.warning("requests fail with %d: %s%s", error.status, error, others)
        self._told = True
        self._untold = 0
        self._not_before = now + PAUSE

    def answered(self) -> None:
        """A request was answered after one that has failed."""
        self.failing = False
        if self._told:
            self._told = False
            logger.info("the predictor answers again")
