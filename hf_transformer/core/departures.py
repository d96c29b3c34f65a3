"""The time at which the next batch leaves, from what is learnt about the model and its clients. No clock and no I/O.

A batch of n rows with t tokens takes a + b * t seconds, learnt by batch_costs.py. With C clients that each wait for
their answer, k batches that take turns in the model answer C rows in

    max(k * a + b * T,  a + b * T / k + r(C / k))

seconds, where T are the tokens of all C texts and r(n) is the return time: the seconds until n answered clients have
asked again. So one batch of all rows is best while r(C) < a. Otherwise two batches are best: one is in the model while
the clients of the other return. More batches only pay the fixed cost a more often (docs/decisions/0008).

The policy has these two states:

- **Return** (r(C) < RETURN_SHARE * a): after a batch ends, the next one waits until as many requests have arrived as
  were answered, at most r. A request in several batches counts once, with its last one.
- **Turns**: while all instances are busy, the next batch leaves ``lead`` seconds before the expected end of the running
  batch, because texts that arrive after its departure are not in it.

A batch leaves at once if nothing is learnt yet, if nothing says how many batches the model runs at a time, if the fixed
cost is a small share of a batch, if it has its maximum size, or if it has all clients: a lone client never waits, with
any number of texts. In an open loop the arrivals that follow an end have nothing to do with it; their return time is
the time of as many arrivals, and is soon longer than a.

Lead and return time are quantiles, learnt by stochastic approximation (Robbins and Monro, 1951, doi
10.1214/aoms/1177729586): a small step in the direction of each new value, whose mean is 0 at the quantile.
"""

from __future__ import annotations

from hf_transformer.core.batch_costs import BatchCosts, BatchTimer

LATE_SHARE = 0.1
"""The share of batches that leave after the end of the running one. Late batches cost idle time, early ones rows."""
LEAD_STEP = 0.1
"""The step of the lead, as a fraction of a batch's expected time."""
INITIAL_LEAD = 0.5
"""The lead before the first step, as a fraction of a batch's expected time."""
MAX_LEAD = 2.0
"""The maximum lead, likewise. Beyond 1 nothing waits: where this service is the limit, batches are late anyway."""

RETURN_SHARE = 0.8
"""The longest return time, as a fraction of the fixed cost that one batch instead of two saves."""
RETURN_QUANTILE = 0.8
RETURN_STEP = 0.25
"""The quantile of measured return times, and its relative step."""
ROWS_STEP = 0.1
"""The weight of a new measurement in the mean number of rows of a measured return time."""
MIN_RETURN_SECONDS = 1e-5

SMALL_BATCH_TURNS = 4
"""The turns of a batch that is small to show the fixed cost, per instance: about half of an equal one."""

PAUSE = 3
"""The time since the last answer after which a batch takes all texts, in mean times of a batch."""

MIN_FIXED_SHARE = 0.25
"""The smallest fixed cost, as a fraction of a batch's time, for which a batch waits."""
MIN_HOLD_SECONDS = 0.0005
"""The shortest wait. The event loop rounds the times of timers to milliseconds."""


class Departures:
    """The departures of batches to one model. Not thread-safe. All times are in seconds of one clock.

    Attributes:
        is_complete: whether the next batch waits for the clients of the last one, and all of them have asked again.
        return_seconds: the return time; None before the first measurement.
    """

    def __init__(self, costs: BatchCosts) -> None:
        self._costs = costs
        self._lead: float | None = None
        self._awaits_end = False
        """Whether the next batch leaves by the lead, so that its departure teaches the lead."""
        self._awaits_returns = self._is_returning = False
        self._arrived = 0
        self._ended, self._complete_at = 0.0, 0
        # The measurement of one return time: its start, its number of rows, and the number of arrivals at its end.
        self._measured_from, self._measured_rows, self._measured_until = 0.0, 0, 0
        self._rows = 1.0  # mean number of rows of the measurements
        self.return_seconds: float | None = None

    @property
    def is_complete(self) -> bool:
        return self._awaits_returns and self._arrived >= self._complete_at

    def arrived(self, now: float) -> None:
        """Records a new request."""
        self._arrived += 1
        if self._measured_until and self._arrived >= self._measured_until:
            self._measured_until = 0
            self._learn_return(now - self._measured_from)

    def sent(self, now: float, tokens: int) -> BatchTimer:
        """Records a sent batch of ``tokens`` tokens, including padding. Call ``answered`` or ``failed`` at its end."""
        self._learn_lead()
        return self._costs.start(now, tokens)

    def failed(self, timer: BatchTimer, now: float) -> None:
        """Records the end of a batch without an answer."""
        self._costs.stop(timer, now, answered=False)

    def answered(self, timer: BatchTimer, now: float, rows: int, requests: int) -> None:
        """Records the answers to a batch of ``rows`` texts, the last ones of ``requests`` requests."""
        self._costs.stop(timer, now)
        # Clients of earlier batches may still return; half of those who are missing count as gone.
        missing = max(0, self._complete_at - self._arrived) // 2
        self._ended, self._complete_at = now, self._arrived + missing + requests
        if requests and not self._measured_until:
            self._measured_from, self._measured_rows, self._measured_until = now, rows, self._complete_at

    def hold(self, now: float, rows: int) -> float:
        """Returns the seconds until the next departure, 0 for a departure now. Call it again after the end of a batch.

        Args:
            rows: the number of texts that are queued or in batches.
        """
        costs, self._awaits_returns, self._is_returning = self._costs, False, False
        fixed = costs.fixed_seconds
        if not fixed or not costs.knows_instances:
            return 0.0
        running = costs.first_end()
        returned = self.return_seconds
        # With more rows than in the measured batches, the return time grows, by less than in proportion.
        growth = max(1.0, (1 + rows / self._rows) / 2)
        longest = RETURN_SHARE * fixed / costs.instances
        self._is_returning = costs.is_fitted and returned is not None and returned * growth < longest
        if returned is not None and self._is_returning:
            self._awaits_end = False
            if running is None:
                self._awaits_returns = True
                return 0.0 if self.is_complete else max(0.0, self._ended + returned - now)
            return max(0.0, running[0] - now) + returned
        if running is None:
            return 0.0
        end, seconds = running
        if fixed < MIN_FIXED_SHARE * seconds:
            return 0.0
        self._awaits_end = True
        held = end - self._current_lead(seconds) - now
        return held if held > MIN_HOLD_SECONDS else 0.0

    def share(self, now: float, rows: int, oldest: int) -> int:
        """Returns the most rows of the next batch, of ``rows`` that are queued, in batches or in the last answers.

        Batches that take turns are equal: a large and a small one would leave the model idle in turns. After a pause
        the next batch takes all. A client waits for all texts of its request, so a share has at least the ``oldest``
        texts of the oldest request.
        """
        costs = self._costs
        if not costs.knows_instances or self._is_returning or not (costs.is_fitted or costs.wants_small_batch):
            return rows
        is_busy = costs.running or now - self._ended < PAUSE * costs.mean_seconds
        turns = costs.instances + 1 if costs.is_fitted else SMALL_BATCH_TURNS * costs.instances
        return max(oldest, -(-rows // turns)) if is_busy else rows

    def _learn_lead(self) -> None:
        if self._awaits_end:
            self._awaits_end = False
            running = self._costs.first_end()
            seconds = self._costs.mean_seconds if running is None else running[1]
            direction = 1.0 - LATE_SHARE if running is None else -LATE_SHARE
            lead = self._current_lead(seconds) + LEAD_STEP * seconds * direction
            self._lead = min(max(0.0, lead), MAX_LEAD * seconds)

    def _current_lead(self, seconds: float) -> float:
        return INITIAL_LEAD * seconds if self._lead is None else self._lead

    def _learn_return(self, seconds: float) -> None:
        self._rows += ROWS_STEP * (self._measured_rows - self._rows)
        estimate = self.return_seconds
        if estimate is None:
            estimate = seconds
        elif seconds > estimate:
            estimate = min(seconds, estimate * (1 + RETURN_STEP * RETURN_QUANTILE))
        else:
            estimate = max(seconds, estimate * (1 - RETURN_STEP * (1 - RETURN_QUANTILE)))
        self.return_seconds = max(estimate, MIN_RETURN_SECONDS)
