"""The REST transport on real sockets: what it sends, and what it makes of answers."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import pytest

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable
from hf_transformer.types import Tensor
from tests.predictor.fault_server import Connection, nobody, scripted
from tests.predictor.rest_calls import FRAMING, HEADER, IDS, LOGITS, fails, good_answer, infer, predictor

pytestmark = pytest.mark.asyncio


async def test_a_request_is_framed_and_its_answer_decoded() -> None:
    seen: list[tuple[dict[str, str], bytes]] = []

    async def script(connection: Connection) -> None:
        for _ in range(2):
            seen.append(await connection.request())
            await good_answer(connection)
        await connection.until_closed()

    headers = {"x-request-id": "7", "Authorization": "Bearer x", "content-length": "1", "accept-encoding": "gzip"}
    headers |= {"bad": "a\r\nb: c", "bad name": "x", "transfer-encoding": "chunked"}
    async with scripted(script) as host, predictor(host) as rest:
        for _ in range(2):
            assert await infer(rest, headers=headers) == [0.25, 0.75]
    (sent, body), again = seen
    assert again == (sent, body)
    length = int(sent["inference-header-content-length"])
    assert sent[""] == "POST /v2/models/my%20model/infer HTTP/1.1"
    assert (sent["x-request-id"], sent["authorization"]) == ("7", "Bearer x")
    assert (sent["accept-encoding"], sent["content-type"]) == ("identity", "application/octet-stream")
    assert not {"bad", "b", "bad name", "transfer-encoding"} & set(sent)
    assert orjson.loads(body[:length])["outputs"] == [{"name": "logits", "parameters": {"binary_data": True}}]
    assert body[length:] == IDS.data.tobytes()


async def test_large_outputs_are_aligned_views() -> None:
    logits = np.ones(10_000, np.float32)
    size = b'"parameters":{"binary_data_size":40000}'
    header = b'{"outputs":[{"name":"logits","datatype":"FP32","shape":[10000],' + size + b"}]}"
    framing = f"Inference-Header-Content-Length: {len(header)}"

    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.answer("200 OK", header + logits.tobytes(), framing)

    async with scripted(script) as host, predictor(host) as rest:
        async with rest.infer([IDS], ["logits"], {}) as outputs:
            found = outputs["logits"].data
            assert found.base is not None
            assert found.ctypes.data % 64 == 0


async def test_large_inputs_are_sent_whole() -> None:
    """In pieces, with what is small between them; as views, copied, and cast."""
    wide = np.arange(512 * 512).reshape(512, 512)
    inputs = [
        Tensor("first", "INT64", wide),
        Tensor("small", "INT32", np.arange(5)),
        Tensor("turned", "INT64", wide.T),
        Tensor("cast", "INT32", wide),
        Tensor("last", "INT8", np.ones(3, np.int8)),
    ]
    expected = [wide.tobytes(), np.arange(5, dtype="<i4").tobytes(), wide.T.tobytes(), wide.astype("<i4").tobytes()]
    bodies: list[bytes] = []

    async def script(connection: Connection) -> None:
        for _ in range(2):
            headers, body = await connection.request()
            bodies.append(body[int(headers["inference-header-content-length"]) :])
            await good_answer(connection)

    async with scripted(script) as host, predictor(host) as rest:
        for given in (inputs, inputs[1:3]):
            await infer(rest, given)
    assert bodies == [b"".join(expected) + bytes([1, 1, 1]), b"".join(expected[1:3])]


async def test_a_chunked_answer() -> None:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.send(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{FRAMING}\r\n\r\n".encode())
        whole = HEADER + LOGITS.tobytes()
        for part in (whole[:5], whole[5:]):
            await connection.send(b"%x\r\n%b\r\n" % (len(part), part))
        await connection.send(b"0\r\n\r\n")

    async with scripted(script) as host, predictor(host) as rest:
        assert await infer(rest) == [0.25, 0.75]


STATUSES = [
    ("404 Not Found", b'{"error":"no such model"}', PredictorUnavailable, "answered 404: no such model"),
    ("503 Service Unavailable", b"queue full", PredictorUnavailable, "answered 503: queue full"),
    ("502 Bad Gateway", b"<html>", PredictorUnavailable, "answered 502: <html>"),
    ("429 Too Many Requests", b"", PredictorUnavailable, "answered 429: no message"),
    ("504 Gateway Timeout", b"", PredictorTimeout, "answered 504"),
    ("400 Bad Request", b'{"error":"bad shape"}', PredictorError, "answered 400: bad shape"),
    ("500 Internal Server Error", b'{"error":{"code":3}}', PredictorError, "answered 500: {'code': 3}"),
    ("500 Internal Server Error", b'["\xff"]', PredictorError, 'answered 500: ["\ufffd"]'),
    ("500 Internal Server Error", b"x" * 9999, PredictorError, "answered 500: " + "x" * 500 + "..."),
    ("301 Moved", b"elsewhere", PredictorError, "answered 301: elsewhere"),
    ("204 No Content", b"", PredictorError, "answered 204"),
]


@pytest.mark.parametrize(("status", "body", "kind", "message"), STATUSES, ids=[row[0] for row in STATUSES])
async def test_statuses(status: str, body: bytes, kind: type[Exception], message: str) -> None:
    error = await fails(lambda connection: connection.answer(status, body))
    assert type(error) is kind
    assert message in str(error)


async def test_a_compressed_error_is_quoted() -> None:
    body = gzip.compress(b'{"error":"out of memory"}')
    error = await fails(lambda connection: connection.answer("500 Oops", body, "Content-Encoding: gzip"))
    assert type(error) is PredictorError
    assert str(error).endswith("answered 500: out of memory")


async def test_an_error_in_broken_gzip() -> None:
    error = await fails(lambda connection: connection.answer("500 Oops", b"\x1f\x8bxx", "Content-Encoding: gzip"))
    assert str(error).endswith("answered 500: a message in broken gzip")


async def test_a_compressed_answer_is_refused() -> None:
    body = gzip.compress(HEADER + LOGITS.tobytes())
    error = await fails(lambda connection: connection.answer("200 OK", body, FRAMING, "Content-Encoding: gzip"))
    assert type(error) is PredictorError
    assert "Content-Encoding gzip, although identity was asked for" in str(error)


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (HEADER + LOGITS.tobytes(), (), "not JSON"),
        (HEADER + LOGITS.tobytes(), ("Inference-Header-Content-Length: many",), "expected a number of bytes"),
        (HEADER + LOGITS.tobytes(), ("Inference-Header-Content-Length: 99999",), "99999 bytes, the body has"),
        (HEADER + b"1234", (FRAMING,), "binary_data_size 8, but 4 bytes are left"),
        (HEADER.replace(b"logits", b"hidden") + LOGITS.tobytes(), (FRAMING,), "without the output 'logits' and with"),
        (b'{"outputs":[]}', (), "without the output 'logits'$"),
        (b'{"error":"no memory"}', (), "the predictor's error: no memory"),
        (b"", (), "not JSON"),
    ],
)
async def test_answers_that_break_the_protocol(body: bytes, headers: tuple[str, ...], message: str) -> None:
    error = await fails(lambda connection: connection.answer("200 OK", body, *headers))
    assert type(error) is PredictorError
    with pytest.raises(PredictorError, match=message):
        raise error


async def test_an_absurd_content_length_is_not_believed() -> None:
    error = await fails(
        lambda connection: connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9" + b"0" * 17 + b"\r\n\r\n")
    )
    assert type(error) is PredictorError
    assert "it has 900000000000000000 bytes, the limit is 1073741824 (--max_predictor_response_bytes)" in str(error)


METADATA = b'{"name":"m","versions":["2"],"inputs":[{"name":"a","datatype":"INT32","shape":[-1,4]}],"outputs":[]}'
CONFIG = b'{"max_batch_size":4,"input":[{"name":"a","data_type":"TYPE_INT32","dims":["4"]}],"output":[]}'


async def described(answers: Mapping[str, tuple[str, bytes]]) -> Any:
    async def script(connection: Connection) -> None:
        while True:
            line = (await connection.request())[0][""]
            await connection.answer(*answers[line.split(" ")[1]])

    async with scripted(script) as host, predictor(host) as rest:
        return await rest.model_spec()


async def test_spec() -> None:
    base = "/v2/models/my%20model"
    spec = await described({base: ("200 OK", METADATA), f"{base}/config": ("200 OK", CONFIG)})
    assert (spec.version, spec.max_batch_size, spec.inputs[0].shape) == ("2", 4, (4,))


@pytest.mark.parametrize("status", [400, 404, 405, 501])
async def test_spec_of_a_server_without_configuration(status: int) -> None:
    base = "/v2/models/my%20model"
    spec = await described({base: ("200 OK", METADATA), f"{base}/config": (f"{status} No", b"")})
    assert (spec.version, spec.max_batch_size, spec.inputs[0].shape) == ("2", None, (-1, 4))


async def test_a_configuration_that_fails_is_an_error() -> None:
    base = "/v2/models/my%20model"
    with pytest.raises(PredictorError, match="answered 500: no memory"):
        await described({base: ("200 OK", METADATA), f"{base}/config": ("500 No", b"no memory")})


async def test_a_port_that_is_not_for_rest() -> None:
    """Triton's port for metrics says 200 and nothing more to everything."""
    base = "/v2/models/my%20model"
    told = r"body: not JSON: .* \(is 127\.0\.0\.1:\d+ Triton's REST port\? see --predictor_host\)$"
    with pytest.raises(PredictorError, match=told):
        await described({base: ("200 OK", b""), f"{base}/config": ("200 OK", b"")})


async def test_spec_of_an_unknown_model() -> None:
    with pytest.raises(PredictorUnavailable, match="answered 404: unknown model"):
        await described({"/v2/models/my%20model": ("404 No", b'{"error":"unknown model"}')})


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
        assert headers[""] == "GET /v2/models/my%20model/ready HTTP/1.1"
        await connection.answer(status, body)

    async with scripted(script) as host, predictor(host) as rest:
        assert await rest.model_ready() is ready


async def test_readiness_that_can_not_be_told() -> None:
    async with predictor(nobody()) as rest:
        with pytest.raises(PredictorUnavailable):
            await rest.model_ready()


async def test_headers_leave_as_they_came() -> None:
    """ASGI servers decode octets as latin-1, whatever the client meant."""
    seen: list[dict[str, str]] = []

    async def script(connection: Connection) -> None:
        seen.append((await connection.request())[0])  # the script's server decodes UTF-8
        await good_answer(connection)

    async with scripted(script) as host, predictor(host) as rest:
        await infer(rest, headers={"x-user": "Ren\u00e9e \u00c9".encode().decode("latin-1"), "x-snow": "\u2603"})
    assert seen[0]["x-user"] == "Ren\u00e9e \u00c9"
    assert "x-snow" not in seen[0]
