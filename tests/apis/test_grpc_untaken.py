"""Clients of ModelStreamInfer that ask and do not read: what they hold is bounded in time."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from hf_transformer.apis.grpc_v2 import GrpcSettings
from hf_transformer.types import Context
from tests.apis.bare_grpc import bare_call
from tests.apis.grpc_model import IN_FLIGHT, ScriptedModel, connected, failure, request, serving, text_of


async def long_answer(text: str, context: Context) -> str:
    return text * 1_000_000


async def test_who_takes_no_answer_is_given_up() -> None:
    async with serving(ScriptedModel(long_answer), GrpcSettings("", 0, patience=0.2)) as server:
        at_work = server.running._at_work
        async with asyncio.timeout(20), bare_call(server.settings.port, "ModelStreamInfer", request("a")) as answered:
            await answered.readuntil(b"a" * 10_000)
            assert at_work
            await at_work.over()
        assert server.metric(IN_FLIGHT) == 0


async def test_who_takes_no_answer_is_told_so_when_it_reads_on() -> None:
    async with (
        serving(ScriptedModel(long_answer), GrpcSettings("", 0, patience=0.2)) as server,
        connected(server) as client,
    ):
        stream = client.stream(metadata=(("x-request-id", "caller-1"),))
        for number in range(30):
            await stream.write(request("a", id=str(number)))
        async with asyncio.timeout(20):
            while not server.running._at_work:  # noqa: ASYNC110 - there is nothing that tells of a change
                await asyncio.sleep(0.01)
            await server.running._at_work.over()
            found = await failure(_read_all(stream))
        assert found.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert found.details() == "an answer was not taken within 0.2 s (--client_timeout_seconds)"
        metadata: Any = found.trailing_metadata()
        assert dict(metadata)["x-request-id"] == "caller-1"
        assert text_of(await client.infer(request("b"))) == "b" * 1_000_000, "the connection is as good as before"


async def _read_all(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
        pass
