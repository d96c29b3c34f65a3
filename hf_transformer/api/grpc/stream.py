"""ModelStreamInfer: several requests of a stream are worked on at a time, and bounded in what they hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import grpc
import grpc.aio

from hf_transformer.api.errors import to_request_error
from hf_transformer.api.grpc import calls as grpc_calls
from hf_transformer.api.grpc.calls import CallsInProgress, Rpc, details_of, fork, refuse, trailing_of
from hf_transformer.api.grpc.infer import Inference, counted, pieces_of
from hf_transformer.api.open_streams import shutting_down
from hf_transformer.api.streaming import pieces
from hf_transformer.api.tensors import infer
from hf_transformer.core.limits import Admission, AdmissionTicket
from hf_transformer.errors import CallersDeadline, RequestError
from hf_transformer.protocol import grpc_server_codec as wire
from hf_transformer.types.request import Context

STREAM_IN_FLIGHT = 32
"""Requests of one stream that are read and not answered yet; the rest waits at the client, by HTTP/2's flow control."""
STREAM_BYTES = 4 << 20
"""Bytes that a stream may hold and read on, in requests and answers, where a message may not be larger than that."""
STREAMS_AT_MOST = 16
"""As many streams may hold that much. Are there more, each may hold one request, which is no more than a call does."""


class HeldBytes:
    """The bytes that all streams hold together, and how many they and one of them may hold and read on."""

    def __init__(self, longest_message: int) -> None:
        self.bytes = 0
        self.most_of_one = max(STREAM_BYTES, longest_message)
        self.most = STREAMS_AT_MOST * self.most_of_one


class StreamRoom:
    """What one stream holds: requests without an answer, and answers that are not written yet. And the places in the
    service that its requests take: one that finds none waits for another request of its own stream.

    A stream that holds nothing may read whatever the others hold, so that each of them goes on.
    """

    def __init__(self, all_streams: HeldBytes, admission: Admission) -> None:
        self._all = all_streams
        self._admission = admission
        self._sizes: dict[object, int] = {}
        self._bytes = 0
        self._last_answer = 0
        self._places = 0
        self._freed = asyncio.Event()

    async def until_free(self) -> None:
        """Waits until one more request may be read."""
        while self._sizes and (
            len(self._sizes) >= STREAM_IN_FLIGHT
            or self._bytes >= self._all.most_of_one
            or self._all.bytes >= self._all.most
        ):
            await self._until_freed()

    def hold(self, request: object, size: int, *, answered: bool = False) -> None:
        """Counts the bytes of a request's message or, once it is ``answered``, of its answer. An answer is expected to
        be as long as the last one."""
        if answered:
            self._last_answer = size
        else:
            size = max(size, self._last_answer)
        self._add(size - self._sizes.get(request, 0))
        self._sizes[request] = size

    def drop(self, request: object) -> None:
        """Counts a request that is over."""
        self._add(-self._sizes.pop(request, 0))

    def _add(self, size: int) -> None:
        self._bytes += size
        self._all.bytes += size
        self._freed.set()

    @asynccontextmanager
    async def place(self, size: int) -> AsyncIterator[AdmissionTicket]:
        """A place for one request of ``size`` bytes. Raises TooManyRequests if others have all of them."""
        with AdmissionTicket(self._admission) as place:
            place.hold(size)
            while self._places and not self._admission.has_room:
                await self._until_freed()
            place.enter()
            self._places += 1
            try:
                yield place
            finally:
                self._places -= 1
                self._freed.set()

    async def _until_freed(self) -> None:
        self._freed.clear()
        await self._freed.wait()


def stream_method(
    inference: Inference, calls: CallsInProgress, longest_message: int, patience: float
) -> grpc.RpcMethodHandler[bytes, bytes]:
    """ModelStreamInfer. A request may have ``longest_message`` bytes; -1 is unlimited.

    A client has ``patience`` seconds to take an answer, and as many more for each MiB of it: gRPC does not tell how
    much of one has been taken.
    """
    held = HeldBytes(longest_message)

    async def serve(requests: object, rpc: Rpc) -> None:
        context = calls.context(rpc)
        room = StreamRoom(held, inference.service.admission)
        with calls:
            await InferStream(rpc, context, inference, room, patience).serve()
        rpc.set_trailing_metadata(tuple(trailing_of(context)))

    return grpc.stream_stream_rpc_method_handler(serve)


class InferStream:
    """One stream: answers in the order of its requests. A request that fails does not end it.

    Each request is a task, which writes when it is the first one in the order of requests. One that is answered in
    pieces leaves that order with its first piece, and its pieces are written between the other answers.

    Once the server is closing no more requests are read; those that were read are answered, and the stream ends as
    unavailable. A stream whose client takes no answer ends too.
    """

    def __init__(self, rpc: Rpc, context: Context, inference: Inference, room: StreamRoom, patience: float) -> None:
        self._rpc = rpc
        self._context = context
        self._inference = inference
        self._room = room
        self._patience = patience
        self._order: dict[asyncio.Event, None] = {}  # a request's event is set once it is the first one
        self._serving: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._one_message = asyncio.Lock()
        self._writing: asyncio.Timeout | None = None
        self._untaken = 0.0  # seconds after which an answer was not taken

    async def serve(self) -> None:
        """Answers requests until there are no more, and ends the call if that is for another reason."""
        self._serving = asyncio.current_task()
        ending = asyncio.create_task(self._end_reading())
        try:
            async with asyncio.TaskGroup() as group:
                self._reading = group.create_task(self._read(group))
        except asyncio.CancelledError:  # gRPC ends the call silently
            if not self._untaken:
                raise
            late = f"an answer was not taken within {self._untaken:g} s (--client_timeout_seconds)"
            await refuse(self._rpc, CallersDeadline(late), self._context, within=0)
        finally:
            ending.cancel()
        if self._inference.closing.is_set():
            await refuse(self._rpc, shutting_down(), self._context, within=grpc_calls.PATIENCE)

    async def _read(self, group: asyncio.TaskGroup) -> None:
        """Begins a task for each request."""
        while True:
            await self._room.until_free()
            try:
                body = await self._rpc.read()
            except grpc.aio.BaseError:  # the call is over
                return
            if not isinstance(body, bytes):  # grpc.aio.EOF, which the type stubs don't know
                return
            turn = asyncio.Event()
            self._order[turn] = None
            self._room.hold(turn, len(body))
            group.create_task(self._answer(body, turn))
            del body  # or it would be held while the next one is waited for

    async def _answer(self, body: bytes, turn: asyncio.Event) -> None:
        try:
            answer = await self._answered(body, fork(self._context), turn)
            self._room.hold(turn, len(answer), answered=True)
            next(iter(self._order), turn).set()
            if turn in self._order:
                await turn.wait()
            await self._write(answer)
        finally:
            self._leave_order(turn)
            self._room.drop(turn)

    def _leave_order(self, turn: asyncio.Event) -> None:
        self._order.pop(turn, None)
        next(iter(self._order), turn).set()

    async def _answered(self, body: bytes, context: Context, turn: asyncio.Event) -> bytes:
        """The last, mostly the only serialized ModelStreamInferResponse of a request, which is also the one that tells
        its error; those before it are written at once."""
        inference = self._inference
        service = inference.service
        try:
            with counted(service, context, "ModelStreamInfer"):
                async with self._room.place(len(body)) as place:
                    model, request = inference.read(body, context, place)
                    stream = pieces_of(model, request, context)
                    if stream is None:
                        response = await infer(model, request, context)
                        last = wire.encode_stream_response(wire.encode_infer_response(response, request, final=True))
                        return inference.checked(last)
                    async with aclosing(pieces(stream, service.streams)) as messages:
                        async for message in messages:
                            if stream.remaining:
                                self._leave_order(turn)
                                await self._write(inference.checked(message))
                    return inference.checked(message)
        except RequestError as error:
            details = details_of(to_request_error(error, context))
            message = wire.encode_stream_error(details, wire.request_id(body))
            # The id is the client's, and may be as long as a message.
            return message if inference.fits(message) else wire.encode_stream_error(details, "")

    async def _write(self, answer: bytes) -> None:
        """Writes one message at a time. If the client does not take it, the stream is cancelled, and CancelledError is
        raised: nothing can be written any more."""
        async with self._one_message:
            seconds = grpc_calls.PATIENCE
            if not self._inference.closing.is_set():
                seconds = self._patience * (1 + (len(answer) >> 20))
            try:
                async with asyncio.timeout(seconds) as self._writing:
                    await self._rpc.write(answer)
            except (grpc.aio.BaseError, TimeoutError) as error:
                if isinstance(error, TimeoutError) and not self._inference.closing.is_set():
                    self._untaken = seconds
                if self._serving is not None:
                    self._serving.cancel()
                raise asyncio.CancelledError from None
            finally:
                self._writing = None

    async def _end_reading(self) -> None:
        await self._inference.closing.wait()
        if self._reading is not None:
            self._reading.cancel()
        if self._writing is not None:
            self._writing.reschedule(asyncio.get_running_loop().time() + grpc_calls.PATIENCE)
