"""ModelInfer of a server in this process, with a model that follows a script."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio
import pytest

from hf_transformer.errors import InvalidInput, PredictorError, PredictorTimeout, TooManyRequests
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.integration.api.bare_grpc import bare_call
from tests.integration.api.grpc_model import (
    IN_FLIGHT,
    SECONDS,
    Gate,
    ScriptedModel,
    count,
    failure,
    long_answer,
    raising,
    request,
    serving,
    text_of,
    told,
)

StatusCode = grpc.StatusCode


async def test_what_goes_along_with_a_call() -> None:
    passed_on = {"x-request-id": "caller-1", "authorization": "Bearer x", "x-b3-traceid": "80f1", "traceparent": "00-1"}
    metadata = (*passed_on.items(), ("cookie", "no"), ("x-b3-bin", b"\0"))
    async with serving(model := ScriptedModel()) as server:
        call = server.infer(request("a", id="7"), timeout=30, metadata=metadata)
        assert text_of(await call) == "a"
        assert (await call).id == "7"
        assert dict(await call.trailing_metadata())["x-request-id"] == "caller-1"
        [context] = model.contexts
        assert context.request_id == "caller-1"
        assert context.headers == passed_on
        now = asyncio.get_running_loop().time()
        # gRPC sends a timeout this long rounded up to a tenth of a second.
        assert context.deadline is not None and now < context.deadline <= now + 30.1
        assert server.metric(count(200)) == 1


@pytest.mark.parametrize(("given", "kept"), [("mine-7", True), ("", False), ("two words", False), ("ü", False)])
async def test_the_id_of_a_request_without_metadata(given: str, kept: bool) -> None:
    async with serving(model := ScriptedModel()) as server:
        call = server.infer(request("a", id=given))
        assert (await call).id == given
        found = dict(await call.trailing_metadata())["x-request-id"]
        assert (found == given) is kept
        assert found == model.contexts[0].request_id == model.contexts[0].headers["x-request-id"]
        assert model.contexts[0].deadline is None


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_any_bytes_as_an_id(method: str) -> None:
    """As no library sends them."""
    ids = ["é".encode(), b"\xff\xfe", b"a\x7fb", b"a\x01b", b"a" * 126 * 8]
    async with serving(model := ScriptedModel()) as server, asyncio.timeout(SECONDS):
        for given in ids:
            async with bare_call(server.port, method, request("a"), given) as answer:
                await answer.readuntil(b"grpc-status\x01")
                assert await answer.readexactly(1) == b"0", given
        assert [len(context.request_id) for context in model.contexts] == [32] * len(ids)
        assert server.metric(count(200)) == len(ids)


@pytest.mark.parametrize(
    ("error", "code", "says", "status", "retry"),
    [
        (InvalidInput("no mask"), StatusCode.INVALID_ARGUMENT, "no mask", 400, None),
        (InvalidInput("ü" * 100_000 + "\ud800"), StatusCode.INVALID_ARGUMENT, "ü" * 1000, 400, None),  # fits a header
        (TooManyRequests("full"), StatusCode.RESOURCE_EXHAUSTED, "full", 429, "1"),
        (PredictorError("Füße"), StatusCode.INTERNAL, "Füße", 502, None),
        (PredictorTimeout("slow"), StatusCode.DEADLINE_EXCEEDED, "slow", 504, None),
        (ValueError("secret"), StatusCode.INTERNAL, "internal error; the log has it under 7", 500, None),
    ],
    ids=["input", "long", "busy", "predictor", "timeout", "fault"],
)
async def test_errors(
    caplog: pytest.LogCaptureFixture, error: Exception, code: grpc.StatusCode, says: str, status: int, retry: str | None
) -> None:
    async with serving(raising(error)) as server:
        with caplog.at_level(logging.ERROR, "hf_transformer"):
            found = await failure(server.infer(request("a", id="7")))
        assert (found.code(), found.details()) == (code, says)
        trailing: Any = found.trailing_metadata()
        assert dict(trailing).get("retry-after") == retry
        assert dict(trailing)["x-request-id"] == "7"
        assert (server.metric(count(status)), server.metric(IN_FLIGHT)) == (1, 0)
    assert ("ValueError: secret" in caplog.text) is (status == 500)


async def test_requests_that_fit_nothing() -> None:
    async with serving() as server:
        for message, code, says in (
            (request("a", model="other"), StatusCode.NOT_FOUND, "'other'"),
            (request("a", version="9"), StatusCode.NOT_FOUND, "version '9'"),
            (pb.ModelInferRequest(model_name="bert"), StatusCode.INVALID_ARGUMENT, "'text' is missing"),
        ):
            found = await told(server.infer(message))
            assert found[0] is code and says in found[1]
        assert text_of(await server.infer(request("a", version="1"))) == "a"


@pytest.mark.parametrize("how", ["cancelled", "deadline"])
async def test_a_caller_that_leaves_ends_its_request(how: str) -> None:
    async with serving(gate := Gate()) as server:
        call = server.infer(request("a"), timeout=0.2 if how == "deadline" else None)
        if how == "cancelled":
            await server.until(IN_FLIGHT, 1)
            call.cancel()
        else:
            assert (await told(call))[0] is StatusCode.DEADLINE_EXCEEDED
        await server.until(count(499), 1)
        assert gate.cancelled == ["a"]
        assert server.metric(IN_FLIGHT) == 0


async def test_a_message_over_the_limit() -> None:
    async with serving(max_receive=2000) as server:
        for method, sent in ((server.infer, request("a" * 3000)), (server.stream, [request("a" * 3000)])):
            for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate):
                call = method(sent, compression=compression)
                code, _ = await told(call if method is server.infer else call.read())
                assert code is StatusCode.RESOURCE_EXHAUSTED
        assert text_of(await server.infer(request("a"), compression=grpc.Compression.Gzip)) == "a"


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_a_client_that_leaves_as_its_answer_leaves_is_no_traceback(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(long_answer) as server, asyncio.timeout(SECONDS):
        for _ in range(10):
            async with bare_call(server.port, method, request("a")) as answered:
                await answered.readuntil(b"a" * 10_000)
        await server.over()
        await server.until(IN_FLIGHT, 0)
    assert not [record for record in caplog.records if record.exc_info]
