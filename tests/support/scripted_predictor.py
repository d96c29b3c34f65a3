"""The base of all scripted predictors. By itself it answers when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np

from hf_transformer.predictor.base import ModelCall, Outputs, Predictor, Reply
from hf_transformer.types.tensors import Array, ModelSpec, Tensor

SPEC = ModelSpec("m", "1", (), (), 0)


class RecordedCall:
    """One call: what it was given, and the future that ends it."""

    def __init__(self, given: ModelCall) -> None:
        self.given = given
        self.inputs: dict[str, Array] = {tensor.name: tensor.data.copy() for tensor in given.inputs}
        assert len(self.inputs) == len(given.inputs)
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cancelled = self.released = False

    def __getitem__(self, name: str) -> Array:
        return self.inputs[name]

    @property
    def ids(self) -> Array:
        """The first input."""
        return self.given.inputs[0].data

    @property
    def first_ids(self) -> list[int]:
        """The first token of each row."""
        return [int(row[0]) for row in self.ids]

    @property
    def sent(self) -> dict[str, Any]:
        """Values of all inputs."""
        return {name: data.tolist() for name, data in self.inputs.items()}


class ScriptedPredictor(Predictor):
    """Records its calls, and answers them with ``respond``, which subclasses replace. Here a test ends each call, and
    the output ``logits`` [rows, tokens, 1] is the input ids as FP32; those of the column ``nan_at`` are NaN.

    Attributes:
        spec: the description of the model; ``descriptions`` counts the calls of ``model_spec``.
        ready: the result or error of ``model_ready``; None waits for ``go_on`` and then returns False. ``questions``
            counts its calls.
        calls: every call so far.
        events: what happened, in order. Subclasses add to it.
    """

    def __init__(self) -> None:
        self.spec = SPEC
        self.ready: bool | BaseException | None = True
        self.go_on = asyncio.Event()
        self.questions = self.descriptions = 0
        self.calls: list[RecordedCall] = []
        self.events: list[str] = []
        self.nan_at: int | None = None

    async def open(self) -> None:
        self.events.append("open")

    async def close(self) -> None:
        self.events.append("close")

    async def model_spec(self) -> ModelSpec:
        self.descriptions += 1
        return self.spec

    async def model_ready(self) -> bool:
        self.questions += 1
        if isinstance(self.ready, BaseException):
            raise self.ready
        if self.ready is None:
            await self.go_on.wait()
            return False
        return self.ready

    async def infer(self, call: ModelCall) -> Reply:
        made = self.record(call)
        try:
            outputs = await self.respond(made)
        except asyncio.CancelledError:
            made.cancelled = True
            raise
        return Reply(outputs, lambda: self.on_release(made, outputs))

    async def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        """As ``infer``, in one response."""
        yield (await self.infer(call)).tensors

    def record(self, call: ModelCall) -> RecordedCall:
        self.calls.append(RecordedCall(call))
        return self.calls[-1]

    async def respond(self, made: RecordedCall) -> Outputs:
        await made.end
        logits = made.ids[:, :, np.newaxis].astype(np.float32)
        if self.nan_at is not None:
            logits[:, self.nan_at] = np.nan
        return {"logits": Tensor("logits", "FP32", logits)}

    def on_release(self, made: RecordedCall, outputs: Outputs) -> None:
        made.released = True
        self.events.append("released")

    def answer(self, *numbers: int) -> None:
        """Ends these calls, all that are open if none are given."""
        for call in [self.calls[number] for number in numbers] if numbers else self.calls:
            if not call.end.done():
                call.end.set_result(None)

    def fail(self, number: int, error: Exception) -> None:
        self.calls[number].end.set_exception(error)

    async def turn(self, turns: int = 20) -> None:
        """Runs the event loop for some turns, usually until nothing is left to do."""
        for _ in range(turns):
            await asyncio.sleep(0)
