"""What the APIs share: the model behind them, admission, and for HTTP bodies, headers and how a failure is answered."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hf_transformer.admission import Admission
from hf_transformer.apis.body import Bodies, ClientGone, parse_json, read_body, to_utf8
from hf_transformer.apis.running import Running
from hf_transformer.apis.server_timing import server_timing
from hf_transformer.apis.streaming import OpenStreams, Sender, Stream
from hf_transformer.apis.watching import Watches
from hf_transformer.errors import RequestError, UnknownModel
from hf_transformer.generation.chat import ChatTemplate
from hf_transformer.generation.types import GenerationRequest
from hf_transformer.metrics import Metrics
from hf_transformer.tasks.base import Servable
from hf_transformer.tokenizer import Tokenizer
from hf_transformer.tracing.spans import Tracing
from hf_transformer.types import Answers, Context, Encoding, Json, ModelDescription, Query, TextInput, Tokenization
from hf_transformer.whole_response import WHOLE_RESPONSE, SendWhole
from hf_transformer.wire.json_text import JsonLimits

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
    async def generate(self, request: GenerationRequest, context: Context) -> Running: ...
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
        return parse_json(to_utf8(self.body, self.headers), self.limits)


@dataclass(slots=True)
class Reply:
    """What a call is answered with, under status 200."""

    body: bytes
    content_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


CLIENT_GONE = 499
"""The status that a request is counted under whose client left before the answer, as in nginx."""

Handle = Callable[[Call], Awaitable[Reply | Stream]]
"""An API's own part: finds the model, parses the body, asks the model, renders the answer."""
RenderError = Callable[[str, int], bytes]
"""An API's error body for a message and its HTTP status."""


class Endpoint:
    """A POST route as a bare ASGI endpoint: no Request and Response objects, a third of a short request's CPU.

    Args:
        api: the name of the API in the metrics.
        handle: its own part.
        render_error: its error body.
    """

    def __init__(self, api: str, handle: Handle, render_error: RenderError, service: Service) -> None:
        self._api = api
        self._handle = handle
        self._render_error = render_error
        self._admission = service.admission
        self._metrics = service.metrics
        self._max_bytes = service.max_bytes
        self._limits = JsonLimits.of(service.max_texts, service.max_bytes)
        self._watches = Watches()
        self._server_timing = service.server_timing
        self._tracing = service.tracing
        self._bodies = service.bodies
        self._streams = service.streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        context = request_context(headers)
        trace = None
        if self._tracing is not None:
            context.headers, trace = self._tracing.begin(context.headers)
        reply = None
        try:
            status, reply = await self._answer(scope, receive, send, headers, context)
        except ClientGone:
            status = CLIENT_GONE
        self._metrics.count_request(self._api, status)
        if reply is not None:
            if self._server_timing and context.timings.predict and status == 200:
                reply.headers = (*reply.headers, (b"server-timing", server_timing(context.timings)))
            await send_reply(scope, send, status, reply, context.request_id)
        if self._tracing is not None and trace is not None:
            self._tracing.end_http(trace, scope["method"], scope["path"], scope["scheme"], status, context)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, headers: Mapping[bytes, bytes], context: Context
    ) -> tuple[int, Reply | None]:
        """Status and body; a stream has been sent. Raises ClientGone where nobody waits for them."""
        if scope["method"] != "POST":
            # The route takes every method, or GET would fall through to the route of a model with a colon in its name.
            message = f"{scope['method'][:20]} {scope['path'][:200]}: Method Not Allowed, expected POST"
            return 405, Reply(self._render_error(message, 405), headers=((b"allow", b"POST"),))
        portion = self._bodies.portion()
        try:
            # The place is taken after the body: a client that sends slowly keeps no other one out.
            body = await read_body(receive, headers, self._max_bytes, portion)
            context.timings.arrived = time.perf_counter()
            place = context.place = self._admission.enter(len(body))
            watch = self._watches.begin(receive)
            try:
                answer = await self._handle(Call(scope["path_params"], headers, body, context, self._limits))
                if isinstance(answer, Reply):
                    return 200, answer
                # Nobody may wait a part of a second, or for the next piece, to see that a stream's client has left.
                watch.begin(asyncio.get_running_loop())
                sender = Sender(send, answer, context, timing=self._server_timing)
                return await sender.run(self._streams), None
            except asyncio.CancelledError:
                if watch.has_cancelled():
                    raise ClientGone from None
                raise
            finally:
                self._watches.end(watch)
                place.leave()
        except RequestError as error:
            again = error.retry_after
            extra = ((b"retry-after", str(again).encode()),) if again is not None else ()
            return error.status, Reply(self._render_error(str(error), error.status), headers=extra)
        except ClientGone:
            raise
        except Exception:
            # The last resort for a fault of our own: it is logged whole, and the client is told where to look.
            named = {"request_id": context.request_id}
            logger.exception("request %s failed by a fault of the service", context.request_id, extra=named)
            return 500, Reply(self._render_error(f"internal error; the log has it under {context.request_id}", 500))
        finally:
            portion.give_back()


class JsonResponse(Response):
    """JSON by orjson, as everywhere here."""

    media_type = "application/json"

    def __init__(self, content: Json, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status_code, headers)

    def render(self, content: Json) -> bytes:
        return orjson.dumps(content)


def request_context(headers: Mapping[bytes, bytes]) -> Context:
    """The request's id, the client's own if it sent one that can be logged, and the headers that the predictor gets
    too."""
    forwarded = {
        name.decode("latin-1"): headers[name].decode("latin-1")
        for name in headers
        if name in FORWARDED or name[:5] == FORWARDED_PREFIX
    }
    request_id = forwarded.get("x-request-id", "")
    if not _USABLE_ID.fullmatch(request_id):
        request_id = forwarded["x-request-id"] = new_request_id()
    return Context(request_id, forwarded)


def new_request_id() -> str:
    """128 random bits, as a trace id has them; no secret, so that no request has to ask the kernel for them."""
    return f"{random.getrandbits(128):032x}"


async def send_reply(scope: Scope, send: Send, status: int, reply: Reply, request_id: str) -> None:
    """Sends a whole response."""
    headers = [
        (b"content-type", reply.content_type),
        (b"x-request-id", request_id.encode("latin-1")),
        *reply.headers,
    ]
    send_whole: SendWhole | None = scope.get(WHOLE_RESPONSE)
    if send_whole is not None and send_whole(status, headers, reply.body):
        return
    headers.append((b"content-length", str(len(reply.body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def error_json(message: str, status: int) -> bytes:
    """The error body of V1 and V2."""
    return orjson.dumps({"error": message})
