"""What surrounds every call to a predictor: one bound in time, retries, a circuit breaker, and counts of errors.

**Bound.** All tries of one call together, pauses included, have ``timeout`` seconds. A stream has them for its first
response, and again for each silence between two responses.

**Retries.** A call is tried again if it certainly was not answered (failures.RETRIED). The pause before retry n is
drawn evenly from 0 to min(0.05 * 2**n, 2) seconds, so that callers don't come back together. A budget bounds retries:
each call adds ``retry_budget`` of one, each second adds one, and each retry takes one.

**Circuit breaker.** After ``circuit_failures`` calls in a row that found the predictor unavailable (failures.DEAD),
calls are refused at once with the last reason, and a probe in the background asks whether the model is ready until it
is. Calls that are under way at that moment are left alone. Any answer resets the count, also an error of the model's or
a full queue. A timeout says little, since a model that is slow for some requests answers others: MOST_UNANSWERED of
them with no answer in between count as one failure, and cancelled calls don't count. The end of a connection that calls
share counts once.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, Never, TypeVar
from weakref import WeakSet

from hf_transformer.errors import PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import failures
from hf_transformer.predictor.base import ModelCall, Outputs, Predictor, Reply
from hf_transformer.types.tensors import ModelSpec

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

FIRST_RETRY, LONGEST_RETRY = 0.05, 2.0
"""Seconds that a pause before a retry has at most, doubling from the first to the longest."""

RETRIES_IN_HAND, RETRIES_PER_SECOND = 10.0, 1.0
"""Retries that the budget begins with and holds at most, and gains: a service with few calls needs some, too."""

PROBE_SECONDS = 5.0
"""How long the predictor may take to say whether it is ready."""

FIRST_PROBE, LONGEST_PROBE = 0.1, 2.0
"""Seconds before a probe, doubling from the first to the longest; an answered call begins anew."""


MOST_UNANSWERED = 3
"""Consecutive timeouts that count as one failure of the circuit breaker. Only calls begun after the last such failure
count, so that concurrent calls count once."""


class Bound:
    """Cancels the current task after so many seconds, unless its ``timer`` is cancelled before. asyncio.timeout does
    the same, and takes 5 us instead of 1."""

    __slots__ = ("_cancelled", "_others", "_task", "timer")

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("there is no task to cancel")
        self._task = task
        self._others = task.cancelling()
        self._cancelled = False
        self.timer = asyncio.get_running_loop().call_later(seconds, self._pass)

    def _pass(self) -> None:
        self._cancelled = True
        self._task.cancel()

    def has_passed(self) -> bool:
        """Whether a cancellation is this one's alone. It is then over; to be asked once."""
        return self._cancelled and self._task.uncancel() <= self._others


class Resilience(Predictor):
    """Another predictor with a bound, retries and a circuit breaker around ``infer`` and ``stream``; see above.

    ``inner`` is entered and left with this, ``where`` is the predictor's address, for messages. One call is tried again
    ``retries`` times at most. ``circuit_failures`` of 0 is no circuit breaker. ``sleep``, ``jitter`` (0 to 1) and
    ``clock`` (seconds) are for tests.
    """

    def __init__(
        self,
        inner: Predictor,
        where: str,
        timeout: float,
        metrics: Metrics,
        *,
        retries: int = 0,
        retry_budget: float = 0.1,
        circuit_failures: int = 0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner = inner
        self.streams_json = inner.streams_json
        self._where = where
        self._timeout = timeout
        self._retries = retries
        self._circuit_failures = circuit_failures
        self._metrics = metrics
        self._sleep = sleep
        self._jitter = jitter
        self._clock = clock
        self._budget_per_call = retry_budget
        self._budget_limit = max(RETRIES_IN_HAND, retry_budget)
        self._budget = RETRIES_IN_HAND
        self._budget_since = clock()
        self._reason: str | None = None
        """Why the predictor counts as dead; None while it does not."""
        self._failures_in_a_row = 0
        self._unanswered = 0
        self._silences = 0
        """Timeouts since the last answer, and the number of failures counted for timeouts."""
        self._ended_connections = WeakSet[object]()
        """Connections whose end has counted as a failure."""
        self._generation = 0
        """How often the predictor has come back. Failures of calls from before that do not count."""
        self._probe: asyncio.Task[None] | None = None
        self._probe_pause = FIRST_PROBE
        self._closed = False
        metrics.circuit_open.set_function(lambda: self.is_open)
        for kind in failures.ALL:  # each is shown from the start
            metrics.predictor_errors.add(0, kind)

    @property
    def is_open(self) -> bool:
        """Whether the circuit is open: the predictor counts as dead, and calls are refused."""
        return self._reason is not None

    async def open(self) -> None:
        await self.inner.__aenter__()

    async def close(self) -> None:
        self._closed = True
        try:
            if self._probe is not None:
                self._probe.cancel()
                await asyncio.wait([self._probe])
        finally:
            await self.inner.__aexit__(None, None, None)

    async def model_spec(self) -> ModelSpec:
        return await self.inner.model_spec()

    async def model_ready(self) -> bool:
        return await self.inner.model_ready()

    def shares(self, size: int) -> bool:
        return self.inner.shares(size)

    def infer(self, call: ModelCall) -> Coroutine[Any, Any, Reply]:
        return self._answer(partial(self.inner.infer, call), call.wanted or (lambda: True))

    async def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        """Only what has not responded yet is tried again. A stream that breaks off later is a failure of its own."""

        async def begun() -> tuple[AsyncGenerator[Outputs, None], Outputs | None]:
            responses = self.inner.stream(call)
            return responses, await anext(responses, None)

        generation = self._generation
        responses, response = await self._answer(begun, lambda: True)
        async with aclosing(responses):
            while response is not None:
                yield response
                try:
                    async with asyncio.timeout(self._timeout):
                        response = await anext(responses, None)
                except RequestError as error:
                    self._count_failure(error, generation)
                    raise
                except TimeoutError as exc:
                    raise self._too_late() from exc

    async def _answer(self, call: Callable[[], Awaitable[Answer]], wanted: Callable[[], bool]) -> Answer:
        """What one call gives, tried again where that may be."""
        if self._reason is not None:
            self._refuse(self._reason)
        generation, silences, retry = self._generation, self._silences, 0
        self._budget += self._budget_per_call
        bound = Bound(self._timeout)
        try:
            while True:
                try:
                    answer = await call()
                    break
                except PredictorUnavailable as error:
                    await self._pause_or_raise(error, retry, bound.timer.when(), wanted)
                    retry += 1
        except RequestError as error:
            self._count_failure(error, generation)
            raise
        except asyncio.CancelledError:
            if bound.has_passed():
                late = self._too_late()
                self._count_silence(late, silences, generation)
                raise late from None
            raise
        finally:
            bound.timer.cancel()
        self._failures_in_a_row = self._unanswered = 0
        self._probe_pause = FIRST_PROBE
        return answer

    async def _pause_or_raise(
        self, error: PredictorUnavailable, retry: int, ends: float, wanted: Callable[[], bool]
    ) -> None:
        """Returns when the next try may begin; raises ``error`` if there is to be none."""
        if retry >= self._retries or error.kind not in failures.RETRIED:
            raise error
        pause = self._jitter() * min(FIRST_RETRY * 2**retry, LONGEST_RETRY)
        if asyncio.get_running_loop().time() + pause >= ends or not wanted():
            raise error
        if not self._withdraw_retry():
            self._metrics.retries_denied.add(1)
            raise error
        await self._sleep(pause)
        if not wanted():
            raise error
        self._metrics.retries.add(1)

    def _withdraw_retry(self) -> bool:
        """Takes one retry out of the budget; False if there is none."""
        now = self._clock()
        gained = (now - self._budget_since) * RETRIES_PER_SECOND
        self._budget = min(self._budget + gained, self._budget_limit)
        self._budget_since = now
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        return True

    def _too_late(self) -> PredictorTimeout:
        """The error for a bound that has passed, counted."""
        self._metrics.predictor_errors.add(1, failures.TIMEOUT)
        return failures.too_late(self._where, self._timeout)

    def _count_silence(self, error: PredictorTimeout, silences: int, generation: int) -> None:
        """Count a timeout of a call; ``silences`` is the value of ``_silences`` when it began."""
        if silences != self._silences:
            return
        self._unanswered += 1
        if self._unanswered >= MOST_UNANSWERED:
            self._unanswered = 0
            self._silences += 1
            if generation == self._generation:
                self._add_failure(error)

    def _count_failure(self, error: RequestError, generation: int) -> None:
        kind = failures.kind_of(error)
        self._metrics.predictor_errors.add(1, kind)
        if kind in failures.NEUTRAL or generation != self._generation:
            return
        self._unanswered = 0
        if kind not in failures.DEAD:
            self._failures_in_a_row = 0
            return
        if isinstance(error, PredictorUnavailable) and error.connection is not None:
            if error.connection in self._ended_connections:
                return
            self._ended_connections.add(error.connection)
        self._add_failure(error)

    def _add_failure(self, error: RequestError) -> None:
        """Count a failure, and open the circuit when the limit is reached."""
        self._failures_in_a_row += 1
        if self.is_open:
            self._reason = str(error)
        elif self._circuit_failures and self._failures_in_a_row >= self._circuit_failures and not self._closed:
            self._reason = str(error)
            logger.warning("the predictor counts as dead after %d calls in a row: %s", self._failures_in_a_row, error)
            self._start_probe()

    def _refuse(self, reason: str) -> Never:
        """Raises for a call that is not sent."""
        if self._probe is None or self._probe.done():  # somebody has cancelled it
            self._start_probe()
        self._metrics.predictor_errors.add(1, failures.CIRCUIT_OPEN)
        raise PredictorUnavailable(
            f"the predictor counts as dead (--predictor_circuit_failures={self._circuit_failures}) until it says that "
            f"it is ready; the last reason: {reason}",
            failures.CIRCUIT_OPEN,
        )

    def _start_probe(self) -> None:
        if not self._closed:
            self._probe = asyncio.get_running_loop().create_task(self._probe_until_ready())

    async def _probe_until_ready(self) -> None:
        while self.is_open:
            await self._sleep(self._probe_pause * (0.5 + self._jitter() / 2))
            self._probe_pause = min(self._probe_pause * 2, LONGEST_PROBE)
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    ready = await self.inner.model_ready()
                self._reason = None if ready else "the predictor says that the model is not ready"
            except TimeoutError:
                self._reason = f"the predictor did not say in {PROBE_SECONDS:g} s whether it is ready"
            except Exception as error:
                self._reason = str(error) or type(error).__name__
                if not isinstance(error, RequestError):
                    logger.exception("the predictor can't be asked whether it is ready")
        self._failures_in_a_row = 0
        self._generation += 1
        logger.info("the predictor is ready again")
