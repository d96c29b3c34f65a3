"""Runs model.onnx, which lies beside this file, in Triton's Python backend.

Needs onnxruntime and numpy<2 in the Python that Triton's stub runs: under numpy 2 this backend returns empty tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """The inputs and outputs that config.pbtxt declares, under the names that they have in model.onnx."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model; the parameter intra_op_thread_count is the number of threads of one execution [1]."""
        config = json.loads(args["model_config"])
        parameters = config.get("parameters", {})
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(parameters.get("intra_op_thread_count", {}).get("string_value", "1"))
        self.session = onnxruntime.InferenceSession(
            str(Path(__file__).with_name("model.onnx")), options, providers=["CPUExecutionProvider"]
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run all requests as one batch: Triton passes only requests of one shape together."""
        rows = [pb_utils.get_input_tensor_by_name(request, self.inputs[0]).as_numpy() for request in requests]
        feeds = {self.inputs[0]: np.concatenate(rows)}
        for name in self.inputs[1:]:
            tensors = [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
            feeds[name] = np.concatenate(tensors)
        arrays = self.session.run(self.outputs, feeds)
        ends = np.cumsum([len(one) for one in rows])[:-1]
        parts = [np.split(array, ends) for array in arrays]
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(name, np.ascontiguousarray(part[number]))
                    for name, part in zip(self.outputs, parts, strict=True)
                ]
            )
            for number in range(len(requests))
        ]
