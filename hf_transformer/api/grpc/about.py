"""What the server tells of itself: the V2 protocol's metadata and readiness, health checks and reflection.

Sources: https://github.com/grpc/grpc/blob/master/doc/health-checking.md and server-reflection.md beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha import reflection, reflection_pb2

from hf_transformer import __version__
from hf_transformer.api.base import Model, Models, Service, find_not_ready
from hf_transformer.api.grpc.calls import CallsInProgress, Rpc
from hf_transformer.api.v2 import EXTENSIONS, SERVER, configuration, metadata, repository_index, statistics
from hf_transformer.errors import InvalidInput, NotReady, UnknownModel
from hf_transformer.protocol.descriptions import from_json
from hf_transformer.protocol.grpc import SERVICE, decode
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types import Context

HEALTH = "grpc.health.v1.Health"
HEALTH_LIST: Final[Any] = getattr(health_pb2, "HealthListResponse", None)
"""What ``List`` answers with, where grpcio-health-checking knows it (1.85)."""
WATCH_SECONDS = 1.0
"""Seconds between two looks at a watched service."""

Asked = TypeVar("Asked", bound=Message)
AboutModel = TypeVar("AboutModel", pb.ModelReadyRequest, pb.ModelMetadataRequest, pb.ModelConfigRequest)
Handlers: TypeAlias = "dict[str, grpc.RpcMethodHandler[Any, Any]]"


def questions(service: Service, calls: CallsInProgress) -> Handlers:
    """The methods of the V2 protocol that infer nothing."""
    models = service.models

    def read(kind: type[Asked], body: bytes) -> Asked:
        try:
            return decode(kind, body)
        except Malformed as error:
            raise InvalidInput(str(error)) from error

    def asked(kind: type[AboutModel], body: bytes) -> Model:
        message = read(kind, body)
        return models.find(message.name, message.version)

    async def server_live(body: bytes, context: Context) -> bytes:
        return pb.ServerLiveResponse(live=True).SerializeToString()

    async def server_ready(body: bytes, context: Context) -> bytes:
        return pb.ServerReadyResponse(ready=await find_not_ready(models.values()) is None).SerializeToString()

    async def model_ready(body: bytes, context: Context) -> bytes:
        try:
            ready = await find_not_ready([asked(pb.ModelReadyRequest, body)]) is None
        except (NotReady, UnknownModel):  # as Triton answers; a model that is not ready has no version
            ready = False
        return pb.ModelReadyResponse(ready=ready).SerializeToString()

    async def server_metadata(body: bytes, context: Context) -> bytes:
        about = pb.ServerMetadataResponse(name=SERVER, version=__version__, extensions=EXTENSIONS)
        return about.SerializeToString()

    async def model_metadata(body: bytes, context: Context) -> bytes:
        about = metadata(asked(pb.ModelMetadataRequest, body).describe())
        return from_json(pb.ModelMetadataResponse, about).SerializeToString()

    async def model_config(body: bytes, context: Context) -> bytes:
        about = configuration(asked(pb.ModelConfigRequest, body).describe(), service.max_instances)
        return from_json(pb.ModelConfigResponse, {"config": about}).SerializeToString()

    async def model_statistics(body: bytes, context: Context) -> bytes:
        message = read(pb.ModelStatisticsRequest, body)
        model = models.find(message.name or models.names[0], message.version)
        about = statistics(model.describe(), service.metrics.totals())
        return from_json(pb.ModelStatisticsResponse, about).SerializeToString()

    async def index(body: bytes, context: Context) -> bytes:
        message = read(pb.RepositoryIndexRequest, body)
        entries = await repository_index(models, only_ready=message.ready)
        return from_json(pb.RepositoryIndexResponse, {"models": entries}).SerializeToString()

    return {
        "ServerLive": calls.unary(server_live),
        "ServerReady": calls.unary(server_ready),
        "ModelReady": calls.unary(model_ready),
        "ServerMetadata": calls.unary(server_metadata),
        "ModelMetadata": calls.unary(model_metadata),
        "ModelConfig": calls.unary(model_config),
        "ModelStatistics": calls.unary(model_statistics),
        "RepositoryIndex": calls.unary(index),
    }


class Health:
    """grpc.health.v1: whether all models are served (the empty name, or the V2 service), or the one of that name.

    The servicer of grpcio-health-checking is not used: it tells what was set before, and one watcher that leaves ends
    the news of the others. Here each call asks the models themselves.

    Args:
        closing: once it is set nothing is served any more, and watches end.
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

    Args:
        methods: those of the V2 protocol that are answered here. Its definition has more, which are the predictor's.
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
