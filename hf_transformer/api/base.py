"""What the APIs share: the models behind them, admission, a request whose body is there, and answers to failures."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Final, Never, Protocol

import orjson
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response as StarletteResponse
from starlette.routing import Route

from hf_transformer.api.body import USUAL_TYPES, to_utf8
from hf_transformer.core.limits import Admission
from hf_transformer.core.model import GeneratePipeline
from hf_transformer.errors import InvalidInput, NotReady, RequestError, TooLarge, UnknownModel
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import GenerationRequest
from hf_transformer.observability.logging import names_of
from hf_transformer.observability.metrics import Metrics
from hf_transformer.protocol.json_text import JsonLimits, parse_json
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.tasks.base import Servable, describe
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import (
    Answers,
    Context,
    Encoding,
    Json,
    ModelDescription,
    Query,
    Request,
    Response,
    TextInput,
    Tokenization,
)

if TYPE_CHECKING:
    from hf_transformer.api.streaming import OpenStreams
    from hf_transformer.generation.chat import ChatTemplate  # it imports Jinja
    from hf_transformer.observability.tracing import Tracing  # OpenTelemetry is an extra

logger = logging.getLogger(__name__)

B3 = (b"x-b3-traceid", b"x-b3-spanid", b"x-b3-parentspanid", b"x-b3-sampled", b"x-b3-flags")
"""Zipkin's headers. Source: https://github.com/openzipkin/b3-propagation"""
FORWARDED = frozenset((b"traceparent", b"tracestate", b"authorization", *B3))
"""Headers that the predictor gets too, beside the request's id, so that traces and permissions reach it."""
JSON = b"application/json"
V2_PATHS = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
"""How paths of V2 and of the generate extension name a model."""

IGNORED: Final = "x-ignored-parameters"
"""The header, over gRPC the trailing metadata, with the unknown names in a request that were ignored."""

TIMEOUT: Final = "timeout"
CLIENTS_OWN = frozenset((TIMEOUT, "priority", "sequence_id", "sequence_start", "sequence_end", "binary_data_output"))
"""Parameters that clients of Triton send with any request. All but ``timeout`` change nothing here."""


class Model(Protocol):
    """The served model, as far as an API sees it; core/model.py can't name the types of generation."""

    name: str
    task: Servable

    async def require_ready(self) -> None: ...
    async def predict(self, query: Query, context: Context) -> Answers: ...
    async def generate(self, request: GenerationRequest, context: Context) -> Generation: ...
    @property
    def chat_template(self) -> ChatTemplate | None: ...
    def describe(self) -> ModelDescription: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def writer(self) -> GeneratePipeline: ...
    async def encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]: ...


class Models(dict[str, Model]):
    """The models by name; today there is one. Another name raises UnknownModel."""

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__({model.name: model for model in models})

    @property
    def names(self) -> list[str]:
        return list(self)

    def find(self, model: str, version: str = "") -> Model:
        """The model of this name, in this version if it is not empty; both as paths name them.

        Raises UnknownModel, and NotReady where a version is asked for before the predictor has told its own.
        """
        found = self[model]
        if version and version != (served := found.describe().version):
            known = f"served: {served}" if served else "its predictor tells none"
            raise UnknownModel(f"version {version[:40]!r} of model {found.name!r} is not served here; {known}")
        return found

    def __missing__(self, name: str) -> Never:
        raise UnknownModel(f"model {name[:200]!r} is not served here; served: {', '.join(self)}")


@dataclass(frozen=True, slots=True)
class Service:
    """What every API is given.

    ``max_bytes`` is the size of a request, after decompression too; ``max_texts`` how many texts one may have in any
    form: the larger of --max_instances and --max_sequences; ``max_json_depth`` is that of tools and their arguments.
    ``executor`` has the threads for long work, None is the event loop's own.
    """

    models: Models
    admission: Admission
    metrics: Metrics
    max_bytes: int
    max_texts: int
    streams: OpenStreams
    server_timing: bool = True
    token_inputs: bool = False
    max_instances: int = 2048
    max_json_depth: int = 64
    tracing: Tracing | None = None
    executor: Executor | None = None


@dataclass(slots=True)
class Call:
    """One HTTP request whose body is there: what its path names, its headers in lower case, its context, and what JSON
    in the body may hold."""

    path: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: bytes
    context: Context
    limits: JsonLimits

    def json(self) -> Json:
        """The value in the body.

        Raises:
            UnsupportedEncoding: it is in no charset that is taken.
            InvalidInput: it is not JSON.
            TooLarge: it has more lists, objects, keys or values than are taken; that is found before it is parsed.
        """
        body = self.body
        if self.headers.get(b"content-type", b"") not in USUAL_TYPES or body[:1] != b"{":
            body = to_utf8(body, self.headers)
        try:
            return parse_json(body, self.limits)
        except Malformed as error:
            raise InvalidInput(str(error)) from None


RenderError = Callable[[str, int], bytes]
"""An API's error body for a message and its HTTP status."""


class JsonResponse(StarletteResponse):
    """JSON by orjson, as everywhere here, for Starlette's routes."""

    media_type = "application/json"

    def render(self, content: Json) -> bytes:
        return orjson.dumps(content)


def json_route(path: str, answer: Callable[..., Json]) -> Route:
    """A GET route that answers with JSON; ``answer`` gets what the path names as keyword arguments."""

    async def show(request: StarletteRequest) -> JsonResponse:
        return JsonResponse(answer(**request.path_params))

    return Route(path, show)


def reply(body: bytes, content_type: bytes = JSON, *headers: tuple[bytes, bytes]) -> Response:
    """A response under status 200."""
    return Response(200, body, [(b"content-type", content_type), *headers])


async def find_not_ready(models: Iterable[Model]) -> NotReady | None:
    """Why one of the models can't predict now; None if all of them can."""
    try:
        for model in models:
            await model.require_ready()
    except NotReady as error:
        return error
    return None


async def readiness(models: Iterable[Model], about: Mapping[str, Json]) -> JsonResponse:
    """The answer to whether models are ready; ``about`` stands in it too."""
    error = await find_not_ready(models)
    if error is None:
        return JsonResponse({**about, "ready": True})
    body = {**about, "ready": False, "error": str(error)}
    return JsonResponse(body, error.status, {"Retry-After": str(error.retry_after)})


def error_response(render: RenderError, message: str, status: int, *headers: tuple[bytes, bytes]) -> Response:
    """The answer to a request that has failed."""
    return Response(status, render(message, status), [(b"content-type", JSON), *headers])


def error_json(message: str, status: int) -> bytes:
    """The error body of V1 and V2."""
    return orjson.dumps({"error": message})


def generating_task(model: Model, route: str) -> TextGeneration:
    """The task of a model that generates text. Raises InvalidInput for another model; ``route`` is what needs one."""
    task = model.task
    if not isinstance(task, TextGeneration):
        raise InvalidInput(
            f"model {model.name!r} does {task.name}, but {route} needs text_generation or text2text_generation"
        )
    return task


def require_few(name: str, given: Sequence[Json], most: int) -> None:
    """Raises TooLarge for a list that is over every limit, before its elements are looked at one by one."""
    if len(given) > most:
        raise TooLarge(
            f"{name}: {len(given)} in a request, at most {most} are taken (--max_instances, --max_sequences)"
        )


def expect(value: Json, kind: type | UnionType, where: str, expected: str) -> Json:
    """The same value. Raises InvalidInput, which names the field ``where``, for a value of another type."""
    if not isinstance(value, kind):
        raise InvalidInput(f"{where}: expected {expected}, got {describe(value)}")
    return value


@contextmanager
def renamed(rename: Callable[[str], str]) -> Iterator[None]:
    """Lets errors name fields as the client sent them: ``rename`` gives the new message."""
    try:
        yield
    except RequestError as error:
        raise type(error)(rename(str(error))) from error


def as_request_error(error: Exception, request_id: str, traceparent: str | None = None) -> RequestError:
    """The error that a client is told. An unexpected one is a fault of the service: the log has all of it, and the
    client learns where to look."""
    if isinstance(error, RequestError):
        return error
    named = names_of(request_id, traceparent)
    logger.error("request %s failed by a fault of the service", request_id, extra=named, exc_info=error)
    return RequestError(f"internal error; the log has it under {request_id}")


def context_of(request: Request) -> Context:
    """A request's context: its id, and the headers that the predictor gets too."""
    headers = {"x-request-id": request.id}
    if not FORWARDED.isdisjoint(request.headers):
        for name in FORWARDED & request.headers.keys():
            headers[name.decode("latin-1")] = request.headers[name].decode("latin-1")
    return Context(request.id, headers)


def without_clients_own(parameters: Mapping[str, Json], context: Context) -> Mapping[str, Json]:
    """A request's parameters without those of Triton's clients; ``timeout``, in microseconds, sets the deadline.

    Raises InvalidInput for a wrong timeout. Sources: extension_schedule_policy.md and extension_sequence.md in
    https://github.com/triton-inference-server/server/tree/main/docs/protocol
    """
    if CLIENTS_OWN.isdisjoint(parameters):
        return parameters
    timeout = parameters.get(TIMEOUT)
    if timeout is not None and (type(timeout) is not int or timeout < 0):
        raise InvalidInput(f"parameters.{TIMEOUT}: expected microseconds, a whole number from 0 on")
    if timeout:  # 0 is none, as in Triton
        deadline = asyncio.get_running_loop().time() + timeout / 1e6
        context.deadline = deadline if context.deadline is None else min(deadline, context.deadline)
    return {name: value for name, value in parameters.items() if name not in CLIENTS_OWN}


def ignored_names(context: Context) -> str:
    """The value of the header IGNORED."""
    return ", ".join(context.ignored)


def new_request_id() -> str:
    """128 random bits, as a trace id has them; no secret, so that no request has to ask the kernel for them."""
    return f"{random.getrandbits(128):032x}"
