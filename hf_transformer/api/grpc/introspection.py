"""The V2 protocol's metadata and readiness methods, grpc.health.v1 and server reflection.

Sources: https://github.com/grpc/grpc/blob/master/doc/health-checking.md and server-reflection.md in the same folder.
"""

from __future__ import annotations

import asyncio
from collections import Counter
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
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from hf_transformer.api.body import decoded
from hf_transformer.api.grpc.calls import ActiveCalls, Rpc
from hf_transformer.api.service import Models, Service
from hf_transformer.api.v2 import (
    SERVER_METADATA,
    configuration,
    control_model,
    metadata,
    ready_models,
    repository_index,
    statistics,
)
from hf_transformer.errors import NotReady, UnknownModel
from hf_transformer.protocol.descriptions import from_json
from hf_transformer.protocol.grpc import SERVICE, decode
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.types.request import Context, Json
from hf_transformer.types.tensors import ModelDescription

REFLECTION: Final[str] = reflection.SERVICE_NAME
HEALTH = "grpc.health.v1.Health"
HEALTH_LIST: Final[Any] = getattr(health_pb2, "HealthListResponse", None)
"""Response class of Health/List; None if grpcio-health-checking is older than 1.85."""
WATCH_SECONDS = 1.0
"""Interval between two checks of a watched service."""

MAX_CONNECTION_WATCHES = 32
"""Maximum watches of a connection. A client needs one for each service."""
MIN_WATCHES, CONNECTIONS_PER_WATCH = 64, 16
"""Maximum watches of all connections: one for every 16 of --max_connections, but not fewer than 64. Each looks at the
models once a second."""

Handlers: TypeAlias = "dict[str, grpc.RpcMethodHandler[Any, Any]]"
JsonMethod = Callable[[Any], Json | Awaitable[Json]]
"""Implementation of a method. It returns the response in protobuf's JSON form, as in V2 over REST."""


def metadata_methods(service: Service, calls: ActiveCalls) -> Handlers:
    """Returns the handlers of the V2 protocol's methods, except inference, by name."""
    models = service.models

    def describe(request: Any) -> ModelDescription:
        return models.find(request.name, request.version).describe()

    async def server_ready(request: pb.ServerReadyRequest) -> Json:
        return {"ready": await models.find_not_ready() is None}

    async def model_ready(request: pb.ModelReadyRequest) -> Json:
        try:
            return {"ready": await models.find_not_ready(models.find(request.name, request.version)) is None}
        except (NotReady, UnknownModel):  # as in Triton; a model has no version until it is ready
            return {"ready": False}

    def model_statistics(request: pb.ModelStatisticsRequest) -> Json:
        descriptions = [describe(request)] if request.name else ready_models(models)
        return statistics(descriptions, service.metrics.totals_of)

    async def index(request: pb.RepositoryIndexRequest) -> Json:
        return {"models": await repository_index(models, only_ready=request.ready)}

    async def load(request: pb.RepositoryModelLoadRequest) -> Json:
        await control_model(service, "load", request.model_name, _control_parameters(request))
        return {}

    async def unload(request: pb.RepositoryModelUnloadRequest) -> Json:
        await control_model(service, "unload", request.model_name, _control_parameters(request))
        return {}

    methods: dict[str, JsonMethod] = {
        "ServerLive": lambda request: {"live": True},
        "ServerReady": server_ready,
        "ModelReady": model_ready,
        "ServerMetadata": lambda request: SERVER_METADATA,
        "ModelMetadata": lambda request: metadata(describe(request)),
        "ModelConfig": lambda request: {"config": configuration(describe(request), service.limits.max_instances)},
        "ModelStatistics": model_statistics,
        "RepositoryIndex": index,
        "RepositoryModelLoad": load,
        "RepositoryModelUnload": unload,
    }
    return {name: calls.unary(partial(_call_json, name, method)) for name, method in methods.items()}


def _control_parameters(request: Any) -> dict[str, Json]:
    """Returns the values of a request's parameters."""
    return {
        name: getattr(parameter, parameter.WhichOneof("parameter_choice") or "string_param")
        for name, parameter in request.parameters.items()
    }


async def _call_json(name: str, method: JsonMethod, body: bytes, context: Context) -> bytes:
    """Calls a method with a serialized request and serializes its response. Raises RequestError."""
    request = decoded(decode, getattr(pb, f"{name}Request"), body)
    value = method(request)
    response: Message = from_json(getattr(pb, f"{name}Response"), await value if isawaitable(value) else value)
    return response.SerializeToString()


class Health:
    """grpc.health.v1: the health of one model, or of the service for the empty name and the V2 service's name.

    The servicer of grpcio-health-checking is unsuitable: it returns a stored status, and one disconnecting watcher
    stops updates to the others. This class checks the models on each call. After ``closing`` is set, all statuses are
    NOT_SERVING, and watches end.
    """

    def __init__(self, models: Models, closing: asyncio.Event, max_connections: int) -> None:
        self._models = models
        self._closing = closing
        self._watchers: Counter[str] = Counter()
        self._max_watches = max(MIN_WATCHES, max_connections // CONNECTIONS_PER_WATCH)

    @property
    def _names(self) -> list[str]:
        return ["", SERVICE, *self._models.names]

    @property
    def methods(self) -> Handlers:
        """Handlers by method name."""
        parse, serialize = HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
        handlers: Handlers = {
            "Check": grpc.unary_unary_rpc_method_handler(self.check, parse, serialize),
            "Watch": grpc.unary_stream_rpc_method_handler(self.watch, parse, serialize),
        }
        if HEALTH_LIST is not None:
            handlers["List"] = grpc.unary_unary_rpc_method_handler(self.list, None, HEALTH_LIST.SerializeToString)
        return handlers

    async def check(self, request: HealthCheckRequest, rpc: Rpc) -> HealthCheckResponse:
        """Returns the current status of a service. Ends the call as NOT_FOUND for an unknown name."""
        if request.service not in self._names:
            known = ", ".join(self._names[1:])
            await rpc.abort(grpc.StatusCode.NOT_FOUND, f"service {request.service[:200]!r} is unknown, known: {known}")
        return HealthCheckResponse(status=await self._status(request.service))

    async def list(self, request: bytes, rpc: Rpc) -> Any:
        """Returns the current status of every service. The request message is empty."""
        statuses = {name: HealthCheckResponse(status=await self._status(name)) for name in self._names}
        return HEALTH_LIST(statuses=statuses)

    async def watch(self, request: HealthCheckRequest, rpc: Rpc) -> AsyncIterator[HealthCheckResponse]:
        """Yields the current status of a service and every change; SERVICE_UNKNOWN for an unknown name. Ends the call
        as RESOURCE_EXHAUSTED if there are too many watches."""
        peer = rpc.peer()
        if self._watchers[peer] >= MAX_CONNECTION_WATCHES or self._watchers.total() >= self._max_watches:
            expected = f"at most {MAX_CONNECTION_WATCHES} watches of a connection, {self._max_watches} of all"
            await rpc.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"expected {expected} (--max_connections), got more")
        self._watchers[peer] += 1
        try:
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
        finally:
            self._watchers -= Counter((peer,))  # drops a peer without watches

    async def _status(self, service: str) -> HealthCheckResponse.ServingStatus.ValueType:
        if service not in self._names:
            return HealthCheckResponse.SERVICE_UNKNOWN
        if self._closing.is_set():
            return HealthCheckResponse.NOT_SERVING
        try:
            model = None if service in ("", SERVICE) else self._models.find(service)
        except NotReady:
            return HealthCheckResponse.NOT_SERVING
        if await self._models.find_not_ready(model) is not None:
            return HealthCheckResponse.NOT_SERVING
        return HealthCheckResponse.SERVING


def reflection_methods(methods: Collection[str]) -> Handlers:
    """Returns the handlers of grpc.reflection.v1alpha for all services. For V2, reflection lists only ``methods``."""
    pool = DescriptorPool()
    for module in (health_pb2, reflection_pb2, pb):
        file = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        if module is pb:
            [service] = file.service
            served = [method for method in service.method if method.name in methods]
            del service.method[:]
            service.method.extend(served)
        pool.AddSerializedFile(file.SerializeToString())
    names = (SERVICE, HEALTH, REFLECTION)
    parse, serialize = ServerReflectionRequest.FromString, ServerReflectionResponse.SerializeToString
    aio: Any = reflection.aio  # type: ignore[attr-defined]  # missing in the stubs
    reflect = aio.ReflectionServicer(names, pool=pool).ServerReflectionInfo
    return {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(reflect, parse, serialize)}
