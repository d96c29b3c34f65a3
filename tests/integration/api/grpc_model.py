"""The service's gRPC server with a scripted model, and a client of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hf_transformer.api.auth import ApiKeys
from hf_transformer.api.grpc.server import GrpcServer, GrpcSettings
from hf_transformer.api.open_streams import OpenStreams
from hf_transformer.api.service import Model, Models, Service
from hf_transformer.commands.loopback import HOST, reserved_port
from hf_transformer.core.limits import Admission
from hf_transformer.core.model import ModelIdentity
from hf_transformer.errors import NotReady
from hf_transformer.observability.metrics import Metrics
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.tasks.tensors import bytes_tensor
from hf_transformer.types.request import Answers, Context, Query
from hf_transformer.types.tensors import ModelDescription
from tests.api.generating import metric
from tests.support.budgets import limits
from tests.support.polling import until

IN_FLIGHT = "hf_transformer_requests_in_flight"
SECONDS = 20.0
"""The time limit of any wait in a test."""

Predict = Callable[[str, Context], Awaitable[str]]
"""The scripted prediction for one text."""


async def echo(text: str, context: Context) -> str:
    return text


async def long_answer(text: str, context: Context) -> str:
    return text * 1_000_000


def raising(error: Exception) -> Predict:
    async def fail(text: str, context: Context) -> str:
        raise error

    return fail


class Gate:
    """A prediction that waits for ``open``. Records the waiting and the cancelled texts."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.waiting: list[str] = []
        self.cancelled: list[str] = []

    async def __call__(self, text: str, context: Context) -> str:
        if text == "at once":
            return text
        self.waiting.append(text)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled.append(text)
            raise
        return text


class ScriptedModel:
    """A fill-mask model with scripted predictions. It is ready unless ``reason`` is set."""

    name = "bert"
    names: tuple[str, ...] = ("bert",)
    identity = ModelIdentity()
    task: Any = FillMask
    chat_template = None
    requests = 0
    is_ready, lost = True, ""
    has_predictor = True

    def __init__(self, predict: Predict = echo) -> None:
        self.predict_one = predict
        self.reason = ""
        self.contexts: list[Context] = []

    async def require_ready(self) -> None:
        if self.reason:
            raise NotReady(self.reason)

    async def predict(self, query: Query, context: Context) -> Answers:
        await self.require_ready()
        self.contexts.append(context)
        words = [await self.predict_one(text, context) for text in query.instances]
        return Answers(words, tensor=bytes_tensor([word.encode() for word in words]))

    def describe(self) -> ModelDescription:
        if self.reason:
            raise NotReady(self.reason)
        inputs = tuple(field.spec for field in FillMask.fields)
        return ModelDescription(self.name, "1", "fill_mask", inputs, (inputs[0],), 512)


class Client:
    """A channel with the methods of the V2 service and of health checks."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.health: Any = health_pb2_grpc.HealthStub(channel)
        self.infer: Any = channel.unary_unary(
            f"/{SERVICE}/ModelInfer", pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
        )
        self.stream: Any = channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )

    async def ask(self, method: str, /, **fields: Any) -> Any:
        """Calls another method of the V2 service, with these fields of its request."""
        request, response = getattr(pb, f"{method}Request"), getattr(pb, f"{method}Response")
        call = self.channel.unary_unary(f"/{SERVICE}/{method}", request.SerializeToString, response.FromString)
        return await call(request(**fields))

    def raw(self, path: str, message: bytes = b"") -> Any:
        """Calls any unary method with any bytes as the message."""
        return self.channel.unary_unary(path, None, None)(message)

    async def status(self, service: str) -> Any:
        """The status of a service in a health check."""
        return (await self.health.Check(health_pb2.HealthCheckRequest(service=service))).status


class Server(Client):
    """A client of an open server, with access to the server and its metrics."""

    def __init__(self, channel: grpc.aio.Channel, port: int, metrics: Metrics, server: GrpcServer) -> None:
        super().__init__(channel)
        self.port = port
        self.metrics = metrics
        self._server = server

    @property
    def active(self) -> bool:
        """Whether the handler of a call runs."""
        return self._server.calls.active > 0

    async def wait_until_idle(self) -> None:
        """Waits until no handler runs."""
        await self._server.calls.wait_until_idle()

    async def end(self) -> None:
        """Closes the server before its context ends."""
        await self._server.__aexit__(None, None, None)

    def metric(self, name: str) -> float:
        return metric(self.metrics, name)

    async def until(self, name: str, value: float) -> None:
        """Waits until a metric has a value."""
        await until(lambda: self.metric(name) == value)


@asynccontextmanager
async def serving(
    target: ScriptedModel | Service | Predict = echo,
    *,
    concurrent: int = 100,
    keys: ApiKeys | None = None,
    log_format: str | None = None,
    control_keys: ApiKeys | None = None,
    **settings: Any,
) -> AsyncIterator[Server]:
    """A server of a service, a model or scripted predictions, with these GrpcSettings."""
    if isinstance(target, Service):
        service = target
    else:
        model = target if isinstance(target, ScriptedModel) else ScriptedModel(target)
        service = service_of(model, Metrics(), concurrent)
    shared = settings.pop("port", 0)  # with another server
    with nullcontext(shared) if shared else reserved_port() as port:
        server = GrpcServer(service, GrpcSettings(HOST, port, **settings), keys, log_format, control_keys)
        async with server, channel_to(port) as channel:
            yield Server(channel, port, service.metrics, server)


def service_of(model: ScriptedModel, metrics: Metrics, concurrent: int = 100) -> Service:
    return Service(
        Models([cast(Model, model)]),
        Admission(concurrent, 2**20, metrics),
        metrics,
        2**24,
        limits(max_instances=90, max_sequences=100),
        OpenStreams(),
    )


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Client]:
    """A client with another connection to the server."""
    async with channel_to(server.port) as channel:
        yield Client(channel)


def channel_to(port: int) -> grpc.aio.Channel:
    """A channel with a connection of its own."""
    return grpc.aio.insecure_channel(f"{HOST}:{port}", [("grpc.use_local_subchannel_pool", 1)])


def request(text: str, id: str = "", model: str = "bert", version: str = "") -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model, model_version=version, id=id)
    message.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(text.encode())
    return message


def text_of(response: pb.ModelInferResponse) -> str:
    return response.outputs[0].contents.bytes_contents[0].decode()


async def write(stream: Any, *messages: pb.ModelInferRequest) -> None:
    for message in messages:
        await stream.write(message)


async def read(stream: Any) -> Any:
    return await asyncio.wait_for(stream.read(), SECONDS)


def count(status: int, model: str = "") -> str:
    return f'hf_transformer_requests_total{{api="grpc",model_name="{model}",status="{status}"}}'


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Code and message of a failed call."""
    error = await failure(call)
    return error.code(), error.details() or ""
