"""New connections to a busy event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

import pytest
import uvloop

from hf_transformer.commands.loopback import HOST
from tests.integration.server.serving import Echo, serving
from tests.support.raw_http import connected_to

CLIENTS = 60


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_turn_of_the_event_loop_accepts_several_connections(
    run: Callable[[Coroutine[Any, Any, int]], int],
) -> None:
    """Each turn of a loaded service takes long, so new clients would wait for as many as there are before them."""

    async def turns() -> int:
        async with serving(Echo()) as (server, port):
            with ExitStack() as stack:
                for _ in range(CLIENTS):  # the kernel holds them meanwhile
                    stack.enter_context(socket.create_connection((HOST, port)))
                count = 0
                while len(server.server_state.connections) < CLIENTS:
                    await asyncio.sleep(0)
                    count += 1
                return count

    assert run(turns()) < CLIENTS / 4


async def test_no_connection_is_accepted_after_the_end() -> None:
    async with serving(Echo()) as (server, port):
        async with connected_to(port):
            pass
        server.should_exit = True
        async with asyncio.timeout(10):
            while True:
                try:
                    socket.create_connection((HOST, port)).close()
                except ConnectionRefusedError:
                    break
                await asyncio.sleep(0.01)
