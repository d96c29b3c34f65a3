"""ModelInfer of a server in this process, with a model that follows a script."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio
import pytest

from hf_transformer.api.grpc.server import GrpcSettings
from hf_transformer.errors import InvalidInput, PredictorError, PredictorTimeout, TooManyRequests
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.types import Context
from tests.integration.api.bare_grpc import bare_call
from tests.integration.api.grpc_model import (
    IN_FLIGHT,
    Gate,
    ScriptedModel,
    connected,
    count,
    failure,
    request,
    serving,
    text_of,
)


def trailing(error: Any) -> dict[str, Any]:
    return dict(error.trailing_metadata())


async def test_what_goes_along_with_a_call() -> None:
    model = ScriptedModel()
    async with serving(model) as server, connected(server) as client:
        call = client.infer(
            request("a", id="7"),
            timeout=30,
            metadata=(
                ("x-request-id", "caller-1"),
                ("authorization", "Bearer x"),
                ("x-b3-traceid", "80f1"),
                ("traceparent", "00-1"),
                ("cookie", "no"),
                ("x-b3-bin", b"\0"),
            ),
        )
        assert text_of(await call) == "a"
        assert (await call).id == "7"
        assert dict(await call.trailing_metadata())["x-request-id"] == "caller-1"
        context = model.contexts[0]
        assert context.request_id == "caller-1"
        assert context.headers == {
            "x-request-id": "caller-1",
            "authorization": "Bearer x",
            "x-b3-traceid": "80f1",
            "traceparent": "00-1",
        }
        now = asyncio.get_running_loop().time()
        # gRPC sends a timeout this long rounded up to a tenth of a second.
        assert context.deadline is not None and now < context.deadline <= now + 30.1
        assert server.metric(count(200)) == 1


@pytest.mark.parametrize(("given", "kept"), [("mine-7", True), ("", False), ("two words", False), ("ü", False)])
async def test_the_id_of_a_request_without_metadata(given: str, kept: bool) -> None:
    model = ScriptedModel()
    async with serving(model) as server, connected(server) as client:
        call = client.infer(request("a", id=given))
        assert (await call).id == given
        found = dict(await call.trailing_metadata())["x-request-id"]
        assert (found == given) is kept
        assert found == model.contexts[0].request_id == model.contexts[0].headers["x-request-id"]
        assert model.contexts[0].deadline is None


@pytest.mark.parametrize("given", ["é".encode(), b"\xff\xfe", b"a\x7fb", b"a\x01b", b"a" * 126 * 8])
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_any_bytes_as_an_id(given: bytes, method: str) -> None:
    """As no library sends them."""
    model = ScriptedModel()
    async with serving(model) as server:
        async with bare_call(server.settings.port, method, request("a"), given) as answer, asyncio.timeout(20):
            await answer.readuntil(b"grpc-status\x01")
            assert await answer.readexactly(1) == b"0"
        assert len(model.contexts[0].request_id) == 32
        assert server.metric(count(200)) == 1


@pytest.mark.parametrize(
    ("error", "code", "status", "retry"),
    [
        (InvalidInput("no mask"), grpc.StatusCode.INVALID_ARGUMENT, 400, None),
        (TooManyRequests("full"), grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "1"),
        (PredictorError("Füße"), grpc.StatusCode.INTERNAL, 502, None),
        (PredictorTimeout("slow"), grpc.StatusCode.DEADLINE_EXCEEDED, 504, None),
    ],
    ids=lambda value: getattr(value, "name", None),
)
async def test_errors(error: Any, code: grpc.StatusCode, status: int, retry: str | None) -> None:
    async def fail(text: str, context: Context) -> str:
        raise error

    async with serving(ScriptedModel(fail)) as server, connected(server) as client:
        found = await failure(client.infer(request("a", id="7")))
        assert (found.code(), found.details()) == (code, str(error))
        assert trailing(found).get("retry-after") == retry
        assert trailing(found)["x-request-id"] == "7"
        assert (server.metric(count(status)), server.metric(IN_FLIGHT)) == (1, 0)


async def test_a_fault_of_ours_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(text: str, context: Context) -> str:
        raise ValueError("secret")

    async with serving(ScriptedModel(fail)) as server, connected(server) as client:
        with caplog.at_level(logging.ERROR, "hf_transformer"):
            found = await failure(client.infer(request("a", id="7")))
        assert (found.code(), found.details()) == (grpc.StatusCode.INTERNAL, "internal error; the log has it under 7")
        assert "ValueError: secret" in caplog.text
        assert server.metric(count(500)) == 1


async def test_a_long_message_fits_a_header() -> None:
    async def fail(text: str, context: Context) -> str:
        raise InvalidInput("ü" * 100_000 + "\ud800")

    async with serving(ScriptedModel(fail)) as server, connected(server) as client:
        found = await failure(client.infer(request("a")))
        assert (found.code(), found.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "ü" * 1000)


@pytest.mark.parametrize(
    ("message", "code", "says"),
    [
        (request("a", model="other"), grpc.StatusCode.NOT_FOUND, "'other'"),
        (request("a", version="9"), grpc.StatusCode.NOT_FOUND, "version '9'"),
        (pb.ModelInferRequest(model_name="bert"), grpc.StatusCode.INVALID_ARGUMENT, "'text' is missing"),
    ],
    ids=["model", "version", "inputs"],
)
async def test_requests_that_fit_nothing(message: pb.ModelInferRequest, code: grpc.StatusCode, says: str) -> None:
    async with serving(ScriptedModel()) as server, connected(server) as client:
        found = await failure(client.infer(message))
        assert found.code() is code
        assert says in str(found.details())
        assert text_of(await client.infer(request("a", version="1"))) == "a"


async def test_too_many_at_a_time() -> None:
    gate = Gate()
    async with serving(ScriptedModel(gate), concurrent=1) as server, connected(server) as client:
        first = client.infer(request("a"))
        await server.until(IN_FLIGHT, 1)
        refused = await failure(client.infer(request("at once")))
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert trailing(refused)["retry-after"] == "1"
        gate.open.set()
        assert text_of(await first) == "a"


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
async def test_a_caller_that_leaves_ends_its_request(how: str) -> None:
    gate = Gate()
    async with serving(ScriptedModel(gate)) as server, connected(server) as client:
        call = client.infer(request("a"), timeout=0.2 if how == "deadline" else None)
        if how == "cancelled":
            await server.until(IN_FLIGHT, 1)
            call.cancel()
        else:
            assert (await failure(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await server.until(count(499), 1)
        assert gate.cancelled == ["a"]
        assert server.metric(IN_FLIGHT) == 0


async def test_a_message_over_the_limit() -> None:
    settings = GrpcSettings("", 0, max_receive=2000)
    async with serving(ScriptedModel(), settings) as server, connected(server) as client:
        for method, sent in ((client.infer, request("a" * 3000)), (client.stream, [request("a" * 3000)])):
            for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate):
                call = method(sent, compression=compression)
                found = await failure(call if method is client.infer else call.read())
                assert found.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert text_of(await client.infer(request("a"), compression=grpc.Compression.Gzip)) == "a"


async def test_an_answer_over_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ScriptedModel(), GrpcSettings("", 0, max_send=2000)) as server, connected(server) as client:
        found = await failure(client.infer(request("a" * 3000)))
        assert found.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "--grpc_max_send_message_length allows 2000" in str(found.details())
        assert text_of(await client.infer(request("a"))) == "a"
        assert (server.metric(count(413)), server.metric(count(200))) == (1, 1)
    assert not caplog.records


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_a_client_that_leaves_as_its_answer_leaves_is_no_traceback(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def long_answer(text: str, context: Context) -> str:
        return "a" * 1_000_000

    async with serving(ScriptedModel(long_answer)) as server, asyncio.timeout(20):
        for _ in range(10):
            async with bare_call(server.settings.port, method, request("a")) as answered:
                await answered.readuntil(b"a" * 10_000)
        await server.over()
        await server.until(IN_FLIGHT, 0)
    assert not [record for record in caplog.records if record.exc_info]
