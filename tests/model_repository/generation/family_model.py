"""A test model with tensors of the vLLM backend that writes answers in the form of a model family.

families.json has the answers: by the family's name, which is the first line of a prompt, the answer to a question, to a
question with tools, and to a tool's result. Chat templates of tests/support/families.py write such prompts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from engine import FINAL, failed, value

PIECE = 5
"""Number of characters of a streamed response. Most delimiters come in several."""


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.answers = json.loads((Path(__file__).parent / "families.json").read_text(encoding="utf-8"))

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            prompt = value(request, "text_input", b"").decode()
            try:
                texts = self.answers[prompt.partition("\n")[0]]
            except KeyError as exc:
                sender.send(failed(f"no such family: {exc}"), flags=FINAL)
                continue
            kind = "after" if "RESULT:" in prompt else "call" if "TOOL:" in prompt else "text"
            text, step = texts[kind], PIECE if value(request, "stream", False) else len(texts[kind])
            starts = range(0, len(text), step)
            for start in starts:
                is_last = start == starts[-1]
                outputs = [
                    pb_utils.Tensor("text_output", np.array([text[start : start + step].encode()], np.object_)),
                    pb_utils.Tensor("finish_reason", np.array(["stop" if is_last else "None"], np.object_)),
                ]
                sender.send(pb_utils.InferenceResponse(outputs), flags=FINAL if is_last else 0)
