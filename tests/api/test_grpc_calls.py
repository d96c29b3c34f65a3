"""Room in a gRPC stream, without a server."""

from __future__ import annotations

import asyncio

from hf_transformer.api.grpc.stream import STREAMS_AT_MOST, HeldBytes, StreamRoom
from hf_transformer.observability.metrics import Metrics
from tests.integration.api.grpc_model import ScriptedModel, service_of


async def test_room_in_bytes() -> None:
    held = HeldBytes(5 << 20)
    assert (held.most_of_one, held.most) == (5 << 20, STREAMS_AT_MOST * 5 << 20)
    held.most = 5 << 20
    admission = service_of(ScriptedModel(), Metrics("bert")).admission
    first, second = StreamRoom(held, admission), StreamRoom(held, admission)
    first.hold("1", 1)
    await first.until_free()
    first.hold("1", 3 << 20, answered=True)
    assert held.bytes == 3 << 20
    first.hold("2", 1)
    assert held.bytes == 6 << 20, "the next answer is expected to be as long as the last one"
    waiting = asyncio.create_task(first.until_free())
    await second.until_free()  # it holds nothing
    second.hold("3", 1)
    others = asyncio.create_task(second.until_free())
    await asyncio.sleep(0)
    assert not waiting.done() and not others.done()
    first.drop("1")
    await waiting
    second.drop("3")
    await others
    first.drop("2")
    assert held.bytes == 0
