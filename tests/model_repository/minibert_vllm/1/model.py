"""A test model with the tensors of the vLLM backend that embeds texts: JSON in, JSON out, always decoupled.

As there, the input of an embedding_request is a list of token ids or a text, and a text fails here, since the service
sends ids. Without an embedding_request the model fails, as an embedding model does with a prompt.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """No batch dimension: each request is a text."""

    def initialize(self, args: dict[str, str]) -> None:
        path = str(Path(__file__).with_name("model.onnx"))
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                tensors = [pb_utils.Tensor("text_output", np.array([self.answer(request)], np.object_))]
                response = pb_utils.InferenceResponse(tensors)
            except (ValueError, TypeError, KeyError) as exc:
                response = pb_utils.InferenceResponse([], pb_utils.TritonError(f"Error generating stream: {exc}"))
            sender.send(response, flags=FINAL)

    def answer(self, request: Any) -> bytes:
        """The vector of the request's token ids as JSON."""
        tensor = pb_utils.get_input_tensor_by_name(request, "embedding_request")
        if tensor is None:
            raise ValueError("this model does not support the generate task")
        asked = json.loads(tensor.as_numpy()[0].decode("utf-8"))["input"]
        if not asked or not all(isinstance(number, int) for number in asked):
            raise ValueError("expected token ids")
        if len(asked) > 128:
            raise ValueError(f"the prompt has {len(asked)} tokens, the model's length is 128")
        ids = np.array([asked], np.int64)
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (vectors,) = self.session.run(None, feeds)
        return json.dumps(vectors[0].tolist()).encode()
