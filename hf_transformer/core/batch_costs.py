"""The fixed cost of a batch, learnt from the times of batches.

A batch takes rate * (overhead + tokens) seconds. The overhead, in tokens, is small for a model that computes
long per token, as on a CPU, and large for a model that takes long per call, as on a GPU. No configuration tells it.

Seconds per token are a line, y = rate + slope * x, with x = batches / tokens and overhead = slope / rate. The fit is
least squares with fading weights, and a prior that pulls the overhead to INITIAL_OVERHEAD. Batches of other clients of
the model delay ours, and so raise the overhead.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

INITIAL_OVERHEAD = 128.0
"""The overhead in tokens before any batch is timed; all-MiniLM-L6-v2 has about 95 on one CPU."""
PRIOR_WEIGHT = 0.1
"""The weight of the prior. A group weighs 1, times the square of the relative distance of its x from the mean."""
GROUP = 5
"""Batches timed as one. A busy event loop sees an end late, so the next batch looks shorter; only sums are right."""
MEMORY = 128
"""Groups after which the weight of a group has faded to 1/e."""
MAX_BATCH_OVERHEADS = 64
"""The largest batch, in overheads. The overhead is then 1/64 of its time; more texts would only add latency."""


@dataclass(eq=False, slots=True)
class BatchTimer:
    """The time when the model started a batch, in seconds; None while earlier batches keep it busy."""

    started: float | None


class BatchCosts:
    """Learns the ``overhead`` of a model that runs ``instances`` batches at a time, in the order of their arrival."""

    def __init__(self, instances: int) -> None:
        self.overhead = INITIAL_OVERHEAD
        self._instances = instances
        self._unanswered: list[BatchTimer] = []
        self._group: list[tuple[float, int]] = []
        self._groups = 0
        self._slope = self._rate = 0.0
        self._weight = self._mean_x = self._mean_y = self._sum_xx = self._sum_xy = 0.0

    def allow(self, padded: int, tokens: int) -> bool:
        """Whether a batch of ``tokens``, ``padded`` with padding, pads for at most half the cost of a second batch."""
        return 2 * (padded - tokens) <= self.overhead and padded <= MAX_BATCH_OVERHEADS * self.overhead

    def start(self, now: float) -> BatchTimer:
        """Notes a sent batch; call ``stop`` when it ends."""
        timer = BatchTimer(now if len(self._unanswered) < self._instances else None)
        self._unanswered.append(timer)
        return timer

    def stop(self, timer: BatchTimer, now: float, tokens: int = 0) -> None:
        """Notes the end of a batch. ``tokens`` includes padding; 0 is a batch without an answer."""
        self._unanswered.remove(timer)
        if len(self._unanswered) >= self._instances and self._unanswered[self._instances - 1].started is None:
            self._unanswered[self._instances - 1].started = now
        if timer.started is not None and tokens:
            self._group.append((now - timer.started, tokens))
        if len(self._group) == GROUP:
            seconds, tokens = (sum(column) for column in zip(*self._group, strict=True))
            self._group.clear()
            self._groups += 1
            if self._groups > 1 and seconds > 0:  # the first batches are slow; a coarse clock shows no time
                self._fit(GROUP / tokens, seconds / tokens)

    def _fit(self, x: float, y: float) -> None:
        """Adds a group to the weighted sums of squares, and fits the line anew."""
        expected = self._rate + self._slope * x
        # Other clients and retries slow a group down, but nothing speeds it up: slower ones weigh less.
        weight, decay = min(1.0, expected / y) ** 2 if expected else 1.0, 1 - 1 / MEMORY
        self._weight = self._weight * decay + weight
        distance = x - self._mean_x
        self._mean_x += distance * weight / self._weight
        self._mean_y += (y - self._mean_y) * weight / self._weight
        self._sum_xx = self._sum_xx * decay + weight * distance * (x - self._mean_x)
        self._sum_xy = self._sum_xy * decay + weight * distance * (y - self._mean_y)
        x, y = self._mean_x, self._mean_y
        prior, prior_slope = PRIOR_WEIGHT * x * x, INITIAL_OVERHEAD * y / (1 + INITIAL_OVERHEAD * x)
        self._slope = min(max(0.0, (self._sum_xy + prior * prior_slope) / (self._sum_xx + prior)), y / x)
        self._rate = max(0.0, y - self._slope * x)
        self.overhead = self._slope / self._rate if self._rate > 0 else math.inf
        if self._groups == MEMORY:
            logging.getLogger(__name__).info(
                "one more batch takes the model as long as %.0f more tokens", self.overhead
            )
