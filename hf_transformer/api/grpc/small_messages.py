"""Methods with small request messages: all except inference. Health checks and probes are among them, without a key.

gRPC has one limit of message sizes for a server (--max_request_bytes), and receives a message completely before it
checks the limit. It begins to receive a message only when a handler of a stream reads it. So each of these methods is
such a handler: few of them read at a time, for a short time, and keep nothing of a message that is too large.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from inspect import isasyncgen
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from hf_transformer.api.grpc.calls import Rpc

MAX_MESSAGE_BYTES = 4096
"""Maximum size of a message. Names of models and services are much shorter."""
MAX_READING = 4
"""Maximum number of messages that are received at a time. Each may take --max_request_bytes of memory; a small one
takes less than a millisecond."""
MAX_WAITING = 256
"""Maximum number of calls that wait to be read, each of which holds a window of its message (server.WINDOW_BYTES). With
one more, the oldest of the address and connection with the most ends."""
READ_SECONDS = 2.0
"""Maximum time to receive a message. A small one arrives in the same packet as its call."""
TURN_SECONDS = 0.2
"""Maximum time to receive a message while other calls wait. Otherwise five calls a second without a message would delay
health checks forever."""
MAX_KNOWN_PEERS = 1024
"""Maximum number of connections whose last turn is known."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Parse: TypeAlias = Callable[[bytes], Any]


class SmallMessages:
    """Reads the messages of all methods that it wraps. Addresses take turns, and the connections of an address, so that
    large or slow messages of some clients don't delay the health checks of others. The newest call of a connection
    reads first."""

    def __init__(self) -> None:
        self._free = MAX_READING
        self._reading: dict[asyncio.Timeout, float] = {}
        """The timeouts of the calls that read, with their starts."""
        self._waiting: dict[asyncio.Future[bool], str] = {}
        """The calls that wait, with their peers."""
        self._turns: dict[str, int] = {}
        """The number of the last turn of each address and connection, the latest last."""
        self._count = 0

    def handlers(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """Returns handlers with the same requests and responses, which read the requests themselves, by method."""
        return {name: self._handler(handler) for name, handler in handlers.items()}

    def _handler(self, handler: Handler) -> Handler:
        behavior: Any = handler.unary_unary or handler.unary_stream or handler.stream_stream
        parse = handler.request_deserializer or bytes
        call = self._stream(behavior, parse) if handler.request_streaming else self._unary(behavior, parse)
        return grpc.stream_stream_rpc_method_handler(call, None, handler.response_serializer)

    def _unary(self, behavior: Callable[..., Any], parse: Parse) -> Callable[..., Awaitable[Any]]:
        async def call(requests: object, rpc: Rpc) -> Any:
            request = await self._read(rpc, parse)
            if request is None:
                await rpc.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a message, got none")
            return await _respond(behavior(request, rpc), rpc)

        return call

    def _stream(self, behavior: Callable[..., Any], parse: Parse) -> Callable[..., Awaitable[Any]]:
        async def requests_of(rpc: Rpc) -> AsyncIterator[Any]:
            while (request := await self._read(rpc, parse)) is not None:
                yield request

        async def call(requests: object, rpc: Rpc) -> Any:
            return await _respond(behavior(requests_of(rpc), rpc), rpc)

        return call

    async def _read(self, rpc: Rpc, parse: Parse) -> Any:
        """Reads a message; None at the end of the requests. Ends the call for one that is too large, late or invalid.

        gRPC keeps the frames of such a call until the next garbage collection: no frame may keep a large message.
        """
        try:
            async with self._slot(rpc.peer()):
                body = await rpc.read()
            if not isinstance(body, bytes):  # grpc.aio.EOF, missing in the type stubs
                return None
            if len(body) <= MAX_MESSAGE_BYTES:
                return parse(body)
            status, got = grpc.StatusCode.RESOURCE_EXHAUSTED, str(len(body))
        except TimeoutError:
            status, got = (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"a part of one within {READ_SECONDS:g} s, {TURN_SECONDS:g} s if others wait",
            )
        except DecodeError:
            status, got = grpc.StatusCode.INVALID_ARGUMENT, "no protobuf"
        body = b""
        await rpc.abort(status, f"expected a message of at most {MAX_MESSAGE_BYTES} bytes, got {got}")

    @asynccontextmanager
    async def _slot(self, peer: str) -> AsyncIterator[None]:
        """Waits until fewer than MAX_READING messages are being received. Raises TimeoutError if too many wait, and if
        the block takes too long."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(peer)
        try:
            self._count += 1
            for name in (address_of(peer), peer):
                self._turns.pop(name, None)
                self._turns[name] = self._count
            while len(self._turns) > MAX_KNOWN_PEERS:
                del self._turns[next(iter(self._turns))]
            async with asyncio.timeout(TURN_SECONDS if self._waiting else READ_SECONDS) as timeout:
                self._reading[timeout] = asyncio.get_running_loop().time()
                try:
                    yield
                finally:
                    del self._reading[timeout]
        finally:
            self._release()

    def _release(self) -> None:
        """Gives a slot to the address and the connection whose last turn is the longest ago."""
        waiting = [turn for turn in reversed(self._waiting) if not turn.done()]  # a cancelled one has not left yet
        if not waiting:
            self._free += 1
            return
        turn = min(waiting, key=self._last_turns)
        del self._waiting[turn]
        turn.set_result(True)

    def _last_turns(self, turn: asyncio.Future[bool]) -> tuple[int, int]:
        peer = self._waiting[turn]
        return self._turns.get(address_of(peer), 0), self._turns.get(peer, 0)

    async def _wait(self, peer: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = peer
        for timeout, began in self._reading.items():
            if not timeout.expired():
                timeout.reschedule(min(began + TURN_SECONDS, timeout.when() or began))
        if len(self._waiting) > MAX_WAITING:
            addresses, peers = Counter(map(address_of, self._waiting.values())), Counter(self._waiting.values())
            last = max(self._waiting, key=lambda turn: (addresses[address_of(of := self._waiting[turn])], peers[of]))
            del self._waiting[last]
            if not last.done():
                last.set_result(False)
        try:
            has_slot = await turn
        except asyncio.CancelledError:
            self._waiting.pop(turn, None)
            if turn.done() and not turn.cancelled() and turn.result():
                self._release()  # the call ended as it got a slot
            raise
        if not has_slot:
            raise TimeoutError


def address_of(peer: str) -> str:
    """The address of a gRPC peer without its port, such as ipv4:127.0.0.1."""
    return peer.rpartition(":")[0]


async def _respond(responses: Any, rpc: Rpc) -> Any:
    """Writes the response of a unary method or all responses of a stream. Returns a unary response, for the log."""
    if not isasyncgen(responses):
        response = await responses
        if response is not None:
            await rpc.write(response)
        return response
    async with aclosing(responses):
        async for response in responses:
            await rpc.write(response)
    return None
