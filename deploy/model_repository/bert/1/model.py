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
    """input_ids INT64 [B,S] -> logits FP32 [B,S,V]."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model; the parameter intra_op_thread_count is the number of threads of one execution [1]."""
        parameters = json.loads(args["model_config"]).get("parameters", {})
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(parameters.get("intra_op_thread_count", {}).get("string_value", "1"))
        self.session = onnxruntime.InferenceSession(
            str(Path(__file__).with_name("model.onnx")), options, providers=["CPUExecutionProvider"]
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run all requests as one batch: Triton passes only requests of one shape together."""
        inputs = [pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy() for request in requests]
        (logits,) = self.session.run(["logits"], {"input_ids": np.concatenate(inputs)})
        ends = np.cumsum([len(rows) for rows in inputs])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("logits", rows)]) for rows in np.split(logits, ends[:-1])]
