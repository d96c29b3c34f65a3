"""The gRPC transport against a real gRPC server: calls, errors, streams and connections."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from hf_transformer import credentials
from hf_transformer.errors import (
    PredictorDenied,
    PredictorError,
    PredictorTimeout,
    PredictorUnavailable,
    RequestError,
)
from hf_transformer.predictor import failures
from hf_transformer.predictor import grpc_connections as transport
from hf_transformer.predictor.base import Destination, ModelCall, Outputs, PredictorSettings, UnknownRegion
from hf_transformer.predictor.grpc import GrpcPredictor
from hf_transformer.predictor.grpc_connections import GrpcConnections
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import Placement
from hf_transformer.server.memory import held_memory
from hf_transformer.types.tensors import Tensor
from tests.predictor.fault_server import CERTIFICATE, HOST, KEY, Connection, scripted
from tests.predictor.grpc_server import (
    Fault,
    Handler,
    faulty,
    frame,
    head,
    message,
    predictor,
    server_credentials,
    serving,
    until_request,
)
from tests.predictor.scripted import leave_early
from tests.support.polling import until
from tests.support.service import NOBODY

IDS = Tensor("input_ids", "INT64", np.array([[101, 103, 102]]))


def values_of(outputs: Outputs) -> list[float]:
    values: list[float] = outputs["logits"].data.ravel().tolist()
    return values


async def infer(
    client: GrpcPredictor,
    headers: Mapping[str, str] | None = None,
    destination: Destination | None = None,
    cancellable: bool = False,
) -> list[float]:
    reply = await client.infer(ModelCall([IDS], ["logits"], headers or {}, cancellable=cancellable), destination)
    values = values_of(reply.tensors)
    reply.release()
    return values


def outputs_of(values: Sequence[float], name: str = "logits") -> pb.ModelInferResponse:
    message = pb.ModelInferResponse(raw_output_contents=[np.array(values, "<f4").tobytes()])
    message.outputs.add(name=name, datatype="FP32", shape=[1, len(values)])
    return message


def answer(name: str = "logits", count: int = 2) -> bytes:
    return outputs_of([0.5] * count, name).SerializeToString()


def response(*values: float, name: str = "logits", final: bool = False, error: str = "") -> bytes:
    """A serialized response of a stream."""
    message = outputs_of(values, name) if values else pb.ModelInferResponse()
    message.parameters["triton_final_response"].bool_param = final
    fields = {"error_message": error} if error else {"infer_response": message}
    return pb.ModelStreamInferResponse(**fields).SerializeToString()


def answering(response: bytes) -> Handler:
    async def handler(request: bytes, context: Any) -> bytes:
        return response

    return handler


good = answering(answer())
PLACED = pb.ModelInferResponse(outputs=outputs_of([1, 2]).outputs, raw_output_contents=[b""]).SerializeToString()


def destination() -> Destination:
    memory = memoryview(np.array([0.25, 0.75], "<f4").tobytes())
    return Destination("r1", {"logits": Placement("r1", 0, memory)})


def failing(code: grpc.StatusCode, message: str = "the model's own words") -> Handler:
    async def handler(request: bytes, context: Any) -> bytes:
        await context.abort(code, message)
        return b""

    return handler


class BlockingHandler:
    """A handler that replies once ``go`` is set. ``waiting`` counts open calls; ``seen`` has the peer of each call."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.seen: list[str] = []
        self.waiting = self.cancelled = 0

    async def handle(self, request: bytes, context: Any) -> bytes:
        self.seen.append(context.peer())
        self.waiting += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.waiting -= 1
        return answer()

    async def until(self, waiting: int) -> None:
        await until(lambda: self.waiting == waiting)


async def cancel(call: asyncio.Task[Any]) -> None:
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


# Calls


async def test_a_request_has_metadata_and_placements_and_no_deadline() -> None:
    seen: list[tuple[pb.ModelInferRequest, dict[str, str]]] = []

    async def handler(request: bytes, context: Any) -> bytes:
        seen.append((pb.ModelInferRequest.FromString(request), dict(context.invocation_metadata())))
        assert context.time_remaining() is None, "a deadline on the wire can crash Triton"
        return PLACED if seen[-1][0].outputs[0].parameters else answer()

    headers = {"x-request-id": "7", "authorization": "Bearer x", "name": "é", "data-bin": "x", "te": "gzip"}
    headers |= {"grpc-timeout": "1S", "new line": "x", "two": "a\nb", "empty": ""}
    target = destination()
    async with serving(ModelInfer=handler) as host, predictor(host) as client:
        assert await infer(client, headers) == [0.5, 0.5]
        assert await infer(client, destination=target) == [0.25, 0.75]
    assert target.settled
    request, metadata = seen[0]
    assert (request.model_name, request.inputs[0].name) == ("bert", "input_ids")
    assert list(request.raw_input_contents) == [IDS.data.tobytes()]
    assert (metadata["x-request-id"], metadata["authorization"], metadata["empty"]) == ("7", "Bearer x", "")
    assert not {"name", "data-bin", "te", "new line", "two"} & set(metadata)
    assert seen[1][0].outputs[0].parameters["shared_memory_region"].string_param == "r1"


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"max_receive_message_length": 1000}, "--grpc_max_receive_message_length"),
        ({"max_response_bytes": 1000}, "--max_predictor_response_bytes"),
        ({"max_response_bytes": 1000, "max_receive_message_length": 10**9}, "--max_predictor_response_bytes"),
        ({"max_send_message_length": 10}, "--grpc_max_send_message_length"),
    ],
    ids=["receive", "response", "both", "send"],
)
async def test_messages_over_a_limit_name_the_flag(settings: dict[str, int], flag: str) -> None:
    async with serving(ModelInfer=answering(answer(count=2_000_000))) as host:
        async with predictor(host) as client:
            assert len(await infer(client)) == 2_000_000
        target = destination()
        async with predictor(host, **settings) as client:
            with pytest.raises(PredictorError, match=flag):
                await infer(client, destination=target)
        assert target.settled


async def test_a_response_of_a_stream_and_a_description_have_a_limit_of_their_own() -> None:
    large = answering(pb.ModelMetadataResponse(name="x" * 5000).SerializeToString())
    handler = StreamHandler(response(*[5] * 2000))
    small = answering(answer(count=2000))
    server = serving(ModelInfer=small, ModelMetadata=large, ModelStreamInfer=handler.handle)
    async with server as host, predictor(host, max_event_bytes=4000) as client:
        assert len(await infer(client)) == 2000
        with pytest.raises(PredictorError, match="--max_predictor_event_bytes"):
            await client.model_spec()
        with pytest.raises(PredictorError, match="--max_predictor_event_bytes"):
            await anext(stream(client))
        await asyncio.wait_for(handler.cancelled.wait(), 20)


async def test_a_generated_text_has_the_limit_of_an_event() -> None:
    """ModelInfer's own limit is that of large tensors, which other models return over the same connections."""
    async with serving(ModelInfer=answering(answer(count=2000))) as host, AsyncExitStack() as stack:
        settings = PredictorSettings("m", host, max_event_bytes=4000)
        connections = GrpcConnections(settings)
        client = await stack.enter_async_context(GrpcPredictor(settings, connections))
        generous = await stack.enter_async_context(GrpcPredictor(settings, connections))
        text = ModelCall([IDS], ["logits"], {}, cancellable=True, max_bytes=100_000)
        for _ in range(2):
            with pytest.raises(PredictorError, match="--max_predictor_event_bytes"):
                await client.infer(text)
        assert len(await infer(generous)) == 2000
    async with serving(ModelInfer=good) as host, predictor(host) as client:
        assert values_of((await client.infer(text)).tensors) == [0.5, 0.5]
    with pytest.raises(PredictorUnavailable):
        await client.infer(text)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b"\xff\xff", "response is malformed"),
        (b"", "without the output 'logits'$"),
        (answer("hidden"), "without the output 'logits' and with 'hidden', which was not asked for"),
    ],
    ids=["garbage", "empty", "other output"],
)
async def test_responses_that_break_the_protocol_are_predictor_errors(response: bytes, message: str) -> None:
    async with serving(ModelInfer=answering(response)) as host, predictor(host) as client:
        with pytest.raises(PredictorError, match=message):
            await infer(client)


# Errors

Code = grpc.StatusCode
WORDS = "the model's own words"
ERRORS: Mapping[Code, type[RequestError]] = {
    Code.UNAVAILABLE: PredictorUnavailable,
    Code.NOT_FOUND: PredictorUnavailable,
    Code.CANCELLED: PredictorUnavailable,
    Code.DEADLINE_EXCEEDED: PredictorTimeout,
    Code.PERMISSION_DENIED: PredictorDenied,
    Code.UNAUTHENTICATED: PredictorDenied,
}
ROWS = [
    (Code.INTERNAL, "Failed to process the request(s) for model 'm'", failures.ERROR, True),
    (Code.INTERNAL, "x" * 20_000, failures.ERROR, True),
    (Code.INTERNAL, "Received RST_STREAM with error code 2", failures.ERROR, False),
    (Code.INVALID_ARGUMENT, "unexpected shape", failures.ERROR, True),
    (Code.NOT_FOUND, "Request for unknown model: 'm' is not found", failures.UNAVAILABLE, True),
    (Code.NOT_FOUND, "Unable to find shared memory region: 'r1'", failures.UNAVAILABLE, True),
    (Code.UNAVAILABLE, "Exceeds maximum queue size", failures.BUSY, True),
    (Code.UNAVAILABLE, "Request timeout expired", failures.BUSY, True),
    (Code.UNAVAILABLE, "scheduler for model has stopped accepting new", failures.UNAVAILABLE, True),
    (Code.UNAVAILABLE, "upstream connect error", failures.UNAVAILABLE, False),
    (Code.UNAVAILABLE, "failed to connect to all addresses", failures.CONNECTION, True),
    (Code.DEADLINE_EXCEEDED, WORDS, failures.TIMEOUT, False),
    (Code.CANCELLED, "going away", failures.LOST, False),
    (Code.UNKNOWN, "Stream removed", failures.ERROR, False),
]
SEEN = {Code.OK, *(row[0] for row in ROWS)}
ENDED = {Code.ALREADY_EXISTS, Code.UNIMPLEMENTED}
ROWS += [(code, WORDS, failures.ERROR, code in ENDED) for code in Code if code not in SEEN]


@pytest.mark.parametrize(
    ("code", "message", "kind", "settled"), ROWS, ids=[f"{row[0].name} {row[1][:20]}" for row in ROWS]
)
async def test_every_status_has_an_error_and_settles_a_call_or_not(
    code: Code, message: str, kind: str, settled: bool
) -> None:
    target = destination()
    async with serving(ModelInfer=failing(code, message)) as host, predictor(host) as client:
        with pytest.raises(RequestError) as caught:
            await infer(client, destination=target)
    assert type(caught.value) is (UnknownRegion if "'r1'" in message else ERRORS.get(code, PredictorError))
    assert (failures.kind_of(caught.value), target.settled) == (kind, settled)
    assert (message if len(message) < 500 else f": {message[:500]}...") in str(caught.value)


async def test_a_refused_connection_settles_the_call() -> None:
    target = destination()
    async with predictor(NOBODY) as client:
        with pytest.raises(PredictorUnavailable, match="is unavailable: failed to connect") as caught:
            await infer(client, destination=target)
    assert (caught.value.kind, caught.value.connection, target.settled) == (failures.CONNECTION, None, True)


# Broken connections, which fail only their own calls


async def closes(connection: Connection) -> None:
    await until_request(connection)


async def resets(connection: Connection) -> None:
    await until_request(connection)
    connection.reset()


async def hangs(connection: Connection) -> None:
    await until_request(connection)
    await asyncio.sleep(30)


async def goes_away(connection: Connection) -> None:
    stream = await until_request(connection)
    await connection.send(frame(7, 0, 0, stream.to_bytes(4) + (11).to_bytes(4) + b"too_many_pings"))


async def wedged(connection: Connection) -> None:
    stream = await until_request(connection)
    await connection.send(head(stream) + frame(0, 0, stream, b"\0\0\1\0\0abc", length=2**24 - 1))
    await connection.until_closed()


async def speaks_http1(connection: Connection) -> None:
    await connection.reader.read(24)
    await connection.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await connection.until_closed()


FAULTS: Sequence[tuple[Fault, str, str]] = [
    (closes, failures.NO_ANSWER, "is unavailable: Socket closed"),
    (resets, failures.NO_ANSWER, "is unavailable: .*reset by peer"),
    (hangs, failures.NO_ANSWER, "is unavailable: ping timeout"),
    (goes_away, failures.NO_ANSWER, "too_many_pings"),
    (wedged, failures.NO_ANSWER, "Frame size 16777215 is larger"),
    (speaks_http1, failures.CONNECTION, r"\(if that is its REST port, use --predictor_protocol=v2\)$"),
]


@pytest.mark.parametrize(("fault", "kind", "message"), FAULTS, ids=[fault.__name__ for fault, _, _ in FAULTS])
async def test_a_broken_connection_fails_its_call_and_is_replaced(
    fault: Fault, kind: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "PING_SECONDS", 1.0)
    monkeypatch.setattr(transport, "PONG_SECONDS", 0.5)
    target = destination()
    async with serving(ModelInfer=good) as real, faulty(fault, real) as host, predictor(host) as client:
        with pytest.raises(RequestError, match=message) as caught:
            await infer(client, destination=target)
        assert failures.kind_of(caught.value) == kind
        assert target.settled is (kind == failures.CONNECTION)
        assert await until_answered(client) == [0.5, 0.5]


@pytest.mark.parametrize("streamed", [False, True], ids=["unary", "stream"])
async def test_a_connection_that_swallows_all_responses_is_replaced(
    streamed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After the header of a long, unknown frame, gRPC takes all following responses, even to pings, for its payload."""
    monkeypatch.setattr(transport, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(transport, "PONG_SECONDS", 0.2)

    async def swallows(connection: Connection) -> None:
        if connection.number == 0:
            await connection.send(frame(4, 0, 0, b"") + frame(99, 0, 0, b"", length=16_000))
        await connection.forward(real)

    async def ask(client: GrpcPredictor) -> None:
        async with asyncio.timeout(0.1):
            if streamed:
                assert [values_of(outputs) async for outputs in stream(client)] == [[5]]
            else:
                assert await infer(client) == [0.5, 0.5]

    handler = StreamHandler(response(5), end=Code.OK)
    async with serving(ModelInfer=good, ModelStreamInfer=handler.handle) as real, scripted(swallows) as host:
        async with predictor(host) as client:
            results: list[BaseException | None] = []
            async with asyncio.timeout(10):
                while not results or results[-1] is not None:
                    results += await asyncio.gather(ask(client), return_exceptions=True)
            assert len(results) >= 3 and {type(result) for result in results} == {TimeoutError, type(None)}
            assert await infer(client) == [0.5, 0.5]
    assert "does not answer on an open connection; new calls get another one" in caplog.text


async def test_a_slow_model_keeps_its_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """ServerLive still has a response, even if it is an error."""
    monkeypatch.setattr(transport, "SILENT_SECONDS", 0.1)
    monkeypatch.setattr(transport, "PONG_SECONDS", 0.2)
    blocking, asked = BlockingHandler(), asyncio.Event()

    async def live(request: bytes, context: Any) -> bytes:
        asked.set()
        await context.abort(Code.UNIMPLEMENTED, "no such method")
        return b""

    async with serving(ModelInfer=blocking.handle, ServerLive=live) as host, predictor(host) as client:
        calls = [asyncio.create_task(infer(client)) for _ in range(3)]
        await blocking.until(3)
        await asyncio.sleep(0.15)
        calls.append(asyncio.create_task(infer(client)))
        async with asyncio.timeout(5):
            await asked.wait()
        await asyncio.sleep(0.3)
        calls.append(asyncio.create_task(infer(client)))
        await blocking.until(5)
        assert len(set(blocking.seen)) == 1
        blocking.go.set()
        assert await asyncio.gather(*calls) == [[0.5, 0.5]] * 5
    assert "another one" not in caplog.text


FLOODS = {
    "pings": frame(6, 0, 0, bytes(8)),
    "settings": frame(4, 0, 0, b""),
    "settings that flip": frame(4, 0, 0, b"\0\4\0\x10\0\0") + frame(4, 0, 0, b"\0\4\0\0\xff\xff"),
    "windows": frame(8, 0, 0, b"\0\0\0\1"),
    "priorities": frame(2, 0, 99, bytes(5)),
    "unknown streams": frame(1, 4, 9999, b"\x88") + frame(3, 0, 9999, bytes(4)),
}
FLOODED = 200_000


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_of_frames_delays_no_call(name: str) -> None:
    """Sends many frames between the frames of a real server; memory stays bounded."""
    flood, sent = FLOODS[name] * 1000, 0

    async def whole_frames(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        nonlocal sent
        if up:
            writer.write(await reader.readexactly(24))
        while True:
            header = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(header[:3]))
            if not up or header[3] not in (4, 6) or not header[4]:  # drop acknowledgements of the flood
                writer.write(header + payload)
            if not up:
                for _ in range(20):
                    writer.write(flood)
                    sent += 1000
            await writer.drain()

    async def floods(connection: Connection) -> None:
        host, _, port = real.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        tasks = [
            asyncio.create_task(whole_frames(connection.reader, writer, up=True)),
            asyncio.create_task(whole_frames(reader, connection.writer, up=False)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writer.transport.abort()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async with serving(ModelInfer=good) as real, scripted(floods) as host, predictor(host) as client:
        await infer(client)
        before = held_memory()
        async with asyncio.timeout(30):
            while sent < FLOODED:
                assert await infer(client) == [0.5, 0.5]
        assert held_memory() - before < 32 << 20


async def until_answered(client: GrpcPredictor) -> list[float]:
    """The first response within 5 s. A call may still use the connection that is being closed."""
    async with asyncio.timeout(5):
        while True:
            try:
                return await infer(client)
            except PredictorUnavailable as error:
                assert error.kind in (failures.CONNECTION, failures.NO_ANSWER)
                await asyncio.sleep(0.02)


async def test_errors_of_one_lost_connection_have_the_same_connection() -> None:
    """The circuit breaker counts them as one failure."""

    async def closes_at_three(connection: Connection) -> None:
        await until_request(connection, 3)

    async with scripted(closes_at_three) as host, predictor(host) as client:
        ended = []
        for _ in range(2):
            errors = await asyncio.gather(*[infer(client) for _ in range(3)], return_exceptions=True)
            unavailable = [error for error in errors if isinstance(error, PredictorUnavailable)]
            assert [error.kind for error in unavailable] == [failures.NO_ANSWER] * 3
            ended += [error.connection for error in unavailable]
            await asyncio.sleep(0.1)
    assert len(set(ended[:3])) == len(set(ended[3:])) == 1
    assert ended[0] is not ended[3]
    assert None not in ended


async def test_two_predictors_share_no_connection() -> None:
    blocking = BlockingHandler()
    blocking.go.set()
    async with serving(ModelInfer=blocking.handle) as host, predictor(host) as first, predictor(host) as second:
        for client in (first, first, second):
            await infer(client)
    assert blocking.seen[0] == blocking.seen[1] != blocking.seen[2]


async def test_a_proxy_in_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://{NOBODY}")
    monkeypatch.delenv("no_proxy", raising=False)
    async with serving(ModelInfer=good) as host, predictor(host) as client:
        assert await infer(client) == [0.5, 0.5]


@pytest.mark.parametrize("host", ["localhost", "[::1]", "[::1%lo]"], ids=["name", "ipv6", "ipv6 with a zone"])
async def test_names_and_ipv6_addresses_are_connected_to(host: str) -> None:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        if ":" in host:
            pytest.skip("no IPv6 here")
    listening = "[::1]" if ":" in host else HOST
    async with serving(listening, ModelInfer=good) as address:
        async with predictor(f"{host}:{address.rpartition(':')[2]}") as client:
            assert await infer(client) == [0.5, 0.5]


# Cancelled calls


async def test_a_call_is_not_cancelled_on_the_wire(caplog: pytest.LogCaptureFixture) -> None:
    """The call ends by itself, and its failure is not logged."""
    blocking = BlockingHandler()

    async def handler(request: bytes, context: Any) -> bytes:
        first = not blocking.seen
        response = await blocking.handle(request, context)
        return await context.abort(grpc.StatusCode.INTERNAL, "too late") if first else response

    target = destination()
    async with serving(ModelInfer=handler) as host, predictor(host) as client:
        call = asyncio.create_task(infer(client, destination=target))
        await blocking.until(1)
        await cancel(call)
        second = asyncio.create_task(infer(client))
        await blocking.until(2)
        blocking.go.set()
        assert await second == [0.5, 0.5]
        await blocking.until(0)
    assert blocking.cancelled == 0 and not target.settled
    assert len(set(blocking.seen)) == 1
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.parametrize("answers", [False, True], ids=["goes on", "ends by then"])
async def test_a_cancellable_call_is_cancelled_on_the_wire(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancellation comes after a delay in which the call may end by itself."""
    monkeypatch.setattr(transport, "LINGER_SECONDS", 1.0 if answers else 0.05)
    blocking = BlockingHandler()
    async with serving(ModelInfer=blocking.handle) as host, predictor(host) as client:
        call = asyncio.create_task(infer(client, cancellable=True))
        await blocking.until(1)
        await cancel(call)
        if answers:
            await asyncio.sleep(0.1)
            blocking.go.set()
        await blocking.until(0)
        assert blocking.cancelled == (0 if answers else 1)
        await asyncio.sleep(1.0 if answers else 0)


async def test_too_many_abandoned_calls_replace_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of the old channel continue, and none is cancelled."""
    monkeypatch.setattr(transport, "MAX_ABANDONED", 4)
    blocking = BlockingHandler()
    async with serving(ModelInfer=blocking.handle) as host, predictor(host) as client:
        bystander, *calls = [asyncio.create_task(infer(client)) for _ in range(7)]
        await blocking.until(7)
        for call in calls[:5]:
            await cancel(call)
        second = asyncio.create_task(infer(client))
        await blocking.until(8)
        await cancel(calls[5])  # the old channel's calls don't count for the new one
        third = asyncio.create_task(infer(client))
        await blocking.until(9)
        blocking.go.set()
        assert await bystander == await second == await third == [0.5, 0.5]
    old, new = set(blocking.seen[:7]), set(blocking.seen[7:])
    assert (len(old), len(new), blocking.cancelled) == (1, 1, 0) and old != new


@pytest.mark.parametrize("answers", [True, False], ids=["goes on", "never answers"])
async def test_a_replaced_channel_closes_after_its_calls(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing it cancels them, which can crash a Triton that has just gone on after a hang."""
    monkeypatch.setattr(transport, "MAX_ABANDONED", 0)
    monkeypatch.setattr(transport, "RETIRED_SECONDS", 60.0 if answers else 0.5)
    blocking = BlockingHandler()
    async with serving(ModelInfer=blocking.handle) as host, predictor(host, timeout=0.1) as client:
        call = asyncio.create_task(infer(client))
        await blocking.until(1)
        await cancel(call)
        await asyncio.sleep(0.3)  # the timeout several times over
        assert (blocking.waiting, blocking.cancelled) == (1, 0)
        if answers:
            blocking.go.set()
        await blocking.until(0)
        assert blocking.cancelled == (0 if answers else 1)


@pytest.mark.parametrize("moment", ["connecting", "begun", "open", "abandoned", "replaced"])
async def test_closing_ends_open_calls(
    moment: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(transport, "MAX_ABANDONED", 0 if moment == "replaced" else 64)

    async def silent(connection: Connection) -> None:
        await connection.until_closed()

    blocking, target = BlockingHandler(), destination()
    async with serving(ModelInfer=blocking.handle) as real, faulty(silent, real) as silent_host:
        before = asyncio.all_tasks()
        async with predictor(silent_host if moment == "connecting" else real) as client:
            calls = [asyncio.create_task(infer(client, destination=target)) for _ in range(3)]
            await asyncio.sleep(0)
            if moment == "connecting":
                await asyncio.sleep(0.1)
            elif moment != "begun":
                await blocking.until(3)
            if moment in ("abandoned", "replaced"):
                await cancel(calls.pop())
        async with asyncio.timeout(2):
            for call in calls:
                with pytest.raises(PredictorUnavailable, match="are closed") as caught:
                    await call
                assert caught.value.kind == failures.LOST and not target.settled
        with pytest.raises(PredictorUnavailable, match="are closed"):
            await infer(client)
        if moment not in ("connecting", "begun"):
            await blocking.until(0)
        left = {task for task in asyncio.all_tasks() - before if "predictor/grpc" in str(task.get_stack())}
        assert not left
    gc.collect()
    # grpc's poller may hand an event of an earlier test to that test's closed event loop.
    for record in caplog.records:
        assert "PollerCompletionQueue" in record.getMessage() and record.exc_info
        assert str(record.exc_info[1]) == "Event loop is closed"


# Metadata and readiness


async def metadata(request: bytes, context: Any) -> bytes:
    assert pb.ModelMetadataRequest.FromString(request).name == "bert"
    message = pb.ModelMetadataResponse(name="bert", versions=["2"])
    message.inputs.add(name="a", datatype="INT32", shape=[-1, 4])
    return message.SerializeToString()


async def test_a_server_without_extensions_has_metadata_only() -> None:
    async with serving(ModelMetadata=metadata) as host, predictor(host) as client:
        spec = await client.model_spec()
        assert (spec.version, spec.max_batch_size, spec.inputs[0].shape) == ("2", None, (-1, 4))
        assert await client.repository_index() is None
        with pytest.raises(PredictorError, match="UNIMPLEMENTED"):
            await client.register_region("r1", 4096)
    config = failing(grpc.StatusCode.INTERNAL, "no memory")
    async with serving(ModelMetadata=metadata, ModelConfig=config) as host, predictor(host) as client:
        with pytest.raises(PredictorError, match="no memory"):
            await client.model_spec()


@pytest.mark.parametrize("ready", [True, False, None], ids=["ready", "not ready", "unknown model"])
async def test_readiness_is_the_predictors(ready: bool | None) -> None:
    answered = answering(pb.ModelReadyResponse(ready=bool(ready)).SerializeToString())
    handler = failing(grpc.StatusCode.NOT_FOUND) if ready is None else answered
    async with serving(ModelReady=handler) as host, predictor(host) as client:
        assert await client.model_ready() is bool(ready)


async def test_late_and_malformed_responses_of_other_methods_are_errors() -> None:
    blocking, handler = BlockingHandler(), answering(b"\xff\xff")
    async with serving(ModelReady=blocking.handle) as host, predictor(host, timeout=0.1) as client:
        with pytest.raises(PredictorTimeout, match=r"gave no answer in 0.1 s \(--predictor_request_timeout"):
            await client.model_ready()
        assert blocking.cancelled == 0
    async with serving(ModelReady=handler, ServerMetadata=handler) as host, predictor(host) as client:
        for ask in (client.model_ready, client.describe_server):
            with pytest.raises(PredictorError, match="response is malformed"):
                await ask()


# Streams


class StreamHandler:
    """A handler that writes responses and ends with a status; without a status it never ends by itself."""

    def __init__(self, *responses: bytes, end: Code | None = None) -> None:
        self.responses, self.end = responses, end
        self.requests: list[pb.ModelInferRequest] = []
        self.metadata: dict[str, str] = {}
        self.cancelled = asyncio.Event()

    async def handle(self, requests: AsyncIterator[bytes], context: Any) -> None:
        self.requests = [pb.ModelInferRequest.FromString(request) async for request in requests]
        self.metadata = dict(context.invocation_metadata())
        try:
            for response in self.responses:
                await context.write(response)  # the client may disconnect meanwhile
            if self.end is None:
                await asyncio.Event().wait()
            await asyncio.sleep(0.02)  # time for a client to cancel the call after the last response
            if self.end is not Code.OK:
                await context.abort(self.end, "the model's own words")
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def stream(client: GrpcPredictor) -> AsyncGenerator[Outputs, None]:
    return client.stream(ModelCall([IDS], ["logits"], {}))


@pytest.mark.parametrize(
    "last",
    [[response(6, 7, final=True)], [response(6, 7)], [response(6, 7), response(final=True)]],
    ids=["final", "no final response", "an empty final response"],
)
async def test_a_stream_that_ends_is_not_cancelled(last: list[bytes]) -> None:
    handler = StreamHandler(response(5), response(), *last, end=Code.OK)
    async with serving(ModelStreamInfer=handler.handle) as host, predictor(host) as client:
        for outputs in (["logits"], []):
            responses = client.stream(ModelCall([IDS], outputs, {"x-request-id": "7"}))
            assert handler.requests == []
            assert [values_of(tensors) async for tensors in responses] == [[5], [6, 7]]
            request = handler.requests.pop()
            assert [output.name for output in request.outputs] == outputs, "no names request all"
    assert not handler.cancelled.is_set()
    assert (request.model_name, request.parameters["triton_enable_empty_final_response"].bool_param) == ("bert", True)
    assert handler.metadata["x-request-id"] == "7"
    assert "triton_grpc_error" not in handler.metadata, "with it, an error can crash Triton before 26.04"


FAILURES: list[tuple[bytes | Code, type[RequestError], str, str]] = [
    (response(error="the model has failed"), PredictorError, "error", "the model has failed"),
    (response(error="unknown model: 'gpt2'"), PredictorUnavailable, "unavailable", "unknown model: 'gpt2'"),
    (response(error="Exceeds maximum queue size"), PredictorUnavailable, "busy", "queue size"),
    (b"\xff\xff", PredictorError, "error", "response is malformed"),
    (response(5, name="more"), PredictorError, "error", "with 'more', which was not asked for"),
    (Code.UNAVAILABLE, PredictorUnavailable, "unavailable", "the model's own words"),
    (Code.INTERNAL, PredictorError, "error", "the model's own words"),
    (Code.DEADLINE_EXCEEDED, PredictorTimeout, "timeout", "the model's own words"),
]


@pytest.mark.parametrize(("end", "expected", "kind", "message"), FAILURES, ids=[str(row[2:]) for row in FAILURES])
@pytest.mark.parametrize("first", [0, 1], ids=["at once", "midway"])
async def test_errors_of_a_stream_are_mapped(
    end: bytes | Code, expected: type[RequestError], kind: str, message: str, first: int
) -> None:
    before = [response(5)] * first
    handler = StreamHandler(*before, end=end) if isinstance(end, Code) else StreamHandler(*before, end)
    async with serving(ModelStreamInfer=handler.handle) as host, predictor(host) as client:
        responses = stream(client)
        for _ in before:
            assert values_of(await anext(responses)) == [5]
        with pytest.raises(expected, match=message) as caught:
            await anext(responses)
        if not isinstance(end, Code):
            await asyncio.wait_for(handler.cancelled.wait(), 20)
    assert (type(caught.value), failures.kind_of(caught.value)) == (expected, kind)


@pytest.mark.parametrize("by", ["closing", "cancelling"])
async def test_leaving_early_cancels_the_call(by: str) -> None:
    handler = StreamHandler(response(5))
    async with serving(ModelStreamInfer=handler.handle) as host, predictor(host) as client:
        await leave_early(stream(client), by)
        await asyncio.wait_for(handler.cancelled.wait(), 20)


async def test_closing_ends_open_streams(caplog: pytest.LogCaptureFixture) -> None:
    handler = StreamHandler(response(5))
    async with serving(ModelStreamInfer=handler.handle) as host:
        async with predictor(host) as client:
            responses = stream(client)
            await anext(responses)
            following = asyncio.ensure_future(anext(responses))
            await asyncio.sleep(0)
        with pytest.raises(PredictorUnavailable, match="are closed") as caught:
            await following
        assert caught.value.kind == failures.LOST
        with pytest.raises(PredictorUnavailable, match="are closed"):
            await anext(stream(client))
        await asyncio.wait_for(handler.cancelled.wait(), 20)
    assert not caplog.records


@pytest.mark.parametrize(
    ("responses", "kind"), [(0, failures.NO_ANSWER), (1, failures.LOST)], ids=["at once", "midway"]
)
async def test_a_lost_connection_ends_its_stream(responses: int, kind: str) -> None:
    received = asyncio.Event()

    async def fault(connection: Connection) -> None:
        stream_id = await until_request(connection)
        await connection.send(head(stream_id) + frame(0, 0, stream_id, message(response(5))) * responses)
        await received.wait()

    async with faulty(fault, NOBODY) as host, predictor(host) as client:
        streamed = stream(client)
        for _ in range(responses):
            await anext(streamed)
        received.set()
        with pytest.raises(PredictorUnavailable) as caught:
            await anext(streamed)
    assert caught.value.kind == kind
    assert caught.value.connection is not None


async def test_a_slow_reader_slows_the_server() -> None:
    written = 0

    async def handler(requests: AsyncIterator[bytes], context: Any) -> None:
        nonlocal written
        for _ in range(10_000):
            await context.write(response(*range(10_000)))
            written += 1

    async with serving(ModelStreamInfer=handler) as host, predictor(host) as client:
        async with aclosing(stream(client)) as responses:
            await anext(responses)
            before = -1
            while before != written:  # until the server is blocked
                before = written
                await asyncio.sleep(0.2)
            assert written < 2000
            for _ in range(before + 50):
                await anext(responses)
            assert written > before


# TLS; test_tls.py has the tests for every transport


async def test_renewed_certificates_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New calls use a new connection, and calls of the old one continue."""
    monkeypatch.setattr(credentials.keep_renewing, "__defaults__", (0.02,))
    certificate, blocking = tmp_path / "tls.crt", BlockingHandler()
    certificate.write_bytes(CERTIFICATE.read_bytes())
    tls = {"use_ssl": True, "ca_file": str(CERTIFICATE), "cert_file": str(certificate), "key_file": str(KEY)}
    async with (
        serving(credentials=server_credentials(True), ModelInfer=blocking.handle) as address,
        predictor(address.replace(HOST, "localhost"), **tls) as client,
    ):
        old = asyncio.create_task(infer(client))
        await blocking.until(1)
        certificate.write_text("no certificate")
        await asyncio.sleep(0.1)
        same = asyncio.create_task(infer(client))
        await blocking.until(2)
        (tmp_path / "new").write_bytes(CERTIFICATE.read_bytes())
        os.replace(tmp_path / "new", certificate)
        await asyncio.sleep(0.2)
        new = asyncio.create_task(infer(client))
        await blocking.until(3)
        blocking.go.set()
        assert await old == await same == await new == [0.5, 0.5]
    assert blocking.seen[0] == blocking.seen[1] != blocking.seen[2]
    assert blocking.cancelled == 0
