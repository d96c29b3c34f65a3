"""A test model of random logits, the same ones for the same text. Texts of any length are answered at once."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.size = int(config["output"][0]["dims"][0])

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        rows = zip(given["input_ids"], given["attention_mask"], strict=True)
        logits = [self.logits(ids[mask != 0]) for ids, mask in rows]
        return pb_utils.InferenceResponse([pb_utils.Tensor("logits", np.stack(logits))])

    def logits(self, ids: np.ndarray) -> np.ndarray:
        random = np.random.default_rng(zlib.crc32(ids.tobytes()))
        return random.standard_normal(self.size).astype(np.float32)
