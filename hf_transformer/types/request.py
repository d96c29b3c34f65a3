"""A request inside the service, independent of its API: query, context and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from hf_transformer.types.tensors import Tensor

Json: TypeAlias = Any
"""A JSON value."""


@dataclass(slots=True)
class Answers:
    """The results of one request: one prediction per instance, and for some tasks further tensors.

    ``tokens`` is the number of tokens in the model's input, special tokens included, padding excluded. ``tensor`` holds
    the predictions if ``Query.tensors`` is set.
    """

    predictions: list[Json]
    outputs: Sequence[Tensor] = ()
    tokens: int = 0
    tensor: Tensor | None = None


@dataclass(slots=True)
class Query:
    """The instances and parameters of one request.

    With ``tensors``, the predictions are also returned as a tensor. ``name`` is the API's name of the instances, for
    messages.
    """

    instances: Sequence[Json]
    parameters: Mapping[str, Json]
    tensors: bool = False
    name: str = "instances"


class Budget(Protocol):
    """One request's share of the service's limit on tokens in flight."""

    def charge(self, tokens: int) -> None: ...
    def expect(self, characters: int) -> None: ...
    def leave(self) -> None: ...


class Context:
    """A request's metadata, and the seconds that it spent in each stage.

    Attributes:
        request_id: the request id in logs and the response.
        headers: the headers for the predictor, with lower-case names.
        deadline: the client's deadline on the event loop's clock; None without one.
        field_names: maps the canonical path of a field to its name in the API, for errors; None keeps all paths.
        ignored: names of ignored parameters and keys, for the response.
        ticket: the request's admission; None without limits.
        instances, tokens: the numbers of instances and tokens; 0 until they are known.
        batch_traceparent: the traceparent of the request whose headers the batch carried; empty if it was this one.
        arrived: the time (time.perf_counter) at which the whole body had arrived.
        parse: duration of parsing the body, until its texts are known.
        tokenize: duration of encoding the texts.
        preprocess: KServe's stage: the part of parsing and encoding in the pipeline.
        queue: the part of ``predict`` before the last instance was sent to the predictor.
        predict: time from the encodings to the predictor's last answer.
        postprocess: duration of decoding and assembling the answers.
    """

    __slots__ = (
        "arrived",
        "batch_traceparent",
        "deadline",
        "field_names",
        "headers",
        "ignored",
        "instances",
        "parse",
        "postprocess",
        "predict",
        "preprocess",
        "queue",
        "request_id",
        "ticket",
        "tokenize",
        "tokens",
    )

    def __init__(self, request_id: str, headers: Mapping[str, str], *, deadline: float | None = None) -> None:
        self.request_id = request_id
        self.headers = headers
        self.deadline = deadline
        self.field_names: Callable[[str], str] | None = None
        self.ignored: list[str] = []
        self.ticket: Budget | None = None
        self.instances = self.tokens = 0
        self.batch_traceparent = ""
        self.arrived = self.parse = self.tokenize = self.preprocess = self.queue = self.predict = self.postprocess = 0.0
