"""The REST transport on real sockets: requests, answers, errors, shared memory and streams."""

from __future__ import annotations

import asyncio
import gc
import gzip
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import numpy as np
import orjson
import pytest

from hf_transformer.errors import PredictorDenied, PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.predictor import http
from hf_transformer.predictor.base import (
    Destination,
    ModelCall,
    Outputs,
    PredictorSettings,
    StaleConnection,
    UnknownRegion,
)
from hf_transformer.predictor.failures import kind_of
from hf_transformer.predictor.rest import RestPredictor
from hf_transformer.protocol.tensors import Placement
from hf_transformer.types.tensors import Array, ModelSpec, Tensor
from tests.predictor.fault_server import Connection, scripted
from tests.predictor.scripted import leave_early
from tests.support.service import NOBODY

IDS = Tensor("input_ids", "INT64", np.array([[101, 103, 102]]))
LOGITS = np.array([[0.25, 0.75]], "<f4")


def header_of(logits: Array) -> tuple[bytes, str]:
    """The JSON of an answer, and the HTTP header with its length."""
    output = {"name": "logits", "datatype": "FP32", "shape": logits.shape}
    header = orjson.dumps({"outputs": [{**output, "parameters": {"binary_data_size": logits.nbytes}}]})
    return header, f"Inference-Header-Content-Length: {len(header)}"


HEADER, FRAMING = header_of(LOGITS)
UNAVAILABLE, FAILED = PredictorUnavailable, PredictorError


def predictor(host: str, timeout: float = 30.0, limit: int = 2**30) -> RestPredictor:
    settings = PredictorSettings("my model", host, timeout=timeout, max_response_bytes=limit, max_event_bytes=limit)
    return RestPredictor(settings)


async def infer(
    rest: RestPredictor,
    inputs: Sequence[Tensor] = (IDS,),
    headers: Mapping[str, str] | None = None,
    destination: Destination | None = None,
) -> list[float]:
    reply = await rest.infer(ModelCall(inputs, ["logits"], headers or {}), destination)
    values: list[float] = reply.tensors["logits"].data.ravel().tolist()
    reply.release()
    return values


async def fails(
    answer: Callable[[Connection], Awaitable[None]], destination: Destination | None = None
) -> RequestError:
    """The error of one inference, which a script answers."""

    async def script(connection: Connection) -> None:
        await connection.request()
        await answer(connection)

    async with scripted(script) as host, predictor(host) as rest:
        with pytest.raises((PredictorError, PredictorUnavailable, PredictorTimeout)) as caught:
            await infer(rest, destination=destination)
        return caught.value


# Requests


@pytest.mark.parametrize("placed", [False, True], ids=["inline", "shared memory"])
async def test_a_request_is_framed_and_its_answer_decoded(placed: bool) -> None:
    seen: list[tuple[dict[str, str], bytes]] = []

    async def script(connection: Connection) -> None:
        for _ in range(2):
            seen.append(await connection.request())
            await connection.answer("200 OK", *([PLACED] if placed else [HEADER + LOGITS.tobytes(), FRAMING]))
        await connection.until_closed()

    headers = {"x-request-id": "7", "content-length": "1", "accept-encoding": "gzip"}
    headers |= {"x-user": "Ren\u00e9e".encode().decode("latin-1")}  # as ASGI servers decode it
    target = destination() if placed else None
    async with scripted(script) as host, predictor(host) as rest:
        for _ in range(2):
            assert await infer(rest, headers=headers, destination=target) == ([3, 4] if placed else [0.25, 0.75])
    assert target is None or target.settled
    (sent, body), second = seen
    assert second == (sent, body)
    length = int(sent["inference-header-content-length"])
    assert sent[""] == "POST /v2/models/my%20model/infer HTTP/1.1"
    assert (sent["x-request-id"], sent["x-user"]) == ("7", "Ren\u00e9e")
    assert (sent["accept-encoding"], sent["content-type"]) == ("identity", "application/octet-stream")
    placement = {"shared_memory_region": "r1", "shared_memory_offset": 64, "shared_memory_byte_size": 8}
    outputs = [{"name": "logits", "parameters": placement if placed else {"binary_data": True}}]
    assert orjson.loads(body[:length])["outputs"] == outputs
    assert body[length:] == IDS.data.tobytes()


async def test_large_outputs_are_aligned_views() -> None:
    logits = np.arange(10_000, dtype="<f4")
    header, framing = header_of(logits)

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.answer("200 OK", header + logits.tobytes(), framing)

    async with scripted(script) as host, predictor(host) as rest:
        data = (await rest.infer(ModelCall([IDS], ["logits"], {}))).tensors["logits"].data
    assert data.base is not None and data.ctypes.data % 64 == 0
    assert np.array_equal(data, logits)


# Errors

ANSWERS = [
    ("404 Not Found", b'{"error":"no such model"}', UNAVAILABLE, "unavailable", "404: no such model", True),
    ("503 Unavailable", b"upstream connect error", UNAVAILABLE, "unavailable", "503: upstream", False),
    ("503 Full", b'{"error":"[m] Exceeds maximum queue size"}', UNAVAILABLE, "busy", "maximum queue size", True),
    ("503 Late", b'{"error":"Request timeout expired"}', UNAVAILABLE, "busy", "timeout expired", True),
    ("502 Bad Gateway", b'{"error":"gateway"}', UNAVAILABLE, "lost", "answered 502: gateway", False),
    ("429 Too Many Requests", b"", UNAVAILABLE, "busy", "answered 429: no message", False),
    ("504 Gateway Timeout", b'{"error":"late"}', PredictorTimeout, "timeout", "answered 504", False),
    ("401 Unauthorized", b'{"error":"who?"}', PredictorDenied, "error", "answered 401: who?", True),
    ("403 Forbidden", b'{"error":"no"}', PredictorDenied, "error", "answered 403: no", True),
    ("400 Bad Request", b'{"error":"bad shape"}', FAILED, "error", "answered 400: bad shape", True),
    ("408 Request Timeout", b'{"error":"late"}', FAILED, "error", "answered 408: late", False),
    ("500 Oops", b'{"error":"9 bytes"}', FAILED, "error", "answered 500: 9 bytes", True),
    ("500 Oops", b'{"error":{"code":3}}', FAILED, "error", "answered 500: {'code': 3}", False),
    ("500 Oops", b'["\xff"]', FAILED, "error", 'answered 500: ["\ufffd"]', False),
    ("500 Oops", b"x" * 9999, FAILED, "error", "answered 500: " + "x" * 500 + "...", False),
    ("500 Oops", gzip.compress(b'{"error":"no memory"}'), FAILED, "error", "answered 500: no memory", False),
    ("500 Oops", b"\x1f\x8bxx", FAILED, "error", "answered 500: a message in broken gzip", False),
    ("301 Moved", b"elsewhere", FAILED, "error", "answered 301: elsewhere", False),
    ("204 No Content", b"", FAILED, "error", "answered 204", False),
    ("404 No", b'{"error":"shared memory region: \'r1\'"}', UnknownRegion, "unavailable", "region: 'r1'", True),
    ("200 OK", gzip.compress(HEADER), FAILED, "error", "Content-Encoding gzip, although identity was asked for", True),
    ("200 OK", HEADER + b"1234", FAILED, "error", "malformed: ", True),
    (
        "200 OK",
        HEADER.replace(b"logits", b"hidden") + LOGITS.tobytes(),
        FAILED,
        "error",
        "'logits' and with 'hid",
        True,
    ),
    ("200 OK", b'{"error":"no memory"}'.ljust(len(HEADER)), FAILED, "error", "the predictor's error: no memory", True),
]


@pytest.mark.parametrize(
    ("status", "body", "error", "kind", "message", "settled"),
    ANSWERS,
    ids=[f"{row[0]}, {row[4][:30]}" for row in ANSWERS],
)
async def test_every_status_has_an_error_and_settles_a_call_or_not(
    status: str, body: bytes, error: type[RequestError], kind: str, message: str, settled: bool
) -> None:
    target = destination()
    fields = ["Content-Encoding: gzip"] if body.startswith(b"\x1f\x8b") else [FRAMING]
    raised = await fails(lambda connection: connection.answer(status, body, *fields), target)
    assert (type(raised), kind_of(raised), target.settled) == (error, kind, settled)
    assert message in str(raised)


@pytest.mark.parametrize(
    ("body", "length", "message"),
    [
        (HEADER + LOGITS.tobytes(), "", "body: expected JSON"),
        (HEADER + LOGITS.tobytes(), "many", "expected a number of bytes"),
        (bytes(100_000), "many", "expected a number of bytes"),
        (
            HEADER + LOGITS.tobytes(),
            "99999",
            "Inference-Header-Content-Length: expected at most the .* bytes of the body, got 99999",
        ),
        (
            HEADER + b"1234",
            f"{len(HEADER)}",
            "binary_data_size: expected a number of bytes up to the remaining 4, got 8",
        ),
        (b'{"outputs":[]}', "", "without the output 'logits'$"),
        (b"", "", "body: expected JSON"),
    ],
    ids=["no length", "no number", "no number, large", "too long", "too short", "none", "empty"],
)
async def test_answers_that_break_the_protocol_are_predictor_errors(body: bytes, length: str, message: str) -> None:
    fields = [f"Inference-Header-Content-Length: {length}"] if length else []
    error = await fails(lambda connection: connection.answer("200 OK", body, *fields))
    assert type(error) is PredictorError
    with pytest.raises(PredictorError, match=message):
        raise error


BROKEN = {
    "garbage": (b"SSH-2.0-OpenSSH\r\n\r\n", "error", "does not speak HTTP/1.1; if that is its gRPC port"),
    "a broken head": (b"HTTP/1.1 99 No\r\n\r\n", "error", "the call to the predictor at"),
    "nothing": (b"", "no_answer", "it closed the connection without an answer"),
    "half a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "lost", "in the middle of its answer"),
    "too large": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 900000000000000000\r\n\r\n",
        "error",
        "it has 900000000000000000 bytes, the limit is 1073741824 (--max_predictor_response_bytes)",
    ),
}


@pytest.mark.parametrize(("answer", "kind", "message"), BROKEN.values(), ids=list(BROKEN))
async def test_broken_answers_do_not_settle_a_call(answer: bytes, kind: str, message: str) -> None:
    target = destination()
    error = await fails(lambda connection: connection.send(answer), target)
    assert kind_of(error) == kind and message in str(error)
    assert error.__cause__ is not None and not target.settled


@pytest.mark.parametrize("end", ["refused", "hung up", "cancelled"])
@pytest.mark.parametrize("streamed", [False, True], ids=["call", "stream"])
async def test_a_failed_call_frees_its_inputs_without_the_collector(end: str, streamed: bool) -> None:
    """The next garbage collection may be far away."""
    arrived = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        arrived.set()
        if end == "cancelled":
            await connection.until_closed()

    async def call(rest: RestPredictor, tensors: list[Tensor]) -> None:
        if not streamed:
            await rest.infer(ModelCall(tensors, ["logits"], {}))
        async for _ in rest.stream(ModelCall(tensors, ["logits"], {})):
            pass

    data = np.zeros((1, 2**16), np.int64)
    inputs = weakref.ref(data)
    async with scripted(script) as host, predictor(NOBODY if end == "refused" else host) as rest:
        gc.disable()
        try:
            task = asyncio.create_task(call(rest, [Tensor("input_ids", "INT64", data)]))
            if end == "cancelled":
                await arrived.wait()
                task.cancel()
            with pytest.raises((PredictorUnavailable, asyncio.CancelledError)):
                await task
            del data, task
            await asyncio.sleep(0.01)  # for the event loop's references
            assert inputs() is None
        finally:
            gc.enable()


# Shared memory

PLACED = b'{"outputs":[{"name":"logits","datatype":"FP32","shape":[1,2]}]}'


def destination() -> Destination:
    memory = memoryview(np.array([3, 4], "<f4").tobytes())
    return Destination("r1", {"logits": Placement("r1", 64, memory)})


@pytest.mark.parametrize(
    ("cause", "kind", "message"),
    [
        ("nobody listens", "connection", r"the predictor at \S+:\d+ is unavailable: "),
        ("no such host", "connection", r"the predictor at \S+:\d+ is unavailable: "),
        ("no connection in time", "connection", r"no connection to the predictor at \S+ in time"),
        ("closed", "lost", r"the connections to the predictor at \S+ are closed"),
        ("can't be written", "error", "the request can't be written"),
    ],
)
async def test_a_call_that_was_not_sent_is_settled(
    cause: str, kind: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = destination()
    inputs = [Tensor("a", "INT64", np.zeros(2))] if cause == "can't be written" else [IDS]
    async with predictor("predictor.invalid" if cause == "no such host" else NOBODY) as rest:
        if cause == "closed":
            await rest.__aexit__(None, None, None)
        if cause == "no connection in time":
            monkeypatch.setattr(http, "CONNECT_SECONDS", 0.0)
        with pytest.raises(RequestError, match=message) as caught:
            await infer(rest, inputs, destination=target)
    assert target.settled and kind_of(caught.value) == kind


@pytest.mark.parametrize("when", ["connecting", "sent"])
async def test_a_cancelled_call_is_settled_if_it_was_not_sent(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        arrived.set()
        await connection.until_closed()

    async def never(*arguments: object, **options: object) -> None:
        arrived.set()
        await asyncio.Event().wait()

    target = destination()
    async with scripted(script) as host, predictor(host) as rest:
        if when == "connecting":
            monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
        call = asyncio.create_task(infer(rest, destination=target))
        await arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert target.settled is (when == "connecting")


@pytest.mark.parametrize("end", ["closed", "reset", "408"])
async def test_a_stale_connection_with_a_destination_is_not_sent_again(end: str) -> None:
    """The first request may still run, and write to the same placements later."""
    requests: list[int] = []

    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            requests.append(connection.number)
            if len(requests) == 2:
                break
            await connection.answer("200 OK", PLACED)
        if end == "reset":
            connection.reset()
        elif end == "408":
            await connection.answer("408 Request Timeout", b"", "Connection: close")

    target = destination()
    async with scripted(script) as host, predictor(host) as rest:
        assert await infer(rest, destination=destination()) == [3, 4]
        with pytest.raises(StaleConnection, match=r"the predictor at \S+ is unavailable: ") as caught:
            await infer(rest, destination=target)
        assert await infer(rest, destination=destination()) == [3, 4]
    assert (requests, target.settled, caught.value.kind) == ([0, 0, 1], False, "no_answer")


async def test_a_408_on_a_connection_that_stays_open_is_an_answer() -> None:
    async def script(connection: Connection) -> None:
        for status, body in (("200 OK", PLACED), ("408 Request Timeout", b"")):
            await connection.request()
            await connection.answer(status, body)

    async with scripted(script) as host, predictor(host) as rest:
        await infer(rest, destination=destination())
        with pytest.raises(PredictorError, match="answered 408"):
            await infer(rest, destination=destination())


# Metadata and readiness

BASE = "/v2/models/my%20model"
METADATA = b'{"name":"m","versions":["2"],"inputs":[{"name":"a","datatype":"INT32","shape":[-1,4]}],"outputs":[]}'


@asynccontextmanager
async def serving(answers: Mapping[str, tuple[str, bytes, *tuple[str, ...]]]) -> AsyncIterator[RestPredictor]:
    """A transport to a server with these answers (status, body, header lines) by path."""

    async def script(connection: Connection) -> None:
        while True:
            line = (await connection.request())[0][""]
            await connection.answer(*answers[line.split(" ")[1]])

    async with scripted(script) as host, predictor(host) as rest:
        yield rest


async def model_spec(metadata: tuple[str, bytes], config: tuple[str, bytes]) -> ModelSpec:
    async with serving({BASE: metadata, f"{BASE}/config": config}) as rest:
        return await rest.model_spec()


@pytest.mark.parametrize("status", [400, 404, 405, 501])
async def test_a_server_without_extensions_has_metadata_only(status: int) -> None:
    spec = await model_spec(("200 OK", METADATA), (f"{status} No", b""))
    assert (spec.version, spec.max_batch_size, spec.inputs[0].shape) == ("2", None, (-1, 4))
    async with serving({"/v2/repository/index": (f"{status} No", b"")}) as rest:
        assert await rest.repository_index() is None


@pytest.mark.parametrize(
    ("metadata", "config", "error", "message"),
    [
        (("200 OK", METADATA), ("500 No", b"no memory"), FAILED, "answered 500: no memory"),
        (("404 No", b'{"error":"unknown"}'), ("200 OK", b""), UNAVAILABLE, "answered 404: unknown"),
        # Triton's metrics port answers 200 with an empty body to every path.
        (("200 OK", b""), ("200 OK", b""), FAILED, r"expected JSON.* Triton's REST port\? see --predictor_host\)$"),
    ],
    ids=["no configuration", "unknown", "another port"],
)
async def test_a_model_without_a_description_is_an_error(
    metadata: tuple[str, bytes], config: tuple[str, bytes], error: type[RequestError], message: str
) -> None:
    with pytest.raises(error, match=message):
        await model_spec(metadata, config)


@pytest.mark.parametrize(
    ("status", "body", "ready"),
    [
        ("200 OK", b"", True),
        ("200 OK", b'{"name":"m","ready":true}', True),
        ("200 OK", b'{"name":"m","ready":false}', False),
        ("200 OK", b"ready", True),
        ("400 Bad Request", b"", False),
        ("404 Not Found", b"", False),
        ("503 Service Unavailable", b"", False),
    ],
)
async def test_readiness_is_the_predictors(status: str, body: bytes, ready: bool) -> None:
    async with serving({f"{BASE}/ready": (status, body)}) as rest:
        assert await rest.model_ready() is ready


async def test_late_and_malformed_answers_of_other_routes_are_errors() -> None:
    closed = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.until_closed()
        closed.set()

    late = r"gave no answer in 0\.05 s \(--predictor_request_timeout_seconds\)"
    async with scripted(script) as host, predictor(host, 0.05) as rest:
        with pytest.raises(PredictorTimeout, match=late):
            await rest.model_ready()
        await closed.wait()
    for answer in (("200 OK", b"[]"), ("200 OK", bytes(100_000), "Inference-Header-Content-Length: many")):
        async with serving({"/v2": answer}) as rest:
            with pytest.raises(PredictorError, match="response is malformed"):
                await rest.describe_server()


# Streams

TEXT = Tensor("text_input", "BYTES", np.array([b"hello"], np.object_))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def event(text: str = "", error: str = "") -> bytes:
    value = {"error": error} if error else {"model_name": "m", "model_version": "1", "text_output": text}
    return b"data: " + orjson.dumps(value) + b"\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def response(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def stream(rest: RestPredictor, headers: Mapping[str, str] | None = None) -> AsyncGenerator[Outputs, None]:
    return rest.stream(ModelCall([TEXT], ["text_output"], headers or {}))


async def test_responses_are_streamed_and_the_connection_is_reused() -> None:
    requests, read = [], asyncio.Semaphore(0)

    async def script(connection: Connection) -> None:
        assert connection.number == 0
        while True:
            requests.append(await connection.request())
            await connection.send(HEAD)
            for text in ("a", "é"):
                await connection.send(chunk(event(text)))
                await read.acquire()
            await connection.send(END)

    async with scripted(script) as host, predictor(host) as rest:
        for count in range(2):
            responses = stream(rest, {"x-request-id": "7", "host": "elsewhere"})
            assert len(requests) == count
            for text in ("a", "é"):
                assert (await anext(responses))["text_output"].data[0].decode() == text
                read.release()
            assert await anext(responses, None) is None
    (headers, body), _ = requests
    assert headers[""] == "POST /v2/models/my%20model/generate_stream HTTP/1.1"
    assert (headers["x-request-id"], headers["host"]) == ("7", host)
    assert headers["accept-encoding"] == "identity"
    assert orjson.loads(body) == {"text_input": "hello"}


GZIPPED = HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
JSON = HEAD.replace(b"text/event-stream", b"application/json")
A = chunk(event("a"))
STREAMS: dict[str, tuple[list[bytes], type[RequestError], str, str]] = {
    "an error": ([HEAD, A, chunk(event(error="it failed")), END], FAILED, "error", "it failed"),
    "a queue": ([HEAD, A, chunk(event(error="Request timeout expired")), END], UNAVAILABLE, "busy", "timeout expired"),
    "not ready": ([HEAD, A, chunk(event(error="'m' is not ready")), END], UNAVAILABLE, "unavailable", "is not ready"),
    "500, an event": ([response("500 Oops", b'data: {"error":"bad"}\n\n')], FAILED, "error", "answered 500: bad$"),
    "503, plain text": ([response("503 No", b"bad input")], UNAVAILABLE, "unavailable", "answered 503: bad input$"),
    "nothing": ([], UNAVAILABLE, "no_answer", "closed the connection"),
    "half a head": ([HEAD[:20]], UNAVAILABLE, "lost", "in the middle"),
    "no end": ([HEAD, A], UNAVAILABLE, "lost", "in the middle"),
    "no size": ([HEAD, b"zz\r\n"], FAILED, "error", "the call to the predictor"),
    "not JSON": ([HEAD, chunk(b"data: {\n\n"), END], FAILED, "error", "malformed"),
    "no events": ([JSON, chunk(b"{}"), END], FAILED, "error", "expected text/event-stream"),
    "compressed": ([GZIPPED, chunk(b"\x1f\x8b"), END], FAILED, "error", "Content-Encoding gzip, although identity"),
    "too large": ([HEAD, chunk(event("a" * 1_000_000)), END], FAILED, "error", "events of at most 50000 bytes"),
}


@pytest.mark.parametrize(("parts", "expected", "kind", "message"), STREAMS.values(), ids=STREAMS)
async def test_errors_of_a_stream_are_mapped(
    parts: list[bytes], expected: type[RequestError], kind: str, message: str
) -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        for part in parts:
            await connection.send(part)
            await asyncio.sleep(0)

    texts = []
    async with scripted(script) as host, predictor(host, limit=50_000) as rest:
        with pytest.raises(expected, match=message) as caught:
            async for outputs in stream(rest):
                texts.append(outputs["text_output"].data[0])
    assert (type(caught.value), kind_of(caught.value), texts) == (expected, kind, [b"a"] * parts.count(A))


@pytest.mark.parametrize("by", ["closing", "cancelling"])
async def test_leaving_a_stream_early_closes_its_connection(by: str) -> None:
    closed = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(HEAD + A)
        await connection.until_closed()
        closed.set()

    async with scripted(script) as host, predictor(host) as rest:
        await leave_early(stream(rest), by)
        await closed.wait()


@pytest.mark.parametrize("length", [True, False], ids=["length", "chunks"])
@pytest.mark.parametrize(
    "ask",
    [RestPredictor.model_spec, RestPredictor.describe_server, RestPredictor.repository_index],
    ids=["model", "server", "index"],
)
async def test_descriptions_have_a_limit_of_their_own(
    ask: Callable[[RestPredictor], Awaitable[object]], length: bool
) -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        if length:
            await connection.answer("200 OK", b" " * 5000)
        else:
            await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n" + b" " * 1000)
            await connection.send((b"\r\n3e8\r\n" + b" " * 1000) * 1000)
        await connection.until_closed()

    async with scripted(script) as host:
        rest = RestPredictor(PredictorSettings("bert", host, timeout=30.0, max_event_bytes=4000))
        async with rest:
            with pytest.raises(PredictorError, match=r"too large: .* the limit is 4000 .--max_predictor_event_bytes"):
                await ask(rest)


async def test_a_call_may_have_a_lower_limit() -> None:
    async def script(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.answer("200 OK", b" " * 5000)

    async with scripted(script) as host, predictor(host) as rest:
        with pytest.raises(PredictorError, match="the limit is 4000"):
            await rest.infer(ModelCall((IDS,), ["logits"], {}, max_bytes=4000))
        with pytest.raises(PredictorError, match="malformed"):
            await infer(rest)


@pytest.mark.parametrize("line", [b"data: ", b": ", b"", b"data: x\n"], ids=["data", "comment", "line", "lines"])
async def test_an_endless_event_ends_the_call(line: bytes) -> None:
    closed = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        try:
            for _ in range(1000):
                await connection.send((line or b"x") * 1000)
            await connection.until_closed()
        except OSError:
            pass
        finally:
            closed.set()

    async with scripted(script) as host:
        rest = RestPredictor(PredictorSettings("bert", host, timeout=30.0, max_event_bytes=4000))
        async with rest:
            with pytest.raises(PredictorError, match=r"events of at most (4000 bytes .--max|10000 lines)"):
                async for _ in rest.stream(ModelCall((IDS,), [], {})):
                    pass
            await asyncio.wait_for(closed.wait(), 20)
