"""One gRPC call with one request: what comes back, as HTTP/2 brings it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping

from hf_transformer.predictor.grpc_messages import PREFIX_BYTES, Message, MessageReader
from hf_transformer.predictor.grpc_status import (
    RpcError,
    Status,
    end_of_call,
    ended_without_status,
    of_fault,
    refusal_of_head,
)
from hf_transformer.predictor.http2_connection import WIDE, Connection
from hf_transformer.predictor.http2_errors import Disconnected, GoesAway, StreamReset
from hf_transformer.predictor.http2_frames import FIRST_WINDOW, ErrorCode

LINGER_SECONDS = 1.0
"""How long a unary call that is given up may still end by itself before the server is told. A Triton can crash when
that meets the answer (its issues 7368 and 8034, mended in steps until 25.06): 24.10 did in one of about 2,000 such
calls of a few milliseconds. Short calls are over by then, and few backends would have stopped."""


class Call(ABC):
    """A Stream of an HTTP/2 connection that is read as gRPC."""

    widen = 0
    """Bytes by which the window for the answer is opened from the start."""
    linger = 0.0
    """Seconds for which the server may go on with a call that has ended here."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int, deadline: float) -> None:
        """limit: bytes of one message; deadline: on the loop's clock, kept by the client."""
        self.id = 0
        self.started = False
        self.deadline = deadline
        self.connection: Connection
        """On which it was sent; set by the client."""
        self._loop = loop
        self._reader = MessageReader(limit)
        self._head: Mapping[str, str] | None = None
        self._over = False

    def cancel(self) -> None:
        """Ends the call, at the server too, unless it has ended."""
        self.fail(RpcError(Status.CANCELLED, "the call was cancelled here"))

    def expire(self) -> None:
        """Ends the call whose deadline is over."""
        self.fail(RpcError(Status.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def fail(self, error: RpcError, code: int = ErrorCode.CANCEL) -> None:
        """Ends the call with an error that is found here."""
        if not self._over:
            self._over = True
            self.connection.reset(self, code)
            self.on_end(error)

    @abstractmethod
    def on_message(self, message: Message) -> None:
        """A message is whole."""

    @abstractmethod
    def on_end(self, error: RpcError | None) -> None:
        """Nothing more comes. Called once."""

    # What follows is called by the connection.

    def on_headers(self, fields: Mapping[str, str], end: bool) -> None:
        if self._over:
            return
        if end:
            self._finish(end_of_call(fields))
        elif self._head is not None:
            self.fail(_broken("header fields come in the middle"), ErrorCode.PROTOCOL_ERROR)
        elif not (len(status := fields.get(":status", "")) == 3 and status[0] == "1"):  # and not informational
            self._head = fields
            refusal = refusal_of_head(fields)
            if refusal is not None:
                self.fail(refusal)

    def on_data(self, data: memoryview, size: int, end: bool) -> None:
        if self._over:
            return
        if self._head is None:
            self.fail(_broken("it has no header fields"), ErrorCode.PROTOCOL_ERROR)
            return
        try:
            messages = self._reader.feed(data)
        except RpcError as error:
            self.fail(error)
            return
        for message in messages:
            self.on_message(message)
        if end:
            self._finish(ended_without_status())

    def room(self) -> memoryview | None:
        return self._reader.room()

    def on_placed(self, count: int, end: bool) -> None:
        message = self._reader.placed(count)
        if message is not None and not self._over:
            self.on_message(message)
        if end:
            self._finish(ended_without_status())

    def on_failed(self, error: Exception) -> None:
        late = isinstance(error, StreamReset) and error.code == ErrorCode.CANCEL and self._loop.time() >= self.deadline
        found = RpcError(Status.DEADLINE_EXCEEDED, "Deadline Exceeded") if late else of_fault(error)
        if isinstance(error, Disconnected | GoesAway):
            found.connection = self.connection
        self._finish(found)

    def _finish(self, error: RpcError | None) -> None:
        """The server has ended the call."""
        if self._over:
            return
        self._over = True
        if error is None and not self._reader.between:
            error = _broken("it ends in the middle of a message")
        self.on_end(error)


class UnaryCall(Call):
    """A call with one message as its answer."""

    widen = WIDE
    linger = LINGER_SECONDS

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int, deadline: float) -> None:
        super().__init__(loop, limit, deadline)
        self._message: Message | None = None
        self._error: RpcError | None = None
        self._ended: asyncio.Future[None] = loop.create_future()

    async def result(self, held: bool = False) -> Message:
        """The answer; one of at least grpc_messages.LARGE bytes may be a view.

        Cancelling it gives the call up. One that is ``held`` goes on to its end, and CancelledError is raised then.

        Raises:
            RpcError: the call ended without one.
        """
        cancelled: asyncio.CancelledError | None = None
        while not self._over:
            try:
                await self._ended
            except (asyncio.CancelledError, GeneratorExit) as error:
                if self._over or not held or isinstance(error, GeneratorExit):
                    self.cancel()
                    raise
                cancelled, self._ended = error, self._loop.create_future()
        if cancelled is not None:
            raise cancelled
        if self._error is None and self._message is not None:
            return self._message
        raise self._error or _broken("it has no message")

    def cancel(self) -> None:
        self._give_up(RpcError(Status.CANCELLED, "the call was cancelled here"))

    def expire(self) -> None:
        self._give_up(RpcError(Status.DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def _give_up(self, error: RpcError) -> None:
        """Ends the call here, and at the server later, unless that has ended it by then."""
        if not self._over:
            self._over = True
            self._message, self._reader = None, MessageReader(0)  # what has come is dropped, as what comes is
            self._loop.call_later(self.linger, self.connection.reset, self)
            self.on_end(error)

    def on_message(self, message: Message) -> None:
        if self._message is None:
            self._message = message
        else:
            self.fail(_broken("it has more than one message"))

    def on_end(self, error: RpcError | None) -> None:
        self._error = error
        if not self._ended.done():  # or cancelled
            self._ended.set_result(None)


class StreamingCall(Call):
    """A call with any number of messages as its answer.

    The server may send 64 KiB ahead of who reads, and the rest of a message that is larger once it is its turn.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int, deadline: float) -> None:
        super().__init__(loop, limit, deadline)
        self._messages: deque[Message] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._follower: Callable[[], object] | None = None
        self._error: RpcError | None = None
        self._window = FIRST_WINDOW
        self._held = 0  # bytes that have come and are not read

    async def read(self) -> bytes | None:
        """The next message; None once the call has ended with OK. One reader at a time. Cancelling it leaves the call
        as it is.

        Raises:
            RpcError: it has ended with another status. Messages that came before are read first.
        """
        while not self._messages:
            if self._over:
                if self._error is not None:
                    raise self._error
                return None
            self._waiter = self._loop.create_future()
            await self._waiter
        return bytes(self.drop())

    def peek(self) -> Message | None:
        """The next message, if it is there; it stays the next one."""
        return self._messages[0] if self._messages else None

    def drop(self) -> Message:
        """Takes the next message, which is there."""
        message = self._messages.popleft()
        self._held -= PREFIX_BYTES + len(message)
        if self._window < FIRST_WINDOW // 2 and not self._over:
            self._open_window()
        return message

    def follow(self, wake: Callable[[], object]) -> bool:
        """Has it called, once, when a message or the end comes, in that very moment; False if any is there already."""
        if self._messages or self._over:
            return False
        self._follower = wake
        return True

    def unfollow(self) -> None:
        """Nobody is called any more."""
        self._follower = None

    def on_data(self, data: memoryview, size: int, end: bool) -> None:
        self._window -= size
        self._held += len(data)
        if self._window < 0 and not self._over:
            self.fail(_broken("it is sent faster than allowed"), ErrorCode.FLOW_CONTROL_ERROR)
        super().on_data(data, size, end)
        if self._window < FIRST_WINDOW // 2 and not self._over:
            self._open_window()

    def on_placed(self, count: int, end: bool) -> None:
        self._window -= count
        self._held += count
        super().on_placed(count, end)
        if self._window < FIRST_WINDOW // 2 and not self._over:
            self._open_window()

    def on_message(self, message: Message) -> None:
        self._messages.append(message)
        self._wake()

    def on_end(self, error: RpcError | None) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        follower, self._follower = self._follower, None
        if follower is not None:
            follower()

    def _open_window(self) -> None:
        """Lets the server send what there is room for, and in any case the rest of the message that is to be read."""
        room = FIRST_WINDOW - self._held - self._window
        rest = 0 if self._messages else self._reader.missing - self._window
        if room >= FIRST_WINDOW // 2 or rest > 0:
            room = max(room, rest)
            self._window += room
            self.connection.widen(self, room)


def _broken(what: str) -> RpcError:
    return RpcError(Status.INTERNAL, f"the answer breaks the rules of gRPC: {what}")
