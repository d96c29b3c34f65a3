"""The fixed cost of a batch, estimated from measured batch times.

A batch takes rate * (overhead + tokens) seconds. The overhead, in tokens, is small for a model that is slow per token,
as on a CPU: padding costs more than a shared batch saves. The overhead is large for a model that is slow per call, as
on a GPU: nearly any shared batch saves time. No configuration states the overhead, so this module measures it.

Seconds per token follow a line, y = rate + slope * x, with x = batches / tokens and overhead = slope / rate. The fit is
weighted least squares with exponential decay, mixed with an initial overhead that decays faster.
"""

from __future__ import annotations

import logging

from hf_transformer.observability.logging import ModelLog

logger = logging.getLogger(__name__)

MAX_BATCH_OVERHEADS = 64
"""The maximum size of a batch, in overheads. The overhead is then less than a fiftieth of the batch's time."""

MAX_PADDING = 0.25
"""The maximum padding of a batch before the first fit, as a fraction of its tokens."""

MAX_PADDING_OVERHEADS = 0.5
"""The maximum padding of a batch, in overheads. It is below 1, since a waiting text may fit better, and since the
measured overhead includes other delays."""

INITIAL_OVERHEAD = 128.0
"""The overhead in tokens before the first fit. The overhead of all-MiniLM-L6-v2 on two CPUs is about 95. In the first
seconds with that model, a service without an initial overhead answered 10 % to 50 % fewer texts of mixed lengths."""

PRIOR_WEIGHT = 32.0
"""The weight of the initial overhead; a group of batches has the weight 1. Simulated models with an overhead
of 69 tokens changed their speed and were slow for new shapes. With this weight, 90 % of the estimates after two seconds
were between 67 and 218 tokens. Without it they were between 4 and 460."""

PRIOR_DECAY = 19 / 20
"""The decay of the weight of the initial overhead, per group."""

CHANCE_GROUPS = 4.0
"""The number of groups whose line explains their times by chance. The weight of the initial overhead shrinks with the
share of the spread of times that the line explains, once there are more groups."""

LOGGED_PRIOR_SHARE = 0.1
"""The weight of the initial overhead, as a fraction of the groups' total weight, at the first log of the overhead."""

MIN_OVERHEAD = 4.0
"""The minimum overhead in tokens. Smaller values are below the measurement noise."""

COLD_BATCHES = 4
"""The number of first batches without timing, since a cold model is slower."""

GROUP = 5
"""The number of batches per measurement. A busy event loop records the end of a batch late, so the next batch seems
shorter; only sums are accurate. In simulations with iterations of the event loop as long as a batch, single batches
sometimes gave a thousandth of the overhead. The number is odd because large and small batches may alternate."""

FIRST_FIT = COLD_BATCHES + 4 * GROUP
"""The number of batches before the first fit."""

DECAY = 127 / 128
"""The decay of the weights of earlier groups, per new group."""

MIN_SPREAD = 0.08
"""The minimum standard deviation of x for a fit, as a fraction of the mean of x."""

GROWTH = 1.1
"""The growth of the overhead per group without a fit. It allows larger batches, whose different x enables a fit."""

SLOW_WEIGHT = 0.1
"""The weight of a group that took longer than expected. Such a time is probably a delay by other clients of the
model."""

MAX_SLOWDOWN = 2.0
"""The maximum time of a group, as a multiple of the expected time. Longer times, such as those of retried calls, are
clamped, and their weight is reduced in proportion."""

_TINY = 1e-30

_MIN_RATE = 1e-3
"""The minimum seconds per token, as a fraction of the mean."""


class BatchTimer:
    """A sent batch of ``tokens`` tokens, including padding."""

    __slots__ = ("tokens",)

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens


class BatchCosts:
    """Estimates the ``overhead`` of a model that runs ``instances`` batches at a time, in their order of arrival.

    Without a known number, None, it learns as with one, and expects no end of a batch.

    All times are in seconds of one clock. Delays by other clients' batches count as overhead. Not thread-safe.
    """

    def __init__(self, instances: int | None, model_name: str = "") -> None:
        self._log = ModelLog(logger, model_name)
        self.overhead = INITIAL_OVERHEAD
        self._fitted: float | None = None
        """The overhead of the last fit, before MIN_OVERHEAD and GROWTH."""
        self.knows_instances = instances is not None
        self.instances = instances or 1
        self._running: dict[BatchTimer, float] = {}  # the start of each batch that an instance runs
        self._waiting: dict[BatchTimer, None] = {}  # batches behind them, in order
        self._count = 0
        # The current, incomplete group.
        self._batches = self._tokens = 0
        self._seconds = 0.0
        self._slope = self._rate = 0.0
        # Weighted sums of x = batches / tokens and y = seconds / tokens. Errors are relative to the size of a batch,
        # since large batches have longer disturbances.
        self._weight = self._x = self._y = self._xx = self._xy = self._yy = 0.0
        self._prior_weight = PRIOR_WEIGHT
        self._is_logged = False

    def allow(self, padded: int, tokens: int) -> bool:
        """Whether a batch of ``tokens`` tokens, ``padded`` including padding, is within the limits above."""
        overhead = self.overhead
        if self._fitted is None and tokens < (1 - MAX_PADDING) * padded:
            return False
        return padded - tokens <= MAX_PADDING_OVERHEADS * overhead and padded <= MAX_BATCH_OVERHEADS * overhead

    def outweighed(self, tokens: int) -> bool:
        """Whether ``tokens`` tokens take at least as long as the overhead; False before the first fit."""
        return self._fitted is not None and tokens >= self._fitted

    def is_mostly_fixed(self, tokens: int) -> bool:
        """Whether more than half of the time of a batch of ``tokens`` tokens is fixed; False before the first fit."""
        return self._fitted is not None and tokens < self._fitted

    @property
    def fixed_seconds(self) -> float:
        """The fixed time of a batch; 0 before the first group of batches."""
        return self._line[0]

    @property
    def mean_seconds(self) -> float:
        """The mean time of a batch; 0 before the first group of batches."""
        return self._y / self._x if self._x else 0.0

    @property
    def is_fitted(self) -> bool:
        """Whether the fixed cost is learnt. Until then it is that of ``INITIAL_OVERHEAD``."""
        return self._fitted is not None

    @property
    def wants_small_batch(self) -> bool:
        """Whether all batches so far have the same size, so that another one would show the fixed cost.

        True in every second group: clients in turns, with texts of one length, may never send another size.
        """
        return self._fitted is None and self._count >= FIRST_FIT and (self._count - COLD_BATCHES) // GROUP % 2 == 0

    @property
    def running(self) -> int:
        """The number of batches without an answer."""
        return len(self._running) + len(self._waiting)

    def first_end(self) -> tuple[float, float] | None:
        """Returns the expected end, and the expected time, of the running batch that ends first.

        Returns None while an instance is or may be free, and before the first group of batches.
        """
        if not self._weight or not self.knows_instances or len(self._running) < self.instances:
            return None
        fixed, rate = self._line
        times = ((started, fixed + rate * timer.tokens) for timer, started in self._running.items())
        return min((started + seconds, seconds) for started, seconds in times)

    @property
    def _line(self) -> tuple[float, float]:
        """Seconds per batch and per token: the line with the fitted overhead through the mean of all groups."""
        overhead = INITIAL_OVERHEAD if self._fitted is None else self._fitted
        rate = self._y / (self._weight + overhead * self._x) if self._weight else 0.0
        return overhead * rate, rate

    def start(self, now: float, tokens: int) -> BatchTimer:
        """Records a sent batch of ``tokens`` tokens, including padding. Call ``stop`` at its end."""
        timer = BatchTimer(tokens)
        if len(self._running) < self.instances:
            self._running[timer] = now
        else:
            self._waiting[timer] = None
        return timer

    def stop(self, timer: BatchTimer, now: float, *, answered: bool = True) -> None:
        """Records the end of a batch. A batch without an answer teaches nothing."""
        started = self._running.pop(timer, None)
        if started is None:
            del self._waiting[timer]
            return
        if self._waiting:
            following = next(iter(self._waiting))
            del self._waiting[following]
            self._running[following] = now
        if answered:
            self._add(now - started, timer.tokens)

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
        self._yy = self._yy * DECAY + weight * y * y
        self._prior_weight *= PRIOR_DECAY
        if self._count >= FIRST_FIT:
            self._fit()

    def _fit(self) -> None:
        """Fits the line if the spread of x is large enough."""
        x, y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - x * x
        if variance < (MIN_SPREAD * x) ** 2:
            self.overhead *= GROWTH
            return
        # The slope of the line through the mean with the initial overhead.
        prior_slope = INITIAL_OVERHEAD * y / (1 + INITIAL_OVERHEAD * x)
        slope = max(0.0, (self._xy / self._weight - x * y) / variance)
        explained = slope * slope * variance / max(self._yy / self._weight - y * y, slope * slope * variance, _TINY)
        prior_weight = self._prior_weight * min(1.0, 1.0 - explained + CHANCE_GROUPS / self._weight)
        self._slope = (self._weight * slope + prior_weight * prior_slope) / (self._weight + prior_weight)
        self._rate = y - self._slope * x
        self._fitted = self._slope / max(self._rate, y * _MIN_RATE)
        self.overhead = max(MIN_OVERHEAD, self._fitted)
        if not self._is_logged and prior_weight < LOGGED_PRIOR_SHARE * self._weight:
            self._is_logged = True
            self._log.info("one more batch takes the model as long as %.0f more tokens", self.overhead)


class ConstantCosts(BatchCosts):
    """The costs of a model with one shape of batch, which takes the same time for any number of texts in it."""

    @property
    def is_fitted(self) -> bool:
        return bool(self._weight)

    @property
    def _line(self) -> tuple[float, float]:
        return self.mean_seconds, 0.0
