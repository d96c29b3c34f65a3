"""Runs model.onnx, which lies beside this file, with OpenVINO in Triton's Python backend.

packages/ beside this file holds the library, which Triton's environment lacks. It chooses the precision and the number
of threads itself: bfloat16 where the processor has instructions for it, and all processors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

HERE = Path(__file__).parent


class TritonPythonModel:
    """The inputs that config.pbtxt declares, under the names that they have in model.onnx, and one output."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model."""
        sys.path.append(str(HERE / "packages"))
        import openvino

        config = json.loads(args["model_config"])
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.output = config["output"][0]["name"]
        core = openvino.Core()
        model = core.compile_model(core.read_model(str(HERE / "model.onnx")), "CPU", {"PERFORMANCE_HINT": "LATENCY"})
        self.request = model.create_infer_request()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run all requests as one batch: Triton passes only requests of one shape together."""
        feeds = {
            name: np.concatenate([pb_utils.get_input_tensor_by_name(one, name).as_numpy() for one in requests])
            for name in self.inputs
        }
        states = self.request.infer(feeds)[self.output]
        answers, start = [], 0
        for one in requests:
            end = start + len(pb_utils.get_input_tensor_by_name(one, self.inputs[0]).as_numpy())
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(self.output, states[start:end].copy())]))
            start = end
        return answers
