"""A model whose answers are known and whose speed is given. Runs in Triton's Python backend.

The classifier's label is the sum of a text's token ids modulo the number of labels; the embedding of a token is its row
of table.npy beside this file, FP32 [tokens, width]. So a foreign answer, or one from mixed-up rows, is seen. Every
padded token takes `microseconds` of sleep, which costs no CPU: the capacity is known, and is not that of the machine.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One instance: batches are answered one after the other."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the settings, and the table where there is one."""
        config = json.loads(args["model_config"])
        self.output = config["output"][0]
        self.seconds = float(config["parameters"]["microseconds"]["string_value"]) / 1e6
        table = Path(__file__).with_name("table.npy")
        self.table = np.load(table) if table.is_file() else None

    def execute(self, requests: list[Any]) -> list[Any]:
        """One answer per request, after the time that all of them take together."""
        ids = [pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy() for request in requests]
        if self.seconds:
            time.sleep(self.seconds * sum(array.size for array in ids))
        return [self.answer(request, array) for request, array in zip(requests, ids, strict=True)]

    def answer(self, request: Any, ids: np.ndarray) -> Any:
        """FP32 [B,labels] or [B,S,width] for ids [B,S]."""
        if self.table is not None:
            values = self.table[ids]
        else:
            mask = pb_utils.get_input_tensor_by_name(request, "attention_mask").as_numpy()
            labels = int(self.output["dims"][-1])
            values = np.full((len(ids), labels), -5.0, np.float32)
            values[np.arange(len(ids)), (ids * mask).sum(axis=1) % labels] = 5.0
        return pb_utils.InferenceResponse([pb_utils.Tensor(self.output["name"], values)])
