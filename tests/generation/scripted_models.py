"""A predictor with scripted responses of a generative model, and builders of model descriptions and responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np

from hf_transformer.core.scheduler import SchedulerSettings
from hf_transformer.generation.types import Generator, GeneratorSettings, Prompt, Sampling, Step
from hf_transformer.predictor.base import ModelCall, Outputs
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import NUMPY_DTYPES, ModelSpec, Tensor, TensorSpec
from tests.support.scripted_predictor import RecordedCall, ScriptedPredictor


def settings(**more: Any) -> GeneratorSettings:
    scheduling = SchedulerSettings(
        max_batches_in_flight=1, max_batch_tokens=10**6, max_batch_output_bytes=10**9, timeout=600.0
    )
    usual: dict[str, Any] = {"model_config": {}, "eos_ids": frozenset({2}), "pad_id": 0, "max_length": 100}
    return GeneratorSettings(**{**usual, "scheduling": scheduling, **more})


def model(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], *, decoupled: bool = True, batch: int | None = 4
) -> ModelSpec:
    return ModelSpec("m", "1", tuple(inputs), tuple(outputs), batch, decoupled)


def spec(name: str, datatype: str = "INT32", *shape: int, optional: bool = False) -> TensorSpec:
    return TensorSpec(name, datatype, shape or (1,), optional)


class ScriptedLLM(ScriptedPredictor):
    """Streams ``responses`` in every call; a unary call gets the first. ``left`` is the number of responses that the
    last stream had left when it was closed.
    """

    def __init__(self, *responses: Outputs, json: bool = False) -> None:
        super().__init__()
        self.responses = responses
        self.left = -1
        self.streams_json = json

    async def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        self.record(call)
        sent = 0
        try:
            for response in self.responses:
                sent += 1
                yield response
        finally:
            self.left = len(self.responses) - sent

    async def respond(self, made: RecordedCall) -> Outputs:
        assert made.given.cancellable, "cancelling a generation cancels its call"
        return self.responses[0]


def tensor(name: str, datatype: str, *values: Any) -> Tensor:
    """A tensor of one axis; its dtype is object for BYTES."""
    return Tensor(name, datatype, np.array(values, NUMPY_DTYPES.get(datatype, np.dtype(np.object_))))


def ids(*row: int, length: int | None = None, scores: Sequence[float] | None = None) -> Outputs:
    """A token model's response, with batch and beam axes."""
    response = {"output_ids": Tensor("output_ids", "INT32", np.array([[row]], np.int32))}
    if length is not None:
        response["sequence_length"] = Tensor("sequence_length", "INT32", np.array([[length]], np.int32))
    if scores is not None:
        response["output_log_probs"] = Tensor("output_log_probs", "FP32", np.array([[scores]], np.float32))
    return response


def text(value: str | bytes, **more: str) -> Outputs:
    """A text model's response."""
    values = {"text_output": value if isinstance(value, bytes) else value.encode()}
    values |= {name: text.encode() for name, text in more.items()}
    return {name: tensor(name, "BYTES", data) for name, data in values.items()}


async def steps(generator: Generator, prompt: Prompt, sampling: Sampling, most: int | None = None) -> list[Step]:
    """Steps of one continuation, or the first ``most``."""
    steps: list[Step] = []
    async with aclosing(generator.generate(prompt, sampling, Context("r", {"x-request-id": "r"}))) as generated:
        async for step in generated:
            steps.append(step)
            if len(steps) == most:
                break
    return steps
