"""A server of this process on a free port, in front of a small ASGI application, and a client of it.

Only ``serving`` knows the classes of hf_transformer.server: the tests beside it see sockets and ASGI alone.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import uvicorn

from hf_transformer.api.base import error_json
from hf_transformer.api.gateway import Gateway, GatewaySettings, Router
from hf_transformer.commands.local_triton import HOST
from hf_transformer.observability.metrics import Metrics
from hf_transformer.server.asgi import AsgiApplication, call_asgi
from hf_transformer.server.http import ClientLimits
from hf_transformer.server.run import Server, ServerConfig
from tests.integration.server.processes import SECONDS

ANSWER = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
TARGET = "/echo"
CHUNKED = f"POST {TARGET} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


class Gate:
    """An application that answers /gate when it is open, and all else at once."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.waiting = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for step in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{step}.complete"})
            return
        if scope["path"] == "/gate":
            self.waiting.set()
            await self.open.wait()
        await send(ANSWER)
        await send({"type": "http.response.body"})


@asynccontextmanager
async def serving(
    app: Any,
    seconds: float = SECONDS,
    certificate: tuple[str, str] | None = None,
    keep_alive: int = 65,
    grace: float = SECONDS,
    settings: GatewaySettings | None = None,
) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """The server of ``app``, and its port; ``seconds`` is the client timeout. At the end a Gate is opened.

    An application that is not the service itself is put behind a gateway of the service's, with these ``settings``.

    ``should_exit = True`` begins the server's end, as SIGTERM does.
    """
    service = app if isinstance(app, AsgiApplication) else _behind_gateway(app, settings)
    limits = ClientLimits(connections=99, header_bytes=8192, seconds=seconds, idle_seconds=keep_alive)
    config = ServerConfig(
        lambda: service,
        limits=limits,
        grace=grace,
        certificate=certificate,
        clean_up=bool,
        timeout_keep_alive=keep_alive,
    )
    server = Server(config)
    listening = socket.create_server((HOST, 0))
    running = asyncio.create_task(server.serve([listening]))
    async with asyncio.timeout(SECONDS):
        while not server.started:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.01)
        try:
            yield server, listening.getsockname()[1]
        finally:
            if isinstance(app, Gate):
                app.open.set()
            server.should_exit = True
            await running


def _behind_gateway(app: Any, settings: GatewaySettings | None) -> AsgiApplication:
    others = partial(call_asgi, app)
    gateway = Gateway(Router((), ()), others, (), lambda path: error_json, Metrics("m"), settings or GatewaySettings())
    return AsgiApplication(gateway, app)


class Client:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def leave(self) -> None:
        """Closes the connection at once."""
        self.writer.transport.abort()

    async def head(self) -> bytes:
        """What comes up to the next empty line."""
        async with asyncio.timeout(SECONDS):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def answer(self) -> tuple[bytes, bytes]:
        """Head and body of the next response that states its length."""
        head = await self.head()
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        async with asyncio.timeout(SECONDS):
            return head, await self.reader.readexactly(int(length[1]))

    async def rest(self) -> bytes:
        """What comes until the connection is closed."""
        async with asyncio.timeout(SECONDS):
            return await self.reader.read()


@asynccontextmanager
async def connected_to(port: int) -> AsyncIterator[Client]:
    """A connection, closed at the end."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def client_of(app: Any, seconds: float = SECONDS, keep_alive: int = 65) -> AsyncIterator[Client]:
    """A connection to a server of its own."""
    async with serving(app, seconds, keep_alive=keep_alive) as (_, port), connected_to(port) as client:
        yield client


def post(body: bytes = b"text", *lines: str, target: str = TARGET, version: str = "1.1") -> bytes:
    """A POST with these further header lines."""
    head = "".join(f"{line}\r\n" for line in (f"POST {target} HTTP/{version}", "Host: x", *lines))
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Echo(Gate):
    """Answers each request with its body, once ``open`` is set; notes what it was asked.

    ``scopes`` and ``bodies`` are of the requests that came whole; ``left`` is set when a client leaves one that waits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open.set()
        self.scopes: list[Any] = []
        self.bodies: list[bytes] = []
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.set()
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.scopes.append(scope)
        self.bodies.append(body)
        self.waiting.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        await self.answer(send, b"echo:" + body)

    async def answer(self, send: Any, answer: bytes) -> None:
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})
