"""Shared handling of gRPC calls: their context, the number of active calls, and errors as statuses."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from hf_transformer.api.auth import HEADERS
from hf_transformer.api.call import FORWARDED, IGNORED, new_request_id
from hf_transformer.api.endpoint import server_timing
from hf_transformer.api.errors import to_request_error
from hf_transformer.errors import RequestError
from hf_transformer.types.request import Context

REQUEST_ID = "x-request-id"
_FORWARDED = frozenset((REQUEST_ID, *(name.decode() for name in FORWARDED)))
_KEY_HEADERS = frozenset(name.decode() for name in HEADERS)
_VALID_ID = re.compile(r"[!-~]{1,128}")
"""A request id that metadata can contain. gRPC fails the whole call for an invalid metadata value."""
MAX_DETAILS_BYTES = 2000
"""Maximum bytes of a status message. gRPC's header has three bytes per non-ASCII byte; clients accept 8 KiB of
headers."""
CLOSING_WRITE_SECONDS = 3.0
"""Maximum time for a client to read a message while the server is closing."""

Rpc = grpc.aio.ServicerContext[Any, Any]
UnaryMethod = Callable[[bytes, Context], Awaitable[bytes]]
"""Implementation of a unary method: converts a serialized request to a serialized response."""


class ActiveCalls:
    """Counts running handlers in ``active``, and all calls so far in ``started``.

    If ``keys`` is true, the predictor does not get the clients' API keys. If ``timing`` is true, responses have the
    trailing metadata server-timing, with the time of tokenization if ``tokenize_timing`` is true.
    """

    def __init__(self, *, keys: bool = False, timing: bool = True, tokenize_timing: bool = False) -> None:
        self.started = self.active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._forwarded = _FORWARDED - _KEY_HEADERS if keys else _FORWARDED
        self._timing, self._tokenize_timing = timing, tokenize_timing

    def __enter__(self) -> None:
        self.started += 1
        self.active += 1
        self._idle.clear()

    def __exit__(self, *error: object) -> None:
        self.active -= 1
        if not self.active:
            self._idle.set()

    async def wait_until_idle(self) -> None:
        """Waits until no handler runs. gRPC may still send a response afterwards."""
        await self._idle.wait()

    def context(self, rpc: Rpc) -> Context:
        """Returns a call's context: forwarded metadata, deadline and request id. An invalid or missing id is empty."""
        metadata = rpc.invocation_metadata() or ()
        headers = {name: value for name, value in metadata if name in self._forwarded and isinstance(value, str)}
        remaining = rpc.time_remaining()
        deadline = None if remaining is None else asyncio.get_running_loop().time() + remaining
        request_id = headers.get(REQUEST_ID, "")
        if request_id and not _VALID_ID.fullmatch(request_id):
            del headers[REQUEST_ID]
            request_id = ""
        context = Context(request_id, headers, deadline=deadline, over_grpc=True)
        context.arrived = time.perf_counter()
        return context

    def unary(self, method: UnaryMethod) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Returns the handler of a unary method. Messages stay bytes, since the codec parses them with fewer copies."""

        async def handle(body: bytes, rpc: Rpc) -> bytes:
            context, failure = self.context(rpc), None
            try:
                with self:
                    response = await method(body, context)
            except Exception as error:
                ensure_request_id(context)
                failure = without_traceback(to_request_error(error, context))
            if failure is not None:
                del body  # gRPC keeps the frames of an aborted call until the next garbage collection
                await abort(rpc, failure, context)
            metadata = trailing_metadata(context)
            if self._timing and context.predict > 0:
                metadata.append(("server-timing", server_timing(context, self._tokenize_timing).decode()))
            rpc.set_trailing_metadata(tuple(metadata))
            if (ticket := context.ticket) is not None:  # of a large answer, which gRPC keeps until it is read
                rpc.add_done_callback(lambda _: ticket.leave())  # type: ignore[arg-type]  # the stub lacks that form
            return response

        return grpc.unary_unary_rpc_method_handler(handle)


def trailing_metadata(context: Context) -> list[tuple[str, str]]:
    """Returns the trailing metadata of a call: the request id, and the names of ignored parameters if any."""
    metadata = [(REQUEST_ID, ensure_request_id(context))]
    if context.ignored:
        metadata.append((IGNORED, ", ".join(context.ignored)))
    return metadata


def ensure_request_id(context: Context, message_id: str = "") -> str:
    """Returns the request id from metadata, a valid ``message_id`` or a new id, and adds it to forwarded headers."""
    if not context.request_id:
        valid = message_id and _VALID_ID.fullmatch(message_id)
        context.request_id = message_id if valid else new_request_id()
        context.headers = {**context.headers, REQUEST_ID: context.request_id}
    return context.request_id


def without_traceback(error: RequestError) -> RequestError:
    """Clears an error's traceback, cause and context: their frames keep the request's message in memory."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


async def abort(rpc: Rpc, error: RequestError, context: Context, *, seconds: float | None = None) -> NoReturn:
    """Ends a call with an error's status. The client has ``seconds`` to read the status.

    gRPC sends the status after all messages of the call, so a client that reads nothing delays it. Raises
    CancelledError if the client disconnects or the time expires; gRPC then ends the call without a status.
    """
    metadata = trailing_metadata(context)
    if error.retry_after is not None:
        metadata.append(("retry-after", str(error.retry_after)))
    try:
        async with asyncio.timeout(seconds):
            await rpc.abort(grpc.StatusCode[error.grpc_code], error_details(error), tuple(metadata))
    except (grpc.aio.InternalError, TimeoutError):
        raise asyncio.CancelledError from None


def error_details(error: RequestError) -> str:
    """Returns the error's message, truncated to MAX_DETAILS_BYTES."""
    return str(error).encode(errors="replace")[:MAX_DETAILS_BYTES].decode(errors="ignore")
