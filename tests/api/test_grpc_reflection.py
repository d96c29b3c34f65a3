"""The end of a stream of server reflection, while an answer is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_reflection.v1alpha import reflection_pb2

from hf_transformer.api.grpc.reflection import Reflection
from hf_transformer.protocol.grpc import SERVICE


class SlowCall:
    """A call whose client is slow to take an answer; what is done with it."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.writing, self.taken = asyncio.Event(), asyncio.Event()

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> None:
        return None

    async def write(self, answer: Any) -> None:
        self.writing.set()
        await self.taken.wait()
        self.done.append(answer.list_services_response.service[0].name)

    async def abort(self, code: grpc.StatusCode, details: str, metadata: object) -> None:
        self.done.append((code, details))
        raise grpc.aio.AbortError


async def requests() -> AsyncIterator[Any]:
    yield reflection_pb2.ServerReflectionRequest(list_services="")
    await asyncio.Event().wait()


async def test_an_answer_that_is_being_written_is_not_broken_off() -> None:
    """Where it is, gRPC can't end the call."""
    call: Any = SlowCall()
    closing = asyncio.Event()
    stream = asyncio.create_task(
        Reflection((SERVICE,), ("ModelInfer",), closing).ServerReflectionInfo(requests(), call)
    )
    async with asyncio.timeout(20):
        await call.writing.wait()
        closing.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert call.done == []
        call.taken.set()
        with pytest.raises(grpc.aio.AbortError):
            await stream
    assert call.done == [SERVICE, (grpc.StatusCode.UNAVAILABLE, "the service is shutting down")]
    assert asyncio.all_tasks() == {asyncio.current_task()}
