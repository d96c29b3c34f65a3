"""What uvicorn does with the class that it is given by ``http=``: written down nowhere, so a new version may differ."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn

from hf_transformer.server.http import HttpConnection
from tests.integration.hostile.wire import get
from tests.integration.server.serving import Echo, connected_to, running


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
    server = uvicorn.Server(uvicorn.Config(Echo(), http=Watched, lifespan="on", log_config=None))
    async with running(server) as port, connected_to(port) as client:
        client.send(get("/"))
        assert await client.until(b"made") == b"made"
        server.should_exit = True
        assert await client.rest() == b""
    assert Watched.made.keys() == {"config", "server_state", "app_state", "_loop"}
    assert Watched.asked - {"made", "transport"} == {"shutdown"}
    state = Watched.made["server_state"]
    assert [name for name, _ in state.default_headers] == [b"date", b"server"]
    assert state.connections == set() and state.total_requests == 0
    assert hasattr(HttpConnection, "shutdown")
