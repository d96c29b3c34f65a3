"""A predictor with scripted responses of a generative model, and builders of model descriptions and responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np

from hf_transformer.core.scheduler import SchedulerSettings
from hf_transformer.generation.types import Generator, GeneratorSettings, Prompt, Sampling, Step
from hf_transformer.predictor.base import ModelCall, Reply
from hf_transformer.types.request import Context
from hf_transformer.types.tensors import NUMPY_DTYPES, ModelSpec, Tensor, TensorSpec
from tests.support.scripted_predictor import ScriptedPredictor

Response = Mapping[str, Tensor]


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
    """Streams ``responses`` in every call; a unary call gets the first.

    Attributes:
        inputs, wanted, headers: input tensors, output names and headers of the last call.
        left: number of responses that the last stream had left when it was closed.
        released: number of released replies.
    """

    def __init__(self, *responses: Response, json: bool = False) -> None:
        super().__init__()
        self.responses = responses
        self.inputs: dict[str, Tensor] = {}
        self.wanted: Sequence[str] = ()
        self.headers: Mapping[str, str] = {}
        self.left = -1
        self.released = 0
        self.streams_json = json

    def sent(self) -> dict[str, Any]:
        """Values of all inputs of the last call."""
        return {name: tensor.data.tolist() for name, tensor in self.inputs.items()}

    async def stream(self, call: ModelCall) -> AsyncGenerator[Response, None]:
        self._note(call)
        sent = 0
        try:
            for response in self.responses:
                sent += 1
                yield response
        finally:
            self.left = len(self.responses) - sent

    async def infer(self, call: ModelCall) -> Reply:
        assert call.cancellable, "cancelling a generation cancels its call"
        self._note(call)

        def release() -> None:
            self.released += 1

        return Reply(self.responses[0], release)

    def _note(self, call: ModelCall) -> None:
        self.inputs = {tensor.name: tensor for tensor in call.inputs}
        assert len(self.inputs) == len(call.inputs)
        self.wanted, self.headers = call.outputs, call.headers


def tensor(name: str, datatype: str, *values: Any) -> Tensor:
    """A tensor of one axis; its dtype is object for BYTES."""
    return Tensor(name, datatype, np.array(values, NUMPY_DTYPES.get(datatype, np.dtype(np.object_))))


def ids(*row: int, length: int | None = None, scores: Sequence[float] | None = None) -> Response:
    """A token model's response, with batch and beam axes."""
    response = {"output_ids": Tensor("output_ids", "INT32", np.array([[row]], np.int32))}
    if length is not None:
        response["sequence_length"] = Tensor("sequence_length", "INT32", np.array([[length]], np.int32))
    if scores is not None:
        response["output_log_probs"] = Tensor("output_log_probs", "FP32", np.array([[scores]], np.float32))
    return response


def text(value: str | bytes, **more: str) -> Response:
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
