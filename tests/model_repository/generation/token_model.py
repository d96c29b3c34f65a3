"""A test model with the tensors of TensorRT-LLM's backend: token ids in, token ids out, decoupled or not.

config.pbtxt decides which of the two. Decoupled and with ``streaming``, every token is a response of its own; else the
one response has the prompt too, unless exclude_input_in_output is true. Not decoupled, output_ids is padded to
the length that was asked for, as the backend did when it was so used, and sequence_length says how much of it is meant.
A prompt that begins with the ids of "Slowly:" takes ``seconds`` per token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from byte_level_bpe import ByteLevelBpe
from engine import FINAL, Engine, Job, Sampling, cancelled, failed, value

NEUTRAL = {"beam_width": (1,), "num_return_sequences": (1,), "stop": (0,), "bad_words_list": ()}
"""Inputs that are declared as in the original -> the values that are taken here."""


class TritonPythonModel:
    """Every request has one prompt: in-flight batching is the engine's, not Triton's."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.seconds = float(parameters["seconds"])
        # Not used for anything but this: the model itself knows ids only.
        self.slow = ByteLevelBpe(Path(__file__).with_name("tokenizer.json")).encode("Slowly:")
        self.engine = Engine(args["model_name"])

    def execute(self, requests: list[Any]) -> list[Any] | None:
        if self.decoupled:
            for request in requests:
                self.stream(request, request.get_response_sender())
            return None
        answers: dict[int, Any] = {}
        jobs = []
        for number, request in enumerate(requests):
            try:
                job = self.job(request, request.is_cancelled, lambda job: None)
                self.engine.start(job)
                jobs.append((number, request, job))
            except (ValueError, pb_utils.TritonModelException) as exc:
                answers[number] = failed(str(exc), pb_utils.TritonError.INVALID_ARG)
        for number, request, job in jobs:
            job.done.wait()
            answers[number] = cancelled() if job.finish == "cancelled" else self.whole(request, job, padded=True)
        return [answers[number] for number in range(len(requests))]

    def stream(self, request: Any, sender: Any) -> None:
        streaming = bool(value(request, "streaming", False))

        def report(job: Job) -> None:
            flags = FINAL if job.finish else 0
            if job.finish == "cancelled":
                sender.send(cancelled(), flags=flags)
            elif streaming:
                sender.send(answer(job.new[-1:], job.log_probabilities[-1:], job), flags=flags)
            elif job.finish:
                sender.send(self.whole(request, job), flags=flags)

        try:
            self.engine.start(self.job(request, sender.is_cancelled, report))
        except (ValueError, pb_utils.TritonModelException) as exc:
            sender.send(failed(str(exc), pb_utils.TritonError.INVALID_ARG), flags=FINAL)

    def job(self, request: Any, is_cancelled: Any, report: Any) -> Job:
        """The job of a request. Raises ValueError for an unsupported one."""
        rows = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()
        if rows.ndim != 2 or len(rows) != 1:
            raise ValueError(f"input_ids has the shape {list(rows.shape)}, expected one row")
        for name, taken in NEUTRAL.items():
            if (given := value(request, name, None)) is not None and given not in taken:
                raise ValueError(f"{name} is not supported by this model")
        prompt = rows[0, : value(request, "input_lengths", rows.shape[1])].tolist()
        bias = pb_utils.get_input_tensor_by_name(request, "embedding_bias")
        sampling = Sampling(
            temperature=float(value(request, "temperature", 1.0)),
            top_k=int(value(request, "runtime_top_k", 1)),
            top_p=float(value(request, "runtime_top_p", 1.0)) or 1.0,
            repetition_penalty=float(value(request, "repetition_penalty", 1.0)),
            presence_penalty=float(value(request, "presence_penalty", 0.0)),
            frequency_penalty=float(value(request, "frequency_penalty", 0.0)),
            bias=None if bias is None else bias.as_numpy().reshape(-1),
            seed=int(value(request, "seed", value(request, "random_seed", 0))),
        )
        end = int(value(request, "end_id", -1))
        return Job(
            prompt=prompt,
            limit=int(value(request, "request_output_len", 0)),
            sampling=sampling,
            report=report,
            is_cancelled=is_cancelled,
            ends=frozenset({end} if end >= 0 else ()),
            words=words_of(pb_utils.get_input_tensor_by_name(request, "stop_words_list")),
            least=int(value(request, "min_tokens", value(request, "min_length", 0))),
            seconds=self.seconds if prompt[: len(self.slow)] == self.slow else 0.0,
        )

    def whole(self, request: Any, job: Job, *, padded: bool = False) -> Any:
        excluded = bool(value(request, "exclude_input_in_output", False))
        ids = job.new if excluded else job.prompt + job.new
        pad = job.limit - len(job.new) if padded else 0
        return answer(ids, job.log_probabilities, job, [int(value(request, "pad_id", 0))] * pad)

    def finalize(self) -> None:
        self.engine.close()


def words_of(tensor: Any) -> tuple[list[int], ...]:
    """stop_words_list [1,2,n]: all words one after the other, and where each ends; -1 after the last end."""
    if tensor is None:
        return ()
    ids, ends = tensor.as_numpy().reshape(2, -1).tolist()
    ends = [end for end in ends if end > 0]
    return tuple(ids[start:end] for start, end in zip([0, *ends], ends, strict=False))


def answer(ids: list[int], log_probabilities: list[float], job: Job, padding: list[int] | None = None) -> Any:
    """The response with [1, beams 1, ids]."""
    outputs = {
        "output_ids": np.array([[[*ids, *(padding or ())]]], np.int32),
        "sequence_length": np.array([[len(ids)]], np.int32),
        "cum_log_probs": np.array([[sum(job.log_probabilities)]], np.float32),
        "output_log_probs": np.array([[log_probabilities]], np.float32),
    }
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])
