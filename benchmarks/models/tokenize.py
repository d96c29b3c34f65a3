"""The first step of the ensembles, text to ids and mask, in Triton's Python backend.

packages/ in the same folder has the library tokenizers, which Triton's environment lacks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

HERE = Path(__file__).parent


class TritonPythonModel:
    """Pads the texts of a request to the longest."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load tokenizer.json from this folder."""
        sys.path.append(str(HERE / "packages"))
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
        self.tokenizer.enable_padding()

    def execute(self, requests: list[Any]) -> list[Any]:
        """One answer per request: INT64 [B,S] twice for BYTES [B,1]."""
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
        encodings = self.tokenizer.encode_batch([text.decode() for text in texts[:, 0]])
        ids = np.array([encoding.ids for encoding in encodings], np.int64)
        mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
        tensors = [pb_utils.Tensor("input_ids", ids), pb_utils.Tensor("attention_mask", mask)]
        return pb_utils.InferenceResponse(tensors)
