"""What stands for an inference engine in the generative test models: it continues many prompts at once, in one thread.

Every running job gets a token per round, until it ends or its client has gone. Triton's metrics show what runs:

    test_generations{model, state}    started, finished and cancelled since the start (counters)
    test_generations_running{model}   at this moment (a gauge)
    test_generated_tokens{model}      (a counter)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
LENGTH = 256
POLL_SECONDS = 0.01


def session() -> Any:
    """The weights beside this file, with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    weights = str(Path(__file__).with_name("model.onnx"))
    return onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])


def value(request: Any, name: str, default: Any) -> Any:
    """The first element of an input, or the default."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None or not tensor.as_numpy().size else tensor.as_numpy().reshape(-1)[0]


def failed(*what: Any) -> Any:
    """The response with an error: its message, and its code where there is one."""
    return pb_utils.InferenceResponse([], pb_utils.TritonError(*what))


def cancelled() -> Any:
    return failed("cancelled", pb_utils.TritonError.CANCELLED)


@dataclass
class Sampling:
    """The defaults change nothing; top_k 0 is all. bias [V] is added to the logits."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: np.ndarray | None = None
    seed: int | None = None
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def choose(self, logits: np.ndarray, prompt: list[int], new: list[int]) -> int:
        logits = self._penalized(logits.astype(np.float64), prompt, new)
        if self.top_k == 1 or self.temperature == 0:
            return int(logits.argmax())
        logits = logits / self.temperature
        order = np.argsort(-logits, kind="stable")
        if self.top_k > 0:
            order = order[: self.top_k]
        chances = np.exp(logits[order] - logits[order[0]])
        chances /= chances.sum()
        before = np.cumsum(chances) - chances
        # The first token that reaches top_p is the last one taken.
        taken = (before < self.top_p) & (chances >= self.min_p * chances[0])
        taken[0] = True
        chances = np.where(taken, chances, 0.0)
        return int(order[np.searchsorted(np.cumsum(chances), self.random.random() * chances.sum(), side="right")])

    def _penalized(self, logits: np.ndarray, prompt: list[int], new: list[int]) -> np.ndarray:
        if self.bias is not None:
            logits = logits + self.bias
        if self.repetition_penalty != 1.0:
            seen = np.unique([*prompt, *new])
            some = logits[seen]
            logits[seen] = np.where(some > 0, some / self.repetition_penalty, some * self.repetition_penalty)
        if new:
            ids, counts = np.unique(new, return_counts=True)
            logits[ids] -= self.presence_penalty + self.frequency_penalty * counts
        return logits


def log_probability(logits: np.ndarray, token: int) -> float:
    """The natural log of what softmax gives the token: before any penalty and any temperature."""
    shifted = logits.astype(np.float64) - logits.max()
    return float(shifted[token] - np.log(np.exp(shifted).sum()))


@dataclass
class Job:
    """One prompt to be continued by at most ``limit`` tokens, or up to one of the ``ends``, which is then the last one.

    ``report`` is called after every token, and once when the job was cancelled. ``finish`` is stop, length or
    cancelled at the end. It returns True to end the job here. ``words`` are sequences of tokens that end it as
    ``ends`` do. ``seconds`` is the least time that a token takes.
    """

    prompt: list[int]
    limit: int
    sampling: Sampling
    report: Callable[[Job], bool | None]
    is_cancelled: Callable[[], bool]
    ends: frozenset[int] = frozenset()
    words: tuple[list[int], ...] = ()
    least: int = 0
    seconds: float = 0.0
    new: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    finish: str | None = None
    past: dict[str, np.ndarray] = field(default_factory=dict)
    due: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)


class Engine:
    """The weights and the thread that uses them."""

    def __init__(self, model: str) -> None:
        self._session = session()
        self._empty = {
            tensor.name: np.zeros((1, tensor.shape[1], 0, tensor.shape[3]), np.float32)
            for tensor in self._session.get_inputs()
            if tensor.name.startswith("past_key_values.")
        }
        self._outputs = [tensor.name for tensor in self._session.get_outputs()]
        kinds = pb_utils.MetricFamily
        states = kinds(name="test_generations", description="Generations of a test model", kind=kinds.COUNTER)
        running = kinds(name="test_generations_running", description="At this moment", kind=kinds.GAUGE)
        tokens = kinds(name="test_generated_tokens", description="Tokens of a test model", kind=kinds.COUNTER)
        self._families = (states, running, tokens)
        names = ("started", "finished", "cancelled")
        self._counts = {state: states.Metric(labels={"model": model, "state": state}) for state in names}
        self._gauge = running.Metric(labels={"model": model})
        self._tokens = tokens.Metric(labels={"model": model})
        self._jobs: list[Job] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def start(self, job: Job) -> None:
        """Takes a job. Raises ValueError for a prompt that leaves no room for a token."""
        if not job.prompt:
            raise ValueError("the prompt has no tokens")
        if job.limit < 1:
            raise ValueError(f"{job.limit} new tokens are asked for, expected at least 1")
        if len(job.prompt) >= LENGTH:
            raise ValueError(f"the prompt has {len(job.prompt)} tokens, and the model takes {LENGTH} with the new ones")
        job.limit = min(job.limit, LENGTH - len(job.prompt))
        job.due = time.monotonic() + job.seconds
        self._counts["started"].increment(1)
        with self._changed:
            self._jobs.append(job)
            self._gauge.set(len(self._jobs))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._jobs or self._closed):
                    self._changed.wait()
                if self._closed:
                    return
                jobs = list(self._jobs)
            for job in jobs:
                self._advance(job)
            if ended := [job for job in jobs if job.finish]:
                for job in ended:  # before the gauge: tests read the counts once nothing runs
                    self._counts["cancelled" if job.finish == "cancelled" else "finished"].increment(1)
                with self._changed:
                    self._jobs = [job for job in self._jobs if not job.finish]
                    self._gauge.set(len(self._jobs))
                for job in ended:
                    job.past = {}
                    job.done.set()
            wait = min((job.due for job in jobs if not job.finish), default=0.0) - time.monotonic()
            if wait > 0:
                with self._changed:
                    self._changed.wait(min(wait, POLL_SECONDS))

    def _advance(self, job: Job) -> None:
        if job.is_cancelled():
            job.finish = "cancelled"
            job.report(job)
            return
        if job.due > time.monotonic():
            return
        job.due += job.seconds
        logits = self._logits(job)
        if len(job.new) < job.least:
            logits[list(job.ends)] = -np.inf
        token = job.sampling.choose(logits, job.prompt, job.new)
        job.log_probabilities.append(log_probability(logits, token))
        job.new.append(token)
        self._tokens.increment(1)
        if token in job.ends or any(job.new[-len(word) :] == word for word in job.words):
            job.finish = "stop"
        elif len(job.new) == job.limit:
            job.finish = "length"
        if job.report(job) and not job.finish:
            job.finish = "stop"

    def _logits(self, job: Job) -> np.ndarray:
        """FP32 [V] of the next token; the cache grows by what was not in it."""
        before = len(job.prompt) + len(job.new) - 1 if job.past else 0
        ids = job.new[-1:] if job.past else job.prompt
        feeds = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, before + len(ids)), np.int64),
            "position_ids": np.arange(before, before + len(ids))[None],
            **(job.past or self._empty),
        }
        logits, *present = self._session.run(self._outputs, feeds)
        job.past = dict(zip(self._empty, present, strict=True))
        return logits[0, -1]
