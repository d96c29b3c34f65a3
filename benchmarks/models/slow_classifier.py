"""A classifier with known answers and a known speed, in Triton's Python backend.

The label is the sum of a text's token ids modulo the number of labels, so swapped answers are visible. Every padded
token takes ``microseconds`` of sleep, and every run ``run_microseconds`` more, without CPU time, so capacity does not
depend on the machine.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers batches one after another."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the parameters."""
        config = json.loads(args["model_config"])
        self.labels = int(config["output"][0]["dims"][-1])
        parameters = config["parameters"]
        self.seconds = float(parameters["microseconds"]["string_value"]) / 1e6
        self.run_seconds = float(parameters.get("run_microseconds", {"string_value": "0"})["string_value"]) / 1e6

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer all requests after the time for all their tokens."""
        ids = [pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy() for request in requests]
        time.sleep(self.run_seconds + self.seconds * sum(array.size for array in ids))
        return [self.answer(request, array) for request, array in zip(requests, ids, strict=True)]

    def answer(self, request: Any, ids: np.ndarray) -> Any:
        """FP32 [B,labels] for ids [B,S]."""
        mask = pb_utils.get_input_tensor_by_name(request, "attention_mask").as_numpy()
        values = np.full((len(ids), self.labels), -5.0, np.float32)
        values[np.arange(len(ids)), (ids * mask).sum(axis=1) % self.labels] = 5.0
        return pb_utils.InferenceResponse([pb_utils.Tensor("logits", values)])
