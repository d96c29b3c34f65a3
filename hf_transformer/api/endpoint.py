"""One POST route, whichever API it belongs to: admission, body, errors, metrics and traces around it.

Request -> Call -> the API's handler -> Response | StreamForm -> Response | Stream
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from hf_transformer.api.base import Call, RenderError, Service, context_of, error_response
from hf_transformer.api.body import Portion, read_body
from hf_transformer.api.streaming import UNBUFFERED, StreamForm, pieces
from hf_transformer.core.limits import Admitted
from hf_transformer.errors import RequestError
from hf_transformer.protocol.json_text import JsonLimits
from hf_transformer.types import ClientGone, Context, Request, Response, Stream, Timings

if TYPE_CHECKING:
    from hf_transformer.observability.tracing import Trace  # OpenTelemetry is an extra

logger = logging.getLogger(__name__)

CLIENT_GONE: Final = 499
"""The status that a request is counted under whose client left before the answer, as in nginx."""

Handle = Callable[[Call], Awaitable[Response | StreamForm]]
"""An API's own part: finds the model, parses the body, asks the model, renders the answer."""


class Endpoint:
    """A POST route.

    Args:
        api: the name of the API in the metrics.
        handle: its own part.
        render_error: its error body.
    """

    def __init__(self, api: str, handle: Handle, render_error: RenderError, service: Service) -> None:
        self._api = api
        self._handle = handle
        self._render_error = render_error
        self.service = service
        self._limits = JsonLimits.of(service.max_texts, service.max_bytes)

    async def __call__(self, request: Request) -> Response | Stream:
        """Answers one request, whatever its method. Raises ClientGone."""
        context, trace = context_of(request), None
        if self.service.tracing is not None:
            context.headers, trace = self.service.tracing.begin(context.headers)
        work = _Work(self, request, context, trace)
        try:
            answer = await self._answer(work)
        except (asyncio.CancelledError, ClientGone):
            work.end(CLIENT_GONE)
            raise
        except Exception as error:
            answer = self._failed(error, context)
        if isinstance(answer, Response):
            work.end(answer.status)
        if answer.status == 200 and self.service.server_timing and context.timings.predict > 0:
            answer.headers.append((b"server-timing", server_timing(context.timings)))
        return answer

    async def _answer(self, work: _Work) -> Response | Stream:
        request, service = work.request, self.service
        if request.method != "POST":
            # The route takes every method, or GET would fall through to the route of a model with a colon in its name.
            message = f"{request.method[:20]} {request.path[:200]}: Method Not Allowed, expected POST"
            answer = error_response(self._render_error, message, 405)
            answer.headers.append((b"allow", b"POST"))
            return answer
        service.admission.require()
        # The place is taken after the body: a client that sends slowly keeps no other one out.
        body = await read_body(request, service.max_bytes, work.portion)
        context = work.context
        context.timings.arrived = time.perf_counter()
        work.place = context.place = service.admission.enter(len(body))
        found = await self._handle(Call(request.params, request.headers, body, context, self._limits))
        if isinstance(found, Response):
            return found
        parts = self._parts(found, work)
        first = await anext(parts)
        return Stream(200, first, parts, [(b"content-type", found.content_type), *UNBUFFERED])

    async def _parts(self, form: StreamForm, work: _Work) -> AsyncGenerator[bytes, None]:
        """The pieces of a stream, which holds its place and its body until it ends."""
        status, has_begun = CLIENT_GONE, False

        def failed(number: int) -> None:
            nonlocal status
            status = number

        try:
            async with aclosing(pieces(form, self.service.streams, work.context, failed)) as parts:
                async for part in parts:
                    has_begun = True
                    yield part
            if status == CLIENT_GONE:
                status = 200
        finally:
            if has_begun:  # else it is told as any other error
                work.end(status)

    def _failed(self, error: Exception, context: Context) -> Response:
        """How a request is answered that has failed."""
        if isinstance(error, RequestError):
            answer = error_response(self._render_error, str(error), error.status)
            if error.retry_after is not None:
                answer.headers.append((b"retry-after", b"%d" % error.retry_after))
            return answer
        # The last resort for a fault of our own: it is logged whole, and the client is told where to look.
        named = {"request_id": context.request_id}
        logger.error("request %s failed by a fault of the service", context.request_id, extra=named, exc_info=error)
        message = f"internal error; the log has it under {context.request_id}"
        return error_response(self._render_error, message, 500)

    def count(self, work: _Work, status: int) -> None:
        """Counts a request that is over."""
        self.service.metrics.count_request(self._api, status)
        if self.service.tracing is not None and work.trace is not None:
            self.service.tracing.end_http(work.trace, work.request, status, work.context)


class _Work:
    """What one request holds while it is worked on: its body's bytes and its place."""

    __slots__ = ("_endpoint", "context", "place", "portion", "request", "trace")

    def __init__(self, endpoint: Endpoint, request: Request, context: Context, trace: Trace | None) -> None:
        self._endpoint = endpoint
        self.request = request
        self.context = context
        self.trace = trace
        self.portion: Portion = endpoint.service.bodies.portion()
        self.place: Admitted | None = None

    def end(self, status: int) -> None:
        """Gives all of it back; to be called once."""
        self.portion.give_back()
        if self.place is not None:
            self.place.leave()
        self._endpoint.count(self, status)


def server_timing(timings: Timings) -> bytes:
    """The value of the header Server-Timing, in milliseconds: where the time of one request went. ``predict`` is what
    is left of it without ``queue``. Source: https://www.w3.org/TR/server-timing/"""
    parse, tokenize, queue, decode = timings.parse, timings.tokenize, timings.queue, timings.postprocess
    predict = max(timings.predict - queue, 0.0)
    return b"parse;dur=%.3f, tokenize;dur=%.3f, queue;dur=%.3f, predict;dur=%.3f, decode;dur=%.3f" % (
        parse * 1e3,
        tokenize * 1e3,
        queue * 1e3,
        predict * 1e3,
        decode * 1e3,
    )
