"""The access log's lines for gRPC calls."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from hf_transformer.commands.local_triton import HOST
from hf_transformer.observability.logging import ACCESS_LOGGER
from tests.integration.api.grpc_model import SECONDS, Gate, ScriptedModel, failure, raising, request, serving

FORMAT = "%(h)s %(m)s %(U)s %(H)s %(s)s %(st)s %(B)s %({x-request-id}i)s %({authorization}i)s %({x-request-id}o)s %(D)s"
METADATA = (("x-request-id", "r1"), ("authorization", "Bearer hunter2"))
logged = partial(serving, log_format=FORMAT)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    async def next(self) -> str:
        """The next line, without the client's port and the duration."""
        async with asyncio.timeout(SECONDS):
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


async def test_calls(log: Lines) -> None:
    """There is no line for a method that there is not."""
    async with logged() as server:
        answer = await server.infer(request("a"), metadata=METADATA)
        assert await log.next() == f"ModelInfer HTTP/2 0 OK {answer.ByteSize()} r1 *** r1"
        stream: Any = server.stream(iter([request("a"), request("b")]), metadata=METADATA)
        assert [not answer.error_message async for answer in stream] == [True, True]
        assert await log.next() == "ModelStreamInfer HTTP/2 0 OK 0 r1 *** r1"
        await failure(server.raw("/inference.GRPCInferenceService/Nothing"))
        await server.ask("ServerLive")
        record = log.records[0]
        assert (await log.next()).startswith("ServerLive HTTP/2 0 OK 2 - - ")
        assert len(record.request_id) == 32  # type: ignore[attr-defined]


@pytest.mark.parametrize("fault", [False, True], ids=["an error", "a fault"])
async def test_a_call_that_fails(log: Lines, fault: bool) -> None:
    model = ScriptedModel(raising(AssertionError("a fault")))
    model.reason = "" if fault else "not yet"
    async with logged(model) as server:
        await failure(server.infer(request("a"), metadata=METADATA))
        said = "13 INTERNAL" if fault else "14 UNAVAILABLE"
        assert await log.next() == f"ModelInfer HTTP/2 {said} 0 r1 *** r1"


async def test_a_call_that_its_client_gives_up(log: Lines) -> None:
    async with logged(gate := Gate()) as server, asyncio.timeout(SECONDS):
        call = server.infer(request("a"), metadata=METADATA)
        waiting = asyncio.create_task(call.wait_for_connection())
        while not gate.waiting:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.002)
        call.cancel()
        await asyncio.wait([waiting])
        assert await log.next() == "ModelInfer HTTP/2 1 CANCELLED 0 r1 *** -"
