"""grpc.reflection.v1alpha, which ends when the server does: tools keep its streams open as long as they run.

Source: https://github.com/grpc/grpc/blob/master/doc/server-reflection.md
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import grpc.aio
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection import SERVICE_NAME

from hf_transformer.apis.grpc_calls import Rpc, caller_of, refuse_at_the_end

__all__ = ["SERVICE_NAME", "Reflection"]


class Reflection:
    """The servicer.

    Args:
        services: the names of the services that are described.
        closing: once it is set streams end as unavailable.
    """

    def __init__(self, services: Sequence[str], closing: asyncio.Event) -> None:
        # The type stubs don't know of aio.
        self._servicer: Any = reflection.aio.ReflectionServicer(services)  # type: ignore[attr-defined]
        self._closing = closing

    async def ServerReflectionInfo(self, requests: AsyncIterator[Any], rpc: Rpc) -> None:
        """Answers each request of a stream."""
        answering = asyncio.create_task(_write(self._servicer.ServerReflectionInfo(requests, rpc), rpc))
        ending = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait((answering, ending), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
                return
        except grpc.aio.BaseError:  # the client is gone
            raise asyncio.CancelledError from None
        finally:
            answering.cancel()
            ending.cancel()
        await refuse_at_the_end(rpc, caller_of(rpc))


async def _write(answers: Any, rpc: Rpc) -> None:
    async with aclosing(answers):
        async for answer in answers:
            await rpc.write(answer)
