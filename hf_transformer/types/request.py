"""A request inside the service, independent of the API: query, context and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from hf_transformer.errors import Path

if TYPE_CHECKING:
    from hf_transformer.types.tensors import Tensor  # imports numpy, which child processes do without

Json: TypeAlias = Any


@dataclass(slots=True)
class Answers:
    """The results of a request: a prediction per instance, and optional output tensors of the task.

    ``tokens`` counts the tokens of the model's input, including special tokens, excluding padding. ``tensor`` contains
    the predictions if ``Query.tensors`` is true, and ``token_counts`` the tokens of each instance if ``Query.counts``
    is.
    """

    predictions: list[Json]
    outputs: Sequence[Tensor] = ()
    tokens: int = 0
    tensor: Tensor | None = None
    token_counts: Sequence[int] = ()


@dataclass(slots=True)
class Query:
    """The instances and parameters of a request.

    ``tensors`` requests the predictions as a tensor too, ``counts`` the tokens of each instance. ``name`` is the API's
    name of the instances, for messages.
    """

    instances: Sequence[Json]
    parameters: Mapping[str, Json]
    tensors: bool = False
    name: str = "instances"
    counts: bool = False


class Used(Protocol):
    """A model that counts its requests in flight."""

    requests: int


class Ticket(Protocol):
    """A request's share of the maximum number of tokens in flight, and its use of a model."""

    def charge(self, tokens: int) -> None: ...
    def use(self, model: Used) -> None: ...
    def leave(self) -> None: ...


class RequestBudget(Protocol):
    """The counts of what a request becomes, see core/budget.py. All methods raise TooLarge over a limit."""

    def few(self, path: Path | str, items: Sequence[Json], earlier: int = 0) -> None: ...
    def check_copies(self, count: int, path: Path | str, name: str) -> None: ...
    def check_values(self, count: int, path: Path | str, name: str) -> None: ...
    def add_values(self, count: int, size: int, path: Path | str) -> None: ...
    def hold(self, size: int, path: Path | str) -> None: ...
    def hold_parsed(self, size: int) -> None: ...


@dataclass(slots=True)
class TracedOperation:
    """A request to a model that embeds or generates texts, for OpenTelemetry's attributes ``gen_ai.*``.

    Attributes:
        name: the value of gen_ai.operation.name.
        parameters: gen_ai.request.*, by the end of the name.
        output_tokens: the number of new tokens; None for an operation without.
        finish_reasons: one of each finished text.
    """

    name: str
    parameters: Mapping[str, int | float]
    output_tokens: int | None = None
    finish_reasons: Sequence[str] = ()


class Context:
    """A request's metadata, and the duration of each stage in seconds.

    Attributes:
        request_id: the id for logs and the response.
        headers: the headers for the predictor, with lower-case names.
        deadline: the client's deadline on the event loop's clock; None if the client sets no deadline.
        field_names: maps a field's canonical path to the API's path, for errors; None keeps the path.
        api: the API's label in metrics, if the body decides between APIs that share a route; empty otherwise.
        ignored: names of ignored parameters and keys, for the response.
        ticket: the request's admission; None if no limit is set.
        budget: the counts of what the request becomes; None for the pipeline's own.
        over_grpc: whether the request came over gRPC.
        model_name: the name that the client chose: a model's name, an alias or an adapter. Answers repeat it.
        adapter: the LoRA adapter that the client chose; empty for the base model.
        served_name: the name of the served model, for metrics and traces; empty before a model is chosen.
        operation: the operation and its result, for traces; None for a model that neither embeds nor generates.
        instances, tokens, values: the numbers of instances, tokens, and (about) values in the answer; 0 before
            tokenization.
        batch_traceparent: the traceparent that the batch carried, if another request supplied the batch's headers.
        arrived: the arrival time of the complete body (time.perf_counter).
        parse: duration of parsing the body and extracting the texts.
        tokenize: duration of encoding the texts.
        preprocess: KServe's stage of this name, the duration of parsing and encoding in the pipeline.
        queue: the longest wait of an instance in the queue, a portion of ``predict``.
        predict: time from the end of encoding to the predictor's last answer.
        postprocess: duration of decoding and assembling the answers.
    """

    __slots__ = (
        "adapter",
        "api",
        "arrived",
        "batch_traceparent",
        "budget",
        "deadline",
        "field_names",
        "headers",
        "ignored",
        "instances",
        "model_name",
        "operation",
        "over_grpc",
        "parse",
        "postprocess",
        "predict",
        "preprocess",
        "queue",
        "request_id",
        "served_name",
        "ticket",
        "tokenize",
        "tokens",
        "values",
    )

    def __init__(
        self, request_id: str, headers: Mapping[str, str], *, deadline: float | None = None, over_grpc: bool = False
    ) -> None:
        self.request_id = request_id
        self.headers = headers
        self.deadline = deadline
        self.field_names: Callable[[Path], Path] | None = None
        self.ignored: list[str] = []
        self.ticket: Ticket | None = None
        self.budget: RequestBudget | None = None
        self.over_grpc = over_grpc
        self.operation: TracedOperation | None = None
        self.instances = self.tokens = self.values = 0
        self.batch_traceparent = self.model_name = self.served_name = self.adapter = self.api = ""
        self.arrived = self.parse = self.tokenize = self.preprocess = self.queue = self.predict = self.postprocess = 0.0
