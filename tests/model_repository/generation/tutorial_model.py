"""A test model like that of Triton's Hugging Face tutorial: text_input -> text, the prompt included, nothing to choose.

The text has ``max_output_length`` tokens with the prompt's, or one more than the prompt. Greedy, where the tutorial's
model samples.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from byte_level_bpe import ByteLevelBpe
from engine import Engine, Job, Sampling, failed


class TritonPythonModel:
    """Not decoupled: one response to each request."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self.length = int(parameters["max_output_length"]["string_value"])
        self.seconds = float(parameters["seconds"]["string_value"])
        folder = Path(__file__).parent
        self.tokenizer = ByteLevelBpe(folder / "tokenizer.json")
        self.ends = frozenset(json.loads((folder / "generation_config.json").read_text())["eos_token_id"])
        self.engine = Engine(args["model_name"])

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        texts = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)
        jobs = [self.job(text.decode(), request) for text in texts]
        try:
            for job in jobs:
                self.engine.start(job)
        except ValueError as exc:
            return failed(str(exc))
        for job in jobs:
            job.done.wait()
        made = [self.tokenizer.decode(job.prompt + job.new).encode() for job in jobs]
        return pb_utils.InferenceResponse([pb_utils.Tensor("text", np.array(made, np.object_))])

    def job(self, text: str, request: Any) -> Job:
        prompt = self.tokenizer.encode(text)
        return Job(
            prompt=prompt,
            limit=max(self.length - len(prompt), 1),
            sampling=Sampling(top_k=1),
            report=lambda job: None,
            is_cancelled=request.is_cancelled,
            ends=self.ends,
            seconds=self.seconds if text.startswith("Slowly:") else 0.0,
        )

    def finalize(self) -> None:
        self.engine.close()
