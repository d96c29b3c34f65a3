"""Runs the model.onnx in this folder, with its inputs and outputs, in Triton's Python backend.

The Python of Triton's stub needs onnxruntime and numpy<2: with numpy 2 this backend returns empty tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Maps named tensors to named tensors, batch axis first."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model; the parameter intra_op_thread_count sets the threads of one execution [1]."""
        parameters = json.loads(args["model_config"]).get("parameters", {})
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(parameters.get("intra_op_thread_count", {}).get("string_value", "1"))
        # Not relative to __file__, which may be a link to another model's file.
        weights = Path(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(str(weights), options, providers=["CPUExecutionProvider"])
        self.inputs = [tensor.name for tensor in self.session.get_inputs()]
        self.outputs = [tensor.name for tensor in self.session.get_outputs()]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run all requests as one batch: Triton merges only requests of the same shapes."""
        inputs = {
            name: [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
            for name in self.inputs
        }
        arrays = self.session.run(self.outputs, {name: np.concatenate(parts) for name, parts in inputs.items()})
        ends = np.cumsum([len(rows) for rows in inputs[self.inputs[0]]])[:-1]
        split = zip(*(np.split(array, ends) for array in arrays), strict=True)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, rows) for name, rows in zip(self.outputs, parts, strict=True)]
            )
            for parts in split
        ]
