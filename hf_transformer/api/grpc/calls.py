"""What all gRPC methods share: a call's context, the calls in progress, and how a call is refused."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from hf_transformer.api.auth import HEADERS
from hf_transformer.api.call import FORWARDED, IGNORED, ignored_names, new_request_id
from hf_transformer.api.endpoint import server_timing
from hf_transformer.api.errors import to_request_error
from hf_transformer.errors import RequestError
from hf_transformer.types.request import Context

REQUEST_ID = "x-request-id"
_FORWARDED = frozenset((REQUEST_ID, *(name.decode() for name in FORWARDED)))
_KEYS = frozenset(name.decode() for name in HEADERS)
_USABLE_ID = re.compile(r"[!-~]{1,128}")
"""A request id that metadata can carry. gRPC would refuse the whole answer for another one."""
MOST_DETAILS = 2000
"""Bytes of a message. gRPC sends it as a header, three bytes for each that is not ASCII; clients take 8 KiB in all."""
PATIENCE = 3.0
"""Seconds that a client has to take a message once the server is closing."""

Rpc = grpc.aio.ServicerContext[Any, Any]
Answer = Callable[[bytes, Context], Awaitable[bytes]]
"""A method's own part: serialized request -> serialized response."""


class CallsInProgress:
    """Counts the calls that are worked on; ``begun`` counts all. An answer may still be on its way to its client.

    With ``keys`` clients send API keys, which the predictor does not get; with ``timing`` answers have Server-Timing.
    """

    def __init__(self, *, keys: bool = False, timing: bool = True) -> None:
        self.begun = self.open = 0
        self._none = asyncio.Event()
        self._none.set()
        self._forwarded = _FORWARDED - _KEYS if keys else _FORWARDED
        self._timing = timing

    def __enter__(self) -> None:
        self.begun += 1
        self.open += 1
        self._none.clear()

    def __exit__(self, *error: object) -> None:
        self.open -= 1
        if not self.open:
            self._none.set()

    async def over(self) -> None:
        """Waits until there are none."""
        await self._none.wait()

    def context(self, rpc: Rpc) -> Context:
        """A call's context, as base.context_of over HTTP: metadata for the predictor, and the caller's deadline. Its id
        is that of the metadata, or empty."""
        metadata = rpc.invocation_metadata() or ()
        headers = {name: one for name, one in metadata if name in self._forwarded and isinstance(one, str)}
        remaining = rpc.time_remaining()
        deadline = None if remaining is None else asyncio.get_running_loop().time() + remaining
        request_id = headers.get(REQUEST_ID, "")
        if request_id and not _USABLE_ID.fullmatch(request_id):
            request_id = headers.pop(REQUEST_ID)[:0]
        context = Context(request_id, headers, deadline=deadline)
        context.arrived = time.perf_counter()
        return context

    def unary(self, answer: Answer) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A method with one request and one response. Both stay bytes: the codec parses them with less copying."""

        async def call(body: bytes, rpc: Rpc) -> bytes:
            context, failure = self.context(rpc), None
            try:
                with self:
                    response = await answer(body, context)
            except Exception as error:
                identify(context)
                failure = without_frames(to_request_error(error, context))
            if failure is not None:
                del body  # gRPC keeps the frames of an aborted call until the collector comes
                await refuse(rpc, failure, context)
            trailing = trailing_of(context)
            if self._timing and context.predict > 0:
                trailing.append(("server-timing", server_timing(context).decode()))
            rpc.set_trailing_metadata(tuple(trailing))
            return response

        return grpc.unary_unary_rpc_method_handler(call)


def trailing_of(context: Context) -> list[tuple[str, str]]:
    """The trailing metadata of every call: its id, and the names that were ignored if there are any."""
    trailing = [(REQUEST_ID, identify(context))]
    if context.ignored:
        trailing.append((IGNORED, ignored_names(context)))
    return trailing


def fork(context: Context) -> Context:
    """The context of one request of a stream, which tells the ignored names of all its requests at its end."""
    found = Context(context.request_id, dict(context.headers), deadline=context.deadline)
    found.ignored = context.ignored
    found.arrived = time.perf_counter()
    return found


def identify(context: Context, message_id: str = "") -> str:
    """The request id: that of the metadata, else that of the message, else a new one. The predictor gets it too."""
    if not context.request_id:
        usable = message_id and _USABLE_ID.fullmatch(message_id)
        context.request_id = message_id if usable else new_request_id()
        context.headers = {**context.headers, REQUEST_ID: context.request_id}
    return context.request_id


def without_frames(error: RequestError) -> RequestError:
    """The same error, without a traceback and the errors before it: their frames hold the request's message."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


async def refuse(rpc: Rpc, error: RequestError, context: Context, *, within: float | None = None) -> NoReturn:
    """Ends a call with an error, which the client has ``within`` seconds to take: gRPC keeps it behind the messages
    that are still on their way, until the client reads or is gone.

    Raises CancelledError if the client is gone, or was too slow; gRPC then ends the call silently.
    """
    trailing = trailing_of(context)
    if error.retry_after is not None:
        trailing.append(("retry-after", str(error.retry_after)))
    try:
        async with asyncio.timeout(within):
            await rpc.abort(grpc.StatusCode[error.grpc_code], details_of(error), tuple(trailing))
    except (grpc.aio.InternalError, TimeoutError):
        raise asyncio.CancelledError from None


def details_of(error: RequestError) -> str:
    """The error's message, cut to what fits."""
    return str(error).encode(errors="replace")[:MOST_DETAILS].decode(errors="ignore")
