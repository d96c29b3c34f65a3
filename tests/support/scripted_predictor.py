"""A predictor that answers when a test says so; for what is between the scheduler and any predictor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

import numpy as np

from hf_transformer.predictor.base import ModelCall, Predictor, Reply
from hf_transformer.types.tensors import ModelSpec, Tensor


class Call:
    """One call of ``infer``: what it was given, and the future that ends it."""

    def __init__(self, given: ModelCall) -> None:
        self.ids = given.inputs[0].data
        self.headers = given.headers
        self.sizes = given.sizes
        self.wanted = given.wanted
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cancelled = False
        self.released = False

    def release(self) -> None:
        self.released = True

    @property
    def first_ids(self) -> list[int]:
        """The first token of each row."""
        return [int(row[0]) for row in self.ids]


class ScriptedPredictor(Predictor):
    """``calls`` has every call so far. Its output ``logits`` [rows, tokens, 1] is the input ids as FP32; those of the
    column ``nan_at`` are NaN."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.nan_at: int | None = None
        self.spec = ModelSpec("m", "1", (), (), 0)

    async def model_spec(self) -> ModelSpec:
        return self.spec

    async def model_ready(self) -> bool:
        return True

    async def infer(self, call: ModelCall) -> Reply:
        made = Call(call)
        self.calls.append(made)
        try:
            await made.end
        except asyncio.CancelledError:
            made.cancelled = True
            raise
        logits = call.inputs[0].data[:, :, np.newaxis].astype(np.float32)
        if self.nan_at is not None:
            logits[:, self.nan_at] = np.nan
        return Reply({"logits": Tensor("logits", "FP32", logits)}, made.release)

    async def stream(self, call: ModelCall) -> AsyncGenerator[Mapping[str, Tensor], None]:
        """As ``infer``, in one response."""
        yield (await self.infer(call)).tensors

    def answer(self, *numbers: int) -> None:
        """Ends these calls, all that are open if none are given."""
        for call in [self.calls[number] for number in numbers] if numbers else self.calls:
            if not call.end.done():
                call.end.set_result(None)

    def fail(self, number: int, error: Exception) -> None:
        self.calls[number].end.set_exception(error)
