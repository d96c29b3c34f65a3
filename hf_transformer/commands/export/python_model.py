"""Runs the model.onnx or model.pt in this folder with Triton's Python backend.

The Python of Triton's stub needs onnxruntime or torch, and numpy<2. With numpy 2 the backend returns empty tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Maps tensors in config.pbtxt to model.onnx by name, and to model.pt by position."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model. The parameter intra_op_thread_count sets the number of threads per execution (default: 1)."""
        config = json.loads(args["model_config"])
        threads = int(config.get("parameters", {}).get("intra_op_thread_count", {}).get("string_value", "1"))
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        path = Path(__file__).with_name("model.onnx")
        if path.exists():
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            self.run = lambda arrays: session.run(self.outputs, dict(zip(self.inputs, arrays, strict=True)))
        else:
            import torch

            torch.set_num_threads(threads)
            module = torch.jit.load(str(path.with_name("model.pt")))
            # inference_mode applies to one thread, so it wraps each call.
            call = torch.inference_mode()(module.forward)
            self.run = lambda arrays: [tensor.numpy() for tensor in call(*map(torch.from_numpy, arrays))]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run all requests as a batch: Triton merges only requests of equal shapes."""
        inputs = [
            [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
            for name in self.inputs
        ]
        outputs = self.run([np.concatenate(arrays) for arrays in inputs])
        ends = np.cumsum([len(rows) for rows in inputs[0]])[:-1]
        parts = [np.split(array, ends) for array in outputs]
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(name, np.ascontiguousarray(part[index]))
                    for name, part in zip(self.outputs, parts, strict=True)
                ]
            )
            for index in range(len(requests))
        ]
