"""Leaves a dead predictor alone, and finds out when it is back."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from types import TracebackType
from typing import Any, Never
from weakref import WeakSet

from hf_transformer.errors import PredictorError, PredictorUnavailable, RequestError
from hf_transformer.following import Followed, Items, source_of
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import kinds
from hf_transformer.predictor.base import Predictor
from hf_transformer.predictor.wrapping import WrappingPredictor
from hf_transformer.types import Tensor

logger = logging.getLogger(__name__)

PROBE_SECONDS = 5.0
"""How long the predictor may take to say whether it is ready."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds before a probe, doubling from the first to the longest; a success of a call ends that."""

Outputs = Mapping[str, Tensor]
Context = AbstractAsyncContextManager[Outputs]


class CircuitPredictor(WrappingPredictor):
    """Another predictor, that counts as dead after ``failures`` calls of ``infer`` in a row that found it unavailable.

    From then on calls are refused at once, with PredictorUnavailable that names the last reason. A probe in the
    background asks again and again whether the model is ready, and ends that. Calls that are under way when the
    predictor counts as dead are left alone.

    kinds.DEAD says what speaks for a dead predictor, for instance that no connection could be opened. Any answer speaks
    against it, be it an error of the model or that there is no place. Timeouts and cancelled calls say nothing: they
    are about one call, and a slow model answers others. The one exception is a timeout while connecting. The end of a
    connection that calls share is one failure, however many it takes along: what dropped it may be between here and a
    predictor that is well. Calls that then find no connection count each.

    With 0 ``failures`` it only counts errors, in ``metrics``. ``sleep`` and ``jitter`` (0 to 1) are for tests.
    """

    def __init__(
        self,
        inner: Predictor,
        failures: int,
        metrics: Metrics | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(inner)
        self._failures = failures
        self._metrics = metrics
        self._sleep = sleep
        self._jitter = jitter
        self._reason: str | None = None
        self._in_a_row = 0
        self._ended = WeakSet[object]()  # connections whose end has counted
        self._pause = FIRST_PAUSE
        self._probe: asyncio.Task[None] | None = None
        self._closed = False
        self.turn = 0
        """How often the predictor has come back. What a call of an earlier turn finds out is of no interest."""
        self._is_told = inner.watches_streams(self)
        if metrics is not None:
            metrics.watch_circuit(lambda: self.is_open)
            metrics.show_predictor_errors(kinds.ALL)

    @property
    def is_open(self) -> bool:
        """Whether the predictor counts as dead."""
        return self._reason is not None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        try:
            if self._probe is not None:
                self._probe.cancel()
                await asyncio.wait([self._probe])
        finally:
            await super().__aexit__(kind, error, trace)

    def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> Context:
        if self._reason is not None:
            return _Refused(self)
        return _Call(self, self._inner.infer(inputs, outputs, headers, sizes=sizes))

    def stream(self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]) -> Items[Outputs]:
        """The first response is the answer, or the end without one; a stream that breaks off later is a failure."""
        inner = self._inner.stream(inputs, outputs, headers)
        if self._is_told:
            return inner
        source = source_of(inner)
        watched = self._watched(inner)
        return watched if source is None else Followed(watched, source)

    async def _watched(self, inner: Items[Outputs]) -> AsyncGenerator[Outputs, None]:
        turn, answered = self.begins(), False
        try:
            async with aclosing(inner) as responses:
                async for response in responses:
                    if not answered:
                        answered = True
                        self.succeeded()
                    yield response
        except RequestError as error:
            self.failed(error, turn)
            raise
        if not answered:
            self.succeeded()

    def begins(self) -> int:
        """Gives the turn in which a call begins; raises PredictorUnavailable where it may not be sent."""
        if self._reason is not None:
            self.refuse()
        return self.turn

    def refuse(self) -> Never:
        """Raises for a call that is not sent."""
        if self._probe is None or self._probe.done():  # somebody has cancelled it
            self._start_probe()
        self._count(kinds.CIRCUIT_OPEN)
        raise PredictorUnavailable(
            f"the predictor counts as dead (--predictor_circuit_failures={self._failures}) until it says that it is "
            f"ready; the last reason: {self._reason}",
            kinds.CIRCUIT_OPEN,
        )

    def succeeded(self) -> None:
        """A call was answered."""
        if self._in_a_row or self._pause != FIRST_PAUSE:
            self._in_a_row = 0
            self._pause = FIRST_PAUSE

    def failed(self, error: RequestError, turn: int) -> None:
        """A call has failed that began in this turn."""
        kind = kinds.kind_of(error)
        self._count(kind)
        if kind in kinds.NEUTRAL or turn != self.turn:
            return
        if kind not in kinds.DEAD:
            self._in_a_row = 0
            return
        if isinstance(error, PredictorUnavailable) and error.connection is not None:
            if error.connection in self._ended:
                return
            self._ended.add(error.connection)
        self._in_a_row += 1
        if self.is_open:
            self._reason = str(error)
        elif self._failures and self._in_a_row >= self._failures and not self._closed:
            self._reason = str(error)
            logger.warning("the predictor counts as dead after %d calls in a row: %s", self._in_a_row, error)
            self._start_probe()

    def _count(self, kind: str) -> None:
        if self._metrics is not None:
            self._metrics.count_predictor_error(kind)

    def _start_probe(self) -> None:
        if not self._closed:
            self._probe = asyncio.get_running_loop().create_task(self._probe_until_ready())

    async def _probe_until_ready(self) -> None:
        while self.is_open:
            await self._sleep(self._pause * (0.5 + self._jitter() / 2))
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            problem = await self._problem()
            if problem:
                self._reason = problem
                continue
            self._reason = None
            self._in_a_row = 0
            self.turn += 1
            logger.info("the predictor is ready again")

    async def _problem(self) -> str:
        """Why the predictor is not ready; empty if it is."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                return "" if await self._inner.model_ready() else "the predictor says that the model is not ready"
        except TimeoutError:
            return f"the predictor did not say in {PROBE_SECONDS:g} s whether it is ready"
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return "the question whether the predictor is ready was broken off"  # by the transport
        except Exception as error:
            if not isinstance(error, RequestError):
                logger.exception("the predictor can't be asked whether it is ready")
            return str(error) or type(error).__name__


class _Call:
    """One call; like what contextlib would make of a generator, in a third of the time."""

    __slots__ = ("_circuit", "_context", "_turn")

    def __init__(self, circuit: CircuitPredictor, context: Context) -> None:
        self._circuit = circuit
        self._context = context
        self._turn = circuit.turn

    async def __aenter__(self) -> Outputs:
        try:
            outputs = await self._context.__aenter__()
        except RequestError as error:
            self._circuit.failed(error, self._turn)
            raise
        self._circuit.succeeded()
        return outputs

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Coroutine[Any, Any, bool | None]:
        if isinstance(error, PredictorError):  # the answer is not what the model promised
            self._circuit.failed(error, self._turn)
        return self._context.__aexit__(kind, error, trace)


class _Refused:
    """A call that is not made."""

    __slots__ = ("_circuit",)

    def __init__(self, circuit: CircuitPredictor) -> None:
        self._circuit = circuit

    async def __aenter__(self) -> Outputs:
        self._circuit.refuse()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Never called: it is never entered."""
