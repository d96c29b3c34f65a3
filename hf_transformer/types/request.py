"""One request on its way through the service: query, context and answers, whichever API it came through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from hf_transformer.types.tensors import Tensor

Json: TypeAlias = Any
"""What a JSON parser gives or a JSON writer takes."""


@dataclass(slots=True)
class Answers:
    """What one request is answered with: a prediction per instance, and tensors beside them where a task has any.

    ``tokens`` is how many tokens the model has read, special ones included and padding left out. ``tensor`` holds the
    predictions as one tensor, where ``Query.tensors`` asks for it.
    """

    predictions: list[Json]
    outputs: Sequence[Tensor] = ()
    tokens: int = 0
    tensor: Tensor | None = None


@dataclass(slots=True)
class Query:
    """One request, whichever API it came through.

    ``tensors`` asks for the predictions as a tensor too. ``name`` is what the client calls its instances, for messages.
    """

    instances: Sequence[Json]
    parameters: Mapping[str, Json]
    tensors: bool = False
    name: str = "instances"


class Budget(Protocol):
    """What is told how many tokens a request has, once that is known."""

    def charge(self, tokens: int) -> None: ...
    def expect(self, characters: int) -> None: ...
    def leave(self) -> None: ...


class Context:
    """What goes along with one request, with its stopwatch: seconds that it spent in each stage.

    Attributes:
        request_id: what logs and the response call it.
        headers: what the predictor gets too, names in lower case.
        deadline: when the caller stops waiting, in seconds of the event loop's clock; None if it did not say.
        field_names: maps the canonical path of a field to the client's name of it, for errors; None keeps all paths.
        ignored: names of parameters and keys that were ignored, which the client is told.
        ticket: the request's share of the service's budget; None where nothing is counted.
        instances, tokens: how much was asked, once that is known.
        batch_traceparent: the traceparent of the request whose headers the batch was sent with, if it is another one.
        arrived: of time.perf_counter, when the whole body was there.
        parse: from then until the texts were known.
        tokenize: from then until they were encoded.
        preprocess: KServe's stage, the part of these two within the pipeline.
        queue: the part of ``predict`` until the last instance left for the predictor.
        predict: from the encodings to the answers, decoding left out.
        postprocess: decoding, and putting the answers together.
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
