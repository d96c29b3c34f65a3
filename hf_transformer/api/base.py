"""What the APIs share: the models behind them, admission, a request whose body is there, and answers to failures."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Never, Protocol

import orjson
from starlette.responses import Response as StarletteResponse

from hf_transformer.api.body import USUAL_TYPES, parse_json, to_utf8
from hf_transformer.api.streaming import OpenStreams
from hf_transformer.core.limits import Admission
from hf_transformer.errors import UnknownModel
from hf_transformer.generation.chat import ChatTemplate
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import GenerationRequest
from hf_transformer.observability.metrics import Metrics
from hf_transformer.observability.tracing.spans import Tracing
from hf_transformer.protocol.json_text import JsonLimits
from hf_transformer.tasks.base import Servable
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

B3 = ("traceid", "spanid", "parentspanid", "sampled", "flags")
"""The headers x-b3-... of Zipkin. Source: https://github.com/openzipkin/b3-propagation"""
FORWARDED_PREFIX = b"x-b3-"
FORWARDED = frozenset((b"traceparent", b"tracestate", b"authorization")) | {
    FORWARDED_PREFIX + name.encode() for name in B3
}
"""Headers that the predictor gets too, beside the request's id, so that traces and permissions reach it."""
JSON = b"application/json"


class Model(Protocol):
    """The served model, as far as an API sees it."""

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
    async def encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]: ...


class Models(dict[str, Model]):
    """The models by name; today there is one. Another name raises UnknownModel."""

    def __init__(self, models: Sequence[Model]) -> None:
        super().__init__({model.name: model for model in models})

    @property
    def names(self) -> list[str]:
        return list(self)

    @property
    def generate(self) -> bool:
        """Whether one of them generates text."""
        return any(isinstance(model.task, TextGeneration) for model in self.values())

    def __missing__(self, name: str) -> Never:
        raise UnknownModel(f"model {name[:200]!r} is not served here; served: {', '.join(self)}")


@dataclass(frozen=True, slots=True)
class Service:
    """What every API is given.

    ``max_bytes`` is the size of a request (--max_request_bytes), after decompression too; ``max_texts`` how many texts
    one may have in any form: the larger of --max_instances and --max_sequences. ``server_timing`` says whether answers
    tell how long they took; without ``tracing`` there are no spans. ``executor`` has the threads for long work, None
    is the event loop's own. ``streams`` are the answers that are sent as they come.
    """

    models: Models
    admission: Admission
    metrics: Metrics
    max_bytes: int
    max_texts: int
    server_timing: bool = True
    tracing: Tracing | None = None
    executor: Executor | None = None
    streams: OpenStreams = field(default_factory=OpenStreams)


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
            TooLarge: it has more lists, objects, keys or values than are taken.
        """
        body = self.body
        if self.headers.get(b"content-type", b"") not in USUAL_TYPES or body[:1] != b"{":
            body = to_utf8(body, self.headers)
        return parse_json(body, self.limits)


RenderError = Callable[[str, int], bytes]
"""An API's error body for a message and its HTTP status."""


class JsonResponse(StarletteResponse):
    """JSON by orjson, as everywhere here, for Starlette's routes."""

    media_type = "application/json"

    def __init__(self, content: Json, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status_code, headers)

    def render(self, content: Json) -> bytes:
        return orjson.dumps(content)


def reply(body: bytes, content_type: bytes = JSON, *headers: tuple[bytes, bytes]) -> Response:
    """What a call is answered with, under status 200."""
    return Response(200, body, [(b"content-type", content_type), *headers])


def error_response(render: RenderError, message: str, status: int) -> Response:
    """What a request is answered with that has failed."""
    return Response(status, render(message, status), [(b"content-type", JSON)])


def error_json(message: str, status: int) -> bytes:
    """The error body of V1 and V2."""
    return orjson.dumps({"error": message})


def context_of(request: Request) -> Context:
    """A request's context: its id, and the headers that the predictor gets too."""
    headers = {"x-request-id": request.id}
    if not FORWARDED.isdisjoint(request.headers):
        for name in FORWARDED & request.headers.keys():
            headers[name.decode("latin-1")] = request.headers[name].decode("latin-1")
    return Context(request.id, headers)


def new_request_id() -> str:
    """128 random bits, as a trace id has them; no secret, so that no request has to ask the kernel for them."""
    return f"{random.getrandbits(128):032x}"
