"""Answers with known_logits, and misbehaves as control.json in the model's folder says.

    {"fault": NAME, "every": N, "delay": SECONDS}

Every execution reads it, so that a fault begins and ends under load. Each N-th request has the fault, or else each N-th
execution the delay:

    raises          an error instead of an answer
    wrong_shape     one label fewer than declared
    wrong_rows      one text more than there were
    wrong_dtype     FP64 where FP32 is declared
    nan             every logit is NaN
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from known_logits import known_logits

CONTROL = Path(__file__).resolve().parents[1] / "control.json"


class TritonPythonModel:
    """One version of the model; its number is part of the answers."""

    def initialize(self, args: dict[str, str]) -> None:
        self.labels = int(json.loads(args["model_config"])["output"][0]["dims"][0])
        self.version = int(args["model_version"])
        self.count = self.executions = 0

    def execute(self, requests: list[Any]) -> list[Any]:
        try:
            control = json.loads(CONTROL.read_text())
        except FileNotFoundError:
            control = {}
        self.executions += 1
        if "delay" in control and self.executions % control["every"] == 0:
            time.sleep(control["delay"])
        return [self.answer(request, control) for request in requests]

    def answer(self, request: Any, control: dict[str, Any]) -> Any:
        ids, mask = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("input_ids", "attention_mask")
        )
        logits = known_logits(ids, mask, self.version, self.labels)
        self.count += 1
        if "fault" in control and self.count % control["every"] == 0:
            if control["fault"] == "raises":
                return pb_utils.InferenceResponse([], pb_utils.TritonError("deliberate failure"))
            logits = self.damaged(logits, control["fault"])
        return pb_utils.InferenceResponse([pb_utils.Tensor("logits", np.ascontiguousarray(logits))])

    def damaged(self, logits: Any, fault: str) -> Any:
        if fault == "wrong_shape":
            return logits[:, :-1]
        if fault == "wrong_rows":
            return np.concatenate([logits, logits[:1]])
        if fault == "wrong_dtype":
            return logits.astype(np.float64)
        return np.full_like(logits, np.nan)
