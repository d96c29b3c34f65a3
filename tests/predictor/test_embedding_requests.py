"""Batches of token ids as requests of vLLM's backend, one per text, and its JSON as vectors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable

import numpy as np
import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.predictor.base import ModelCall, Outputs, Predictor, Reply
from hf_transformer.predictor.embedding_requests import EmbeddingRequests
from hf_transformer.types.tensors import ModelSpec, Tensor, TensorSpec

TEXT = TensorSpec("text_input", "BYTES", (1,))
EMBEDDING = TensorSpec("embedding_request", "BYTES", (1,), optional=True)
OUTPUT = TensorSpec("text_output", "BYTES", (-1,))
VLLM = ModelSpec("m", "1", (TEXT, EMBEDDING), (OUTPUT,), 0, decoupled=True)


class Scripted(Predictor):
    """Answers each stream with ``answer`` of the token ids, and keeps the inputs."""

    def __init__(self, spec: ModelSpec, answer: Callable[[list[int]], str] = json.dumps) -> None:
        self.spec = spec
        self.answer = answer
        self.seen: list[dict[str, str]] = []
        self.open_streams = 0
        self.infers = 0

    async def model_spec(self) -> ModelSpec:
        return self.spec

    async def model_ready(self) -> bool:
        return True

    async def infer(self, call: ModelCall) -> Reply:
        self.infers += 1
        return Reply({})

    async def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        self.open_streams += 1
        try:
            self.seen.append({tensor.name: tensor.data[0] for tensor in call.inputs})
            ids = json.loads(self.seen[-1]["embedding_request"])["input"]
            if ids == [0]:
                await asyncio.Event().wait()
            answer = self.answer(ids)
            if answer:
                yield {"text_output": Tensor("text_output", "BYTES", np.array([answer.encode()], np.object_))}
        finally:
            self.open_streams -= 1


def batch(*rows: list[int]) -> ModelCall:
    width = max(map(len, rows))
    ids = np.array([row + [7] * (width - len(row)) for row in rows])
    mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    inputs = [Tensor("input_ids", "INT64", ids), Tensor("attention_mask", "INT64", mask)]
    return ModelCall(inputs, ["sentence_embedding"], {})


async def test_each_row_is_a_request_without_its_padding() -> None:
    inner = Scripted(VLLM, lambda ids: json.dumps([sum(ids), len(ids)]))
    predictor = EmbeddingRequests(inner)
    spec = await predictor.model_spec()
    assert [tensor.name for tensor in spec.inputs] == ["input_ids", "attention_mask"]
    assert [tensor.name for tensor in spec.outputs] == ["sentence_embedding"] and not spec.decoupled
    reply = await predictor.infer(batch([1, 2, 3], [4], [5, 6]))
    tensor = reply.tensors["sentence_embedding"]
    assert tensor.datatype == "FP32" and tensor.data.tolist() == [[6, 3], [4, 1], [11, 2]]
    assert [seen["text_input"] for seen in inner.seen] == [""] * 3, "the backend requires it, and does not read it"


@pytest.mark.parametrize("spec", [ModelSpec("m", "1", (TEXT,), (OUTPUT,), 0, decoupled=True)])
async def test_any_other_model_is_unchanged(spec: ModelSpec) -> None:
    inner = Scripted(spec)
    predictor = EmbeddingRequests(inner)
    assert await predictor.model_spec() == spec
    await predictor.infer(batch([1]))
    assert inner.infers == 1 and not inner.seen


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("", "not a JSON list of numbers"),
        ("a text", "not a JSON list of numbers"),
        ('["a"]', "not a JSON list of numbers"),
        ("[[1, 2]]", "has the shape [1, 2]"),
        ("[]", "has the shape [0]"),
    ],
)
async def test_an_answer_without_a_vector_is_an_error(answer: str, says: str) -> None:
    predictor = EmbeddingRequests(Scripted(VLLM, lambda ids: answer))
    await predictor.model_spec()
    with pytest.raises(PredictorError) as raised:
        await predictor.infer(batch([1]))
    assert says in str(raised.value)


async def test_vectors_of_different_sizes_are_an_error() -> None:
    predictor = EmbeddingRequests(Scripted(VLLM))
    await predictor.model_spec()
    with pytest.raises(PredictorError, match="different sizes"):
        await predictor.infer(batch([1], [2, 3]))


async def test_a_failed_row_ends_the_others() -> None:
    """The row [0] is never answered."""

    def answer(ids: list[int]) -> str:
        raise PredictorError("refused")

    inner = Scripted(VLLM, answer)
    predictor = EmbeddingRequests(inner)
    await predictor.model_spec()
    with pytest.raises(PredictorError, match="refused"):
        await predictor.infer(batch([0], [1]))
    assert inner.open_streams == 0 and len(inner.seen) == 2
