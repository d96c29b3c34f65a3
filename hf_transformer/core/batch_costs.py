"""What a batch costs the model beside its tokens, learnt from the times of those that were answered.

A model that computes for long per token, as on a CPU, gains little from company and loses by padding. One that takes
long per call, as on a GPU that few tokens don't fill, gains by nearly any company. No configuration tells which of both
a model is, so it is measured: the time of a batch is taken to be a + b * tokens, and a / b is how many tokens' time one
more batch costs. More padding than that is never worth it.
"""

from __future__ import annotations

import logging
from collections import deque

logger = logging.getLogger(__name__)

ENOUGH = 64
"""A batch of so many times the tokens that one more batch costs is large enough: less than a fiftieth of its time is
not for its tokens."""

WORTH = 0.5
"""The most padding of a batch, as a part of what one more batch costs. Others that wait may fit better; and where that
cost is wrong it is too high, since all that holds a batch up counts as its."""

GUESS = 128.0
"""What one more batch costs as long as that is not learnt. all-MiniLM-L6-v2 on two CPUs has about 95. There FIRST
batches take seconds, in which texts of mixed lengths were answered by a tenth to a half fewer without a guess; a model
that gains by more company has answered as many within a moment."""

GUESSED = 32.0
"""The weight of the guess beside what is learnt, where that of batches that are learnt from together is 1. In
simulations of a model whose pace changes and that takes longer for new shapes, nine of ten estimates after two seconds
were 4 to 460 tokens without it, and 67 to 218 with it, where 69 was right."""

FADING = 19 / 20
"""What each learning leaves of the guess's weight. A model that gains by more company gets it after 130 batches."""

TOLD = 0.1
"""The weight of the guess, as a part of that of what is learnt, at which the log says what one more batch costs."""

LEAST = 4.0
"""Tokens that one more batch costs at least: less can't be told from noise."""

COLD = 4
"""Batches that teach nothing: a model takes longer for its first ones."""

TOGETHER = 5
"""Batches that are learnt from as if they were one. That a batch has ended is seen when the event loop comes to it:
what is too much for one is missing from the next, and only their sum is right. In simulations of a loop whose turns
take as long as the batches, what was learnt of each alone was at times a thousandth of the overhead, and the model
answered a seventh of what it could. An odd number: large and small batches may take turns."""

FIRST = COLD + 4 * TOGETHER
"""Batches from which on what is learnt counts."""

KEPT = 127 / 128
"""What those that are learnt from together leave of the weight of all before."""

SPREAD = 0.08
"""The least standard deviation of batches per token, as a part of its mean, from which a line can be drawn."""

DOUBT = 1.1
"""By how much the overhead grows where the batches are too much alike for a line: larger ones then bring the spread."""

LATE = 0.1
"""The weight of batches that took longer than expected: others may have kept the model busy, and nothing makes it
faster than it is."""

MOST = 2.0
"""Times as long as expected is the most that is believed, and what took longer yet counts the less for it: a call that
was tried again, or that hung, says nothing of the model."""

_FREE = 1e-3
"""A token costs at least so much of the usual batch's time per token."""


class Timing:
    """One batch at the predictor. ``began`` is when the model could begin with it, None while others are before it."""

    __slots__ = ("_costs", "began", "over")

    def __init__(self, costs: BatchCosts) -> None:
        self._costs = costs
        self.began: float | None = None
        self.over = False

    def ended(self, now: float, tokens: int = 0) -> None:
        """It was answered, with so many ``tokens``, padding included, or it was not (0); to be called once."""
        self.over = True
        self._costs.ended(self, now, tokens)


class BatchCosts:
    """Learns from the batches of a model with so many ``instances``, which works them off in the order they come in.

    ``overhead`` is what one more batch costs, in tokens: GUESS until it is learnt. Times are in seconds, of one clock.
    Where others send batches to the same model, waiting for those counts as overhead. For one event loop.
    """

    def __init__(self, instances: int) -> None:
        self.overhead = GUESS
        self._learnt: float | None = None
        """The overhead as it was learnt, without doubts."""
        self._instances = instances
        self._at_work = 0
        self._behind: deque[Timing] = deque()
        self._count = 0
        # Of the batches that are not learnt from yet.
        self._batches = self._tokens = 0
        self._seconds = 0.0
        self._a = self._b = 0.0
        # Sums of x = batches / tokens and y = seconds / tokens, of which y = b + a * x: so all count by how far off
        # they are in proportion, since what disturbs large ones disturbs them for longer.
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._guessed = GUESSED
        self._told = False

    def sent(self, now: float) -> Timing:
        """A batch leaves; its ``ended`` has to follow."""
        timing = Timing(self)
        if self._at_work < self._instances:
            self._at_work += 1
            timing.began = now
        else:
            self._behind.append(timing)
        return timing

    def ended(self, timing: Timing, now: float, tokens: int) -> None:
        """See Timing.ended, which calls this."""
        if timing.began is None:
            self._behind.remove(timing)
            return
        if self._behind:
            self._behind.popleft().began = now
        else:
            self._at_work -= 1
        if tokens:
            self._add(now - timing.began, tokens)

    def allow(self, padded: int, tokens: int) -> bool:
        """Whether a batch of so many tokens with padding, and without it, saves more time than its padding costs."""
        overhead = self.overhead
        return padded - tokens <= WORTH * overhead and padded <= ENOUGH * overhead

    def outweighed(self, tokens: int) -> bool:
        """Whether a batch takes the model longer for so many tokens than for all else; not as long as nobody knows."""
        return self._learnt is not None and tokens >= self._learnt

    def _add(self, seconds: float, tokens: int) -> None:
        self._count += 1
        if self._count <= COLD:
            return
        self._batches += 1
        self._tokens += tokens
        self._seconds += seconds
        if self._batches == TOGETHER:
            if self._seconds > 0:  # else the clock is too coarse to tell anything
                self._learn(TOGETHER / self._tokens, self._seconds / self._tokens)
            self._batches = self._tokens = 0
            self._seconds = 0.0

    def _learn(self, x: float, y: float) -> None:
        weight, expected = 1.0, self._b + self._a * x
        if self._count > FIRST and y > expected > 0:
            most = MOST * expected
            weight, y = (LATE, y) if y <= most else (LATE * most / y, most)
        self._weight = self._weight * KEPT + weight
        self._x = self._x * KEPT + weight * x
        self._y = self._y * KEPT + weight * y
        self._xx = self._xx * KEPT + weight * x * x
        self._xy = self._xy * KEPT + weight * x * y
        self._guessed *= FADING
        if self._count >= FIRST:
            self._fit()

    def _fit(self) -> None:
        """Draws the line anew, if the batches differ enough for one."""
        x, y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - x * x
        if variance < (SPREAD * x) ** 2:
            self.overhead *= DOUBT
            return
        # The slope of the line through the mean whose overhead is GUESS.
        guess = GUESS * y / (1 + GUESS * x)
        learnt = max(0.0, (self._xy / self._weight - x * y) / variance)
        self._a = (self._weight * learnt + self._guessed * guess) / (self._weight + self._guessed)
        self._b = y - self._a * x
        self._learnt = self._a / max(self._b, y * _FREE)
        self.overhead = max(LEAST, self._learnt)
        if not self._told and self._guessed < TOLD * self._weight:
            self._told = True
            logger.info(
                "one more batch takes the model as long as %.0f more tokens; batches are made accordingly",
                self.overhead,
            )
