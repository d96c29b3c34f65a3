"""ASGI adapters: an ASGI application as a request handler, and this service as an ASGI application.

Source: https://asgi.readthedocs.io/en/latest/specs/www.html
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hf_transformer.types.http import Application, ClientGone, Request, Response, Stream

logger = logging.getLogger(__name__)


async def call_asgi(app: ASGIApp, request: Request) -> Response | Stream:
    """Calls an ASGI application. Returns a Response if its body is one message, else a Stream.

    Raises the application's errors before its response starts. Later errors are logged, or end the stream. Cancellation
    ends the application.
    """
    call = _Call(request)
    task = asyncio.ensure_future(app(request.scope(), call.receive, call.send))
    task.add_done_callback(call.end)
    try:
        start, body = await call.next(), await call.next()
    except BaseException:
        await call.close(task)
        raise
    headers = [(name.lower(), value) for name, value in start.get("headers", ()) if name.lower() != b"content-length"]
    status, first = start["status"], body.get("body", b"")
    if not body.get("more_body", False):
        try:
            await task
        except Exception:  # Starlette sends a response with status 500, and then raises its handler's error
            logger.exception("%s %s failed by a fault of the service", request.method[:20], request.path[:200])
        return Response(status, first, headers)
    parts = _parts(call, task, first)
    return Stream(status, await anext(parts), parts, headers)


async def _parts(call: _Call, task: asyncio.Future[Any], first: bytes) -> AsyncGenerator[bytes, None]:
    try:
        yield first
        more = True
        while more:
            message = await call.next()
            more = message.get("more_body", False)
            yield message.get("body", b"")
    finally:
        await call.close(task)


async def _cancel(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.wait(
        (task,)
    )  # unlike await, wait does not raise the task's error, whose traceback would keep this frame


class _Call:
    """One call of an ASGI application. ``send`` blocks until the previous message is read."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._messages: asyncio.Queue[Message | Exception] = asyncio.Queue(1)
        self._error: Exception | None = None  # the application's error, raised after its messages
        self._has_body = False

    async def receive(self) -> Message:
        if self._has_body:
            await asyncio.get_running_loop().create_future()  # until the client disconnects, which cancels this task
        body = await self._request.read()
        self._has_body = not body
        return {"type": "http.request", "body": body, "more_body": bool(body)}

    async def send(self, message: Message) -> None:
        await self._messages.put(message)

    async def next(self) -> Message:
        """Returns the application's next message. Raises the application's error after the last message."""
        if self._error is not None and self._messages.empty():
            raise self._error
        message = await self._messages.get()
        if isinstance(message, Exception):
            raise message
        return message

    def end(self, task: asyncio.Future[Any]) -> None:
        """Passes the application's error to the reader of messages. Called at the end of the application's task."""
        if task.cancelled():
            return
        error = task.exception()
        self._error = (
            error if isinstance(error, Exception) else RuntimeError("the ASGI application ended without an answer")
        )
        with suppress(asyncio.QueueFull):  # the reader takes the message first, then _error
            self._messages.put_nowait(self._error)

    async def close(self, task: asyncio.Future[Any]) -> None:
        """Cancels the application, and drops its error, which refers back to this call."""
        await _cancel(task)
        self._error, self._messages = None, asyncio.Queue(1)


class AsgiApplication:
    """ASGI application of the service, for any server. The built-in server calls ``application`` directly.

    Args:
        application: the handler of requests.
        inner: the ASGI application for the lifespan.
        on_shutdown: callbacks for the event loop when shutdown starts; requests in flight are still answered.
    """

    def __init__(
        self, application: Application, inner: ASGIApp, on_shutdown: Sequence[Callable[[], object]] = ()
    ) -> None:
        self.application = application
        self.inner = inner
        self._on_shutdown = on_shutdown

    def start_shutdown(self) -> None:
        """Runs the callbacks for the start of shutdown."""
        for callback in self._on_shutdown:
            callback()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        request = _AsgiRequest(scope)
        disconnect = asyncio.ensure_future(request.listen(receive))
        task = asyncio.ensure_future(self._answer(request, send))
        try:
            await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnect.cancel()
            if not task.done():
                await _cancel(task)
        if not task.cancelled():  # cancelled when the client disconnects, which servers would log as a failure
            task.result()

    async def _answer(self, request: Request, send: Send) -> None:
        answer, sent, size = None, False, 0
        try:
            try:
                answer = await self.application.handle(request)
            except ClientGone:
                return
            except Exception:
                logger.exception("request %s failed by a fault of the service", request.id)
                answer = self.application.refuse(request, 500, f"internal error; the log has it under {request.id}")
            sent = True
            if isinstance(answer, Response):
                size = len(answer.body)
                length = [(b"content-length", b"%d" % size)]
                await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers + length})
                await send({"type": "http.response.body", "body": answer.body})
                return
            async with aclosing(answer.parts):
                await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
                part: bytes | None = answer.first
                while part is not None:
                    size += len(part)
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                    part = await anext(answer.parts, None)
                await send({"type": "http.response.body"})
        finally:
            if isinstance(answer, Response) and answer.sent is not None:
                answer.sent()
            if request.log is not None:
                self.application.finished(request, answer if sent else None, size)


class _AsgiRequest(Request):
    __slots__ = ("_pieces", "_scope")

    def __init__(self, scope: Scope) -> None:
        raw_path = scope.get("raw_path") or scope["path"].encode("latin-1", "replace")
        fields = [(name.lower(), value) for name, value in scope["headers"]]
        query = scope.get("query_string", b"")
        version, scheme = scope.get("http_version", "1.1"), scope.get("scheme", "http")
        super().__init__(scope["method"], scope["path"], raw_path, query, fields, version, scheme)
        self._scope = scope
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(1)

    async def listen(self, receive: Receive) -> None:
        """Receives the body at the pace of its reader. Returns when the client disconnects."""
        while (message := await receive())["type"] == "http.request":
            if body := message.get("body", b""):
                await self._pieces.put(body)
            if not message.get("more_body", False):
                await self._pieces.put(b"")

    async def read(self) -> bytes:
        piece = await self._pieces.get()
        if not piece:
            self._pieces.put_nowait(b"")
        return piece

    @property
    def client(self) -> tuple[str, int] | None:
        return self._scope.get("client")

    @property
    def server(self) -> tuple[str, int] | None:
        return self._scope.get("server")
