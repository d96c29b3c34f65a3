"""A test model with the tensors of the vLLM backend: text in, text out, always decoupled.

sampling_parameters is JSON with the names of vLLM's SamplingParams; an unknown one is an error, as there. As there too,
structured_outputs is JSON text; an object, or the older guided_decoding, makes all parameters the default ones. It is
answered with the simplest text of that form (``simplest_text``), but to a prompt that begins with "Freely:" with any
text. Without
``stream`` all text comes at once, after the prompt unless exclude_input_in_output is true. A prompt that begins with
"Slowly:" takes ``seconds`` per token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from byte_level_bpe import ByteLevelBpe
from engine import FINAL, Engine, Job, Sampling, cancelled, failed, value

SAMPLING = {
    **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": None},
    **{"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
}
OTHERS = {
    **{"max_tokens": 16, "min_tokens": 0, "stop": None, "stop_token_ids": None, "ignore_eos": False},
    **{"logprobs": None, "logit_bias": None, "n": 1},
}
"""vLLM's defaults."""
ADAPTER = "shouting"
"""The only LoRA adapter, which writes in capitals."""


class TritonPythonModel:
    """No batch dimension: the engine batches."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.seconds = float(config["parameters"]["seconds"]["string_value"])
        folder = Path(__file__).parent
        self.tokenizer = ByteLevelBpe(folder / "tokenizer.json")
        self.vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        self.ends = frozenset(json.loads((folder / "generation_config.json").read_text())["eos_token_id"])
        self.engine = Engine(args["model_name"])

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                answer = Answer(self, request, sender)
                if not answer.tell():
                    self.engine.start(answer.job)
            except (ValueError, TypeError, KeyError) as exc:
                sender.send(failed(f"Error generating stream: {exc}"), flags=FINAL)

    def finalize(self) -> None:
        self.engine.close()


class Answer:
    """One request: its job, and how its tokens become responses."""

    def __init__(self, model: TritonPythonModel, request: Any, sender: Any) -> None:
        """Raises ValueError for what is not understood."""
        self.tokenizer = model.tokenizer
        self.sender = sender
        self.prompt = value(request, "text_input", b"").decode()
        self.streams = bool(value(request, "stream", False))
        excluded = value(request, "exclude_input_in_output", None)
        if self.streams and excluded is not None and not excluded:
            raise ValueError("When streaming, `exclude_input_in_output` = False is not allowed.")
        self.prepends = not (self.streams or excluded)
        told = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
        self.told = {name for name in told if value(request, f"return_{name}", False)}
        given = value(request, "sampling_parameters", None)
        asked = json.loads(request.parameters() if given is None else given)
        self.form = asked.pop("structured_outputs", None)
        if "guided_decoding" in asked or (self.form is not None and not isinstance(self.form, str)):
            asked, self.form = {}, None
        self.adapter = asked.pop("lora_name", None)
        if self.adapter not in (None, ADAPTER):
            raise ValueError(f"LoRA {self.adapter} is not supported, we currently support [{ADAPTER!r}]")
        if unknown := asked.keys() - SAMPLING.keys() - OTHERS.keys():
            raise ValueError(f"unexpected sampling parameters {sorted(unknown)}")
        asked = {**SAMPLING, **OTHERS, **{name: item for name, item in asked.items() if item is not None}}
        if asked["n"] != 1:
            raise ValueError("n must be 1")
        self.stops = [asked["stop"]] if isinstance(asked["stop"], str) else list(asked["stop"] or ())
        self.top = asked["logprobs"]
        self.sent = self.counted = 0
        sampling = {name: type(default or 0)(asked[name]) for name, default in SAMPLING.items() if name != "seed"}
        sampling["top_k"] = max(sampling["top_k"], 0)  # -1 is all, too
        seed = None if asked["seed"] is None else int(asked["seed"])
        self.job = Job(
            prompt=self.tokenizer.encode(self.prompt),
            limit=int(asked["max_tokens"]),
            sampling=Sampling(**sampling, seed=seed, bias=bias_of(asked["logit_bias"], model.vocabulary)),
            report=self.report,
            is_cancelled=sender.is_cancelled,
            ends=(frozenset() if asked["ignore_eos"] else model.ends) | frozenset(asked["stop_token_ids"] or ()),
            least=int(asked["min_tokens"]),
            seconds=model.seconds if self.prompt.startswith("Slowly:") else 0.0,
        )

    def tell(self) -> bool:
        """Answers at once where a form is asked for, in pieces if it streams. Returns whether it did."""
        if self.form is None or self.prompt.startswith("Freely:"):
            return False
        text, job = simplest_text(json.loads(self.form)), self.job
        step = 4 if self.streams else len(text)
        for start in range(0, len(text), step):
            piece = text[start : start + step]
            job.new += self.tokenizer.encode(piece)
            job.finish = "stop" if start + step >= len(text) else None
            self.send(self.prompt + piece if self.prepends else piece, job)
        return True

    def report(self, job: Job) -> bool:
        """A response where there is one to send; True where a stop string ends the text."""
        if job.finish == "cancelled":
            self.sender.send(cancelled(), flags=FINAL)
            return False
        ended = job.finish == "stop" and job.new[-1] in job.ends  # which is no part of the text
        text = self.tokenizer.decode(job.new[:-1] if ended else job.new)
        text = text if self.adapter is None else text.upper()
        ends = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        if ends:
            text, job.finish = text[: min(ends)], "stop"
        if job.finish:
            new = text[self.sent :]
            self.send(self.prompt + new if self.prepends else new, job)
        elif self.streams:
            # Half a character, and what may be the beginning of a stop string, wait for the next token.
            held = max((len(stop) - 1 for stop in self.stops), default=0)
            ready = max(len(text.rstrip("�")) - held, self.sent)
            self.send(text[self.sent : ready], job)
            self.sent = ready
        return bool(ends)

    def send(self, text: str, job: Job) -> None:
        new, self.counted = len(job.new) - self.counted, len(job.new)
        scores = [
            {str(token): {"logprob": score, "rank": 1, "decoded_token": self.tokenizer.text_of(token)}}
            for token, score in zip(job.new[len(job.new) - new :], job.log_probabilities[-new:], strict=False)
        ]
        outputs = {
            "text_output": np.array([text.encode()], np.object_),
            "finish_reason": np.array([str(job.finish)], np.object_),
            "cumulative_logprob": np.array([sum(job.log_probabilities)], np.float32),
            "logprobs": np.array(["null" if self.top is None else json.dumps(scores)], np.object_),
            "num_input_tokens": np.array([len(job.prompt)], np.uint32),
            "num_output_tokens": np.array([new], np.uint32),
        }
        tensors = [pb_utils.Tensor(name, outputs[name]) for name in outputs if name in ("text_output", *self.told)]
        self.sender.send(pb_utils.InferenceResponse(tensors), flags=FINAL if job.finish else 0)


def simplest_text(form: dict[str, Any]) -> str:
    """A text of the form that StructuredOutputsParams describe. Raises ValueError for what this can't make."""
    if unknown := form.keys() - {"json", "json_object", "choice"}:
        raise ValueError(f"structured outputs of a test model have no {sorted(unknown)}")
    if "choice" in form:
        return str(form["choice"][0])
    schema = form.get("json", {"type": "object"})
    if not isinstance(schema, dict):
        raise ValueError("structured_outputs.json must be a JSON schema dictionary")
    return json.dumps(simplest(schema, schema))


def simplest(schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """The simplest value of a JSON schema."""
    if "$ref" in schema:
        found: Any = root
        for name in schema["$ref"].split("/")[1:]:
            found = found[name]
        return simplest(found, root)
    for name in ("anyOf", "oneOf", "allOf"):
        if name in schema:
            return simplest(schema[name][0], root)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    kind = schema.get("type", "object")
    if kind == "object":
        names = schema.get("required", schema.get("properties", {}))
        return {name: simplest(schema["properties"][name], root) for name in names}
    if kind == "array":
        return [simplest(schema.get("items", {}), root) for _ in range(schema.get("minItems", 0))]
    if kind in ("integer", "number"):
        return schema.get("minimum", 0)
    return {"string": "x" * schema.get("minLength", 1), "boolean": False, "null": None}[kind]


def bias_of(logit_bias: dict[str, float] | None, size: int) -> np.ndarray | None:
    """FP64 [V] of token id -> what is added."""
    if not logit_bias:
        return None
    bias = np.zeros(size)
    for token, added in logit_bias.items():
        bias[int(token)] = added
    return bias
