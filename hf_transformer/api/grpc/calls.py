"""What all gRPC methods share: the caller, the calls in progress, and how a call is refused."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import grpc
import grpc.aio

from hf_transformer.api.auth import HEADERS
from hf_transformer.api.base import FORWARDED, FORWARDED_PREFIX, as_request_error, new_request_id
from hf_transformer.errors import RequestError
from hf_transformer.types import Context

REQUEST_ID = "x-request-id"
_FORWARDED = frozenset((REQUEST_ID, *(name.decode() for name in FORWARDED)))
_PREFIX = FORWARDED_PREFIX.decode()
_KEYS = frozenset(name.decode() for name in HEADERS)
_USABLE_ID = re.compile(r"[!-~]{1,128}")
"""A request id that metadata can carry. gRPC would refuse the whole answer for another one."""
MOST_DETAILS = 2000
"""Bytes of a message. gRPC sends it as a header, three bytes for each that is not ASCII; clients take 8 KiB in all."""
PATIENCE = 3.0
"""Seconds that a client has to take a message once the server is closing."""

Rpc = grpc.aio.ServicerContext[Any, Any]
Answer = Callable[[bytes, "Caller"], Awaitable[bytes]]
"""A method's own part: serialized request -> serialized response."""


@dataclass(slots=True)
class Caller:
    """Who calls: the metadata for the predictor, the deadline on the event loop's clock, and the request id, empty
    until it is known.

    ``arrived`` is when the request was there (time.perf_counter), ``served`` the context of the request once it is
    read, and ``trailers`` the metadata of the answer beside the id.
    """

    headers: dict[str, str]
    deadline: float | None
    request_id: str
    arrived: float = field(default_factory=time.perf_counter)
    served: Context | None = None
    trailers: tuple[tuple[str, str], ...] = ()

    def identify(self, message_id: str = "") -> str:
        """The request id: that of the metadata, else that of the message, else a new one."""
        if not self.request_id:
            usable = message_id and _USABLE_ID.fullmatch(message_id)
            self.request_id = self.headers[REQUEST_ID] = message_id if usable else new_request_id()
        return self.request_id

    def context(self, message_id: str) -> Context:
        """The context of one request."""
        self.served = Context(self.identify(message_id), self.headers, deadline=self.deadline)
        self.served.arrived = self.arrived
        return self.served

    def fork(self) -> Caller:
        """The caller of one request of a stream."""
        return replace(self, headers=dict(self.headers), arrived=time.perf_counter())


class CallsInProgress:
    """Counts the calls that are worked on; ``begun`` counts all. An answer may still be on its way to its client.

    ``keys`` says whether clients send API keys, which the predictor does not get.
    """

    def __init__(self, *, keys: bool = False) -> None:
        self.begun = self.open = 0
        self._none = asyncio.Event()
        self._none.set()
        self._forwarded = _FORWARDED - _KEYS if keys else _FORWARDED

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

    def caller(self, rpc: Rpc) -> Caller:
        """The caller in a call's metadata and deadline, as base.context_of over HTTP."""
        headers = {}
        for name, value in rpc.invocation_metadata() or ():
            if (name in self._forwarded or name[:5] == _PREFIX) and isinstance(value, str):
                headers[name] = value
        remaining = rpc.time_remaining()
        deadline = None if remaining is None else asyncio.get_running_loop().time() + remaining
        request_id = headers.get(REQUEST_ID, "")
        if request_id and not _USABLE_ID.fullmatch(request_id):
            request_id = headers.pop(REQUEST_ID)[:0]
        return Caller(headers, deadline, request_id)

    def unary(self, answer: Answer) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A method with one request and one response. Both stay bytes: the codec parses them with less copying."""

        async def call(body: bytes, rpc: Rpc) -> bytes:
            caller = self.caller(rpc)
            try:
                with self:
                    response = await answer(body, caller)
            except Exception as error:
                await refuse(rpc, as_request_error(error, caller.identify()), caller)
            rpc.set_trailing_metadata(((REQUEST_ID, caller.identify()), *caller.trailers))
            return response

        return grpc.unary_unary_rpc_method_handler(call)


async def refuse(rpc: Rpc, error: RequestError, caller: Caller, *, within: float | None = None) -> NoReturn:
    """Ends a call with an error.

    Args:
        within: seconds that the client has to take it. gRPC keeps the error behind the messages that are still on
            their way, until the client reads or is gone.

    Raises:
        asyncio.CancelledError: the client is gone, or was too slow; gRPC then ends the call silently.
    """
    metadata = [(REQUEST_ID, caller.identify())]
    if error.retry_after is not None:
        metadata.append(("retry-after", str(error.retry_after)))
    try:
        async with asyncio.timeout(within):
            await rpc.abort(grpc.StatusCode[error.grpc_code], details_of(error), tuple(metadata))
    except (grpc.aio.InternalError, TimeoutError):
        raise asyncio.CancelledError from None


def details_of(error: RequestError) -> str:
    """The error's message, cut to what fits."""
    return str(error).encode(errors="replace")[:MOST_DETAILS].decode(errors="ignore")
