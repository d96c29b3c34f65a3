"""Embedding models of Triton's vLLM backend, as models of tensors.

    embedding_request BYTES [1]: {"input": [token ids]} -> text_output BYTES [1]: [floats]

vLLM pools, and batches requests itself. Each row of a batch is a request of its own, with the service's token ids, so
that truncation, prompts and limits work as for other models. The backend is decoupled: each request is a stream.

Source: src/model.py and src/utils/request.py of https://github.com/triton-inference-server/vllm_backend (25.11).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import orjson

from hf_transformer.errors import PredictorError
from hf_transformer.predictor.base import ModelCall, Outputs, Predictor, Reply
from hf_transformer.types.tensors import Array, ModelSpec, Tensor, TensorSpec

REQUEST, TEXT, ANSWER = "embedding_request", "text_input", "text_output"
IDS, MASK, VECTOR = "input_ids", "attention_mask", "sentence_embedding"
MAX_ROWS = 32
"""The largest number of concurrent requests of one batch."""
BATCHES = 8
"""The number of concurrent batches that the model is described with: vLLM merges them as they arrive."""


class EmbeddingRequests(Predictor):
    """A predictor whose model may take ``embedding_request``. Calls to any other model are unchanged.

    Describes such a model with the inputs input_ids and attention_mask [-1], and the output sentence_embedding [-1].
    """

    def __init__(self, inner: Predictor) -> None:
        self.inner = inner
        self.streams_json = inner.streams_json
        self._inputs: tuple[TensorSpec, ...] = ()
        """The inputs that a request needs; empty for any other model."""

    async def open(self) -> None:
        await self.inner.__aenter__()

    async def close(self) -> None:
        await self.inner.__aexit__(None, None, None)

    async def model_ready(self) -> bool:
        return await self.inner.model_ready()

    def shares(self, size: int) -> bool:
        return self.inner.shares(size)

    def stream(self, call: ModelCall) -> AsyncGenerator[Outputs, None]:
        return self.inner.stream(call)

    async def model_spec(self) -> ModelSpec:
        spec = await self.inner.model_spec()
        names = {tensor.name for tensor in spec.inputs}
        if REQUEST not in names or ANSWER not in {tensor.name for tensor in spec.outputs} or not spec.decoupled:
            self._inputs = ()
            return spec
        # The backend requires text_input, but reads it only without an embedding_request.
        needed = [tensor for tensor in spec.inputs if tensor.name == REQUEST or not tensor.optional]
        self._inputs = tuple(needed)
        return replace(
            spec,
            inputs=(TensorSpec(IDS, "INT64", (-1,)), TensorSpec(MASK, "INT64", (-1,))),
            outputs=(TensorSpec(VECTOR, "FP32", (-1,)),),
            max_batch_size=MAX_ROWS,
            decoupled=False,
            instances=BATCHES,
            dynamic_batching=True,
        )

    async def infer(self, call: ModelCall) -> Reply:
        """Runs a request per row. Raises PredictorError if an answer has no vector, or sizes of vectors differ."""
        if not self._inputs:
            return await self.inner.infer(call)
        tensors = {tensor.name: tensor.data for tensor in call.inputs}
        ids, mask = tensors[IDS], tensors[MASK].astype(bool)
        rows = [asyncio.ensure_future(self._embed(call, row[kept])) for row, kept in zip(ids, mask, strict=True)]
        try:
            vectors = await asyncio.gather(*rows)
        finally:
            for row in rows:
                row.cancel()  # after the failure of another row
            await asyncio.wait(rows)
        if len({len(vector) for vector in vectors}) > 1:
            raise PredictorError("the model answered with vectors of different sizes")
        return Reply({VECTOR: Tensor(VECTOR, "FP32", np.stack(vectors))})

    async def _embed(self, call: ModelCall, ids: Array) -> Array:
        """The vector of one text, float32 [D]."""
        request = orjson.dumps({"input": ids.tolist()}).decode()
        inputs = [
            Tensor(spec.name, spec.datatype, np.array([request if spec.name == REQUEST else ""], np.object_))
            for spec in self._inputs
        ]
        answer = b""
        row = replace(call, inputs=inputs, outputs=[ANSWER], sizes={}, cancellable=True)
        async with aclosing(self.inner.stream(row)) as responses:
            async for outputs in responses:
                if ANSWER in outputs and outputs[ANSWER].data.size:
                    answer = outputs[ANSWER].data.flat[0]
        return _vector(answer)


def _vector(answer: bytes) -> Array:
    """Parses a JSON list of numbers. Raises PredictorError for any other text."""
    try:
        vector = np.array(orjson.loads(answer), np.float32)
    except (TypeError, ValueError) as error:
        raise PredictorError("the model's text_output is not a JSON list of numbers") from error
    if vector.ndim != 1 or not vector.size:
        raise PredictorError(f"the model's text_output has the shape {list(vector.shape)}, expected a list of numbers")
    return vector
