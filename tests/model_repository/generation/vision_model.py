"""A test model with the input for images of the vLLM backend or of TensorRT-LLM's LLM API model.

The answer is what the model has received, as JSON: {"prompt": TEXT, "images": [TEXT, ...]}. Streamed, it comes in
pieces of 7 characters; the LLM API model sends the whole text so far each time.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from engine import FINAL, value

PIECE = 7


def shown(text: str) -> str:
    """A text, in short if it is long."""
    return text if len(text) <= 1000 else f"{text[:40]} {len(text)} {sha256(text.encode()).hexdigest()}"


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            images = []
            for name in ("image", "image_url"):
                tensor = pb_utils.get_input_tensor_by_name(request, name)
                if tensor is not None:
                    images = [shown(one.decode()) for one in tensor.as_numpy().tolist()]
            prompt = value(request, "text_input", b"").decode()
            text = json.dumps({"prompt": prompt, "images": images})
            cumulative = bool(value(request, "streaming", False))
            streams = cumulative or value(request, "stream", False)
            step = PIECE if streams else len(text)
            starts = range(0, len(text), step)
            for start in starts:
                is_last = start == starts[-1]
                piece = text[: start + step] if cumulative else text[start : start + step]
                outputs = [
                    pb_utils.Tensor("text_output", np.array([piece.encode()], np.object_)),
                    pb_utils.Tensor("finish_reason", np.array(["stop" if is_last else "None"], np.object_)),
                ]
                sender.send(pb_utils.InferenceResponse(outputs), flags=FINAL if is_last else 0)
