"""The gRPC transport against a real gRPC server that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from hf_transformer.errors import ConfigError, PredictorDenied, PredictorError, PredictorTimeout, PredictorUnavailable
from hf_transformer.predictor.base import PredictorSettings
from hf_transformer.predictor.grpc import GrpcPredictor, metadata_of
from hf_transformer.predictor.grpc_errors import ERRORS
from hf_transformer.predictor.grpc_status import RpcError, Status
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.types import Tensor
from tests.predictor.fault_server import HOST, nobody

pytestmark = pytest.mark.asyncio

IDS = Tensor("input_ids", "INT64", np.array([[101, 103, 102]]))
Handler = Callable[[bytes, Any], Awaitable[bytes]]


@asynccontextmanager
async def serving(**methods: Handler) -> AsyncIterator[str]:
    """A server with these methods of the service, bytes in and bytes out; gives host:port."""
    handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    try:
        yield f"{HOST}:{port}"
    finally:
        await server.stop(None)


def predictor(host: str, seconds: float = 30.0, send: int = -1, receive: int = -1) -> GrpcPredictor:
    return GrpcPredictor(
        PredictorSettings(
            "bert", host, timeout=seconds, max_send_message_length=send, max_receive_message_length=receive
        )
    )


async def infer(
    client: GrpcPredictor, outputs: Sequence[str] = ("logits",), headers: Mapping[str, str] | None = None
) -> list[float]:
    async with client.infer([IDS], outputs, headers or {}) as tensors:
        values: list[float] = tensors["logits"].data.ravel().tolist()
        return values


def answer(name: str = "logits", count: int = 2) -> bytes:
    message = pb.ModelInferResponse()
    message.outputs.add(name=name, datatype="FP32", shape=[1, count])
    message.raw_output_contents.append(np.full(count, 0.5, "<f4").tobytes())
    return message.SerializeToString()


async def good(request: bytes, context: Any) -> bytes:
    return answer()


async def test_a_request_and_its_answer() -> None:
    seen: list[Any] = []

    async def handler(request: bytes, context: Any) -> bytes:
        seen.append((pb.ModelInferRequest.FromString(request), dict(context.invocation_metadata())))
        return answer()

    headers = {"X-Request-Id": "7", "authorization": "Bearer x", "name": "é", "data-bin": "x", "te": "gzip"}
    async with serving(ModelInfer=handler) as host, predictor(host) as client:
        assert await infer(client, headers=headers) == [0.5, 0.5]
    request, metadata = seen[0]
    assert (request.model_name, request.inputs[0].name) == ("bert", "input_ids")
    assert list(request.raw_input_contents) == [IDS.data.tobytes()]
    assert (metadata["x-request-id"], metadata["authorization"]) == ("7", "Bearer x")
    assert not {"name", "data-bin"} & set(metadata)


async def test_the_limits_of_messages() -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        return answer(count=2_000_000)

    async with serving(ModelInfer=handler) as host:
        async with predictor(host) as client:
            assert len(await infer(client)) == 2_000_000
        async with predictor(host, receive=1000) as client:
            with pytest.raises(PredictorError, match="--grpc_max_receive_message_length"):
                await infer(client)
        settings = PredictorSettings("bert", host, max_response_bytes=1000)
        async with GrpcPredictor(settings) as client:
            with pytest.raises(PredictorError, match="--max_predictor_response_bytes"):
                await infer(client)
        async with predictor(host, send=10) as client:
            with pytest.raises(PredictorError, match="--grpc_max_send_message_length"):
                await infer(client)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b"\xff\xff", "response is malformed"),
        (b"", "without the output 'logits'$"),
        (answer("hidden"), "without the output 'logits' and with 'hidden', which was not asked for"),
    ],
    ids=["garbage", "empty", "other output"],
)
async def test_answers_that_break_the_protocol(response: bytes, message: str) -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        return response

    async with serving(ModelInfer=handler) as host, predictor(host) as client:
        with pytest.raises(PredictorError, match=message):
            await infer(client)


UNAVAILABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.CANCELLED}


@pytest.mark.parametrize(
    "code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK], ids=lambda code: code.name
)
async def test_every_status(code: grpc.StatusCode) -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        await context.abort(code, "the model's own words")
        return b""

    expected: type[Exception] = PredictorError
    if code in UNAVAILABLE:
        expected = PredictorUnavailable
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
        expected = PredictorTimeout
    elif code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        expected = PredictorDenied
    async with serving(ModelInfer=handler) as host, predictor(host) as client:
        with pytest.raises(expected, match="the model's own words") as caught:
            await infer(client)
    assert type(caught.value) is expected
    assert isinstance(caught.value.__cause__, RpcError)


async def test_every_status_is_mapped_on_purpose() -> None:
    assert set(ERRORS) == set(Status) - {Status.OK}
    assert {(one.name, one.value) for one in Status} == {(one.name, one.value[0]) for one in grpc.StatusCode}


async def test_a_long_message_is_cut() -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.INTERNAL, "x" * 4000)
        return b""

    async with serving(ModelInfer=handler) as host, predictor(host) as client:
        with pytest.raises(PredictorError) as caught:
            await infer(client)
    assert str(caught.value).endswith("answered INTERNAL: " + "x" * 500 + "...")


async def test_refused() -> None:
    async with predictor(nobody()) as client:
        with pytest.raises(PredictorUnavailable, match="is unavailable: failed to connect"):
            await infer(client)


async def test_no_answer_in_time() -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    async with serving(ModelInfer=handler) as host, predictor(host, seconds=0.05) as client:
        with pytest.raises(PredictorTimeout, match="gave no answer in time"):
            await infer(client)


async def test_a_server_that_stops_during_a_call() -> None:
    arrived = asyncio.Event()

    async def handler(request: bytes, context: Any) -> bytes:
        arrived.set()
        await asyncio.Event().wait()
        return b""

    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(serving(ModelInfer=handler))
        async with predictor(host) as client:
            call = asyncio.create_task(infer(client))
            await arrived.wait()
            await stack.aclose()
            with pytest.raises(PredictorUnavailable):
                await call


async def test_a_caller_that_goes_away_cancels_the_call() -> None:
    arrived, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(request: bytes, context: Any) -> bytes:
        arrived.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return b""

    async with serving(ModelInfer=handler) as host, predictor(host) as client:
        task = asyncio.create_task(infer(client))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await cancelled.wait()


async def test_two_predictors_share_no_connection() -> None:
    peers: list[str] = []

    async def handler(request: bytes, context: Any) -> bytes:
        peers.append(context.peer())
        return answer()

    async with serving(ModelInfer=handler) as host, predictor(host) as first, predictor(host) as second:
        for client in (first, first, second):
            await infer(client)
    assert peers[0] == peers[1] != peers[2]


def metadata() -> bytes:
    message = pb.ModelMetadataResponse(name="bert", versions=["2"])
    message.inputs.add(name="a", datatype="INT32", shape=[-1, 4])
    return message.SerializeToString()


async def about(request: bytes, context: Any) -> bytes:
    assert pb.ModelMetadataRequest.FromString(request).name == "bert"
    return metadata()


async def test_spec() -> None:
    async def config(request: bytes, context: Any) -> bytes:
        message = pb.ModelConfigResponse()
        message.config.max_batch_size = 4
        message.config.input.add(name="a", data_type=pb.TYPE_INT32, dims=[4])
        return message.SerializeToString()

    async with serving(ModelMetadata=about, ModelConfig=config) as host, predictor(host) as client:
        spec = await client.model_spec()
    assert (spec.version, spec.max_batch_size, spec.inputs[0].shape) == ("2", 4, (4,))


async def test_spec_of_a_server_without_configuration() -> None:
    async with serving(ModelMetadata=about) as host, predictor(host) as client:
        spec = await client.model_spec()
    assert (spec.version, spec.max_batch_size, spec.inputs[0].shape) == ("2", None, (-1, 4))


@pytest.mark.parametrize(
    ("code", "expected"),
    [(grpc.StatusCode.INTERNAL, PredictorError), (grpc.StatusCode.UNAVAILABLE, PredictorUnavailable)],
    ids=["internal", "unavailable"],
)
async def test_a_configuration_that_fails_is_an_error(code: grpc.StatusCode, expected: type[Exception]) -> None:
    async def config(request: bytes, context: Any) -> bytes:
        await context.abort(code, "no memory")
        return b""

    async with serving(ModelMetadata=about, ModelConfig=config) as host, predictor(host) as client:
        with pytest.raises(expected, match="no memory"):
            await client.model_spec()


@pytest.mark.parametrize("ready", [True, False])
async def test_readiness(ready: bool) -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        return pb.ModelReadyResponse(ready=ready).SerializeToString()

    async with serving(ModelReady=handler) as host, predictor(host) as client:
        assert await client.model_ready() is ready


async def test_an_unknown_model_is_not_ready() -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "unknown")
        return b""

    async with serving(ModelReady=handler) as host, predictor(host) as client:
        assert await client.model_ready() is False


async def test_readiness_that_can_not_be_told() -> None:
    async with predictor(nobody()) as client:
        with pytest.raises(PredictorUnavailable):
            await client.model_ready()


async def test_a_host_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"^predictor_host is 'a\.\.b': that is no host name"):
        predictor("a..b")


async def test_metadata() -> None:
    headers = {"Traceparent": "00-ab", "grpc-timeout": "1S", "a-bin": "x", "b": "é", "c": "a\nb", "d e": "x", "f": ""}
    assert metadata_of(headers) == [("traceparent", "00-ab"), ("f", "")]
