"""What uvicorn does with the class that it is given by ``http=``: written down nowhere, so a new version may differ."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn

from hf_transformer.commands.local_triton import HOST
from hf_transformer.server.http import HttpConnection
from tests.integration.server.processes import SECONDS, get
from tests.integration.server.serving import Gate


class Watched(asyncio.Protocol):
    """A protocol class that notes what is asked of it; the event loop's own calls are those of asyncio.Protocol."""

    made: dict[str, Any] = {}  # noqa: RUF012 - one server at a time
    asked: set[str] = set()  # noqa: RUF012

    def __init__(self, **given: Any) -> None:
        Watched.made = given

    def __getattribute__(self, name: str) -> Any:
        if not hasattr(asyncio.Protocol, name):
            Watched.asked.add(name)
        return super().__getattribute__(name)

    def connection_made(self, transport: Any) -> None:
        self.made["server_state"].connections.add(self)
        self.transport = transport
        transport.write(b"made")

    def connection_lost(self, exc: Exception | None) -> None:
        self.made["server_state"].connections.discard(self)

    def shutdown(self) -> None:
        self.transport.close()


async def test_what_uvicorn_gives_and_calls() -> None:
    server = uvicorn.Server(uvicorn.Config(Gate(), http=Watched, lifespan="on", log_config=None))
    listening = socket.create_server((HOST, 0))
    running = asyncio.create_task(server.serve([listening]))
    async with asyncio.timeout(SECONDS):
        while not server.started:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(get("/"))
        assert await reader.readexactly(4) == b"made"
        server.should_exit = True
        await running
        writer.close()
    assert Watched.made.keys() == {"config", "server_state", "app_state", "_loop"}
    assert Watched.asked - {"made", "transport"} == {"shutdown"}
    state = Watched.made["server_state"]
    assert [name for name, _ in state.default_headers] == [b"date", b"server"]
    assert state.connections == set() and state.total_requests == 0
    assert hasattr(HttpConnection, "shutdown")
