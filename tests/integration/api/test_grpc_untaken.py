"""Clients of ModelStreamInfer that ask and do not read: what they hold is bounded in time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import repeat
from typing import Any

import grpc
import grpc.aio
import pytest

from hf_transformer.api.grpc.server import GrpcServer, GrpcSettings
from hf_transformer.commands.local_triton import HOST, free_ports
from hf_transformer.generation.types import Prompt, Sampling, Step
from hf_transformer.types import Context
from tests.api.generating import bench
from tests.integration.api.bare_grpc import bare_call
from tests.integration.api.grpc_model import (
    IN_FLIGHT,
    Client,
    ScriptedModel,
    Server,
    channel_to,
    connected,
    failure,
    request,
    serving,
    text_of,
)
from tests.integration.api.test_grpc_generate import asking


async def long_answer(text: str, context: Context) -> str:
    return text * 1_000_000


async def test_who_takes_no_answer_is_given_up() -> None:
    async with serving(ScriptedModel(long_answer), GrpcSettings("", 0, patience=0.2)) as server:
        async with asyncio.timeout(20), bare_call(server.settings.port, "ModelStreamInfer", request("a")) as answered:
            await answered.readuntil(b"a" * 10_000)
            assert server.works
            await server.over()
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
            while not server.works:  # noqa: ASYNC110 - there is nothing that tells of a change
                await asyncio.sleep(0.01)
            await server.over()
            found = await failure(_read_all(stream))
        assert found.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert found.details() == "an answer was not taken within 0.2 s (--client_timeout_seconds)"
        metadata: Any = found.trailing_metadata()
        assert dict(metadata)["x-request-id"] == "caller-1"
        assert text_of(await client.infer(request("b"))) == "b" * 1_000_000, "the connection is as good as before"


def pieces(prompt: Prompt, sampling: Sampling) -> Iterable[Step]:
    """Large ones, and for another prompt none, without an end."""
    return [Step(text="a" * 1_000_000)] * 30 if prompt.text == "A" else repeat(Step())


@pytest.mark.parametrize("behind", ["nothing more", "perhaps more", "another"])
async def test_who_takes_no_pieces_is_given_up(behind: str) -> None:
    """Whatever else the stream waits for: a request that may come, or the answer to the next one."""
    async with bench() as made:
        await made.model.require_ready()
        made.generator._script = pieces
        settings = GrpcSettings(HOST, free_ports(1)[0], patience=0.2)
        async with (
            GrpcServer(made.service, settings) as running,
            channel_to(f"{HOST}:{settings.port}") as channel,
            asyncio.timeout(20),
        ):
            stream = Client(channel).stream()
            await stream.write(asking("A", stream=True, max_new_tokens=50))
            if behind == "another":
                await stream.write(asking("B", stream=True, return_full_text=False))
            elif behind == "nothing more":
                await stream.done_writing()
            assert (await stream.read()).infer_response.outputs
            await Server(settings, made.metrics, running).over()
            assert made.generator.running == 0
            found = await failure(_read_all(stream))
            assert found.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def _read_all(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
        pass
