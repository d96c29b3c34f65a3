"""ModelInfer and ModelStreamInfer of a server in this process, with a scripted model."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Any

import grpc
import grpc.aio
import pytest

from hf_transformer.api.grpc.infer import Inference
from hf_transformer.api.grpc.stream import MAX_STREAM_REQUESTS, HeldBytes, StreamQuota
from hf_transformer.commands.loopback import HOST
from hf_transformer.core.limits import Admission
from hf_transformer.errors import InvalidInput, PredictorError, PredictorTimeout, TooLarge, TooManyRequests
from hf_transformer.generation.types import Prompt, Sampling, Step
from hf_transformer.observability.logging import ACCESS_LOGGER
from hf_transformer.observability.metrics import Metrics
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.types.request import Context
from tests.api.generating import served_model
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
    read,
    request,
    service_of,
    serving,
    status_of,
    text_of,
    write,
)
from tests.integration.api.test_grpc_generate import generate_request

StatusCode = grpc.StatusCode


def ignored_names(call_metadata: Any) -> str | None:
    return dict(call_metadata).get("x-ignored-parameters")


async def test_unknown_parameters_are_named_in_the_trailing_metadata() -> None:
    message = request("a")
    message.parameters["top_kk"].int64_param = 3
    message.inputs[0].parameters["a key"].string_param = "x"
    async with serving() as server:
        call = server.infer(message)
        assert text_of(await call) == "a"
        assert ignored_names(await call.trailing_metadata()) == "a_key, top_kk"
        call = server.infer(request("a"))
        await call
        assert ignored_names(await call.trailing_metadata()) is None
        second = request("b")
        second.parameters["more"].bool_param = True
        stream = server.stream(iter([message, request("b"), second, message]))
        assert [text_of(response.infer_response) async for response in stream] == ["a", "b", "b", "a"]
        assert ignored_names(await stream.trailing_metadata()) == "a_key, top_kk, more"


async def test_known_parameters_with_wrong_values_are_refused() -> None:
    for name, expected in (
        ("timeout", "parameters.timeout: expected a whole number of microseconds"),
        ("binary_data_output", "true or false"),
    ):
        message = request("a")
        message.parameters["top_kk"].int64_param = 3
        message.parameters[name].string_param = "x"
        async with serving() as server:
            code, details = await status_of(server.infer(message))
            assert code is StatusCode.INVALID_ARGUMENT and expected in details


async def test_a_call_has_an_id_headers_and_a_deadline() -> None:
    forwarded = {"x-request-id": "caller-1", "authorization": "Bearer x", "x-b3-traceid": "80f1", "traceparent": "00-1"}
    metadata = (*forwarded.items(), ("cookie", "no"), ("x-b3-bin", b"\0"))
    async with serving(model := ScriptedModel()) as server:
        call = server.infer(request("a", id="7"), timeout=30, metadata=metadata)
        assert text_of(await call) == "a"
        assert (await call).id == "7"
        assert dict(await call.trailing_metadata())["x-request-id"] == "caller-1"
        [context] = model.contexts
        assert context.request_id == "caller-1"
        assert context.headers == forwarded
        now = asyncio.get_running_loop().time()
        # gRPC rounds a timeout of this length up to a tenth of a second.
        assert context.deadline is not None and now < context.deadline <= now + 30.1
        assert server.metric(count(200)) == 1


@pytest.mark.parametrize(("message_id", "kept"), [("mine-7", True), ("", False), ("two words", False), ("ü", False)])
async def test_the_id_of_a_message_is_the_request_id_if_metadata_can_hold_it(message_id: str, kept: bool) -> None:
    async with serving(model := ScriptedModel()) as server:
        call = server.infer(request("a", id=message_id))
        assert (await call).id == message_id
        request_id = dict(await call.trailing_metadata())["x-request-id"]
        assert (request_id == message_id) is kept
        assert request_id == model.contexts[0].request_id == model.contexts[0].headers["x-request-id"]
        assert model.contexts[0].deadline is None


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_an_invalid_request_id_in_metadata_is_replaced(method: str) -> None:
    ids = ["é".encode(), b"\xff\xfe", b"a\x7fb", b"a\x01b", b"a" * 126 * 8]
    async with serving(model := ScriptedModel()) as server, asyncio.timeout(SECONDS):
        for invalid in ids:
            async with bare_call(server.port, method, request("a"), invalid) as reader:
                await reader.readuntil(b"grpc-status\x01")
                assert await reader.readexactly(1) == b"0", invalid
        assert [len(context.request_id) for context in model.contexts] == [32] * len(ids)
        assert server.metric(count(200)) == len(ids)


@pytest.mark.parametrize(
    ("error", "code", "details", "status", "retry"),
    [
        (InvalidInput("", "a mask token"), StatusCode.INVALID_ARGUMENT, "expected a mask token", 400, None),
        (
            InvalidInput("", "ü" * 100_000 + "\ud800"),
            StatusCode.INVALID_ARGUMENT,
            "expected " + "ü" * 995,
            400,
            None,
        ),
        (TooManyRequests("full"), StatusCode.RESOURCE_EXHAUSTED, "full", 429, "1"),
        (PredictorError("Füße"), StatusCode.INTERNAL, "Füße", 502, None),
        (PredictorTimeout("slow"), StatusCode.DEADLINE_EXCEEDED, "slow", 504, None),
        (ValueError("secret"), StatusCode.INTERNAL, "internal error; the log has it under 7", 500, None),
    ],
    ids=["input", "long", "busy", "predictor", "timeout", "fault"],
)
async def test_errors_have_a_status_details_and_retry_after(
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    code: grpc.StatusCode,
    details: str,
    status: int,
    retry: str | None,
) -> None:
    async with serving(raising(error)) as server:
        with caplog.at_level(logging.ERROR, "hf_transformer"):
            raised = await failure(server.infer(request("a", id="7")))
        assert (raised.code(), raised.details()) == (code, details)
        trailing: Any = raised.trailing_metadata()
        assert dict(trailing).get("retry-after") == retry
        assert dict(trailing)["x-request-id"] == "7"
        assert (server.metric(count(status)), server.metric(IN_FLIGHT)) == (1, 0)
    assert ("ValueError: secret" in caplog.text) is (status == 500)


async def test_unknown_models_and_missing_inputs_are_refused() -> None:
    async with serving() as server:
        for message, code, details in (
            (request("a", model="other"), StatusCode.NOT_FOUND, "'other'"),
            (request("a", version="9"), StatusCode.NOT_FOUND, "version '9'"),
            (pb.ModelInferRequest(model_name="bert"), StatusCode.INVALID_ARGUMENT, "'text' is missing"),
        ):
            status = await status_of(server.infer(message))
            assert status[0] is code and details in status[1]
        assert text_of(await server.infer(request("a", version="1"))) == "a"


@pytest.mark.parametrize("end", ["cancelled", "deadline"])
async def test_the_end_of_a_call_cancels_its_request(end: str) -> None:
    async with serving(gate := Gate()) as server:
        call = server.infer(request("a"), timeout=1.0 if end == "deadline" else None)
        if end == "cancelled":
            await server.until(IN_FLIGHT, 1)
            call.cancel()
        else:
            assert (await status_of(call))[0] is StatusCode.DEADLINE_EXCEEDED
        await server.until(count(499), 1)
        assert gate.cancelled == ["a"]
        assert server.metric(IN_FLIGHT) == 0


async def test_a_message_over_the_limit_is_refused() -> None:
    async with serving(max_receive=2000, compression=True) as server:
        for method, messages in ((server.infer, request("a" * 3000)), (server.stream, [request("a" * 3000)])):
            for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate):
                call = method(messages, compression=compression)
                code, _ = await status_of(call if method is server.infer else call.read())
                assert code is StatusCode.RESOURCE_EXHAUSTED
        assert text_of(await server.infer(request("a"), compression=grpc.Compression.Gzip)) == "a"


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_a_client_that_disconnects_during_its_response_causes_no_traceback(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(long_answer) as server, asyncio.timeout(SECONDS):
        for _ in range(10):
            async with bare_call(server.port, method, request("a")) as reader:
                await reader.readuntil(b"a" * 10_000)
        await server.wait_until_idle()
        await server.until(IN_FLIGHT, 0)
    assert not [record for record in caplog.records if record.exc_info]


# The access log


FORMAT = "%(h)s %(m)s %(U)s %(H)s %(s)s %(st)s %(B)s %({x-request-id}i)s %({authorization}i)s %({x-request-id}o)s %(D)s"
METADATA = (("x-request-id", "r1"), ("authorization", "Bearer hunter2"))
logged = partial(serving, log_format=FORMAT)


class LogLines(logging.Handler):
    """Records lines of the access log."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    async def next(self) -> str:
        """The next line, without the client's port and the duration."""
        async with asyncio.timeout(SECONDS):
            while not self.records:  # noqa: ASYNC110 - the client's end of a call may come first
                await asyncio.sleep(0.002)
        line = self.records.pop(0).getMessage()
        return re.sub(rf"^{HOST}:\d+ POST /inference.GRPCInferenceService/(.*) \d+$", r"\1", line)


@pytest.fixture
def log() -> Iterator[LogLines]:
    handler = LogLines()
    logger = logging.getLogger(ACCESS_LOGGER)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_calls_of_known_methods_are_logged(log: LogLines) -> None:
    async with logged() as server:
        answer = await server.infer(request("a"), metadata=METADATA)
        assert await log.next() == f"ModelInfer HTTP/2 0 OK {answer.ByteSize()} r1 *** r1"
        stream: Any = server.stream(iter([request("a"), request("b")]), metadata=METADATA)
        assert [not answer.error_message async for answer in stream] == [True, True]
        assert await log.next() == "ModelStreamInfer HTTP/2 0 OK 0 r1 *** r1"
        await failure(server.raw("/inference.GRPCInferenceService/Nothing"))
        await server.ask("ServerLive")
        record = log.records[0]
        assert (await log.next()).startswith("ServerLive HTTP/2 0 OK 2 - - ")
        assert len(record.request_id) == 32  # type: ignore[attr-defined]


@pytest.mark.parametrize("bug", [False, True], ids=["an error", "a bug"])
async def test_a_failed_call_is_logged_with_its_status(log: LogLines, bug: bool) -> None:
    model = ScriptedModel(raising(AssertionError("a bug")))
    model.reason = "" if bug else "not yet"
    async with logged(model) as server:
        await failure(server.infer(request("a"), metadata=METADATA))
        status = "13 INTERNAL" if bug else "14 UNAVAILABLE"
        assert await log.next() == f"ModelInfer HTTP/2 {status} 0 r1 *** r1"


async def test_a_cancelled_call_is_logged(log: LogLines) -> None:
    async with logged(gate := Gate()) as server, asyncio.timeout(SECONDS):
        call = server.infer(request("a"), metadata=METADATA)
        waiting = asyncio.create_task(call.wait_for_connection())
        while not gate.waiting:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.002)
        call.cancel()
        await asyncio.wait([waiting])
        assert await log.next() == "ModelInfer HTTP/2 1 CANCELLED 0 r1 *** -"


# ModelStreamInfer


END = grpc.aio.EOF  # type: ignore[attr-defined]


async def answer(stream: Any) -> tuple[str, str, str, bool]:
    """One response of a stream: id, text, error, and whether it is the last one for its request."""
    message = await read(stream)
    response = message.infer_response
    text = text_of(response) if response.outputs else ""
    return response.id, text, message.error_message, response.parameters["triton_final_response"].bool_param


async def test_a_stream_answers_in_the_order_of_its_requests() -> None:
    async with serving(gate := Gate()) as server:
        stream = server.stream(metadata=(("x-request-id", "caller-1"),))
        await write(stream, request("slow", id="1"), request("at once", id="2"))
        await server.until(count(200), 1)  # the second is done
        gate.open.set()
        assert [await answer(stream), await answer(stream)] == [("1", "slow", "", True), ("2", "at once", "", True)]
        await stream.done_writing()
        assert await stream.read() is END
        assert await stream.code() is grpc.StatusCode.OK
        assert dict(await stream.trailing_metadata())["x-request-id"] == "caller-1"


async def test_the_scheduler_learns_that_a_request_came_over_grpc() -> None:
    async def predict(text: str, context: Context) -> str:
        return str(context.over_grpc)

    async with serving(predict) as server:
        stream = server.stream()
        await write(stream, request("x", id="1"))
        assert await answer(stream) == ("1", "True", "", True)
        assert text_of(await server.infer(request("x"))) == "True"


async def test_an_error_in_a_stream_ends_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def predict(text: str, context: Context) -> str:
        if text in ("bad", "fault"):
            raise InvalidInput("", "a mask token") if text == "bad" else ValueError("secret")
        return text

    wrong, limit = request("x", id="4"), "at most 2000 bytes (--grpc_max_send_message_length)"
    wrong.inputs[0].datatype = "FP8"
    cases = (
        (request("bad", id="1"), "expected a mask token"),
        (request("x", id="2", model="other"), "'other'"),
        (request("fault", id="3"), "internal error; the log has it under 3"),
        (wrong, "'FP8'"),
        (request("a" * 3000, id="5"), limit),
        (request("b", id="3" * 3000), limit),  # too long even for the error's message
        (request("good", id="7"), ""),
    )
    async with serving(predict, max_send=2000) as server:
        stream = server.stream()
        await write(stream, *[message for message, _ in cases])
        for message, expected in cases:
            id, text, error, final = await answer(stream)
            assert id == ("" if len(message.id) > 1 else message.id)
            assert expected in error and final
            assert text == ("" if expected else "good")
        assert (server.metric(count(413)), server.metric(count(200)), server.metric(IN_FLIGHT)) == (2, 1, 0)
        stream.cancel()
    assert ["secret" in str(record.exc_info) for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("size", "limit"), [(1, MAX_STREAM_REQUESTS), (1000, 3)], ids=["as many requests", "as many bytes"]
)
async def test_a_stream_reads_only_requests_within_its_limits(
    size: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_transformer.api.grpc.stream.MAX_STREAM_BYTES", 5000)
    texts = [f"{number:02}" * size for number in range(limit + 8)]
    async with serving(gate := Gate(), max_receive=3000) as server:
        stream = server.stream()
        writing = asyncio.create_task(write(stream, *[request(text, id="x") for text in texts]))
        await server.until(IN_FLIGHT, limit)
        assert text_of(await server.infer(request("at once"))) == "at once"
        assert gate.waiting == texts[:limit]
        gate.open.set()
        assert [(await answer(stream))[1] for _ in texts] == texts
        await writing
        stream.cancel()


async def test_a_request_without_a_ticket_waits_for_its_own_stream() -> None:
    async with serving(gate := Gate(), concurrent=2) as server:
        stream = server.stream()
        texts = [str(number) for number in range(9)]
        await write(stream, *map(request, texts))
        await server.until(IN_FLIGHT, 2)
        refused = await failure(server.infer(request("at once")))
        metadata: Any = refused.trailing_metadata()
        assert (refused.code(), dict(metadata)["retry-after"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "1")
        assert gate.waiting == texts[:2]
        gate.open.set()
        assert [(await answer(stream))[1:3] for _ in texts] == [(text, "") for text in texts]
        assert (server.metric(count(200)), server.metric(count(429))) == (9, 1)
        assert server.metric('hf_transformer_refused_requests_total{limit="requests"}') == 1
        stream.cancel()


async def test_a_stream_is_refused_while_other_calls_have_all_tickets() -> None:
    async with serving(gate := Gate(), concurrent=1) as server:
        first, stream = server.infer(request("a")), server.stream()
        await server.until(IN_FLIGHT, 1)
        await write(stream, request("b"))
        assert "--max_concurrent_requests" in (await answer(stream))[2]
        gate.open.set()
        assert text_of(await first) == "a"
        await write(stream, request("c"))
        assert (await answer(stream))[1:3] == ("c", "")
        stream.cancel()


async def test_a_cancelled_stream_cancels_its_requests() -> None:
    async with serving(gate := Gate()) as server:
        stream = server.stream()
        await write(stream, *map(request, "012"))
        await server.until(IN_FLIGHT, 3)
        stream.cancel()
        await server.until(count(499), 3)
        assert sorted(gate.cancelled) == ["0", "1", "2"]
        assert server.metric(IN_FLIGHT) == 0


async def test_a_client_that_does_not_read_gets_deadline_exceeded() -> None:
    async with serving(long_answer, patience=0.2) as server, asyncio.timeout(SECONDS):
        stream = server.stream(metadata=(("x-request-id", "caller-1"),))
        await write(stream, *[request("a", id=str(number)) for number in range(30)])
        while not server.active:  # noqa: ASYNC110 - calls have no event
            await asyncio.sleep(0.01)
        await server.wait_until_idle()
        assert server.metric(IN_FLIGHT) == 0
        raised = await failure(read_all(stream))
        assert raised.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert raised.details() == "the client did not read a response within 0.2 s (--client_timeout_seconds)"
        metadata: Any = raised.trailing_metadata()
        assert dict(metadata)["x-request-id"] == "caller-1"
        assert text_of(await server.infer(request("b"))) == "b" * 1_000_000, "the connection still works"


def pieces(prompt: Prompt, sampling: Sampling) -> Iterable[Step]:
    """Large pieces for the prompt A, endless empty ones for any other."""
    return [Step(text="a" * 1_000_000)] * 30 if prompt.text == "A" else repeat(Step())


@pytest.mark.parametrize("following", ["none", "open", "another"])
async def test_a_client_that_does_not_read_pieces_gets_deadline_exceeded(following: str) -> None:
    """Even if the stream also waits for a further request, or for the response to the next one."""
    async with served_model() as made, serving(made.service, patience=0.2) as server, asyncio.timeout(SECONDS):
        await made.model.require_ready()
        made.generator._script = pieces
        stream = server.stream()
        await stream.write(generate_request("A", stream=True, max_new_tokens=50))
        if following == "another":
            await stream.write(generate_request("B", stream=True, return_full_text=False))
        elif following == "none":
            await stream.done_writing()
        assert (await stream.read()).infer_response.outputs
        await server.wait_until_idle()
        assert made.generator.running == 0
        assert (await status_of(read_all(stream)))[0] is grpc.StatusCode.DEADLINE_EXCEEDED


async def read_all(stream: Any) -> None:
    while await stream.read() is not END:
        pass


def test_a_request_counts_with_the_size_of_the_last_response() -> None:
    held = HeldBytes(0)
    quota = StreamQuota(held, Admission(9, 1000, Metrics()))
    quota.hold_request("first", 10)
    assert held.bytes == 10
    quota.hold_response("first", 5000)
    quota.drop("first")
    assert held.bytes == 0
    quota.hold_request("second", 10)
    assert held.bytes == 5000, "its response may be as large"
    quota.hold_request("third", 9000)
    assert held.bytes == 14_000


def test_a_message_of_the_maximum_size_is_sent() -> None:
    inference = Inference(service_of(ScriptedModel(), Metrics()), asyncio.Event(), 10)
    assert inference.checked_size(b"a" * 10) == b"a" * 10
    with pytest.raises(TooLarge, match=r"at most 10 bytes \(--grpc_max_send_message_length\), got 11"):
        inference.checked_size(b"a" * 11)
