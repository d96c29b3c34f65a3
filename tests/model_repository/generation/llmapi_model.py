"""A test model with the tensors of TensorRT-LLM's LLM API model: text in, text out, decoupled or not.

As there, a streamed response holds the whole text so far, the text begins with the prompt unless
sampling_param_exclude_input_from_output is true, and 32 tokens end a text unless sampling_param_max_tokens says
otherwise. A prompt that begins with "Tell:" is answered with the names and values of the inputs that came.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from byte_level_bpe import ByteLevelBpe
from engine import FINAL, Engine, Job, Sampling, cancelled, failed, value

PREFIX = "sampling_param_"
MAX_TOKENS = 32
"""The default of TensorRT-LLM's SamplingParams."""


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.decoupled = config["model_transaction_policy"]["decoupled"]
        self.inputs = [tensor["name"] for tensor in config["input"]]
        folder = Path(__file__).parent
        self.tokenizer = ByteLevelBpe(folder / "tokenizer.json")
        self.ends = frozenset(json.loads((folder / "generation_config.json").read_text())["eos_token_id"])
        self.engine = Engine(args["model_name"])

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                answer = Answer(self, request, sender)
                if answer.prompt.startswith("Tell:"):
                    answer.send(json.dumps(answer.told), "stop")
                else:
                    self.engine.start(answer.job)
            except (ValueError, TypeError) as exc:
                sender.send(failed(f"Error generating request: {exc}"), flags=FINAL)

    def finalize(self) -> None:
        self.engine.close()


class Answer:
    """One request: its job, and how its tokens become responses."""

    def __init__(self, model: TritonPythonModel, request: Any, sender: Any) -> None:
        self.tokenizer, self.sender = model.tokenizer, sender
        tensors = {name: pb_utils.get_input_tensor_by_name(request, name) for name in model.inputs}
        self.told = {
            name: [
                item.decode() if isinstance(item, bytes) else item for item in tensor.as_numpy().reshape(-1).tolist()
            ]
            for name, tensor in tensors.items()
            if tensor is not None
        }
        self.prompt = value(request, "text_input", b"").decode()
        self.streams = bool(value(request, "streaming", False))
        if self.streams and not model.decoupled:
            raise ValueError("Streaming is only supported in decoupled mode.")
        self.reasons = bool(value(request, "return_finish_reason", False))
        self.prepends = not value(request, f"{PREFIX}exclude_input_from_output", False)
        self.job = Job(
            prompt=self.tokenizer.encode(self.prompt),
            limit=int(value(request, f"{PREFIX}max_tokens", MAX_TOKENS)),
            sampling=Sampling(
                temperature=float(value(request, f"{PREFIX}temperature", 1.0)),
                top_k=int(value(request, f"{PREFIX}top_k", 0)),
                top_p=float(value(request, f"{PREFIX}top_p", 1.0)),
                presence_penalty=float(value(request, f"{PREFIX}presence_penalty", 0.0)),
                frequency_penalty=float(value(request, f"{PREFIX}frequency_penalty", 0.0)),
                seed=int(value(request, f"{PREFIX}seed", 0)),
            ),
            report=self.report,
            is_cancelled=sender.is_cancelled,
            ends=model.ends,
        )

    def report(self, job: Job) -> bool:
        if job.finish == "cancelled":
            self.sender.send(cancelled(), flags=FINAL)
        elif self.streams or job.finish:
            ended = job.finish == "stop" and job.new[-1] in job.ends  # which is no part of the text
            text = self.tokenizer.decode(job.new[:-1] if ended else job.new)
            self.send(self.prompt + text if self.prepends else text, job.finish)
        return False

    def send(self, text: str, finish: str | None) -> None:
        tensors = [pb_utils.Tensor("text_output", np.array([text.encode()], np.object_))]
        if self.reasons:
            tensors.append(pb_utils.Tensor("finish_reason", np.array([str(finish)], np.object_)))
        self.sender.send(pb_utils.InferenceResponse(tensors), flags=FINAL if finish else 0)
