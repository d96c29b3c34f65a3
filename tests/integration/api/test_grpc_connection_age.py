"""The age of the gRPC server's connections (--grpc_max_connection_age), seen by a client behind a relay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc
import grpc.aio

from hf_transformer.api.grpc.server import MAX_OPTION, GrpcSettings
from hf_transformer.app.application import grpc_server
from hf_transformer.commands.loopback import HOST
from hf_transformer.observability.metrics import Metrics
from tests.integration.api.grpc_model import (
    IN_FLIGHT,
    SECONDS,
    Client,
    Gate,
    Predict,
    ScriptedModel,
    Server,
    channel_to,
    echo,
    read,
    request,
    service_of,
    serving,
    status_of,
    text_of,
)
from tests.support.configuring import config
from tests.support.polling import until

AGE = "grpc.max_connection_age_ms"
GRACE = "grpc.max_connection_age_grace_ms"


class Relay:
    """Passes TCP connections on to a port. ``opened`` and ``closed`` count them."""

    def __init__(self, port: int) -> None:
        self.opened = self.closed = 0
        self._port = port

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        to_reader, to_writer = await asyncio.open_connection(HOST, self._port)
        try:
            await asyncio.gather(_pass_on(reader, to_writer), _pass_on(to_reader, writer))
        finally:
            self.closed += 1


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def relayed(
    predict: Predict = echo, *, age: float, age_grace: float = 0.0
) -> AsyncIterator[tuple[Server, Client, Relay]]:
    """A server, and a client of it behind a relay."""
    async with serving(predict, age=age, age_grace=age_grace) as server:
        relay = Relay(server.port)
        listening = await asyncio.start_server(relay.accept, HOST, 0)
        async with asyncio.timeout(SECONDS), channel_to(listening.sockets[0].getsockname()[1]) as channel:
            yield server, Client(channel), relay
        listening.close()
        await until(lambda: relay.closed == relay.opened)


async def test_connections_are_replaced_at_their_age_and_no_call_is_lost() -> None:
    async with relayed(age=0.2) as (_, client, relay):
        number = 0
        while relay.opened < 5:
            texts = [f"{number} {one}" for one in range(8)]
            answers = await asyncio.gather(*[client.infer(request(text)) for text in texts])
            assert [text_of(answer) for answer in answers] == texts
            number += 1
        await until(lambda: relay.closed >= 3)


async def test_calls_and_streams_in_flight_finish_on_the_old_connection() -> None:
    gate = Gate()
    async with relayed(gate, age=0.2) as (server, client, relay):
        call, stream = client.infer(request("a")), client.stream()
        await stream.write(request("b", id="1"))
        await server.until(IN_FLIGHT, 2)
        while relay.opened < 3:
            assert text_of(await client.infer(request("at once"))) == "at once"
        assert relay.closed <= relay.opened - 2, "the old connection and the newest one"
        gate.open.set()
        assert text_of(await call) == "a"
        assert text_of((await read(stream)).infer_response) == "b"
        await stream.write(request("c", id="2"))
        assert text_of((await read(stream)).infer_response) == "c", "the stream goes on"
        await stream.done_writing()
        assert await read(stream) is grpc.aio.EOF  # type: ignore[attr-defined]
        assert not gate.cancelled


async def test_the_grace_ends_a_stream_that_does_not_end() -> None:
    gate = Gate()
    async with relayed(gate, age=0.2, age_grace=1.0) as (_, client, relay):
        stream = client.stream()
        await stream.write(request("at once"))
        assert text_of((await read(stream)).infer_response) == "at once"
        assert (await status_of(read(stream)))[0] is grpc.StatusCode.UNAVAILABLE
        assert text_of(await client.infer(request("at once"))) == "at once"
        assert relay.opened >= 2


async def test_by_default_connections_have_no_age() -> None:
    options = dict(GrpcSettings(HOST, 0).options)
    assert options[AGE] == options[GRACE] == MAX_OPTION, "gRPC's own value for no limit"
    flags = "--grpc_max_connection_age=300.5", "--grpc_max_connection_age_grace=0.0001"
    server = grpc_server(config(*flags), service_of(ScriptedModel(), Metrics()))
    assert server is not None
    options = dict(server._settings.options)
    assert (options[AGE], options[GRACE]) == (300_500, 1), "never shorter, and never without a limit that was asked for"
