"""The REST transport on real sockets: what it sends, what it makes of answers, and how calls end."""

from __future__ import annotations

import asyncio
import gc
import gzip
import weakref
from collections.abc import Iterator, Mapping

import numpy as np
import orjson
import pytest

from hf_transformer.errors import (
    PredictorDenied,
    PredictorError,
    PredictorTimeout,
    PredictorUnavailable,
    RequestError,
)
from hf_transformer.predictor import http
from hf_transformer.predictor.base import Destination, PredictorSettings, StaleConnection, UnknownRegion
from hf_transformer.predictor.failures import kind_of
from hf_transformer.predictor.http import HttpError
from hf_transformer.predictor.rest import RestPredictor, _mapped
from hf_transformer.protocol.tensors import Placement
from hf_transformer.types import ModelSpec, Tensor
from tests.predictor.fault_server import Connection, nobody, scripted
from tests.predictor.rest_calls import FRAMING, HEADER, IDS, LOGITS, fails, good_answer, infer, predictor

# Requests.


async def test_a_request_is_framed_and_its_answer_decoded() -> None:
    seen: list[tuple[dict[str, str], bytes]] = []

    async def script(connection: Connection) -> None:
        for _ in range(2):
            seen.append(await connection.request())
            await good_answer(connection)
        await connection.until_closed()

    headers = {"x-request-id": "7", "content-length": "1", "accept-encoding": "gzip"}
    headers |= {"x-user": "Ren\u00e9e".encode().decode("latin-1")}  # as ASGI servers decode it
    async with scripted(script) as host, predictor(host) as rest:
        for _ in range(2):
            assert await infer(rest, headers=headers) == [0.25, 0.75]
    (sent, body), again = seen
    assert again == (sent, body)
    length = int(sent["inference-header-content-length"])
    assert sent[""] == "POST /v2/models/my%20model/infer HTTP/1.1"
    assert (sent["x-request-id"], sent["x-user"]) == ("7", "Ren\u00e9e")
    assert (sent["accept-encoding"], sent["content-type"]) == ("identity", "application/octet-stream")
    assert orjson.loads(body[:length])["outputs"] == [{"name": "logits", "parameters": {"binary_data": True}}]
    assert body[length:] == IDS.data.tobytes()


async def test_an_input_that_does_not_fit_its_datatype() -> None:
    async with predictor(nobody()) as rest:
        with pytest.raises(PredictorError, match="the request can't be written"):
            await infer(rest, [Tensor("a", "INT64", np.zeros(2))])


async def test_large_outputs_are_aligned_views() -> None:
    logits = np.arange(10_000, dtype="<f4")
    size = b'"parameters":{"binary_data_size":40000}'
    header = b'{"outputs":[{"name":"logits","datatype":"FP32","shape":[10000],' + size + b"}]}"

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.answer("200 OK", header + logits.tobytes(), f"Inference-Header-Content-Length: {len(header)}")

    async with scripted(script) as host, predictor(host) as rest:
        found = (await rest.infer([IDS], ["logits"], {})).tensors["logits"].data
    assert found.base is not None and found.ctypes.data % 64 == 0
    assert np.array_equal(found, logits)


# Answers that are errors.

GONE, FAILED = PredictorUnavailable, PredictorError
STATUSES = [
    ("404 Not Found", b'{"error":"no such model"}', GONE, "unavailable", "404: no such model", True),
    ("503 Unavailable", b"upstream connect error", GONE, "unavailable", "503: upstream", False),
    ("503 Full", b'{"error":"[m] Exceeds maximum queue size"}', GONE, "busy", "maximum queue size", True),
    ("503 Late", b'{"error":"Request timeout expired"}', GONE, "busy", "timeout expired", True),
    ("502 Bad Gateway", b'{"error":"gateway"}', GONE, "lost", "answered 502: gateway", False),
    ("429 Too Many Requests", b"", GONE, "busy", "answered 429: no message", False),
    ("504 Gateway Timeout", b'{"error":"late"}', PredictorTimeout, "timeout", "answered 504", False),
    ("401 Unauthorized", b'{"error":"who?"}', PredictorDenied, "error", "answered 401: who?", True),
    ("403 Forbidden", b'{"error":"no"}', PredictorDenied, "error", "answered 403: no", True),
    ("400 Bad Request", b'{"error":"bad shape"}', FAILED, "error", "answered 400: bad shape", True),
    ("408 Request Timeout", b'{"error":"late"}', FAILED, "error", "answered 408: late", False),
    ("500 Oops", b'{"error":"9 bytes"}', FAILED, "error", "answered 500: 9 bytes", True),
    ("500 Oops", b'{"error":{"code":3}}', FAILED, "error", "answered 500: {'code': 3}", False),
    ("500 Oops", b'["\xff"]', FAILED, "error", 'answered 500: ["\ufffd"]', False),
    ("500 Oops", b"x" * 9999, FAILED, "error", "answered 500: " + "x" * 500 + "...", False),
    ("301 Moved", b"elsewhere", FAILED, "error", "answered 301: elsewhere", False),
    ("204 No Content", b"", FAILED, "error", "answered 204", False),
]


@pytest.mark.parametrize(
    ("status", "body", "error", "kind", "message", "settled"),
    STATUSES,
    ids=[f"{row[0]}-{row[1][:12]!r}" for row in STATUSES],
)
async def test_statuses(
    status: str, body: bytes, error: type[RequestError], kind: str, message: str, settled: bool
) -> None:
    where = destination()
    for found in (
        await fails(lambda connection: connection.answer(status, body)),
        await fails(lambda connection: connection.answer(status, body), where),
    ):
        assert (type(found), kind_of(found)) == (error, kind)
        assert message in str(found)
    assert where.settled is settled


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        ("500 Oops", gzip.compress(b'{"error":"out of memory"}'), "answered 500: out of memory"),
        ("500 Oops", b"\x1f\x8bxx", "answered 500: a message in broken gzip"),
        ("200 OK", gzip.compress(HEADER), "Content-Encoding gzip, although identity was asked for"),
    ],
    ids=["an error", "a broken error", "an answer"],
)
async def test_compressed_answers(status: str, body: bytes, message: str) -> None:
    error = await fails(lambda connection: connection.answer(status, body, FRAMING, "Content-Encoding: gzip"))
    assert type(error) is PredictorError
    assert str(error).endswith(message)


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (HEADER + LOGITS.tobytes(), (), "not JSON"),
        (HEADER + LOGITS.tobytes(), ("Inference-Header-Content-Length: many",), "expected a number of bytes"),
        (bytes(100_000), ("Inference-Header-Content-Length: many",), "expected a number of bytes"),
        (HEADER + LOGITS.tobytes(), ("Inference-Header-Content-Length: 99999",), "is 99999, but the body has"),
        (HEADER + b"1234", (FRAMING,), "binary_data_size 8, but 4 bytes are left"),
        (HEADER.replace(b"logits", b"hidden") + LOGITS.tobytes(), (FRAMING,), "without the output 'logits' and with"),
        (b'{"outputs":[]}', (), "without the output 'logits'$"),
        (b'{"error":"no memory"}', (), "the predictor's error: no memory"),
        (b"", (), "not JSON"),
    ],
    ids=["no length", "no number", "no number, large", "too long", "too short", "another", "none", "an error", "empty"],
)
async def test_answers_that_break_the_protocol(body: bytes, headers: tuple[str, ...], message: str) -> None:
    error = await fails(lambda connection: connection.answer("200 OK", body, *headers))
    assert type(error) is PredictorError
    with pytest.raises(PredictorError, match=message):
        raise error


BROKEN = {
    "garbage": (b"SSH-2.0-OpenSSH\r\n\r\n", "error", "does not speak HTTP/1.1; if that is its gRPC port"),
    "nothing": (b"", "no_answer", "it closed the connection without an answer"),
    "half a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "lost", "in the middle of its answer"),
    "too large": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 900000000000000000\r\n\r\n",
        "error",
        "it has 900000000000000000 bytes, the limit is 1073741824 (--max_predictor_response_bytes)",
    ),
}


@pytest.mark.parametrize(("answer", "kind", "message"), BROKEN.values(), ids=list(BROKEN))
async def test_broken_answers(answer: bytes, kind: str, message: str) -> None:
    where = destination()
    error = await fails(lambda connection: connection.send(answer), where)
    assert kind_of(error) == kind and message in str(error)
    assert error.__cause__ is not None and not where.settled


@pytest.mark.parametrize("host", ["nobody", "predictor.invalid"])
async def test_no_connection(host: str) -> None:
    async with predictor(nobody() if host == "nobody" else host) as rest:
        with pytest.raises(PredictorUnavailable, match=r"the predictor at \S+:\d+ is unavailable: ") as caught:
            await infer(rest)
    assert caught.value.kind == "connection"


@pytest.mark.parametrize("end", ["refused", "hung up", "cancelled"])
@pytest.mark.parametrize("streamed", [False, True], ids=["call", "stream"])
async def test_a_failed_call_frees_its_inputs_without_the_collector(end: str, streamed: bool) -> None:
    """The collector may not look at these megabytes for long."""
    arrived = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.request()
        arrived.set()
        if end == "cancelled":
            await connection.until_closed()

    async def call(rest: RestPredictor, tensors: list[Tensor]) -> None:
        if not streamed:
            await rest.infer(tensors, ["logits"], {})
        async for _ in rest.stream(tensors, ["logits"], {}):
            pass

    data = np.zeros((1, 2**16), np.int64)
    inputs = weakref.ref(data)
    async with scripted(script) as host, predictor(nobody() if end == "refused" else host) as rest:
        gc.collect()
        gc.disable()
        try:
            task = asyncio.create_task(call(rest, [Tensor("input_ids", "INT64", data)]))
            if end == "cancelled":
                await arrived.wait()
                task.cancel()
            with pytest.raises((PredictorUnavailable, asyncio.CancelledError)):
                await task
            del data, task
            await asyncio.sleep(0.01)  # what the event loop has of it
            assert inputs() is None
        finally:
            gc.enable()


# The client's errors.

EXPECTED: dict[str, tuple[type[RequestError], str]] = {
    "HttpError": (PredictorError, "error"),
    "NotHttp": (PredictorError, "error"),
    "MalformedAnswer": (PredictorError, "error"),
    "AnswerTooLarge": (PredictorError, "error"),
    "ConnectTimeout": (PredictorUnavailable, "connection"),
    "Disconnected": (PredictorUnavailable, "lost"),
    "NoAnswer": (PredictorUnavailable, "no_answer"),
    "ClientClosed": (PredictorUnavailable, "lost"),
}


def family(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for child in kind.__subclasses__():
        yield from family(child)


async def test_every_error_of_the_client_has_a_place() -> None:
    assert {kind.__name__ for kind in family(HttpError)} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
async def test_errors_of_the_client(name: str) -> None:
    error = _mapped(getattr(http, name)("why"), "here")
    assert (type(error), kind_of(error)) == EXPECTED[name]
    assert "predictor at here" in str(error)


# Shared memory.

PLACED = b'{"outputs":[{"name":"logits","datatype":"FP32","shape":[1,2]}]}'


def destination() -> Destination:
    memory = memoryview(np.array([3, 4], "<f4").tobytes())
    return Destination("r1", {"logits": Placement("r1", 64, memory)})


async def test_an_answer_in_shared_memory() -> None:
    seen: list[bytes] = []

    async def script(connection: Connection) -> None:
        headers, body = await connection.request()
        seen.append(body[: int(headers["inference-header-content-length"])])
        await connection.answer("200 OK", PLACED)

    where = destination()
    async with scripted(script) as host, predictor(host) as rest:
        assert await infer(rest, destination=where) == [3, 4]
    assert where.settled
    parameters = {"shared_memory_region": "r1", "shared_memory_offset": 64, "shared_memory_byte_size": 8}
    assert orjson.loads(seen[0])["outputs"] == [{"name": "logits", "parameters": parameters}]


@pytest.mark.parametrize("why", ["nobody listens", "no connection in time", "closed", "can't be written"])
async def test_a_call_that_was_not_sent_is_settled(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where = destination()
    inputs = [Tensor("a", "INT64", np.zeros(2))] if why == "can't be written" else [IDS]
    async with predictor(nobody()) as rest:
        if why == "closed":
            await rest.__aexit__(None, None, None)
        if why == "no connection in time":
            monkeypatch.setattr(http, "CONNECT_SECONDS", 0.0)
        with pytest.raises(RequestError):
            await infer(rest, inputs, destination=where)
    assert where.settled


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

    where = destination()
    async with scripted(script) as host, predictor(host) as rest:
        if when == "connecting":
            monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
        call = asyncio.create_task(infer(rest, destination=where))
        await arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert where.settled is (when == "connecting")


async def test_an_unknown_region() -> None:
    body = b'{"error":"Unable to find shared memory region: \'r1\'"}'
    where = destination()
    error = await fails(lambda connection: connection.answer("404 Not Found", body), where)
    assert (where.settled, type(error)) == (True, UnknownRegion)


@pytest.mark.parametrize("end", ["closed", "reset", "408"])
async def test_a_stale_connection_with_a_destination_is_not_sent_again(end: str) -> None:
    """The first request may be under way after all, and write into the same places later."""
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

    where = destination()
    async with scripted(script) as host, predictor(host) as rest:
        assert await infer(rest, destination=destination()) == [3, 4]
        with pytest.raises(StaleConnection, match=r"the predictor at \S+ is unavailable: ") as caught:
            await infer(rest, destination=where)
        assert await infer(rest, destination=destination()) == [3, 4]
    assert (requests, where.settled, caught.value.kind) == ([0, 0, 1], False, "no_answer")


# Questions about the model and the server.

BASE = "/v2/models/my%20model"
METADATA = b'{"name":"m","versions":["2"],"inputs":[{"name":"a","datatype":"INT32","shape":[-1,4]}],"outputs":[]}'
CONFIG = b'{"max_batch_size":4,"input":[{"name":"a","data_type":"TYPE_INT32","dims":["4"]}],"output":[]}'


async def described(answers: Mapping[str, tuple[str, bytes]]) -> ModelSpec:
    async def script(connection: Connection) -> None:
        while True:
            line = (await connection.request())[0][""]
            await connection.answer(*answers[line.split(" ")[1]])

    async with scripted(script) as host, predictor(host) as rest:
        return await rest.model_spec()


@pytest.mark.parametrize("status", [400, 404, 405, 501])
async def test_spec_of_a_server_without_configuration(status: int) -> None:
    spec = await described({BASE: ("200 OK", METADATA), f"{BASE}/config": (f"{status} No", b"")})
    assert (spec.version, spec.max_batch_size, spec.inputs[0].shape) == ("2", None, (-1, 4))


@pytest.mark.parametrize(
    ("metadata", "config", "error", "message"),
    [
        (("200 OK", METADATA), ("500 No", b"no memory"), PredictorError, "answered 500: no memory"),
        (("404 No", b'{"error":"unknown"}'), ("200 OK", b""), PredictorUnavailable, "answered 404: unknown"),
        # Triton's port for metrics says 200 and nothing more to everything.
        (
            ("200 OK", b""),
            ("200 OK", b""),
            PredictorError,
            r"not JSON: .* Triton's REST port\? see --predictor_host\)$",
        ),
    ],
    ids=["no configuration", "unknown", "another port"],
)
async def test_no_spec(
    metadata: tuple[str, bytes], config: tuple[str, bytes], error: type[RequestError], message: str
) -> None:
    with pytest.raises(error, match=message):
        await described({BASE: metadata, f"{BASE}/config": config})


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
async def test_readiness(status: str, body: bytes, ready: bool) -> None:
    async def script(connection: Connection) -> None:
        headers, _ = await connection.request()
        assert headers[""] == f"GET {BASE}/ready HTTP/1.1"
        await connection.answer(status, body)

    async with scripted(script) as host, predictor(host) as rest:
        assert await rest.model_ready() is ready


async def test_a_question_without_an_answer_in_time() -> None:
    async def script(connection: Connection) -> None:
        await connection.until_closed()

    async with scripted(script) as host, predictor(host, 0.05) as rest:
        with pytest.raises(
            PredictorTimeout, match=r"gave no answer in 0\.05 s \(--predictor_request_timeout_seconds\)"
        ):
            await rest.model_ready()
        assert not rest._client.idle


@pytest.mark.parametrize(
    ("body", "headers"),
    [(b"[]", ()), (bytes(100_000), ("Inference-Header-Content-Length: many",))],
    ids=["no object", "no number"],
)
async def test_a_question_with_a_malformed_answer(body: bytes, headers: tuple[str, ...]) -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.answer("200 OK", body, *headers)

    async with scripted(script) as host, predictor(host) as rest:
        with pytest.raises(PredictorError, match="response is malformed"):
            await rest.describe_server()


async def test_questions_about_the_server() -> None:
    answers = {
        "GET /v2/health/live": ("200 OK", b""),
        "GET /v2/health/ready": ("400 No", b""),
        "GET /v2": ("200 OK", b'{"name":"triton","version":"2.51","extensions":["a"]}'),
        "POST /v2/repository/index": ("200 OK", b'[{"name":"m","version":"1","state":"READY","reason":""}]'),
    }

    async def script(connection: Connection) -> None:
        while True:
            line = (await connection.request())[0][""]
            await connection.answer(*answers[line.removesuffix(" HTTP/1.1")])

    async with scripted(script) as host, RestPredictor(PredictorSettings("m", host)) as rest:
        assert await rest.server_live() and not await rest.server_ready()
        about = await rest.describe_server()
        assert (about.name, about.version) == ("triton", "2.51")
        assert [entry.name for entry in await rest.repository_index() or ()] == ["m"]
        answers["POST /v2/repository/index"] = ("404 No", b"")
        assert await rest.repository_index() is None
