"""Timeout, retries, circuit breaker and error counts for calls to a predictor.

**Timeout.** ``timeout`` limits all attempts of one call together, pauses included. For a stream, it applies to the
first response, and again to each following one.

**Retries.** Only calls that certainly had no response are retried (failures.RETRIED). The pause before retry n is
random between 0 and min(0.05 * 2**n, 2) seconds, which spreads concurrent retries. A budget limits retries: each call
adds ``retry_budget``, each second adds 1, and each retry costs 1.

**Circuit breaker.** After ``circuit_failures`` consecutive attempts with an unavailable predictor (failures.DEAD),
nothing is sent. A background probe then checks the model's readiness until it is ready. Without retries, calls fail at
once with the last reason. With retries, calls wait for the probe, until the circuit has been open for as long as the
pauses of ``retries`` retries last: so retries bridge a restart of the predictor, and a longer outage fails fast. A call
that waits costs no budget, since the probe asks in its place.

Calls in flight continue. Any response resets the count, even a model's error or a full queue. Timeouts count less,
since a model that is slow for some requests answers others: MAX_UNANSWERED timeouts without a response in between count
as one failure. Cancelled calls don't count. The end of a shared connection counts once.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet

from hf_transformer.errors import PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.observability.logging import ModelLog
from hf_transformer.observability.metrics import ModelMetrics
from hf_transformer.predictor import failures
from hf_transformer.predictor.base import ModelCall, Outputs, Predictor, Reply
from hf_transformer.predictor.timeouts import ResponseTimeout, SharedTimeouts
from hf_transformer.types.tensors import ModelSpec

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.05, 2.0
"""The longest random pause before the first retry; it doubles with each retry up to the maximum."""

MAX_BUDGET, BUDGET_PER_SECOND = 10.0, 1.0
"""Initial and maximum retry budget; refill per second, for services with few calls."""

PROBE_TIMEOUT_SECONDS = 5.0
"""The timeout of one readiness probe."""

MIN_PROBE_SECONDS, MAX_PROBE_SECONDS = 0.1, 2.0
"""The pause between probes, which doubles from the minimum to the maximum. A successful call resets it."""

MAX_UNANSWERED = 3
"""Consecutive timeouts that count as one failure of the circuit breaker. Only calls started after the last such failure
count, so concurrent calls count once."""


class Resilience(Predictor):
    """Wraps a predictor's ``infer`` and ``stream`` with a timeout, retries and a circuit breaker (see the module's
    docstring).

    Args:
        inner: the predictor, whose context is entered and left with this one.
        address: the predictor's address, for messages.
        timeout: seconds for one call.
        retries: the most retries of one call.
        retry_budget: the fraction of a retry that each call adds to the budget.
        circuit_failures: consecutive failed attempts that open the circuit; 0 for no circuit breaker.
        sleep, jitter, clock: replaced in tests. ``jitter`` is random from 0 to 1, ``clock`` is in seconds.
    """

    def __init__(
        self,
        inner: Predictor,
        address: str,
        timeout: float,
        metrics: ModelMetrics,
        *,
        retries: int = 0,
        retry_budget: float = 0.1,
        circuit_failures: int = 0,
        model_name: str = "",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner = inner
        self.streams_json = inner.streams_json
        self._log = ModelLog(logger, model_name)
        self._address = address
        self._timeout = timeout
        self._retries = retries
        self._bridge_seconds = sum(map(_longest_pause, range(retries)))
        """The time for which calls wait for an open circuit to close."""
        self._circuit_failures = circuit_failures
        self._metrics = metrics
        self._sleep = sleep
        self._jitter = jitter
        self._clock = clock
        self._budget_per_call = retry_budget
        self._budget_limit = max(MAX_BUDGET, retry_budget)
        self._budget = MAX_BUDGET
        self._budget_since = clock()
        self._reason: str | None = None
        """The reason of the open circuit, None while it is closed."""
        self._closes = asyncio.Event()
        """Set when the open circuit closes."""
        self._waits_until = 0.0
        """The time of the event loop until which calls wait for the open circuit to close."""
        self._failures_in_a_row = 0
        self._unanswered = 0
        """Timeouts since the last response or counted failure."""
        self._timeout_failures = 0
        """Failures counted for timeouts so far."""
        self._ended_connections = WeakSet[object]()
        """Connections whose end has counted as a failure."""
        self._generation = 0
        """The number of recoveries. Failures of calls from before the last recovery do not count."""
        self._probe: asyncio.Task[None] | None = None
        self._probe_pause = MIN_PROBE_SECONDS
        self._timeouts = SharedTimeouts()
        self._closed = False
        metrics.circuit_open.set_function(lambda: self.is_open)
        for kind in failures.ALL:  # so that each has a sample from the start
            metrics.predictor_errors.add(0, kind)

    @property
    def is_open(self) -> bool:
        """Whether the circuit is open, so that calls fail at once."""
        return self._reason is not None

    async def open(self) -> None:
        await self.inner.__aenter__()

    async def close(self) -> None:
        self._closed = True
        self._closes.set()  # calls that wait for it fail
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
        infer = self.inner.infer if call.check is None else self._infer_checked
        return self._attempt(partial(infer, call), call.wanted or (lambda: True))

    async def _infer_checked(self, call: ModelCall) -> Reply:
        reply = await self.inner.infer(call)
        try:
            if call.check is not None:
                call.check(reply.tensors)
        except BaseException:
            reply.release()
            raise
        return reply

    async def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        """Streams the responses. Retries only before the first one; a later failure counts separately."""

        async def start() -> tuple[AsyncGenerator[Outputs, None], Outputs | None]:
            responses = self.inner.stream(call)
            response = await anext(responses, None)
            if response is not None and call.check is not None:
                try:
                    call.check(response)
                except BaseException:
                    await responses.aclose()
                    raise
            return responses, response

        generation = self._generation
        responses, response = await self._attempt(start, lambda: True)
        async with aclosing(responses):
            if response is None:
                return
            yield response
            try:
                with ResponseTimeout(self._timeout) as waits:
                    waits.begin()
                    async for response in responses:
                        waits.end()
                        if call.check is not None:
                            call.check(response)
                        yield response
                        waits.begin()
            except RequestError as error:
                self._metrics.predictor_errors.add(1, failures.kind_of(error))
                self._count_failure(error, generation)
                raise
            except TimeoutError as exc:
                raise self._timeout_error() from exc

    async def _attempt(self, call: Callable[[], Awaitable[Result]], wanted: Callable[[], bool]) -> Result:
        """The result of one call, with retries, a timeout and the circuit breaker."""
        generation, timeout_failures, retry = self._generation, self._timeout_failures, 0
        self._budget += self._budget_per_call
        deadline = asyncio.get_running_loop().time() + self._timeout
        try:
            with self._timeouts.limit(deadline):
                if self._reason is not None:
                    await self._wait_for_circuit(deadline)
                while True:
                    generation = self._generation
                    try:
                        result = await call()
                        break
                    except RequestError as error:
                        self._count_failure(error, generation)
                        if not await self._pause(error, retry, deadline, wanted):
                            raise
                        retry += 1
        except RequestError as error:
            self._metrics.predictor_errors.add(1, failures.kind_of(error))
            raise
        except TimeoutError:
            timeout_error = self._timeout_error()
            self._count_timeout(timeout_error, timeout_failures, generation)
            raise timeout_error from None
        self._failures_in_a_row = self._unanswered = 0
        self._probe_pause = MIN_PROBE_SECONDS
        return result

    async def _pause(self, error: RequestError, retry: int, deadline: float, wanted: Callable[[], bool]) -> bool:
        """Waits for the next attempt: for a pause, or for the open circuit. Returns False if there is none.

        It does not raise ``error`` itself, whose traceback would refer to this frame, and so to the error: such a cycle
        keeps the predictor's answer in memory until a garbage collection.
        """
        if retry >= self._retries or not isinstance(error, PredictorUnavailable) or error.kind not in failures.RETRIED:
            return False
        if not wanted():
            return False
        if self._reason is None:
            pause = self._jitter() * _longest_pause(retry)
            if asyncio.get_running_loop().time() + pause >= deadline:
                return False
            await self._sleep(pause)
        if self._reason is not None:
            await self._wait_for_circuit(deadline)
        elif not self._withdraw_retry():
            self._metrics.retries_denied.add(1)
            return False
        if not wanted():
            return False
        self._metrics.retries.add(1)
        return True

    async def _wait_for_circuit(self, deadline: float) -> None:
        """Waits until the open circuit closes. Raises PredictorUnavailable if it is open for longer than retries last,
        or until the call would end."""
        if self._probe is None or self._probe.done():  # done: it was cancelled from outside
            self._start_probe()
        loop, until = asyncio.get_running_loop(), min(self._waits_until, deadline - MIN_RETRY_SECONDS)
        if not self._closed and loop.time() < until:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._closes.wait()
        if self._reason is not None:
            raise PredictorUnavailable(
                f"the predictor counts as dead (--predictor_circuit_failures={self._circuit_failures}) until it says "
                f"that it is ready; the last reason: {self._reason}",
                failures.CIRCUIT_OPEN,
            )

    def _withdraw_retry(self) -> bool:
        """Takes one retry from the budget; False if the budget is used up."""
        now = self._clock()
        refill = (now - self._budget_since) * BUDGET_PER_SECOND
        self._budget = min(self._budget + refill, self._budget_limit)
        self._budget_since = now
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        return True

    def _timeout_error(self) -> PredictorTimeout:
        """Counts a timeout in the metrics and makes its error."""
        self._metrics.predictor_errors.add(1, failures.TIMEOUT)
        return failures.timeout_error(self._address, self._timeout)

    def _count_timeout(self, error: PredictorTimeout, timeout_failures: int, generation: int) -> None:
        """Counts a call's timeout for the circuit breaker, unless timeouts counted as a failure since its start.

        ``timeout_failures`` and ``generation`` are the values at the start of the call.
        """
        if timeout_failures != self._timeout_failures:
            return
        self._unanswered += 1
        if self._unanswered >= MAX_UNANSWERED:
            self._unanswered = 0
            self._timeout_failures += 1
            if generation == self._generation:
                self._add_failure(error)

    def _count_failure(self, error: RequestError, generation: int) -> None:
        """Counts a failed attempt for the circuit breaker."""
        kind = failures.kind_of(error)
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
        """Counts a failure, and opens the circuit at the limit."""
        self._failures_in_a_row += 1
        if self.is_open:
            self._reason = str(error)
        elif self._circuit_failures and self._failures_in_a_row >= self._circuit_failures and not self._closed:
            self._reason = str(error)
            self._closes.clear()
            self._waits_until = asyncio.get_running_loop().time() + self._bridge_seconds
            self._log.warning(
                "the predictor counts as dead after %d calls in a row: %s", self._failures_in_a_row, error
            )
            self._start_probe()

    def _start_probe(self) -> None:
        if not self._closed:
            self._probe = asyncio.get_running_loop().create_task(self._probe_until_ready())

    async def _probe_until_ready(self) -> None:
        while self.is_open:
            await self._sleep(self._probe_pause * (0.5 + self._jitter() / 2))
            self._probe_pause = min(self._probe_pause * 2, MAX_PROBE_SECONDS)
            try:
                async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                    ready = await self.inner.model_ready()
                self._reason = None if ready else "the predictor says that the model is not ready"
            except TimeoutError:
                self._reason = f"the predictor did not say in {PROBE_TIMEOUT_SECONDS:g} s whether it is ready"
            except Exception as error:
                self._reason = str(error) or type(error).__name__
                if not isinstance(error, RequestError):
                    self._log.exception("the predictor can't be asked whether it is ready")
        self._failures_in_a_row = 0
        self._generation += 1
        self._closes.set()
        self._log.info("the predictor is ready again")


def _longest_pause(retry: int) -> float:
    """The longest pause before a retry, counted from 0, in seconds."""
    return min(MIN_RETRY_SECONDS * 2.0**retry, MAX_RETRY_SECONDS)
