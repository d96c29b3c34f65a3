"""POST routes of all APIs, with admission, request bodies, errors, metrics and traces.

Request -> Call -> handler of the API -> Response | TextStream -> Response | Stream
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from hf_transformer.api.body import read_body
from hf_transformer.api.call import IGNORED, Call, context_of, read_json
from hf_transformer.api.errors import RenderError, error_response, to_request_error
from hf_transformer.api.service import Service
from hf_transformer.api.streaming import UNBUFFERED, TextStream, pieces
from hf_transformer.core.budget import Budget
from hf_transformer.core.limits import AdmissionTicket
from hf_transformer.errors import RequestError
from hf_transformer.observability.access_log import CLIENT_CLOSED
from hf_transformer.protocol.json_text import SMALL_BYTES, JsonLimits
from hf_transformer.types.http import ClientGone, Request, Response, Stream
from hf_transformer.types.request import Context

if TYPE_CHECKING:
    from hf_transformer.observability.tracing import Trace  # OpenTelemetry is optional

UNHELD_BYTES = 64 * 1024
"""Bytes of a response that don't count in Admission until the client has read them."""
Handle = Callable[[Call], Awaitable[Response | TextStream]]
"""An API's handler: finds the model, parses the body, runs the model and renders the response."""


class Endpoint:
    """A POST route. ``api`` is the API label in metrics, and ``render_error`` renders error bodies.

    ``methods`` lists the methods of the path, for errors, if it has other routes too. ``status`` returns the API's
    status of an error; None for the service's own. ``parse`` makes of a body what the handler gets
    by ``Call.once``.
    """

    def __init__(
        self,
        api: str,
        handle: Handle,
        render_error: RenderError,
        service: Service,
        methods: str = "POST",
        status: Callable[[RequestError], int] | None = None,
        *,
        parse: Callable[[Call], object] = read_json,
    ) -> None:
        self._api = api
        self._handle = handle
        self._render_error = render_error
        self._status = status
        self.service = service
        self._methods = methods
        self._parse = parse
        self._limits = JsonLimits.of(service.limits.max_texts, service.max_bytes, service.max_json_depth)

    async def __call__(self, request: Request) -> Response | Stream:
        """Answers a request; methods other than POST get status 405. Raises ClientGone."""
        service = self.service
        answer: Response | Stream | None = None
        context = context_of(request)
        ticket = context.ticket = AdmissionTicket(service.admission)
        budget = context.budget = Budget(service.limits, ticket)
        trace = None
        if service.tracing is not None:
            context.headers, trace = service.tracing.begin(context.headers)
        try:
            if request.method != "POST":
                # GET must not reach the fallback route /v1/models/{model}, which also matches a colon.
                wrong = f"{request.method[:20]} {request.path[:200]}: Method Not Allowed, expected {self._methods}"
                answer = error_response(
                    self._render_error, RequestError(wrong), 405, (b"allow", self._methods.encode())
                )
            else:
                # read_body has checked for room, but the request takes its slot only after the upload, so that slow
                # uploads don't occupy one. The estimate of its tokens holds from then on, so it is parsed before.
                body = await read_body(request, service.max_bytes, ticket)
                context.arrived = perf_counter()
                path = request.params if not request.query else with_query(request)
                call = Call(path, request.headers, body, context, self._limits, budget, len(body))
                del body  # it would take memory beside its parsed form
                if call.size > SMALL_BYTES:
                    await service.in_turn(lambda: call.once(self._parse))
                ticket.enter()
                result = await self._handle(call)
                if isinstance(result, Response):
                    answer = result
                else:  # wait for the first piece, since an earlier error changes the status
                    parts = self._parts(result, request, context, trace)
                    headers = [(b"content-type", result.content_type), *UNBUFFERED]
                    answer = Stream(200, await anext(parts), parts, headers)
        except (asyncio.CancelledError, ClientGone):
            raise
        except Exception as failure:
            answer = failure_response(failure, context, self._render_error, self._status)
        finally:
            if isinstance(answer, Response) and len(answer.body) > UNHELD_BYTES:
                ticket.keep(len(answer.body))  # a client that does not read leaves it in memory
                answer.sent = ticket.leave
                context.ticket = None
            if not isinstance(answer, Stream):
                self._end(request, context, trace, CLIENT_CLOSED if answer is None else answer.status)
        if context.ignored:
            answer.headers.append((IGNORED.encode(), ", ".join(context.ignored).encode()))
        if answer.status == 200 and service.server_timing and context.predict > 0:
            answer.headers.append((b"server-timing", server_timing(context, service.tokenize_timing)))
        return answer

    def _end(self, request: Request, context: Context, trace: Trace | None, status: int) -> None:
        """Releases a request's admission, and records its metrics and trace."""
        if context.ticket is not None:
            context.ticket.leave()
        self.service.metrics.count_request(context.api or self._api, status, context.arrived, context.served_name)
        if trace is not None and self.service.tracing is not None:
            self.service.tracing.end_http(trace, request, status, context)

    async def _parts(
        self, stream: TextStream, request: Request, context: Context, trace: Trace | None
    ) -> AsyncGenerator[bytes, None]:
        """Yields the pieces of a stream. The request keeps its admission until the stream ends."""
        status, has_begun = CLIENT_CLOSED, False
        try:
            try:
                async with aclosing(pieces(stream, self.service.streams)) as parts:
                    async for part in parts:
                        has_begun = True
                        yield part
                status = 200
            except Exception as error:
                if not has_begun:
                    raise
                failure = to_request_error(error, context)
                status, last = failure.status, stream.error(failure)
                del failure  # its traceback may refer to this frame
                yield last
        finally:
            if has_begun:  # otherwise __call__ calls _end
                self._end(request, context, trace, status)


def failure_response(
    error: Exception, context: Context, render: RenderError, status: Callable[[RequestError], int] | None = None
) -> Response:
    """The response to a failed request, with the error's own status or that of ``status``."""
    failure = to_request_error(error, context)
    retry = [] if failure.retry_after is None else [(b"retry-after", b"%d" % failure.retry_after)]
    return error_response(render, failure, failure.status if status is None else status(failure), *retry)


def with_query(request: Request) -> Mapping[str, str]:
    """The path parameters, and ``model`` from the query (?model=NAME) for a route without a model in its path."""
    names = parse_qs(request.query.decode("latin-1"), keep_blank_values=True).get("model")
    return request.params if names is None else {"model": names[-1], **request.params}


def server_timing(context: Context, tokenize: bool = False) -> bytes:
    """The Server-Timing header: durations of a request's stages in milliseconds. ``predict`` excludes ``queue``.

    Tokenization is among them only with ``tokenize`` (--enable_tokenize_timing): it takes less time for words that
    other clients have sent before (the word cache).

    Source: https://www.w3.org/TR/server-timing/"""
    return b"parse;dur=%.3f, %squeue;dur=%.3f, predict;dur=%.3f, decode;dur=%.3f" % (
        context.parse * 1e3,
        b"tokenize;dur=%.3f, " % (context.tokenize * 1e3) if tokenize else b"",
        context.queue * 1e3,
        max(context.predict - context.queue, 0.0) * 1e3,
        context.postprocess * 1e3,
    )
