"""A predictor that follows a script, for what wraps predictors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import numpy as np

from hf_transformer.predictor.base import Predictor
from hf_transformer.types import ModelSpec, Tensor

OUTPUTS = {"logits": Tensor("logits", "FP32", np.zeros(1, np.float32))}
SPEC = ModelSpec("m", "1", (), (), 0)


class Scripted(Predictor):
    """Fails with each of the errors in turn, and then answers; None hangs until ``release``, and
    then raises ``failure`` if there is one.

    ``ready`` has what ``model_ready`` says, or raises, in turn; the last of it again and again; None hangs.
    """

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors = list(errors)
        self.ready: list[bool | BaseException | None] = [False]
        self.events: list[str] = []
        self.questions = 0
        self.sizes: Mapping[str, int] | None = None
        self.release = asyncio.Event()
        self.failure: Exception | None = None

    async def __aenter__(self) -> Self:
        self.events.append("open")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.events.append("close")

    @property
    def stops_when_cancelled(self) -> bool:
        return True

    async def model_spec(self) -> ModelSpec:
        return SPEC

    async def model_ready(self) -> bool:
        self.questions += 1
        said = self.ready.pop(0) if len(self.ready) > 1 else self.ready[0]
        if said is None:
            await self.release.wait()
            return False
        if isinstance(said, BaseException):
            raise said
        return said

    async def stream(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]
    ) -> AsyncGenerator[Mapping[str, Tensor], None]:
        """As ``infer``, in one response."""
        async with self.infer(inputs, outputs, headers) as tensors:
            yield tensors

    @asynccontextmanager
    async def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> AsyncIterator[Mapping[str, Tensor]]:
        self.events.append("infer")
        self.sizes = sizes
        if self.errors:
            error = self.errors.pop(0)
            if error is None:
                try:
                    await self.release.wait()
                except asyncio.CancelledError:
                    self.events.append("cancelled")
                    raise
                if self.failure is not None:
                    raise self.failure
            else:
                raise error
        try:
            yield OUTPUTS
        finally:
            self.events.append("given back")
