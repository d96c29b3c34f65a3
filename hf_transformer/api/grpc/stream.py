"""ModelStreamInfer: concurrent requests of a stream, with limits on the memory of all streams."""

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
"""Maximum requests of a stream in flight. HTTP/2's flow control delays further requests."""
MAX_STREAM_BYTES = 4 << 20
"""Maximum size of a stream's pending requests and responses. At the maximum, the stream stops reading. A single larger
message is allowed."""
FULL_STREAMS = 16
"""Maximum number of streams that use MAX_STREAM_BYTES. Further streams process one request at a time."""


class HeldBytes:
    """The pending bytes of all streams, the maximum for each stream, and the maximum for all streams."""

    def __init__(self, max_message: int) -> None:
        self.bytes = 0
        self.max_per_stream = max(MAX_STREAM_BYTES, max_message)
        self.max_total = FULL_STREAMS * self.max_per_stream


class StreamQuota:
    """Limits of one stream: bytes of unanswered requests and unsent responses, and admission tickets.

    If admission is full, a request waits for another request of the same stream. A stream without pending bytes may
    always read a request, so that every stream makes progress.
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
        """Waits until the stream may read another request."""
        while self._sizes and (
            len(self._sizes) >= MAX_STREAM_REQUESTS
            or self._bytes >= self._all.max_per_stream
            or self._all.bytes >= self._all.max_total
        ):
            await self._wait_until_freed()

    def hold_request(self, key: object, size: int) -> None:
        """Counts the request's size, or the last response's if larger: the next response may be as large."""
        self._set_size(key, max(size, self._last_response))

    def hold_response(self, key: object, size: int) -> None:
        """Counts the response's size instead of the request's size."""
        self._last_response = size
        self._set_size(key, size)

    def drop(self, key: object) -> None:
        """Stops counting the size of a request or its response."""
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
        """Admits a request of ``size`` bytes. Raises TooManyRequests if other clients use the whole capacity."""
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
    """Returns the handler of ModelStreamInfer. ``max_message`` is the maximum request size in bytes, -1 for no limit.

    A client has ``patience`` seconds to read a response, plus ``patience`` seconds per MiB, since gRPC does not report
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
    """A stream that answers requests in their order. A failed request does not end the stream.

    Each request is a task, which writes its response when all earlier requests have their responses. A streamed
    response leaves the order at its first piece, and its pieces interleave with other responses.

    Once the server is closing, the stream reads no more requests, answers pending requests and ends as UNAVAILABLE. The
    stream also ends if its client does not read a response in time.
    """

    def __init__(self, rpc: Rpc, context: Context, inference: Inference, quota: StreamQuota, patience: float) -> None:
        self._rpc = rpc
        self._context = context
        self._inference = inference
        self._quota = quota
        self._patience = patience
        self._order: dict[asyncio.Event, None] = {}  # an event per request, set once the request is first
        self._serving: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._write_lock = asyncio.Lock()
        self._write_timeout: asyncio.Timeout | None = None
        self._unread_seconds = 0.0  # the timeout that the client exceeded; 0 if none

    async def serve(self) -> None:
        """Answers all requests. After a client's timeout or a shutdown, ends the call with an error status."""
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
        """Reads requests, and starts a task for each request."""
        while True:
            await self._quota.wait_for_room()
            try:
                body = await self._rpc.read()
            except grpc.aio.BaseError:  # the call has ended
                return
            if not isinstance(body, bytes):  # grpc.aio.EOF, missing in the type stubs
                return
            turn = asyncio.Event()
            self._order[turn] = None
            self._quota.hold_request(turn, len(body))
            group.create_task(self._answer(body, turn))
            del body  # otherwise, the frame would keep it until the next request arrives

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
        """Returns the last serialized response to a request, or its error. Writes earlier pieces immediately."""
        inference = self._inference
        service = inference.service
        headers, deadline = dict(self._context.headers), self._context.deadline
        context = Context(self._context.request_id, headers, deadline=deadline, over_grpc=True)
        context.ignored = self._context.ignored  # shared list: trailing metadata lists the names of all requests
        context.arrived = time.perf_counter()
        try:
            with measured(service, context, "ModelStreamInfer"):
                async with self._quota.ticket(len(body)) as ticket:
                    model, request = inference.read(body, context, ticket)
                    stream = pieces_of(model, request, context)
                    if stream is None:
                        response = await infer(model, request, context)
                        last = codec.encode_stream_response(
                            await inference.encode(response, request, context, final=True)
                        )
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
            # The client's request id may be as long as a message.
            return failure if inference.fits(failure) else codec.encode_stream_error(details, "")

    async def _write(self, message: bytes) -> None:
        """Writes one message at a time. On failure or timeout, cancels the stream and raises CancelledError."""
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
        """Stops reading once the server is closing, and shortens the timeout of the current write."""
        await self._inference.closing.wait()
        if self._reading is not None:
            self._reading.cancel()
        if self._write_timeout is not None:
            now = asyncio.get_running_loop().time()
            self._write_timeout.reschedule(now + grpc_calls.CLOSING_WRITE_SECONDS)
