"""grpc.reflection.v1alpha, which ends when the server does: tools keep its streams open as long as they run.

Source: https://github.com/grpc/grpc/blob/master/doc/server-reflection.md
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME

from hf_transformer.api.grpc.calls import Rpc, caller_of, refuse_at_the_end
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb

__all__ = ["SERVICE_NAME", "Reflection"]


class Reflection:
    """The servicer.

    Args:
        services: the names of the services that are described.
        methods: those that are answered of the V2 protocol's. Its definition has more, which are the predictor's.
        closing: once it is set streams end as unavailable.
    """

    def __init__(self, services: Sequence[str], methods: Collection[str], closing: asyncio.Event) -> None:
        pool = _described(methods)
        # The type stubs don't know of aio.
        self._servicer: Any = reflection.aio.ReflectionServicer(services, pool)  # type: ignore[attr-defined]  # not in stubs
        self._closing = closing

    @property
    def methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handler by its name."""
        asked, answered = reflection_pb2.ServerReflectionRequest, reflection_pb2.ServerReflectionResponse
        return {
            "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
                self.ServerReflectionInfo, asked.FromString, answered.SerializeToString
            )
        }

    async def ServerReflectionInfo(self, requests: AsyncIterator[Any], rpc: Rpc) -> None:
        """Answers each request of a stream."""
        try:
            async with (
                aclosing(self._until_the_end(requests)) as asked,
                aclosing(self._servicer.ServerReflectionInfo(asked, rpc)) as answers,
            ):
                async for answer in answers:
                    # Never broken off: gRPC would send the headers once more with the call's end, and fail in that.
                    await rpc.write(answer)
        except grpc.aio.BaseError:  # the client is gone
            raise asyncio.CancelledError from None
        if self._closing.is_set():
            await refuse_at_the_end(rpc, caller_of(rpc))

    async def _until_the_end(self, requests: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """Each request, until there are no more of them, or the server closes."""
        coming = aiter(requests)
        ending = asyncio.create_task(self._closing.wait())
        request: asyncio.Future[Any] | None = None
        try:
            while True:
                request = asyncio.ensure_future(anext(coming, None))
                await asyncio.wait((request, ending), return_when=asyncio.FIRST_COMPLETED)
                if not request.done() or (found := request.result()) is None:
                    return
                yield found
        finally:
            ending.cancel()
            if request is not None:
                request.cancel()


def _described(methods: Collection[str]) -> DescriptorPool:
    """All services' definitions, with these methods alone of the V2 protocol."""
    pool = DescriptorPool()
    for module in (health_pb2, reflection_pb2, pb):
        file = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        if module is pb:
            [service] = file.service
            answered = [method for method in service.method if method.name in methods]
            del service.method[:]
            service.method.extend(answered)
        pool.AddSerializedFile(file.SerializeToString())
    return pool
