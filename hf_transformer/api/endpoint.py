"""One POST route, whichever API it belongs to: admission, body, errors, metrics and traces around it.

Request -> Call -> the API's handler -> Response | TextStream -> Response | Stream
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from time import perf_counter
from typing import TYPE_CHECKING

from hf_transformer.api.body import read_body
from hf_transformer.api.call import IGNORED, Call, context_of, ignored_names
from hf_transformer.api.errors import RenderError, as_request_error, error_response
from hf_transformer.api.service import Service
from hf_transformer.api.streaming import UNBUFFERED, TextStream, pieces
from hf_transformer.core.limits import AdmissionTicket
from hf_transformer.observability.access_log import CLIENT_CLOSED
from hf_transformer.protocol.json_text import JsonLimits
from hf_transformer.types.http import ClientGone, Request, Response, Stream
from hf_transformer.types.request import Context

if TYPE_CHECKING:
    from hf_transformer.observability.tracing import Trace  # OpenTelemetry is an extra

Handle = Callable[[Call], Awaitable[Response | TextStream]]
"""An API's own part: finds the model, parses the body, asks the model, renders the answer."""


class Endpoint:
    """A POST route of the API that metrics call ``api``; ``render_error`` makes its error body."""

    def __init__(self, api: str, handle: Handle, render_error: RenderError, service: Service) -> None:
        self._api = api
        self._handle = handle
        self._render_error = render_error
        self.service = service
        self._limits = JsonLimits.of(service.max_texts, service.max_bytes, service.max_json_depth)

    async def __call__(self, request: Request) -> Response | Stream:
        """Answers one request, whatever its method. Raises ClientGone."""
        service = self.service
        answer: Response | Stream | None = None
        context = context_of(request)
        place = context.ticket = AdmissionTicket(service.admission)
        trace = None
        if service.tracing is not None:
            context.headers, trace = service.tracing.begin(context.headers)
        try:
            if request.method != "POST":
                # GET would fall through to the route of a model with a colon in its name.
                message = f"{request.method[:20]} {request.path[:200]}: Method Not Allowed, expected POST"
                answer = error_response(self._render_error, message, 405, (b"allow", b"POST"))
            else:
                # The place is taken after the body: a client that sends slowly keeps no other one out.
                body = await read_body(request, service.max_bytes, place)
                context.arrived = perf_counter()
                place.enter()
                found = await self._handle(Call(request.params, request.headers, body, context, self._limits))
                if isinstance(found, Response):
                    answer = found
                else:  # a stream whose first piece is there; what goes wrong before that has a status of its own
                    parts = self._parts(found, request, context, trace)
                    headers = [(b"content-type", found.content_type), *UNBUFFERED]
                    answer = Stream(200, await anext(parts), parts, headers)
        except (asyncio.CancelledError, ClientGone):
            raise
        except Exception as error:
            answer = self._failed(error, context)
        finally:
            if not isinstance(answer, Stream):
                self._end(request, context, trace, CLIENT_CLOSED if answer is None else answer.status)
        if context.ignored:
            answer.headers.append((IGNORED.encode(), ignored_names(context).encode()))
        if answer.status == 200 and service.server_timing and context.predict > 0:
            answer.headers.append((b"server-timing", server_timing(context)))
        return answer

    def _end(self, request: Request, context: Context, trace: Trace | None, status: int) -> None:
        """Gives back what a request holds, and counts it."""
        if context.ticket is not None:
            context.ticket.leave()
        self.service.metrics.count_request(self._api, status, context.arrived)
        if trace is not None and self.service.tracing is not None:
            self.service.tracing.end_http(trace, request, status, context)

    async def _parts(
        self, stream: TextStream, request: Request, context: Context, trace: Trace | None
    ) -> AsyncGenerator[bytes, None]:
        """The pieces of a stream, which holds its place and its body until it ends."""
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
                told = as_request_error(error, context.request_id, context.headers.get("traceparent"))
                status, last = told.status, stream.error(str(told), told.status)
                del told  # it may refer to this frame
                yield last
        finally:
            if has_begun:  # else it is counted as any other error
                self._end(request, context, trace, status)

    def _failed(self, error: Exception, context: Context) -> Response:
        """The answer to a request that has failed; not in __call__, whose frame the error may refer to."""
        told = as_request_error(error, context.request_id, context.headers.get("traceparent"))
        again = [] if told.retry_after is None else [(b"retry-after", b"%d" % told.retry_after)]
        return error_response(self._render_error, str(told), told.status, *again)


def server_timing(context: Context) -> bytes:
    """The value of the header Server-Timing, in milliseconds: where the time of one request went. ``predict`` is what
    is left of it without ``queue``. Source: https://www.w3.org/TR/server-timing/"""
    return b"parse;dur=%.3f, tokenize;dur=%.3f, queue;dur=%.3f, predict;dur=%.3f, decode;dur=%.3f" % (
        context.parse * 1e3,
        context.tokenize * 1e3,
        context.queue * 1e3,
        max(context.predict - context.queue, 0.0) * 1e3,
        context.postprocess * 1e3,
    )
