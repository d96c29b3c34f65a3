"""What wraps another predictor and changes only how ``infer`` and ``stream`` go."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from hf_transformer.predictor.base import Predictor
from hf_transformer.types import ModelSpec


class WrappingPredictor(Predictor):
    """Opened and closed with the inner predictor, which answers whatever is asked apart from
    ``infer`` and ``stream``."""

    def __init__(self, inner: Predictor) -> None:
        self._inner = inner

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)

    @property
    def stops_when_cancelled(self) -> bool:
        return self._inner.stops_when_cancelled

    def shares(self, size: int) -> bool:
        return self._inner.shares(size)

    @property
    def streams_json(self) -> bool:
        return self._inner.streams_json

    async def model_spec(self) -> ModelSpec:
        return await self._inner.model_spec()

    async def model_ready(self) -> bool:
        return await self._inner.model_ready()
