"""A gRPC server of ours in front of a model that does what a test tells it, and a channel to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
import grpc.aio
import pytest

from hf_transformer.api.base import Models, Service
from hf_transformer.api.grpc.server import GrpcServer, GrpcSettings
from hf_transformer.api.streaming import OpenStreams
from hf_transformer.commands.local_triton import HOST, free_ports
from hf_transformer.core.limits import Admission
from hf_transformer.core.model import GeneratePipeline
from hf_transformer.errors import NotReady
from hf_transformer.generation.stream import Generation
from hf_transformer.generation.types import GenerationRequest
from hf_transformer.observability.metrics import Metrics
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.tasks.tensors import bytes_tensor
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import Answers, Context, Encoding, ModelDescription, Query, TextInput, Tokenization

IN_FLIGHT = "hf_transformer_requests_in_flight"

Predict = Callable[[str, Context], Awaitable[str]]
"""What the model answers for one text."""


async def echo(text: str, context: Context) -> str:
    return text


class ScriptedModel:
    """Answers each text with what ``predict`` says; ready unless ``reason`` says why not."""

    name = "bert"
    task: Any = FillMask
    chat_template = None

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

    async def generate(self, request: GenerationRequest, context: Context) -> Generation:
        raise AssertionError("this model generates nothing")

    def describe(self) -> ModelDescription:
        if self.reason:
            raise NotReady(self.reason)
        inputs = tuple(field.spec for field in FillMask.fields)
        return ModelDescription(self.name, "1", "fill_mask", inputs, (inputs[0],), 512)

    @property
    def tokenizer(self) -> Tokenizer:
        raise AssertionError("gRPC needs no tokenizer")

    @property
    def writer(self) -> GeneratePipeline:
        raise AssertionError("this model generates nothing")

    async def encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        raise AssertionError("gRPC needs no tokens")


@dataclass(frozen=True)
class Server:
    """An open server, its settings, and what stands behind it."""

    settings: GrpcSettings
    metrics: Metrics
    running: GrpcServer

    @property
    def address(self) -> str:
        return f"{HOST}:{self.settings.port}"

    @property
    def works(self) -> bool:
        """Whether a call is at work."""
        return self.running.calls.open > 0

    async def over(self) -> None:
        """Waits until no call is at work."""
        await self.running.calls.over()

    async def end(self) -> None:
        """Ends it before its context does."""
        await self.running.__aexit__(None, None, None)

    def metric(self, name: str) -> float:
        for line in self.metrics.render().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[-1])
        return 0.0

    async def until(self, name: str, value: float) -> None:
        """Waits until a metric has a value."""
        async with asyncio.timeout(20):
            while self.metric(name) != value:  # noqa: ASYNC110 - there is nothing that tells of a change
                await asyncio.sleep(0.002)


@asynccontextmanager
async def serving(
    model: ScriptedModel, settings: GrpcSettings | None = None, *, port: int = 0, concurrent: int = 100
) -> AsyncIterator[Server]:
    settings = replace(settings or GrpcSettings(HOST, 0), host=HOST, port=port or free_ports(1)[0])
    metrics = Metrics(model.name)
    async with GrpcServer(service_of(model, metrics, concurrent), settings) as running:
        yield Server(settings, metrics, running)


def service_of(model: ScriptedModel, metrics: Metrics, concurrent: int = 100) -> Service:
    return Service(Models([model]), Admission(concurrent, 2**20, metrics), metrics, 2**24, 100, OpenStreams())


class Client:
    """A channel with the methods of the service; messages are ours."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.infer: Any = channel.unary_unary(
            f"/{SERVICE}/ModelInfer", pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
        )
        self.stream: Any = channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelStreamInferResponse.FromString,
        )

    async def ask(self, method: str, request: Any, response: Any) -> Any:
        call = self.channel.unary_unary(f"/{SERVICE}/{method}", type(request).SerializeToString, response.FromString)
        return await call(request)


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Client]:
    async with channel_to(server.address) as channel:
        yield Client(channel)


def channel_to(address: str) -> grpc.aio.Channel:
    """A connection of its own."""
    return grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])


def request(text: str, id: str = "", model: str = "bert", version: str = "") -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model, model_version=version, id=id)
    message.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(text.encode())
    return message


def text_of(response: pb.ModelInferResponse) -> str:
    return response.outputs[0].contents.bytes_contents[0].decode()


def count(status: int) -> str:
    return f'hf_transformer_requests_total{{api="grpc",status="{status}"}}'


class Gate:
    """A model's answer that waits until the test lets it go; notes who waits and who was cancelled."""

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


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value
