"""The access log's lines for gRPC calls."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from hf_transformer.api.grpc.server import GrpcServer, GrpcSettings
from hf_transformer.commands.local_triton import HOST, free_ports
from hf_transformer.errors import ConfigError
from hf_transformer.observability.logging import ACCESS_LOGGER
from hf_transformer.observability.metrics import Metrics
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.types import Context
from tests.integration.api.grpc_model import Client, ScriptedModel, channel_to, request, service_of

FORMAT = "%(h)s %(m)s %(U)s %(H)s %(s)s %(st)s %(B)s %({x-request-id}i)s %({authorization}i)s %({x-request-id}o)s %(D)s"
METADATA = (("x-request-id", "r1"), ("authorization", "Bearer hunter2"))


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    async def next(self) -> str:
        """The next line, without the client's port and the duration."""
        async with asyncio.timeout(20):
            while not self.records:  # noqa: ASYNC110 - a call's end at the client may come before it
                await asyncio.sleep(0.002)
        line = self.records.pop(0).getMessage()
        return re.sub(rf"^{HOST}:\d+ POST /inference.GRPCInferenceService/(.*) \d+$", r"\1", line)


@pytest.fixture
def log() -> Iterator[Lines]:
    handler = Lines()
    logger = logging.getLogger(ACCESS_LOGGER)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@asynccontextmanager
async def logged(model: ScriptedModel) -> AsyncIterator[Client]:
    settings = GrpcSettings(HOST, free_ports(1)[0])
    async with (
        GrpcServer(service_of(model, Metrics("bert")), settings, log_format=FORMAT),
        channel_to(f"{HOST}:{settings.port}") as channel,
    ):
        yield Client(channel)


async def test_a_call(log: Lines) -> None:
    async with logged(ScriptedModel()) as client:
        answer = await client.infer(request("a"), metadata=METADATA)
        assert await log.next() == f"ModelInfer HTTP/2 0 OK {answer.ByteSize()} r1 *** r1"
        await client.ask("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse)
        record = log.records[0]
        assert (await log.next()).startswith("ServerLive HTTP/2 0 OK 2 - - ")
        assert len(record.request_id) == 32  # type: ignore[attr-defined]


@pytest.mark.parametrize("fault", [False, True], ids=["an error", "a fault"])
async def test_a_call_that_fails(log: Lines, fault: bool) -> None:
    async def fail(text: str, context: Context) -> str:
        raise AssertionError("a fault")

    model = ScriptedModel(fail)
    model.reason = "" if fault else "not yet"
    async with logged(model) as client:
        with pytest.raises(grpc.aio.AioRpcError):
            await client.infer(request("a"), metadata=METADATA)
        said = "13 INTERNAL" if fault else "14 UNAVAILABLE"
        assert await log.next() == f"ModelInfer HTTP/2 {said} 0 r1 *** r1"


async def test_a_call_that_its_client_gives_up(log: Lines) -> None:
    begun = asyncio.Event()

    async def hang(text: str, context: Context) -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    async with logged(ScriptedModel(hang)) as client:
        call = client.infer(request("a"), metadata=METADATA)
        waiting = asyncio.create_task(call.wait_for_connection())
        await begun.wait()
        call.cancel()
        await asyncio.wait([waiting])
        assert await log.next() == "ModelInfer HTTP/2 1 CANCELLED 0 r1 *** -"


async def test_a_stream(log: Lines) -> None:
    async with logged(ScriptedModel()) as client:
        stream: Any = client.stream(iter([request("a"), request("b")]), metadata=METADATA)
        assert [not answer.error_message async for answer in stream] == [True, True]
        assert await log.next() == "ModelStreamInfer HTTP/2 0 OK 0 r1 *** r1"


async def test_methods_that_there_are_not(log: Lines) -> None:
    async with logged(ScriptedModel()) as client:
        with pytest.raises(grpc.aio.AioRpcError):
            await client.ask("Nothing", pb.ServerLiveRequest(), pb.ServerLiveResponse)
        await client.ask("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse)
        assert (await log.next()).startswith("ServerLive")


def test_a_format_that_is_none() -> None:
    with pytest.raises(ConfigError, match="--access_log_format"):
        GrpcServer(service_of(ScriptedModel(), Metrics("bert")), GrpcSettings(HOST, 0), log_format="%(nonsense)s")
