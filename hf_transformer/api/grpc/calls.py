"""What the gRPC methods share: who calls, what goes along with the call, and how a failure is answered."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import grpc
import grpc.aio

from hf_transformer.api.base import FORWARDED, FORWARDED_PREFIX
from hf_transformer.errors import RequestError, Unavailable
from hf_transformer.types import Context

logger = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"
_FORWARDED = frozenset(name.decode() for name in FORWARDED)
_PREFIX = FORWARDED_PREFIX.decode()
_USABLE_ID = re.compile(r"[!-~]{1,128}")
"""A request's id that may go into metadata."""
MOST_DETAILS = 2000
"""Bytes of a message. gRPC sends it as a header, three bytes for each that is not ASCII; clients take 8 KiB in all."""

PATIENCE = 3.0
"""Seconds that a client has to take a message once the server is closing."""

Rpc = grpc.aio.ServicerContext[Any, Any]
Answer = Callable[[bytes, "Caller"], Awaitable[bytes]]
"""A method's own part: serialized request -> serialized response."""


@dataclass(slots=True)
class Caller:
    """Who calls: the metadata that the predictor gets too, when the caller stops waiting (in seconds of the event
    loop's clock), and the request's id, empty until it has one.

    ``arrived`` is when the request was there (of time.perf_counter), ``served`` what went along with it, None until it
    is read, and ``trailers`` the metadata beside the id that its answer has.
    """

    headers: dict[str, str]
    deadline: float | None
    request_id: str
    arrived: float = field(default_factory=time.perf_counter)
    served: Context | None = None
    trailers: tuple[tuple[str, str], ...] = ()

    def identify(self, message_id: str = "") -> str:
        """The request's id: that of the metadata, else that of the message, else a new one."""
        if not self.request_id:
            self.request_id = message_id if _USABLE_ID.fullmatch(message_id) else str(uuid.uuid4())
            self.headers[REQUEST_ID] = self.request_id
        return self.request_id

    def context(self, message_id: str) -> Context:
        """What goes along with one request."""
        self.served = Context(self.identify(message_id), self.headers, deadline=self.deadline)
        self.served.timings.arrived = self.arrived
        return self.served

    def fork(self) -> Caller:
        """The caller of one request of a stream."""
        return replace(self, headers=dict(self.headers), arrived=time.perf_counter())


class AtWork:
    """The calls that are worked on; what is over may still be on its way to its client. ``begun`` counts them all."""

    def __init__(self) -> None:
        self.begun = 0
        self._calls = 0
        self._none = asyncio.Event()
        self._none.set()

    def __bool__(self) -> bool:
        return self._calls > 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """While one call is worked on."""
        self.begun += 1
        self._calls += 1
        self._none.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._none.set()

    async def over(self) -> None:
        """Waits until there are none."""
        await self._none.wait()


def caller_of(rpc: Rpc) -> Caller:
    """What a call's metadata and deadline say; see base.request_context for the same over HTTP.

    An id that can't go back to the caller is as good as none: gRPC would refuse the whole answer for it.
    """
    headers = {
        key: value
        for key, value in rpc.invocation_metadata() or ()
        if isinstance(value, str) and (key in _FORWARDED or key.startswith(_PREFIX))
    }
    remaining = rpc.time_remaining()
    deadline = None if remaining is None else asyncio.get_running_loop().time() + remaining
    request_id = headers.pop(REQUEST_ID, "")
    if not _USABLE_ID.fullmatch(request_id):
        return Caller(headers, deadline, "")
    return Caller({**headers, REQUEST_ID: request_id}, deadline, request_id)


def unary(answer: Answer, at_work: AtWork) -> grpc.RpcMethodHandler[bytes, bytes]:
    """A method with one request and one response. Both stay bytes: the codec parses them with less copying."""

    async def call(body: bytes, rpc: Rpc) -> bytes:
        caller = caller_of(rpc)
        try:
            with at_work.one():
                response = await answer(body, caller)
        except RequestError as error:
            await refuse(rpc, error, caller)
        except Exception:
            await refuse(rpc, our_fault(caller), caller)
        rpc.set_trailing_metadata(((REQUEST_ID, caller.identify()), *caller.trailers))
        return response

    return grpc.unary_unary_rpc_method_handler(call)


async def refuse(rpc: Rpc, error: RequestError, caller: Caller) -> NoReturn:
    """Ends a call with an error.

    Raises:
        asyncio.CancelledError: the client is gone; gRPC lets the call go without a word.
    """
    metadata = [(REQUEST_ID, caller.identify())]
    if error.retry_after is not None:
        metadata.append(("retry-after", str(error.retry_after)))
    try:
        await rpc.abort(grpc.StatusCode[error.grpc_code], details_of(error), tuple(metadata))
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


async def refuse_within(seconds: float, rpc: Rpc, error: RequestError, caller: Caller) -> NoReturn:
    """Ends a call with an error that its client may not take: gRPC puts it behind the messages that are still on their
    way, and keeps it there until the client reads or is gone.

    Raises:
        asyncio.CancelledError: the client is gone, or has not taken it after so many seconds.
    """
    try:
        async with asyncio.timeout(seconds):
            await refuse(rpc, error, caller)
    except TimeoutError:
        raise asyncio.CancelledError from None


async def refuse_at_the_end(rpc: Rpc, caller: Caller) -> NoReturn:
    """Ends a call because the server is closing. Raises as ``refuse_within`` does."""
    await refuse_within(PATIENCE, rpc, Unavailable("the service is shutting down"), caller)


def details_of(error: RequestError) -> str:
    """The error's message, cut to what fits."""
    return str(error).encode(errors="replace")[:MOST_DETAILS].decode(errors="ignore")


def our_fault(caller: Caller) -> RequestError:
    """The last resort for a fault of our own, while it is handled: it is logged whole, and the client is told where to
    look."""
    request_id = caller.identify()
    logger.exception("request %s failed by a fault of the service", request_id, extra={"request_id": request_id})
    return RequestError(f"internal error; the log has it under {request_id}")
