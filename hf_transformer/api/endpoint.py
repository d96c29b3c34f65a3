"""One POST route: from a request's body to a whole response or a stream, whichever API it belongs to."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from hf_transformer.api.base import Call, RenderError, Reply, RequestHead, Service, lines_of, send_reply
from hf_transformer.api.body import ClientGone, read_body
from hf_transformer.api.sending import SERVER_TIMING, AsgiSink, Sender, ShortSink
from hf_transformer.api.server_timing import server_timing
from hf_transformer.api.streaming import Stream
from hf_transformer.api.watching import Departure, Watches
from hf_transformer.eager import Eager
from hf_transformer.errors import RequestError
from hf_transformer.observability.tracing.spans import Trace
from hf_transformer.protocol.json_text import JsonLimits
from hf_transformer.short_way import Begin, Headers, Response, ShortWay
from hf_transformer.types import Context

logger = logging.getLogger(__name__)

CLIENT_GONE = 499
"""The status that a request is counted under whose client left before the answer, as in nginx."""

Handle = Callable[[Call], Coroutine[Any, Any, Reply | Stream]]
"""An API's own part: finds the model, parses the body, asks the model, renders the answer."""


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
        context, trace = self._begin(RequestHead(headers))
        reply = None
        try:
            status, reply = await self._answer(scope, receive, send, headers, context)
        except ClientGone:
            status = CLIENT_GONE
        self._metrics.count_request(self._api, status)
        if reply is not None:
            if self._is_timed(status, context):
                reply.headers = (*reply.headers, (SERVER_TIMING, server_timing(context.timings)))
            await send_reply(scope, send, status, reply, context.request_id)
        if self._tracing is not None and trace is not None:
            self._tracing.end_http(trace, scope["method"], scope["path"], scope["scheme"], status, context)

    def short_way(self, path: str, params: Mapping[str, str]) -> ShortWay:
        """For requests to this path, if its handler never streams and asks for no task; see short_way.py.

        Args:
            path: what is asked for.
            params: what the path names.
        """

        def way(headers: Headers) -> Begin:
            head = RequestHead(dict(headers))

            def begin(body: bytes, scheme: str, response: Response) -> Callable[[], object]:
                context, trace = (head.context(), None) if self._tracing is None else self._begin(head)

                def done(answer: tuple[int, Reply | None] | None, error: BaseException | None) -> None:
                    try:
                        if answer is None and isinstance(error, Exception):
                            raise error
                        status, reply = answer or (CLIENT_GONE, None)
                        if reply is not None:
                            self._respond(response, status, reply, context)
                        self._count(path, scheme, status, context, trace)  # nobody waits for this any more
                    except Exception:  # a fault of our own in telling of one: the event loop logs it
                        response.break_off()
                        raise

                return Eager(self._answer_whole(params, head.fields, body, context), done).cancel

            return begin

        return way

    def short_way_in_task(self, path: str, params: Mapping[str, str]) -> ShortWay:
        """The same for a handler that may answer with a stream, or asks for its task."""

        def way(headers: Headers) -> Begin:
            head = RequestHead(dict(headers))

            def begin(body: bytes, scheme: str, response: Response) -> Callable[[], object]:
                departure = Departure()

                async def work() -> None:
                    departure.task = asyncio.current_task()
                    status, reply = CLIENT_GONE, None
                    try:
                        context, trace = self._begin(head)
                        try:
                            if not departure.gone:
                                status, reply = await self._answer_whole(
                                    params, head.fields, body, context, response, departure
                                )
                        except ClientGone:
                            pass
                        if reply is not None:
                            self._respond(response, status, reply, context)
                        self._count(path, scheme, status, context, trace)
                    except BaseException:  # the server gives it up, or a fault of our own: the event loop logs it
                        response.break_off()
                        raise

                response.hold(asyncio.get_running_loop().create_task(work()))
                return departure.happens

            return begin

        return way

    def _count(self, path: str, scheme: str, status: int, context: Context, trace: Trace | None) -> None:
        """A request on its short way is over."""
        self._metrics.count_request(self._api, status)
        if self._tracing is not None and trace is not None:
            self._tracing.end_http(trace, "POST", path, scheme, status, context)

    def _respond(self, response: Response, status: int, reply: Reply, context: Context) -> None:
        """Sends a whole answer."""
        timed = self._server_timing and status == 200 and context.timings.predict > 0
        timing = server_timing(context.timings) if timed else b""
        response.whole(status, lines_of(reply, context.request_id, timing), reply.body)

    def _begin(self, head: RequestHead) -> tuple[Context, Trace | None]:
        context = head.context()
        trace = None
        if self._tracing is not None:
            context.headers, trace = self._tracing.begin(context.headers)
        return context, trace

    def _is_timed(self, status: int, context: Context) -> bool:
        """Whether the answer tells how long it took."""
        return self._server_timing and status == 200 and context.timings.predict > 0

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
                sink = AsgiSink(send)
                sender = Sender(sink, answer, context, timing=self._server_timing)
                return await sender.run(self._streams), None
            except asyncio.CancelledError:
                if watch.has_cancelled():
                    raise ClientGone from None
                raise
            finally:
                self._watches.end(watch)
                place.leave()
        except ClientGone:
            raise
        except Exception as error:
            return self._failed(error, context)
        finally:
            portion.give_back()

    async def _answer_whole(
        self,
        params: Mapping[str, str],
        headers: Mapping[bytes, bytes],
        body: bytes,
        context: Context,
        response: Response | None = None,
        departure: Departure | None = None,
    ) -> tuple[int, Reply | None]:
        """What ``_answer`` gives, for a request that is all there. In a task there are ``response``, which a stream is
        sent as, and ``departure``."""
        held = 0
        try:
            body = self._bodies.take_whole(body, headers, self._max_bytes)
            held = len(body)
            place = context.place = self._admission.enter(held)
            try:
                answer = await self._handle(Call(params, headers, body, context, self._limits))
                if isinstance(answer, Reply):
                    return 200, answer
                if response is None:
                    raise TypeError("a handler that has no task has answered with a stream")
                sender = Sender(ShortSink(response), answer, context, timing=self._server_timing)
                return await sender.run(self._streams), None
            except asyncio.CancelledError:
                if departure is not None and departure.has_cancelled():
                    raise ClientGone from None
                raise
            finally:
                place.leave()
        except ClientGone:
            raise
        except Exception as error:
            return self._failed(error, context)
        finally:
            self._bodies.held -= held

    def _failed(self, error: Exception, context: Context) -> tuple[int, Reply]:
        """How a request is answered that has failed."""
        if isinstance(error, RequestError):
            again = error.retry_after
            extra = ((b"retry-after", str(again).encode()),) if again is not None else ()
            return error.status, Reply(self._render_error(str(error), error.status), headers=extra)
        # The last resort for a fault of our own: it is logged whole, and the client is told where to look.
        named = {"request_id": context.request_id}
        logger.error("request %s failed by a fault of the service", context.request_id, extra=named, exc_info=error)
        return 500, Reply(self._render_error(f"internal error; the log has it under {context.request_id}", 500))
