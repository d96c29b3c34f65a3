"""What the gRPC transport knows of calls with outputs in shared memory, against a server that follows a script."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from hf_transformer.errors import PredictorError, RequestError
from hf_transformer.predictor.base import Destination, UnknownRegion
from hf_transformer.predictor.grpc import GrpcPredictor
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import Placement
from tests.predictor.fault_server import nobody
from tests.predictor.test_grpc_predictor import IDS, Handler, predictor, serving

pytestmark = pytest.mark.asyncio


def destination() -> Destination:
    memory = memoryview(np.array([0.25, 0.75], "<f4").tobytes())
    return Destination("r1", {"logits": Placement("r1", 0, memory)})


def failing(code: grpc.StatusCode, message: str) -> Handler:
    async def handler(request: bytes, context: Any) -> bytes:
        await context.abort(code, message)
        return b""

    return handler


async def infer(client: GrpcPredictor, where: Destination) -> list[float]:
    async with client.infer([IDS], ["logits"], {}, destination=where) as tensors:
        values: list[float] = tensors["logits"].data.ravel().tolist()
        return values


async def test_an_answer_settles_the_call() -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        (output,) = pb.ModelInferRequest.FromString(request).outputs
        assert output.parameters["shared_memory_region"].string_param == "r1"
        response = pb.ModelInferResponse(raw_output_contents=[b""])
        response.outputs.add(name="logits", datatype="FP32", shape=[1, 2])
        return response.SerializeToString()

    where = destination()
    async with serving(ModelInfer=handler) as host, predictor(host) as client:
        assert await infer(client, where) == [0.25, 0.75]
    assert where.settled


@pytest.mark.parametrize(
    ("code", "message", "settled"),
    [
        (grpc.StatusCode.INTERNAL, "Failed to process the request(s) for model 'm'", True),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2", False),
        (grpc.StatusCode.INVALID_ARGUMENT, "unexpected shape", True),
        (grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'm' is not found", True),
        (grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size", True),
        (grpc.StatusCode.UNAVAILABLE, "Request timeout expired", True),
        (grpc.StatusCode.UNAVAILABLE, "Server is stopping, scheduler for model has stopped accepting new", True),
        (grpc.StatusCode.UNAVAILABLE, "upstream connect error", False),
        (grpc.StatusCode.UNAVAILABLE, "Stream removed (Socket closed)", False),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", False),
        (grpc.StatusCode.CANCELLED, "going away", False),
        (grpc.StatusCode.UNKNOWN, "Stream removed", False),
    ],
)
async def test_which_errors_settle_the_call(code: grpc.StatusCode, message: str, settled: bool) -> None:
    where = destination()
    async with serving(ModelInfer=failing(code, message)) as host, predictor(host) as client:
        with pytest.raises(RequestError):
            await infer(client, where)
    assert where.settled is settled


async def test_a_call_that_was_not_sent_is_settled() -> None:
    where = destination()
    async with predictor(nobody()) as client:
        with pytest.raises(RequestError):
            await infer(client, where)
    assert where.settled


async def test_an_unknown_region() -> None:
    where = destination()
    handler = failing(grpc.StatusCode.NOT_FOUND, "Unable to find shared memory region: 'r1'")
    async with serving(ModelInfer=handler) as host, predictor(host) as client:
        with pytest.raises(UnknownRegion):
            await infer(client, where)
    assert where.settled


async def test_registrations() -> None:
    seen: list[Any] = []

    async def register(request: bytes, context: Any) -> bytes:
        seen.append(pb.SystemSharedMemoryRegisterRequest.FromString(request))
        return b""

    async def unregister(request: bytes, context: Any) -> bytes:
        seen.append(pb.SystemSharedMemoryUnregisterRequest.FromString(request))
        return b""

    async def status(request: bytes, context: Any) -> bytes:
        response = pb.SystemSharedMemoryStatusResponse()
        response.regions["r1"].name = "r1"
        return response.SerializeToString()

    methods = {"Register": register, "Unregister": unregister, "Status": status}
    handlers = {f"SystemSharedMemory{name}": method for name, method in methods.items()}
    async with serving(**handlers) as host, predictor(host) as client:
        await client.register_region("r1", "/r1", 4096)
        await client.unregister_region("r1")
        assert await client.region_names() == ["r1"]
    assert (seen[0].name, seen[0].key, seen[0].byte_size, seen[1].name) == ("r1", "/r1", 4096, "r1")


async def test_a_server_without_shared_memory() -> None:
    async with serving() as host, predictor(host) as client:
        with pytest.raises(PredictorError, match="UNIMPLEMENTED"):
            await client.register_region("r1", "/r1", 4096)
