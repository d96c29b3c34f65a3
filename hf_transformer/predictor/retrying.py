"""Tries again while the predictor is unavailable."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from types import TracebackType
from typing import Any

from hf_transformer.errors import PredictorTimeout, PredictorUnavailable
from hf_transformer.following import Followed, Items, Relay, source_of
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import HeldCall, Predictor
from hf_transformer.predictor.kinds import RETRIED
from hf_transformer.predictor.retry_budget import RetryBudget
from hf_transformer.predictor.wrapping import WrappingPredictor
from hf_transformer.types import Tensor

_FIRST_DELAY = 0.05
_LONGEST_DELAY = 2.0

Outputs = Mapping[str, Tensor]
Context = AbstractAsyncContextManager[Outputs]
Entered = Callable[[Context, float], Awaitable[Outputs]]


class RetryingPredictor(WrappingPredictor):
    """Another predictor, whose infer is entered again when it is unavailable, up to ``retries`` times.

    Tried again is what has certainly not been answered (kinds.RETRIED): there was no connection, it ended before the
    first byte of an answer, or the predictor said that it can't. Never the predictor's own errors and timeouts, nor
    anything that goes wrong once the outputs are there.

    The pause before retry n is drawn evenly from 0 to min(0.05 * 2**n, 2) seconds, so that many callers do not come
    back at one moment. All tries together have ``timeout`` seconds, and end at once in a pause when nobody waits any
    longer. What the ``budget`` does not allow is not tried.

    ``sleep`` and ``jitter`` (0 to 1) are for tests.
    """

    def __init__(
        self,
        inner: Predictor,
        retries: int,
        timeout: float,
        budget: RetryBudget,
        *,
        metrics: Metrics | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(inner)
        self._retries = retries
        self._timeout = timeout
        self._budget = budget
        self._metrics = metrics
        self._sleep = sleep
        self._jitter = jitter

    @property
    def stops_when_cancelled(self) -> bool:
        """Cancelled, it makes no more tries. The one under way it awaits, since the predictor goes on with it."""
        return True

    def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> Context:
        return _Tries(
            self.enter,
            lambda: self._inner.infer(inputs, outputs, headers, sizes=sizes),
            _entered if sizes is None else _entered_or_ended,
        )

    def stream(self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]) -> Items[Outputs]:
        """Only what has not responded yet is tried again, and only up to there the tries have ``timeout`` seconds."""
        relay = Relay[Outputs]()
        return Followed(self._streamed(lambda: self._inner.stream(inputs, outputs, headers), relay), relay)

    async def _streamed(
        self, stream: Callable[[], Items[Outputs]], relay: Relay[Outputs]
    ) -> AsyncGenerator[Outputs, None]:
        deadline = asyncio.get_running_loop().time() + self._timeout
        self._budget.deposit()
        retry = 0
        while True:
            async with aclosing(stream()) as responses:
                try:
                    response = await _first(responses, deadline)
                except PredictorUnavailable as error:
                    delay = self._delay(error, retry, deadline)
                    if delay is None:
                        raise
                except _TimeIsUpError as exc:
                    raise self._too_late() from exc
                else:
                    if response is not None:
                        relay.origin = source_of(responses)
                        yield response
                        async for response in responses:
                            yield response
                    return
            await self._again(delay)
            retry += 1

    async def enter(self, infer: Callable[[], Context], entered: Entered) -> tuple[Context, Outputs]:
        """The context that could be entered, and its outputs."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        self._budget.deposit()
        retry = 0
        while True:
            context = infer()
            try:
                return context, await entered(context, deadline)
            except PredictorUnavailable as error:
                delay = self._delay(error, retry, deadline)
                if delay is None:
                    raise
            except _TimeIsUpError as exc:
                raise self._too_late() from exc
            except PredictorTimeout as exc:
                if asyncio.get_running_loop().time() >= deadline:
                    raise self._too_late() from exc
                raise
            await self._again(delay)
            retry += 1

    def _too_late(self) -> PredictorTimeout:
        return PredictorTimeout(f"the predictor gave no answer in {self._timeout:g} s, retries included")

    async def _again(self, delay: float) -> None:
        """The pause before another try."""
        await self._sleep(delay)
        if self._metrics is not None:
            self._metrics.count_retry()

    def _delay(self, error: PredictorUnavailable, retry: int, deadline: float) -> float | None:
        """Seconds until the next try; None if there is to be none."""
        if retry >= self._retries or error.kind not in RETRIED:
            return None
        delay: float = self._jitter() * min(_FIRST_DELAY * 2**retry, _LONGEST_DELAY)
        if asyncio.get_running_loop().time() + delay >= deadline:
            return None
        if self._budget.withdraw():
            return delay
        if self._metrics is not None:
            self._metrics.count_retry(denied=True)
        return None


class _Tries:
    """One call, with its retries; like what contextlib would make of a generator, in a third of the time."""

    __slots__ = ("_context", "_enter", "_entered", "_infer")

    def __init__(
        self,
        enter: Callable[[Callable[[], Context], Entered], Awaitable[tuple[Context, Outputs]]],
        infer: Callable[[], Context],
        entered: Entered,
    ) -> None:
        self._enter = enter
        self._infer = infer
        self._entered = entered
        self._context: Context

    async def __aenter__(self) -> Outputs:
        self._context, outputs = await self._enter(self._infer, self._entered)
        return outputs

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Coroutine[Any, Any, bool | None]:
        return self._context.__aexit__(kind, error, trace)


class _TimeIsUpError(Exception):
    """One try lasted until the deadline of all of them."""


async def _first(responses: Items[Outputs], deadline: float) -> Outputs | None:
    """The first response, None where the stream ends without one."""
    try:
        async with asyncio.timeout_at(deadline) as timeout:
            return await anext(responses, None)
    except TimeoutError as exc:
        if not timeout.expired():
            raise
        raise _TimeIsUpError from exc


async def _entered(context: Context, deadline: float) -> Outputs:
    """Enters a call that is given up when it is cancelled. In a task, as asyncio.timeout has it."""
    try:
        async with asyncio.timeout_at(deadline) as timeout:
            return await context.__aenter__()
    except TimeoutError as exc:
        if not timeout.expired():
            raise
        raise _TimeIsUpError from exc


async def _entered_or_ended(context: Context, deadline: float) -> Outputs:
    """Enters a call with which the predictor would go on: when it is cancelled, that takes effect at the call's end.

    So it keeps its place among the calls in flight for as long as the predictor is busy with it. At the deadline it is
    given up all the same.
    """
    if isinstance(context, HeldCall):
        context.hold(deadline)
        return await context.__aenter__()
    call = asyncio.ensure_future(context.__aenter__())
    cancelled: asyncio.CancelledError | None = None
    late = False

    def give_up() -> None:
        nonlocal late
        late = True
        call.cancel()

    timer = asyncio.get_running_loop().call_at(deadline, give_up)
    while not call.done():
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError as error:
            cancelled = error
    timer.cancel()
    if cancelled is not None:
        if not call.cancelled() and call.exception() is None:
            await context.__aexit__(None, None, None)
        raise cancelled
    if call.cancelled():
        raise _TimeIsUpError if late else asyncio.CancelledError
    return call.result()
