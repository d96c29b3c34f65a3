"""A transformer in the style of the KServe SDK's users: preprocess, the SDK's predict, postprocess.

Runs in an environment with kserve and transformers, with the SDK's flags and those below. The SDK sends tensors
in binary form over grpc-v2, and as JSON over v2.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from kserve import InferInput, InferRequest, InferResponse, Model, ModelServer, model_server
from transformers import AutoTokenizer


class Transformer(Model):
    """Tokenizes texts, and decodes logits."""

    def __init__(self, name: str, folder: str, task: str, *, inputs: list[str], most_tokens: int, binary: bool) -> None:
        super().__init__(name)
        self.inputs = inputs
        self.most_tokens = most_tokens
        self.binary = binary
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.task = task
        self.ready = True

    async def preprocess(self, payload: Any, headers: Any = None) -> InferRequest:
        """Tokenize all instances into one request to the predictor."""
        tokens = self.tokenizer(
            payload["instances"], padding=True, truncation=True, max_length=self.most_tokens, return_tensors="np"
        )
        inputs = []
        for name in self.inputs:
            tensor = InferInput(name=name, datatype="INT64", shape=list(tokens[name].shape))
            tensor.set_data_from_numpy(tokens[name].astype(np.int64), binary_data=self.binary)
            inputs.append(tensor)
        return InferRequest(model_name=self.name, infer_inputs=inputs)

    async def predict(self, payload: InferRequest, headers: Any = None, response_headers: Any = None) -> Any:
        """Call the predictor, and keep the tokens for postprocess."""
        return await super().predict(payload, headers, response_headers), payload.inputs

    async def postprocess(self, result: tuple[InferResponse, list[InferInput]], *more: Any) -> dict[str, Any]:
        """Decode the outputs to a V1 answer."""
        response, inputs = result
        ids, mask = (tensor.as_numpy() for tensor in inputs[:2])
        logits = response.outputs[0].as_numpy()
        if self.task == "sequence_classification":
            return {"predictions": logits.argmax(axis=-1).tolist()}
        if self.task == "fill_mask":
            best = logits[ids == self.tokenizer.mask_token_id].argmax(axis=-1)
            return {"predictions": [self.tokenizer.decode([token]) for token in best]}
        weights = mask[..., np.newaxis]
        pooled = (logits * weights).sum(axis=1) / weights.sum(axis=1)
        return {"predictions": (pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)).tolist()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(parents=[model_server.parser])
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--inputs", required=True, help="names, separated by commas: ids, mask, and more")
    parser.add_argument("--most_tokens", required=True, type=int)
    options = parser.parse_args()
    transformer = Transformer(
        options.model_name,
        options.tokenizer,
        options.task,
        inputs=options.inputs.split(","),
        most_tokens=options.most_tokens,
        binary=options.predictor_protocol == "grpc-v2",
    )
    ModelServer().start([transformer])
