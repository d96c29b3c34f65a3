"""What the APIs share: the model behind them, admission, and for HTTP bodies, headers and how a failure is answered."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

import orjson
from starlette.responses import Response
from starlette.types import Scope, Send

from hf_transformer.api.body import USUAL_TYPES, Bodies, parse_json, to_utf8
from hf_transformer.api.streaming import OpenStreams
from hf_transformer.core.limits import Admission
from hf_transformer.errors import UnknownModel
from hf_transformer.generation.chat import ChatTemplate
from hf_transformer.generation.types import GenerationRequest
from hf_transformer.generation.writing import Generation
from hf_transformer.observability.metrics import Metrics
from hf_transformer.observability.tracing.spans import Tracing
from hf_transformer.protocol.json_text import SMALL, JsonLimits
from hf_transformer.tasks.base import Servable
from hf_transformer.tasks.text_generation import TextGeneration
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import Answers, Context, Encoding, Json, ModelDescription, Query, TextInput, Tokenization
from hf_transformer.whole_response import WHOLE_RESPONSE, SendWhole

logger = logging.getLogger(__name__)

FORWARDED = frozenset((b"x-request-id", b"traceparent", b"tracestate", b"authorization"))
FORWARDED_PREFIX = b"x-b3-"
"""Headers that the predictor gets too, so that traces and permissions reach it."""
_USABLE_ID = re.compile(r"[ -~\xa0-\xff]{1,256}")
"""A request's id that goes back to its client, into logs and on: it has no control characters, those of terminals in
8 bits (C1) included. Any other is replaced."""


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


class Models:
    """The models by name; today there is one."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = {model.name: model for model in models}

    @property
    def names(self) -> list[str]:
        return list(self._models)

    @property
    def generate(self) -> bool:
        """Whether one of them generates text."""
        return any(isinstance(model.task, TextGeneration) for model in self._models.values())

    def __getitem__(self, name: str) -> Model:
        """Raises UnknownModel, naming the ones that there are."""
        try:
            return self._models[name]
        except KeyError:
            known = ", ".join(self._models)
            raise UnknownModel(f"model {name[:200]!r} is not served here; served: {known}") from None


@dataclass(frozen=True, slots=True)
class Service:
    """What every API is given.

    ``max_bytes`` is the size of a request (--max_request_bytes), after decompression too; ``max_texts`` how many texts
    one may have in any form: the larger of --max_instances and --max_sequences. ``server_timing`` says whether answers
    tell how long they took; without ``tracing`` there are no spans. ``executor`` has the threads for long work, None
    is the event loop's own. ``bodies`` counts the bytes of all bodies,
    ``streams`` are the answers that are sent as they come.
    """

    models: Models
    admission: Admission
    metrics: Metrics
    max_bytes: int
    max_texts: int
    server_timing: bool = True
    tracing: Tracing | None = None
    executor: Executor | None = None
    bodies: Bodies = field(default_factory=Bodies)
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
        if len(body) <= SMALL and body[:1] == b"{" and self.headers.get(b"content-type", b"") in USUAL_TYPES:
            try:
                return orjson.loads(body)  # as nearly all are: what follows would do no more
            except orjson.JSONDecodeError:
                pass  # it says what is wrong
        return parse_json(to_utf8(body, self.headers), self.limits)


@dataclass(slots=True)
class Reply:
    """What a call is answered with, under status 200."""

    body: bytes
    content_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


RenderError = Callable[[str, int], bytes]
"""An API's error body for a message and its HTTP status."""


class JsonResponse(Response):
    """JSON by orjson, as everywhere here."""

    media_type = "application/json"

    def __init__(self, content: Json, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status_code, headers)

    def render(self, content: Json) -> bytes:
        return orjson.dumps(content)


class RequestHead:
    """The headers of a request, and of all others that have the same.

    Args:
        fields: names in lower case.
    """

    __slots__ = ("_forwarded", "_has_id", "fields")

    def __init__(self, fields: Mapping[bytes, bytes]) -> None:
        self.fields = fields
        self._forwarded = {
            name.decode("latin-1"): fields[name].decode("latin-1")
            for name in fields
            if name in FORWARDED or name[:5] == FORWARDED_PREFIX
        }
        self._has_id = _USABLE_ID.fullmatch(self._forwarded.get("x-request-id", "")) is not None

    def context(self) -> Context:
        """For one request: its id, the client's own if it sent one that can be logged, and the headers that the
        predictor gets too."""
        forwarded = self._forwarded.copy()
        if not self._has_id:
            forwarded["x-request-id"] = new_request_id()
        return Context(forwarded["x-request-id"], forwarded)


def request_context(headers: Mapping[bytes, bytes]) -> Context:
    """The context of a request of which nothing is known but its headers."""
    return RequestHead(headers).context()


def new_request_id() -> str:
    """128 random bits, as a trace id has them; no secret, so that no request has to ask the kernel for them."""
    return random.getrandbits(128).to_bytes(16, "big").hex()


async def send_reply(scope: Scope, send: Send, status: int, reply: Reply, request_id: str) -> None:
    """Sends a whole response."""
    headers = head_of(reply, request_id)
    send_whole: SendWhole | None = scope.get(WHOLE_RESPONSE)
    if send_whole is not None and send_whole(status, headers, reply.body):
        return
    headers.append((b"content-length", str(len(reply.body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def head_of(reply: Reply, request_id: str) -> list[tuple[bytes, bytes]]:
    """A response's headers, without the length."""
    return [(b"content-type", reply.content_type), (b"x-request-id", request_id.encode("latin-1")), *reply.headers]


def lines_of(reply: Reply, request_id: str, timing: bytes = b"") -> bytes:
    """The same as the lines that it becomes, with how long the stages took if that is told."""
    more = b"".join([b"%b: %b\r\n" % pair for pair in reply.headers]) if reply.headers else b""
    named = request_id.encode("latin-1")
    timed = (b"server-timing: ", timing, b"\r\n") if timing else ()
    return b"".join((b"content-type: ", reply.content_type, b"\r\nx-request-id: ", named, b"\r\n", more, *timed))


def error_json(message: str, status: int) -> bytes:
    """The error body of V1 and V2."""
    return orjson.dumps({"error": message})
