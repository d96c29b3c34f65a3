"""ModelStreamInfer: concurrent requests of one stream, with limits on the bytes that streams hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import grpc
import grpc.aio

from hf_transformer.api.errors import to_request_error
from hf_transformer.api.grpc import calls as grpc_calls
from hf_transformer.api.grpc.calls import ActiveCalls, Rpc, abort, error_details, trailing_metadata
from hf_transformer.api.grpc.infer import Inference, measured, pieces_of
from hf_transformer.api.open_streams import shutting_down
from hf_transformer.api.streaming import pieces
from hf_transformer.api.tensors import infer
from hf_transformer.core.limits import Admission, AdmissionTicket
from hf_transformer.errors import CallersDeadline, RequestError
from hf_transformer.protocol import grpc_server_codec as codec
from hf_transformer.types.request import Context

MAX_STREAM_REQUESTS = 32
"""Requests of one stream in flight. Further requests wait in the client, by HTTP/2's flow control."""
MAX_STREAM_BYTES = 4 << 20
"""Bytes of requests and responses that one stream may hold before it stops reading, or one larger message."""
FULL_STREAMS = 16
"""The number of streams that may hold MAX_STREAM_BYTES. Beyond that, one request per stream, as for a unary call."""


class HeldBytes:
    """The bytes that all streams hold together, and the limits for one stream and for all of them."""

    def __init__(self, max_message: int) -> None:
        self.bytes = 0
        self.max_per_stream = max(MAX_STREAM_BYTES, max_message)
        self.max_total = FULL_STREAMS * self.max_per_stream


class StreamQuota:
    """The limits of one stream: the bytes of its unanswered requests and unsent responses, and its admission tickets.

    A request without a ticket waits for another request of its own stream. A stream that holds nothing may always read
    one request, so every stream makes progress.
    """

    def __init__(self, all_streams: HeldBytes, admission: Admission) -> None:
        self._all = all_streams
        self._admission = admission
        self._sizes: dict[object, int] = {}
        self._bytes = 0
        self._last_response = 0
        self._tickets = 0
        self._freed = asyncio.Event()

    async def wait_for_room(self) -> None:
        """Waits until one more request may be read."""
        while self._sizes and (
            len(self._sizes) >= MAX_STREAM_REQUESTS
            or self._bytes >= self._all.max_per_stream
            or self._all.bytes >= self._all.max_total
        ):
            await self._wait_until_freed()

    def hold_request(self, key: object, size: int) -> None:
        """Counts a request's bytes, or those of the last response if more: its own response may be as large."""
        self._set_size(key, max(size, self._last_response))

    def hold_response(self, key: object, size: int) -> None:
        """Counts the bytes of a request's response instead of the request's."""
        self._last_response = size
        self._set_size(key, size)

    def drop(self, key: object) -> None:
        """Ends the count of a request's bytes."""
        self._add(-self._sizes.pop(key, 0))

    def _set_size(self, key: object, size: int) -> None:
        self._add(size - self._sizes.get(key, 0))
        self._sizes[key] = size

    def _add(self, size: int) -> None:
        self._bytes += size
        self._all.bytes += size
        self._freed.set()

    @asynccontextmanager
    async def ticket(self, size: int) -> AsyncIterator[AdmissionTicket]:
        """Admits one request of ``size`` bytes. Raises TooManyRequests if other clients use all of the service."""
        with AdmissionTicket(self._admission) as ticket:
            ticket.hold(size)
            while self._tickets and not self._admission.has_room:
                await self._wait_until_freed()
            ticket.enter()
            self._tickets += 1
            try:
                yield ticket
            finally:
                self._tickets -= 1
                self._freed.set()

    async def _wait_until_freed(self) -> None:
        self._freed.clear()
        await self._freed.wait()


def stream_method(
    inference: Inference, calls: ActiveCalls, max_message: int, patience: float
) -> grpc.RpcMethodHandler[bytes, bytes]:
    """The handler of ModelStreamInfer. ``max_message`` is the largest request in bytes, -1 for no limit.

    A client has ``patience`` seconds to read a response, and as many more for each MiB of it: gRPC does not report
    partial progress.
    """
    held = HeldBytes(max_message)

    async def handle(requests: object, rpc: Rpc) -> None:
        context = calls.context(rpc)
        quota = StreamQuota(held, inference.service.admission)
        with calls:
            await InferStream(rpc, context, inference, quota, patience).serve()
        rpc.set_trailing_metadata(tuple(trailing_metadata(context)))

    return grpc.stream_stream_rpc_method_handler(handle)


class InferStream:
    """One stream: responses in the order of its requests. A failed request does not end it.

    Each request is a task, which writes its response when it is the first in that order. A request answered in pieces
    leaves the order with its first piece, and its pieces are interleaved with other responses.

    Once the server is closing, no further request is read. The stream answers its requests and ends as UNAVAILABLE. It
    also ends if its client does not read a response in time.
    """

    def __init__(self, rpc: Rpc, context: Context, inference: Inference, quota: StreamQuota, patience: float) -> None:
        self._rpc = rpc
        self._context = context
        self._inference = inference
        self._quota = quota
        self._patience = patience
        self._order: dict[asyncio.Event, None] = {}  # an event of each request, set when the request is the first
        self._serving: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._write_lock = asyncio.Lock()
        self._write_timeout: asyncio.Timeout | None = None
        self._unread_seconds = 0.0  # the time in which the client did not read a response; 0 for none

    async def serve(self) -> None:
        """Answers all requests, and ends the call with a status unless the client ends it."""
        self._serving = asyncio.current_task()
        closing = asyncio.create_task(self._stop_when_closing())
        try:
            async with asyncio.TaskGroup() as group:
                self._reading = group.create_task(self._read(group))
        except asyncio.CancelledError:  # gRPC ends the call without a status
            if not self._unread_seconds:
                raise
            message = f"the client did not read a response within {self._unread_seconds:g} s (--client_timeout_seconds)"
            await abort(self._rpc, CallersDeadline(message), self._context, seconds=0)
        finally:
            closing.cancel()
        if self._inference.closing.is_set():
            await abort(self._rpc, shutting_down(), self._context, seconds=grpc_calls.CLOSING_WRITE_SECONDS)

    async def _read(self, group: asyncio.TaskGroup) -> None:
        """Starts a task for each request."""
        while True:
            await self._quota.wait_for_room()
            try:
                body = await self._rpc.read()
            except grpc.aio.BaseError:  # the call is over
                return
            if not isinstance(body, bytes):  # grpc.aio.EOF, which the type stubs don't know
                return
            turn = asyncio.Event()
            self._order[turn] = None
            self._quota.hold_request(turn, len(body))
            group.create_task(self._answer(body, turn))
            del body  # or the frame would keep it until the next request comes

    async def _answer(self, body: bytes, turn: asyncio.Event) -> None:
        try:
            response = await self._respond(body, turn)
            self._quota.hold_response(turn, len(response))
            next(iter(self._order), turn).set()
            if turn in self._order:
                await turn.wait()
            await self._write(response)
        finally:
            self._leave_order(turn)
            self._quota.drop(turn)

    def _leave_order(self, turn: asyncio.Event) -> None:
        self._order.pop(turn, None)
        next(iter(self._order), turn).set()

    async def _respond(self, body: bytes, turn: asyncio.Event) -> bytes:
        """The last serialized ModelStreamInferResponse of a request, or the one with its error. Earlier pieces are
        written at once."""
        inference = self._inference
        service = inference.service
        context = Context(self._context.request_id, dict(self._context.headers), deadline=self._context.deadline)
        context.ignored = self._context.ignored  # one list: trailing metadata has the names of all requests
        context.arrived = time.perf_counter()
        try:
            with measured(service, context, "ModelStreamInfer"):
                async with self._quota.ticket(len(body)) as ticket:
                    model, request = inference.read(body, context, ticket)
                    stream = pieces_of(model, request, context)
                    if stream is None:
                        response = await infer(model, request, context)
                        last = codec.encode_stream_response(codec.encode_infer_response(response, request, final=True))
                        return inference.checked_size(last)
                    async with aclosing(pieces(stream, service.streams)) as messages:
                        async for message in messages:
                            if stream.remaining:
                                self._leave_order(turn)
                                await self._write(inference.checked_size(message))
                    return inference.checked_size(message)
        except RequestError as error:
            details = error_details(to_request_error(error, context))
            failure = codec.encode_stream_error(details, codec.request_id(body))
            # The id is the client's, and may be as long as a message.
            return failure if inference.fits(failure) else codec.encode_stream_error(details, "")

    async def _write(self, message: bytes) -> None:
        """Writes one message at a time. If the client does not read it in time, cancels the stream and raises
        CancelledError."""
        async with self._write_lock:
            seconds = grpc_calls.CLOSING_WRITE_SECONDS
            if not self._inference.closing.is_set():
                seconds = self._patience * (1 + (len(message) >> 20))
            try:
                async with asyncio.timeout(seconds) as self._write_timeout:
                    await self._rpc.write(message)
            except (grpc.aio.BaseError, TimeoutError) as error:
                if isinstance(error, TimeoutError) and not self._inference.closing.is_set():
                    self._unread_seconds = seconds
                if self._serving is not None:
                    self._serving.cancel()
                raise asyncio.CancelledError from None
            finally:
                self._write_timeout = None

    async def _stop_when_closing(self) -> None:
        """Once the server is closing, stops reading and shortens the timeout of the present write."""
        await self._inference.closing.wait()
        if self._reading is not None:
            self._reading.cancel()
        if self._write_timeout is not None:
            now = asyncio.get_running_loop().time()
            self._write_timeout.reschedule(now + grpc_calls.CLOSING_WRITE_SECONDS)
