"""Tries again while the predictor is unavailable."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Self

from hf_transformer.errors import PredictorTimeout, PredictorUnavailable
from hf_transformer.predictors.base import Predictor
from hf_transformer.types import ModelSpec, Tensor

_FIRST_DELAY = 0.05
_LONGEST_DELAY = 2.0


class RetryingPredictor(Predictor):
    """Another predictor, whose infer is entered again when it is unavailable, up to ``retries`` times.

    The pause before retry n is drawn evenly from the upper half of min(0.05 * 2**n, 2) seconds, so that many
    callers do not come back at one moment. All tries together have ``timeout`` seconds. Errors that the
    predictor answered and timeouts are never retried, nor is anything that goes wrong once the outputs are
    there.

    ``sleep`` and ``jitter`` (0 to 1) are for tests.
    """

    def __init__(
        self,
        inner: Predictor,
        retries: int,
        timeout: float,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._inner = inner
        self._retries = retries
        self._timeout = timeout
        self._sleep = sleep
        self._jitter = jitter

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)

    def stops_when_cancelled(self, sizes: Mapping[str, int]) -> bool:
        return self._inner.stops_when_cancelled(sizes)

    async def model_spec(self) -> ModelSpec:
        return await self._inner.model_spec()

    async def model_ready(self) -> bool:
        return await self._inner.model_ready()

    @asynccontextmanager
    async def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> AsyncIterator[Mapping[str, Tensor]]:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._timeout) as timeout:
                    tensors = await self._enter(stack, lambda: self._inner.infer(inputs, outputs, headers, sizes=sizes))
            except TimeoutError as exc:
                if not timeout.expired():
                    raise
                message = f"the predictor gave no answer in {self._timeout:g} s, retries included"
                raise PredictorTimeout(message) from exc
            yield tensors

    async def _enter(
        self,
        stack: AsyncExitStack,
        infer: Callable[[], AbstractAsyncContextManager[Mapping[str, Tensor]]],
    ) -> Mapping[str, Tensor]:
        deadline = asyncio.get_running_loop().time() + self._timeout
        for retry in range(self._retries):
            try:
                return await stack.enter_async_context(infer())
            except PredictorUnavailable:
                delay = min(_FIRST_DELAY * 2**retry, _LONGEST_DELAY) * (1 + self._jitter()) / 2
                if asyncio.get_running_loop().time() + delay >= deadline:
                    raise
            await self._sleep(delay)
        return await stack.enter_async_context(infer())
