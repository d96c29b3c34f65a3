"""fill_mask with the outputs of ``export --reduce``, topk_ids and topk_scores [B,M,K], precomputed.

Runs in Triton's Python backend. tokens.json in the same folder has the ids of mask token and answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

TOP_K = 10


class TritonPythonModel:
    """Answers with the same most probable token at every mask."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read tokens.json."""
        tokens = json.loads(Path(__file__).with_name("tokens.json").read_text())
        self.mask = tokens["mask"]
        self.ids = np.arange(tokens["answer"], tokens["answer"] - TOP_K, -1, dtype=np.int64)
        self.scores = np.linspace(0.5, 0.01, TOP_K, dtype=np.float32)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One answer per request."""
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        ids = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()
        shape = (len(ids), int((ids == self.mask).sum(1).max(initial=1)), TOP_K)
        outputs = {"topk_ids": self.ids, "topk_scores": self.scores}
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.array(np.broadcast_to(row, shape))) for name, row in outputs.items()]
        )
