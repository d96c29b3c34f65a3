"""A connection without a socket: a protocol class, a transport for the test to drive, and an application that records
its requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from uvicorn.server import ServerState

from hf_transformer.server.asgi import call_asgi
from hf_transformer.server.http import ClientLimits, HttpConnection
from hf_transformer.types.http import Request, Response, Stream
from tests.integration.server.serving import body_of, whole

HEADER_BYTES = 2048
LIMITS = ClientLimits(connections=9, header_bytes=HEADER_BYTES, seconds=60.0, idle_seconds=60.0)
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
SEEN = re.compile(rb"x-seen: (\w+)\r\n")


class Seen(NamedTuple):
    """A request as the application received it."""

    version: str
    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @property
    def digest(self) -> bytes:
        return sha256(repr(self).encode()).hexdigest()[:16].encode()


class Mirror:
    """An ASGI application that answers each complete request with its digest, and records it in ``seen``."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = await body_of(receive)
        if body is None:
            return
        path = scope["path"], scope["raw_path"], scope["query_string"]
        seen = Seen(scope["http_version"], scope["method"], *path, tuple(scope["headers"]), body)
        self.seen.append(seen)
        await whole(send, seen.digest, (b"x-seen", seen.digest))


class MirrorApplication:
    """A types.http.Application over an ASGI application. ``ends`` has the finished requests with their answers."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.ends: list[tuple[Request, Response | Stream | None]] = []

    async def handle(self, request: Request) -> Response | Stream:
        request.log = self
        return await call_asgi(self._app, request)

    def refuse(self, request: Request, status: int, message: str) -> Response:
        request.log = self
        return Response(status, message.encode(), [(b"x-reason", message.encode("ascii", "replace"))])

    def finished(self, request: Request, answer: Response | Stream | None, sent: int) -> None:
        self.ends.append((request, answer))


@dataclass
class Settings:
    """The server's settings for a connection (HttpSettings)."""

    application: Any
    client_limits: ClientLimits = LIMITS
    ending: bool = False
    state: ServerState = field(default_factory=ServerState)

    def connection(self) -> HttpConnection:
        return HttpConnection(self, self.state, {})


class Wire(asyncio.Transport):
    """A transport.

    Attributes:
        received: bytes that the client received.
        unsent: bytes in the write buffer.
        full: whether the client has stopped reading.
    """

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.protocol = protocol
        self.received = b""
        self.unsent = 0
        self.paused = self.closed = self.half_closed = self.full = False
        protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.half_closed, "written after the end"
        if self.closed:
            return
        self.received += data
        if self.full:
            self.unsent += len(data)
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def drain(self) -> None:
        """Makes the client read the write buffer and all that follows."""
        self.full, self.unsent = False, 0
        if self.protocol is not None:
            self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half_closed = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._lose)

    abort = close

    def _lose(self) -> None:
        protocol, self.protocol = self.protocol, None
        protocol.connection_lost(None)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    @property
    def done(self) -> bool:
        return self.closed or self.half_closed

    async def feed(self, *pieces: bytes) -> None:
        """Feeds pieces of the client's bytes, each as one read when the event loop is idle."""
        for piece in pieces:
            await settled()
            if self.closed:
                return
            assert not self.paused, f"reading does not resume after {self.received!r}"
            self.protocol.data_received(piece)
        await settled()


async def settled() -> None:
    """Waits until the event loop has no ready callback."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    while ready:  # noqa: ASYNC110 - no event announces it
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(application: MirrorApplication) -> AsyncIterator[Wire]:
    wire = Wire(Settings(application).connection())
    yield wire
    wire.close()
    await settled()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The requests that the application saw, the bytes that the client received, and whether the connection ended."""

    seen: tuple[Seen, ...]
    received: bytes
    done: bool

    @property
    def statuses(self) -> list[int]:
        """Statuses of the answers, without 100."""
        return [int(status) for status in STATUS.findall(self.received) if status != b"100"]

    @property
    def is_in_order(self) -> bool:
        """Whether the answers are in the order of the requests."""
        answered = SEEN.findall(self.received)
        return answered == [seen.digest for seen in self.seen][: len(answered)]

    @property
    def stable(self) -> tuple[object, ...]:
        """The outcome without 100 Continue, which depends on the pieces."""
        return self.seen, self.received.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""), self.done


def byte_by_byte(sent: bytes) -> list[bytes]:
    return [bytes([byte]) for byte in sent]


def ours(mirror: Mirror) -> HttpConnection:
    return Settings(MirrorApplication(mirror)).connection()


async def outcome(*pieces: bytes, make: Callable[[Mirror], Any] = ours) -> Outcome:
    """The outcome of feeding pieces to a connection from ``make``. The client then disconnects."""
    mirror = Mirror()
    wire = Wire(make(mirror))
    await wire.feed(*pieces)
    done = wire.done
    wire.close()
    await settled()
    return Outcome(tuple(mirror.seen), wire.received, done)
