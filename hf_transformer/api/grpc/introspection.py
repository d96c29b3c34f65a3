"""What the server tells of itself: the V2 protocol's metadata and readiness, health checks and reflection.

Sources: https://github.com/grpc/grpc/blob/master/doc/health-checking.md and server-reflection.md beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha import reflection, reflection_pb2

from hf_transformer.api.errors import invalid_input
from hf_transformer.api.grpc.calls import CallsInProgress, Rpc
from hf_transformer.api.readiness import find_not_ready
from hf_transformer.api.service import Models, Service
from hf_transformer.api.v2 import SERVER_METADATA, configuration, metadata, ready_models, repository_index, statistics
from hf_transformer.errors import NotReady, UnknownModel
from hf_transformer.protocol.descriptions import from_json
from hf_transformer.protocol.grpc import SERVICE, decode
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types.request import Context, Json
from hf_transformer.types.tensors import ModelDescription

HEALTH = "grpc.health.v1.Health"
HEALTH_LIST: Final[Any] = getattr(health_pb2, "HealthListResponse", None)
"""What ``List`` answers with, where grpcio-health-checking knows it (1.85)."""
WATCH_SECONDS = 1.0
"""Seconds between two looks at a watched service."""

Handlers: TypeAlias = "dict[str, grpc.RpcMethodHandler[Any, Any]]"
Answer = Callable[[Any], Json | Awaitable[Json]]
"""Answers one method's request message with its response as JSON has it, which is V2's over REST too."""


def questions(service: Service, calls: CallsInProgress) -> Handlers:
    """The methods of the V2 protocol that infer nothing."""
    models = service.models

    def described(name: str, version: str) -> ModelDescription:
        return models.find(name, version).describe()

    async def server_ready(asked: pb.ServerReadyRequest) -> Json:
        return {"ready": await find_not_ready(models.values()) is None}

    async def model_ready(asked: pb.ModelReadyRequest) -> Json:
        try:
            return {"ready": await find_not_ready([models.find(asked.name, asked.version)]) is None}
        except (NotReady, UnknownModel):  # as Triton answers; a model that is not ready has no version
            return {"ready": False}

    def model_statistics(asked: pb.ModelStatisticsRequest) -> Json:
        found = [described(asked.name, asked.version)] if asked.name else ready_models(models)
        return statistics(found, service.metrics.totals())

    async def index(asked: pb.RepositoryIndexRequest) -> Json:
        return {"models": await repository_index(models, only_ready=asked.ready)}

    answers: dict[str, Answer] = {
        "ServerLive": lambda asked: {"live": True},
        "ServerReady": server_ready,
        "ModelReady": model_ready,
        "ServerMetadata": lambda asked: SERVER_METADATA,
        "ModelMetadata": lambda asked: metadata(described(asked.name, asked.version)),
        "ModelConfig": lambda asked: {
            "config": configuration(described(asked.name, asked.version), service.max_instances)
        },
        "ModelStatistics": model_statistics,
        "RepositoryIndex": index,
    }
    return {name: calls.unary(partial(_answer, name, answer)) for name, answer in answers.items()}


async def _answer(method: str, answer: Answer, body: bytes, context: Context) -> bytes:
    """A method's serialized response to a serialized request. Raises RequestError."""
    try:
        asked = decode(getattr(pb, f"{method}Request"), body)
    except Malformed as error:
        raise invalid_input(error) from error
    told = answer(asked)
    answered: Message = from_json(getattr(pb, f"{method}Response"), await told if isawaitable(told) else told)
    return answered.SerializeToString()


class Health:
    """grpc.health.v1: whether all models are served (the empty name, or the V2 service), or the one of that name.

    The servicer of grpcio-health-checking is not used: it tells what was set before, and one watcher that leaves ends
    the news of the others. Here each call asks the models themselves. Once ``closing`` is set nothing is served any
    more, and watches end.
    """

    def __init__(self, models: Models, closing: asyncio.Event) -> None:
        self._models = models
        self._names = {"": models.names, SERVICE: models.names} | {name: [name] for name in models.names}
        self._closing = closing

    @property
    def methods(self) -> Handlers:
        """The handlers by name."""
        asked, answered = HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
        found: Handlers = {
            "Check": grpc.unary_unary_rpc_method_handler(self.check, asked, answered),
            "Watch": grpc.unary_stream_rpc_method_handler(self.watch, asked, answered),
        }
        if HEALTH_LIST is not None:
            found["List"] = grpc.unary_unary_rpc_method_handler(self.list, None, HEALTH_LIST.SerializeToString)
        return found

    async def check(self, request: HealthCheckRequest, rpc: Rpc) -> HealthCheckResponse:
        """The status now; NOT_FOUND for an unknown name."""
        if request.service not in self._names:
            known = ", ".join(filter(None, self._names))
            await rpc.abort(grpc.StatusCode.NOT_FOUND, f"service {request.service[:200]!r} is unknown, known: {known}")
        return HealthCheckResponse(status=await self._status(request.service))

    async def list(self, request: bytes, rpc: Rpc) -> Any:
        """The status of each name now; the request says nothing."""
        statuses = {name: HealthCheckResponse(status=await self._status(name)) for name in self._names}
        return HEALTH_LIST(statuses=statuses)

    async def watch(self, request: HealthCheckRequest, rpc: Rpc) -> AsyncIterator[HealthCheckResponse]:
        """The status now, and each time that it has changed; SERVICE_UNKNOWN for an unknown name."""
        last: int | None = None
        while True:
            closing = self._closing.is_set()
            status = await self._status(request.service)
            if status != last:
                yield HealthCheckResponse(status=status)
                last = status
            if closing:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._closing.wait()

    async def _status(self, service: str) -> HealthCheckResponse.ServingStatus.ValueType:
        if service not in self._names:
            return HealthCheckResponse.SERVICE_UNKNOWN
        if self._closing.is_set():
            return HealthCheckResponse.NOT_SERVING
        if await find_not_ready(self._models[name] for name in self._names[service]) is not None:
            return HealthCheckResponse.NOT_SERVING
        return HealthCheckResponse.SERVING


def add_reflection(server: grpc.aio.Server, methods: Collection[str]) -> None:
    """Adds grpc.reflection.v1alpha, which describes all services.

    V2's definition has more methods than those that are answered here, which are the predictor's.
    """
    pool = DescriptorPool()
    for module in (health_pb2, reflection_pb2, pb):
        file = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        if module is pb:
            [service] = file.service
            answered = [method for method in service.method if method.name in methods]
            del service.method[:]
            service.method.extend(answered)
        pool.AddSerializedFile(file.SerializeToString())
    names = (SERVICE, HEALTH, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, pool)
