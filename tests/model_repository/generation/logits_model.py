"""A test model of exported weights as they are: named tensors in, named tensors out.

What the weights take and config.pbtxt does not declare gets the value that a plain export has built in: positions that
count up, no cache, a mask of ones. ``seconds`` is what every request takes longer.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from engine import failed, session


class TritonPythonModel:
    """One onnxruntime session, one thread, one request at a time."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.seconds = float(config["parameters"].get("seconds", {"string_value": "0"})["string_value"])
        self.outputs = [output["name"] for output in config["output"]]
        self.session = session()
        self.inputs = {tensor.name: tensor for tensor in self.session.get_inputs()}

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        time.sleep(self.seconds)
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        feeds = {name: given[name] if name in given else self.built_in(name, given) for name in self.inputs}
        wanted = [name for name in self.outputs if name in request.requested_output_names()]
        try:
            arrays = self.session.run(wanted, feeds)
        except Exception as exc:  # onnxruntime's errors have no common base
            return failed(f"onnxruntime: {exc}")
        return pb_utils.InferenceResponse(list(map(pb_utils.Tensor, wanted, arrays)))

    def built_in(self, name: str, given: dict[str, np.ndarray]) -> np.ndarray:
        """The value of an input that nobody gave."""
        rows, length = given["input_ids"].shape
        before = next((array.shape[2] for key, array in given.items() if key.startswith("past_key_values.")), 0)
        if name.startswith("past_key_values."):
            _, heads, _, width = self.inputs[name].shape
            return np.zeros((rows, heads, 0, width), np.float32)
        if name == "position_ids":
            return np.broadcast_to(np.arange(before, before + length), (rows, length))
        return np.ones((rows, before + length), np.int64)
