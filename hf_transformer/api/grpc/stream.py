"""Streams of inference over gRPC: several requests of each are worked on at a time, and bounded in what they hold."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import grpc
import grpc.aio

from hf_transformer.api.grpc import calls as grpc_calls
from hf_transformer.api.grpc.calls import (
    REQUEST_ID,
    AtWork,
    Caller,
    Rpc,
    caller_of,
    refuse_at_the_end,
    refuse_within,
)
from hf_transformer.api.grpc.infer import Inference, Places
from hf_transformer.core.limits import Admission
from hf_transformer.errors import CallersDeadline

STREAM_IN_FLIGHT = 32
"""Requests of one stream that are read and not answered yet; the rest waits at the client, by HTTP/2's flow control."""
STREAM_BYTES = 4 << 20
"""Bytes that a stream may hold and read on, in requests and answers, where a message may not be larger than that."""
STREAMS_AT_MOST = 16
"""As many streams may hold that much. Are there more, each may hold one request, which is no more than a call does."""


class Held:
    """The bytes that all streams together hold, and how many they and one of them may and read on."""

    def __init__(self, longest_message: int) -> None:
        self.bytes = 0
        self.most_of_one = max(STREAM_BYTES, longest_message)
        self.most = STREAMS_AT_MOST * self.most_of_one


class Room:
    """What one stream holds: requests that are not answered yet, and answers that are not written yet.

    A stream that holds nothing may read whatever the others hold, so that each of them goes on.
    """

    def __init__(self, all_streams: Held) -> None:
        self._all = all_streams
        self._requests = 0
        self._bytes = 0
        self._last_answer = 0
        self._freed = asyncio.Event()

    async def until_free(self) -> None:
        """Waits until one more request may be read."""
        while self._requests and (
            self._requests >= STREAM_IN_FLIGHT
            or self._bytes >= self._all.most_of_one
            or self._all.bytes >= self._all.most
        ):
            self._freed.clear()
            await self._freed.wait()

    def read(self, request: bytes) -> int:
        """A request is there. Gives the bytes that are reckoned for it: its answer is expected to be as long as the
        last one."""
        expected = max(len(request), self._last_answer)
        self._requests += 1
        self._add(expected)
        return expected

    def answered(self, answer: bytes, expected: int) -> None:
        """The answer is held in place of the request."""
        self._last_answer = len(answer)
        self._add(len(answer) - expected)
        self._freed.set()

    def written(self, answer: bytes) -> None:
        self._requests -= 1
        self._add(-len(answer))
        self._freed.set()

    def close(self) -> None:
        """Gives back what is left."""
        self._add(-self._bytes)

    def _add(self, size: int) -> None:
        self._bytes += size
        self._all.bytes += size


class Streams:
    """ModelStreamInfer: answers in the order of the requests, several of which are worked on at a time; those that come
    in pieces are written between the others.

    Once ``closing`` is set no more requests are read; what was read is answered, and the stream ends as unavailable. A
    stream whose client takes no answer ends too.

    Args:
        longest_message: bytes that a request may have; -1 is unlimited.
        patience: seconds that a client has to take an answer, and as many more for each MiB of it: gRPC does not tell
            how much of one has been taken.
    """

    def __init__(
        self,
        inference: Inference,
        admission: Admission,
        at_work: AtWork,
        closing: asyncio.Event,
        longest_message: int,
        patience: float,
    ) -> None:
        self._inference = inference
        self._admission = admission
        self._at_work = at_work
        self._closing = closing
        self._held = Held(longest_message)
        self._patience = patience

    @property
    def handler(self) -> grpc.RpcMethodHandler[bytes, bytes]:
        return grpc.stream_stream_rpc_method_handler(self._serve)

    async def _serve(self, requests: object, rpc: Rpc) -> None:
        with self._at_work.one():
            await self._answer(rpc)

    async def _answer(self, rpc: Rpc) -> None:
        caller = caller_of(rpc)
        room = Room(self._held)
        places = Places(self._admission)
        stream = _Stream(rpc, caller, self._inference, places, room, self._closing, self._patience)
        try:
            client_is_there = await stream.serve()
        finally:
            room.close()
        if stream.untaken:
            late = f"an answer was not taken within {stream.untaken:g} s (--client_timeout_seconds)"
            await refuse_within(0, rpc, CallersDeadline(late), caller)
        if not client_is_there:
            raise asyncio.CancelledError  # gRPC lets the call go without a word
        if self._closing.is_set():
            await refuse_at_the_end(rpc, caller)
        rpc.set_trailing_metadata(((REQUEST_ID, caller.identify()),))


Slot = asyncio.Future[bytes]
"""An answer in its place in the order of requests; empty where nothing is to be written there."""


@dataclass(slots=True)
class _Stream:
    """One stream; a request that fails does not end it.

    Answers are written in the order of their requests. One that comes in pieces leaves that order with its first piece:
    its pieces are written as they come, between the others.
    """

    rpc: Rpc
    caller: Caller
    inference: Inference
    places: Places
    room: Room
    closing: asyncio.Event
    patience: float
    slots: asyncio.Queue[Slot | None] = field(default_factory=asyncio.Queue)
    """In the order of the requests; None follows the last one."""
    awaited: Slot | None = None
    """The one whose turn it is."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    writing: asyncio.Timeout | None = None
    at_work: set[asyncio.Task[None]] = field(default_factory=set)
    gone: bool = False
    untaken: float = 0.0
    """After how many seconds it was given up, because its client took no answer."""

    async def serve(self) -> bool:
        """Whether the client was there for every answer: False if it is gone, or does not read while the server is
        closing.
        """
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read(group))
            waiting = group.create_task(self._end_reading(reading))
            while not self.gone and (slot := await self.slots.get()) is not None:
                self.awaited = slot
                answer = await slot
                if answer and await self._write(answer):
                    self.room.written(answer)
            reading.cancel()
            # Pieces may still be written: their requests go on, and notice themselves when the client is gone.
            if self.at_work and not self.gone:
                await asyncio.wait(self.at_work)
            waiting.cancel()
            for unwanted in self.at_work:
                unwanted.cancel()
        return not self.gone

    async def _read(self, group: asyncio.TaskGroup) -> None:
        """Begins a task for each request."""
        loop = asyncio.get_running_loop()
        while True:
            await self.room.until_free()
            try:
                body = await self.rpc.read()
            except grpc.aio.BaseError:  # the call is over
                body = None
            if not isinstance(body, bytes):  # grpc.aio.EOF, which the type stubs don't know
                self.slots.put_nowait(None)
                return
            slot: Slot = loop.create_future()
            task = group.create_task(self._answer(body, self.room.read(body), slot))
            self.at_work.add(task)
            task.add_done_callback(self.at_work.discard)
            self.slots.put_nowait(slot)
            del body  # or it would be held while the next one is waited for

    async def _answer(self, body: bytes, expected: int, slot: Slot) -> None:
        async def emit(piece: bytes) -> None:
            if not slot.done():
                slot.set_result(b"")
            if not await self._write(piece):
                raise asyncio.CancelledError  # nobody takes the rest

        answer = await self.inference.streamed(body, self.caller.fork(), self.places, emit)
        self.room.answered(answer, expected)
        if not slot.done():
            slot.set_result(answer)
        elif await self._write(answer):
            self.room.written(answer)

    async def _write(self, answer: bytes) -> bool:
        """Whether the client has taken it; one message at a time."""
        async with self.turn:
            if self.gone:
                return False
            seconds = self.patience * (1 + (len(answer) >> 20))
            try:
                async with asyncio.timeout(grpc_calls.PATIENCE if self.closing.is_set() else seconds) as self.writing:
                    await self.rpc.write(answer)
            except (grpc.aio.BaseError, TimeoutError) as error:
                if isinstance(error, TimeoutError) and not self.closing.is_set():
                    self.untaken = seconds
                self._give_up()
                return False
            finally:
                self.writing = None
        return True

    def _give_up(self) -> None:
        """Nothing is to be written any more: ``serve`` waits for no other answer or request."""
        self.gone = True
        self.slots.put_nowait(None)
        if self.awaited is not None and not self.awaited.done():
            self.awaited.set_result(b"")

    async def _end_reading(self, reading: asyncio.Task[None]) -> None:
        await self.closing.wait()
        reading.cancel()
        self.slots.put_nowait(None)
        if self.writing is not None:
            self.writing.reschedule(asyncio.get_running_loop().time() + grpc_calls.PATIENCE)
