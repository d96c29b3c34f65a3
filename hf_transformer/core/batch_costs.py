"""The fixed cost of a batch, learnt from the times of batches.

A batch takes rate * (overhead + tokens) seconds. The overhead, in tokens, is small for a model that computes long per
token, as on a CPU: padding costs it more than a shared batch saves. The overhead is large for a model that takes long
per call, as on a GPU, which gains from nearly any shared batch. No configuration tells it, so it is measured.

Seconds per token are a line, y = rate + slope * x, with x = batches / tokens and overhead = slope / rate. The fit is
least squares with fading weights, mixed with an initial overhead that fades faster.
"""

from __future__ import annotations

import logging
from collections import deque

logger = logging.getLogger(__name__)

MAX_BATCH_OVERHEADS = 64
"""The largest batch, in overheads. The overhead is then less than a fiftieth of the batch's time."""

MAX_PADDING_OVERHEADS = 0.5
"""The most padding of a batch, in overheads. A waiting text may fit better, and the overhead is never underestimated,
since other delays of a batch count as its overhead."""

INITIAL_OVERHEAD = 128.0
"""The overhead in tokens before batches are timed; all-MiniLM-L6-v2 on two CPUs has about 95. Its first batches take
seconds, in which a service without an initial overhead answered a tenth to a half fewer texts of mixed lengths. A model
with a larger overhead reaches the same rate within a moment."""

PRIOR_WEIGHT = 32.0
"""The weight of the initial overhead, where a group of batches weighs 1. In simulations of a model that changes its
speed and is slow for new shapes, nine of ten estimates after two seconds were 67 to 218 tokens with this weight and 4
to 460 without, where 69 was right."""

PRIOR_DECAY = 19 / 20
"""The factor by which each group reduces the weight of the initial overhead; it is gone after some 130 batches."""

LOGGED_PRIOR_SHARE = 0.1
"""The weight of the initial overhead, as a fraction of that of all groups, below which the log states the overhead."""

MIN_OVERHEAD = 4.0
"""The least overhead in tokens; smaller ones are below the noise."""

COLD_BATCHES = 4
"""First batches that are not timed, since a model is slower for them."""

GROUP = 5
"""Batches timed as one. A busy event loop sees an end late, so the next batch looks shorter; only sums are right. In
simulations of a loop whose turns take as long as batches, single batches gave a thousandth of the overhead at times.
The number is odd because large and small batches may alternate."""

FIRST_FIT = COLD_BATCHES + 4 * GROUP
"""Batches before the first fit."""

DECAY = 127 / 128
"""The factor by which each group reduces the weight of all groups before it."""

MIN_SPREAD = 0.08
"""The least standard deviation of x, as a fraction of its mean, for a fit."""

GROWTH = 1.1
"""The factor by which the overhead grows with each group without a fit: larger batches then bring the spread."""

SLOW_WEIGHT = 0.1
"""The weight of a group that took longer than expected: other clients delay a model, and nothing speeds it up."""

MAX_SLOWDOWN = 2.0
"""The largest accepted time of a group, as a multiple of the expected time. Longer ones, such as hanging or retried
calls, are clamped to it, and weigh less in proportion."""

_MIN_RATE = 1e-3
"""The least seconds per token, as a fraction of the mean time per token."""


class BatchTimer:
    """The time when the model started a batch, in seconds; None while earlier batches keep it busy."""

    __slots__ = ("started",)

    def __init__(self) -> None:
        self.started: float | None = None


class BatchCosts:
    """Learns the ``overhead`` of a model that runs ``instances`` batches at a time, in the order of their arrival.

    Times are in seconds of one clock. Waiting for batches of other clients counts as overhead. For one event loop.
    """

    def __init__(self, instances: int) -> None:
        self.overhead = INITIAL_OVERHEAD
        self._fitted: float | None = None
        """The overhead of the last fit, without GROWTH."""
        self._instances = instances
        self._running = 0
        self._waiting: deque[BatchTimer] = deque()
        self._count = 0
        # The group that is not complete yet.
        self._batches = self._tokens = 0
        self._seconds = 0.0
        self._slope = self._rate = 0.0
        # Weighted sums of x = batches / tokens and y = seconds / tokens. Errors are relative to a batch's size: a
        # disturbance of a large batch lasts longer.
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._prior_weight = PRIOR_WEIGHT
        self._is_logged = False

    def allow(self, padded: int, tokens: int) -> bool:
        """Whether a batch of ``tokens``, ``padded`` with padding, saves more time than its padding costs."""
        overhead = self.overhead
        return padded - tokens <= MAX_PADDING_OVERHEADS * overhead and padded <= MAX_BATCH_OVERHEADS * overhead

    def outweighed(self, tokens: int) -> bool:
        """Whether ``tokens`` cost more than the overhead of their batch; False before the first fit."""
        return self._fitted is not None and tokens >= self._fitted

    def start(self, now: float) -> BatchTimer:
        """Records a sent batch; call ``stop`` when it ends."""
        timer = BatchTimer()
        if self._running < self._instances:
            self._running += 1
            timer.started = now
        else:
            self._waiting.append(timer)
        return timer

    def stop(self, timer: BatchTimer, now: float, tokens: int = 0) -> None:
        """Records the end of a batch. ``tokens`` includes padding; 0 is a batch without an answer."""
        if timer.started is None:
            self._waiting.remove(timer)
            return
        if self._waiting:
            self._waiting.popleft().started = now
        else:
            self._running -= 1
        if tokens:
            self._add(now - timer.started, tokens)

    def _add(self, seconds: float, tokens: int) -> None:
        self._count += 1
        if self._count <= COLD_BATCHES:
            return
        self._batches += 1
        self._tokens += tokens
        self._seconds += seconds
        if self._batches == GROUP:
            if self._seconds > 0:  # else the clock is too coarse
                self._learn(GROUP / self._tokens, self._seconds / self._tokens)
            self._batches = self._tokens = 0
            self._seconds = 0.0

    def _learn(self, x: float, y: float) -> None:
        """Adds a group to the weighted sums."""
        weight, expected = 1.0, self._rate + self._slope * x
        if self._count > FIRST_FIT and y > expected > 0:
            limit = MAX_SLOWDOWN * expected
            weight, y = (SLOW_WEIGHT, y) if y <= limit else (SLOW_WEIGHT * limit / y, limit)
        self._weight = self._weight * DECAY + weight
        self._x = self._x * DECAY + weight * x
        self._y = self._y * DECAY + weight * y
        self._xx = self._xx * DECAY + weight * x * x
        self._xy = self._xy * DECAY + weight * x * y
        self._prior_weight *= PRIOR_DECAY
        if self._count >= FIRST_FIT:
            self._fit()

    def _fit(self) -> None:
        """Fits the line if the groups differ enough."""
        x, y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - x * x
        if variance < (MIN_SPREAD * x) ** 2:
            self.overhead *= GROWTH
            return
        # The slope of the line through the mean with the initial overhead.
        prior_slope = INITIAL_OVERHEAD * y / (1 + INITIAL_OVERHEAD * x)
        slope = max(0.0, (self._xy / self._weight - x * y) / variance)
        self._slope = (self._weight * slope + self._prior_weight * prior_slope) / (self._weight + self._prior_weight)
        self._rate = y - self._slope * x
        self._fitted = self._slope / max(self._rate, y * _MIN_RATE)
        self.overhead = max(MIN_OVERHEAD, self._fitted)
        if not self._is_logged and self._prior_weight < LOGGED_PRIOR_SHARE * self._weight:
            self._is_logged = True
            logger.info("one more batch takes the model as long as %.0f more tokens", self.overhead)
