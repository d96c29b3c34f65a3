"""A server of this process on a free port, in front of a small ASGI application, and a client of it.

Only ``serving`` knows the classes of hf_transformer.server: the tests beside it see sockets and ASGI alone.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import uvicorn

from hf_transformer.api.errors import error_json
from hf_transformer.api.gateway import Gateway, GatewaySettings, Router
from hf_transformer.commands.loopback import HOST
from hf_transformer.observability.metrics import Metrics
from hf_transformer.server.asgi import AsgiApplication, call_asgi
from hf_transformer.server.http import ClientLimits
from hf_transformer.server.run import Server, ServerConfig
from tests.support.polling import SECONDS, until
from tests.support.raw_http import RawHttpClient, connected_to


class App(ABC):
    """An ASGI application; what it waits for, it waits for until ``open`` is set, as it is at first."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.called = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for step in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{step}.complete"})
            return
        self.called.set()
        try:
            await self.respond(scope, receive, send)
        finally:
            self.ended.set()

    @abstractmethod
    async def respond(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers one request."""


class Echo(App):
    """Answers each request with its body; notes the scopes and the bodies of those that came whole."""

    def __init__(self) -> None:
        super().__init__()
        self.scopes: list[Any] = []
        self.bodies: list[bytes] = []

    async def respond(self, scope: Any, receive: Any, send: Any) -> None:
        body = await body_of(receive)
        if body is None:
            return
        self.scopes.append(scope)
        self.bodies.append(body)
        await self.open.wait()
        await whole(send, b"echo:" + body)


async def body_of(receive: Any) -> bytes | None:
    """The body of a request; None where its client leaves before."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def whole(send: Any, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Sends a response that states its length."""
    fields = [(b"content-type", b"text/plain"), *headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def running(server: uvicorn.Server) -> AsyncIterator[int]:
    """The port of a server of uvicorn's, which ends with the context."""
    listening = socket.create_server((HOST, 0))
    serving = asyncio.create_task(server.serve([listening]))
    async with asyncio.timeout(SECONDS):
        await until(lambda: server.started)
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


@asynccontextmanager
async def serving(
    app: Any,
    seconds: float = SECONDS,
    certificate: tuple[str, str] | None = None,
    keep_alive: int = 65,
    grace: float = SECONDS,
    settings: GatewaySettings | None = None,
) -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """The server of ``app``, and its port; ``seconds`` is the client timeout. At the end an App is opened.

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
    async with running(server := Server(config)) as port:
        try:
            yield server, port
        finally:
            if isinstance(app, App):
                app.open.set()


def _behind_gateway(app: Any, settings: GatewaySettings | None) -> AsgiApplication:
    others = partial(call_asgi, app)
    gateway = Gateway(Router((), ()), others, (), lambda path: error_json, Metrics(), settings or GatewaySettings())
    return AsgiApplication(gateway, app)


@asynccontextmanager
async def client_of(app: Any, **options: Any) -> AsyncIterator[RawHttpClient]:
    """A connection to a server of its own."""
    async with serving(app, **options) as (_, port), connected_to(port) as client:
        yield client
