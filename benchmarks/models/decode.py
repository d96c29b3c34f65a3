"""The last step of the ensembles, logits to an answer, in Triton's Python backend. The parameter task selects it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

HERE = Path(__file__).parent


class TritonPythonModel:
    """Decodes as the service does with default flags."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer for the texts of tokens."""
        sys.path.append(str(HERE / "packages"))
        from tokenizers import Tokenizer

        self.task = json.loads(args["model_config"])["parameters"]["task"]["string_value"]
        self.tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
        self.mask_id = self.tokenizer.token_to_id("[MASK]")

    def execute(self, requests: list[Any]) -> list[Any]:
        """One answer per request: BYTES [B,1], INT64 [B,1] or FP32 [B,384]."""
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        ids, mask, logits = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("input_ids", "attention_mask", "logits")
        )
        return pb_utils.InferenceResponse([pb_utils.Tensor("answer", self.decode(ids, mask, logits))])

    def decode(self, ids: np.ndarray, mask: np.ndarray, logits: np.ndarray) -> np.ndarray:
        if self.task == "sequence_classification":
            return logits.argmax(axis=-1)[:, np.newaxis].astype(np.int64)
        if self.task == "fill_mask":
            best = logits[ids == self.mask_id].argmax(axis=-1)
            return np.array([[self.tokenizer.id_to_token(int(token))] for token in best], np.object_)
        weights = mask[..., np.newaxis].astype(np.float32)
        pooled = (logits * weights).sum(axis=1) / weights.sum(axis=1)
        return pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)
