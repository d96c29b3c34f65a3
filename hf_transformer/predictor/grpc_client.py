"""A client for one gRPC server: unary calls, and calls with one request and a stream of responses.

It does what a predictor needs and no more: no compression, load balancing, proxies or service configuration.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import suppress
from math import ceil
from typing import Final, TypeVar

from hf_transformer.predictor.address import Address
from hf_transformer.predictor.grpc_call import Call, StreamingCall, UnaryCall
from hf_transformer.predictor.grpc_messages import Message, prefixed
from hf_transformer.predictor.grpc_status import RpcError, Status, not_connected
from hf_transformer.predictor.http2_connection import Connection
from hf_transformer.predictor.http2_errors import ConnectTimeout, Disconnected, Http2Error, NotHttp2
from hf_transformer.predictor.http2_headers import encode_fields, encode_post

CONNECT_SECONDS: Final = 10.0
"""How long a connection may take to open, TLS and the server's first word included."""

_SILENT_SECONDS = 240.0
"""After which an idle connection is not used: what is on the way to a server may forget one, without a word."""

_CLOSING_SECONDS = 1.0

_CONSTANT = (("te", "trailers"), ("grpc-accept-encoding", "identity"))

C = TypeVar("C", bound=Call)


class GrpcClient:
    """Calls to one server, all on one connection as long as the server takes them there.

    A connection is opened when a call needs one, and another where the server takes no more calls on those there are.
    One that ends is replaced by the next call. A call that the server has not begun with, since it is just ending the
    connection, is made once more on another.
    """

    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None,
        seconds: float,
        largest_response: int = 2**32,
        largest_request: int = 2**32 - 1,
    ) -> None:
        """Must be called where an event loop runs.

        tls: for TLS, None for plain TCP. Its ALPN is set.
        seconds: what one call may take, connecting included.
        largest_response, largest_request: bytes of one message.
        """
        self._address = address
        self._tls = tls
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        self._seconds = seconds
        self._timeouts = {kind.linger: _timeout_field(seconds + kind.linger) for kind in (UnaryCall, StreamingCall)}
        self._largest_response = largest_response
        self._largest_request = largest_request
        self._loop = asyncio.get_running_loop()
        self._usable: list[Connection] = []
        self._connections: set[Connection] = set()
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._ended = asyncio.Event()
        self.closed = False

    def method(self, path: str, metadata: Iterable[tuple[str, str]] = ()) -> bytes:
        """What ``unary`` and ``stream`` take as the method: the header fields that all of its calls share."""
        beginning = encode_post(path, authority(self._address), "application/grpc", tls=self._tls is not None)
        return beginning + encode_fields((*_CONSTANT, *metadata))

    async def unary(
        self, method: bytes, request: bytes, metadata: Iterable[tuple[str, str]] = (), held: float | None = None
    ) -> Message:
        """The response to a request; one that is not small may be a view. Cancelling it cancels the call at the server
        too, unless it ends within LINGER_SECONDS.

        held: a deadline on the loop's clock. Such a call, once it was sent, goes on to its end, or up to there, when it
        is cancelled, and CancelledError is raised then.

        Raises:
            RpcError: the call ended with another status than OK, or there was no connection.
        """
        deadline = self._loop.time() + self._seconds
        if held is not None:
            deadline = min(deadline, held)
        call = UnaryCall(self._loop, self._largest_response, deadline)
        try:
            await self._begin(call, method, request, metadata)
            return await call.result(held is not None)
        except RpcError as error:
            if not error.refused or self.closed:
                raise
        call = UnaryCall(self._loop, self._largest_response, deadline)
        await self._begin(call, method, request, metadata)
        return await call.result(held is not None)

    async def stream(self, method: bytes, request: bytes, metadata: Iterable[tuple[str, str]] = ()) -> StreamingCall:
        """Sends a request; its responses are to be read, or the call to be cancelled.

        Raises:
            RpcError: there is no connection.
        """
        call = StreamingCall(self._loop, self._largest_response, self._loop.time() + self._seconds)
        await self._begin(call, method, request, metadata)
        return call

    async def close(self) -> None:
        """Closes every connection; calls under way fail."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        connecting = self._connecting
        if connecting is not None:
            await asyncio.sleep(0)  # cancelled before it has begun, it would cancel those who wait for it
            connecting.cancel()
            await asyncio.wait([connecting])
        for connection in list(self._connections):
            connection.abort()
        if self._connections:
            self._ended.clear()
            with suppress(TimeoutError):  # the sockets are shut; what is missing is only the loop's word on it
                async with asyncio.timeout(_CLOSING_SECONDS):
                    await self._ended.wait()

    async def _begin(self, call: Call, method: bytes, request: bytes, metadata: Iterable[tuple[str, str]]) -> None:
        if len(request) > self._largest_request:
            raise RpcError(
                Status.RESOURCE_EXHAUSTED,
                f"CLIENT: Sent message larger than max ({len(request)} vs. {self._largest_request})",
                settled=True,
            )
        timeout = self._timeouts[call.linger]
        connection = self._with_room()
        if connection is None:
            while connection is None:
                await self._loop.create_task(self._connected(call.deadline))  # asyncio.timeout_at needs one
                connection = self._with_room()
            timeout = _timeout_field(call.deadline + call.linger - self._loop.time())
        call.connection = connection
        block = method + timeout
        if metadata:
            block += encode_fields(metadata)
        connection.start(call, block, prefixed(request), call.widen)
        if self._timer is None or call.deadline < self._timer_at:
            self._watch(call.deadline)

    def _with_room(self) -> Connection | None:
        """A connection for another call, if there is any."""
        for connection in self._usable:
            if connection.has_room:
                if connection.idle and self._loop.time() - connection.heard > _SILENT_SECONDS:
                    connection.abort()
                    return self._with_room()
                return connection
        return None

    async def _connected(self, deadline: float) -> None:
        """Waits until another connection has been opened, for this call or another one."""
        if self.closed:
            raise RpcError(Status.CANCELLED, "the client is closed", settled=True)
        if self._connecting is None or self._connecting.done():  # else its caller would go round without a pause
            self._connecting = self._loop.create_task(self._connect())
            self._connecting.add_done_callback(self._has_connected)
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(self._connecting)
        except TimeoutError as exc:
            raise RpcError(Status.DEADLINE_EXCEEDED, "Deadline Exceeded: there is no connection", settled=True) from exc

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._open()
        except TimeoutError as exc:
            raise not_connected(ConnectTimeout(f"no connection within {CONNECT_SECONDS:g} s")) from exc
        except (OSError, Http2Error) as exc:
            raise not_connected(exc) from exc
        except asyncio.CancelledError as exc:  # by close(); who waits for this task is not cancelled
            raise RpcError(Status.CANCELLED, "the client is closed", settled=True) from exc

    async def _open(self) -> None:
        """A new connection, in ``_usable`` if all is well."""
        host = self._address.host
        _, connection = await self._loop.create_connection(
            lambda: Connection(self._loop, self),
            host,
            self._address.port,
            ssl=self._tls,
            server_hostname=host.rstrip(".") if self._tls is not None else None,
        )
        self._connections.add(connection)
        try:
            protocol = connection.protocol
            if self._tls is not None and protocol != "h2":
                raise NotHttp2(f"it selects {protocol or 'no protocol'} in TLS (ALPN), expected h2")
            await connection.ready
            if not connection.has_room:
                raise Disconnected("it takes no calls")
        except BaseException:
            connection.abort()
            raise
        self._usable.append(connection)

    def _has_connected(self, task: asyncio.Task[None]) -> None:
        if self._connecting is task:
            self._connecting = None
        if not task.cancelled():
            task.exception()  # it may be that nobody waits for it any longer

    def lost(self, connection: Connection) -> None:
        """For connections: this one takes no more calls."""
        if connection in self._usable:
            self._usable.remove(connection)

    def ended(self, connection: Connection) -> None:
        """For connections: this one is closed."""
        self._connections.discard(connection)
        if not self._connections:
            self._ended.set()

    # One timer serves all calls: it is set anew when it goes off, since later calls have later deadlines.

    def _watch(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        calls = [one for connection in self._connections for one in connection.streams if isinstance(one, Call)]
        now = self._loop.time()
        for call in calls:
            if call.deadline <= now:
                call.expire()
        later = [call.deadline for call in calls if call.deadline > now]
        if later:
            self._watch(min(later))


def authority(address: Address) -> str:
    """What stands for Host: always with the port, without an IPv6 zone."""
    host, _, _ = address.host.partition("%")
    name = f"[{host}]" if ":" in host else host.encode("idna").decode()
    return f"{name}:{address.port}"


def _timeout_field(seconds: float) -> bytes:
    """The header field that tells the server of the deadline, rounded up; at most eight digits may stand there."""
    milliseconds = max(1, ceil(seconds * 1000))
    value = f"{milliseconds}m" if milliseconds < 10**8 else f"{min(ceil(seconds), 10**8 - 1)}S"
    return encode_fields((("grpc-timeout", value),))
