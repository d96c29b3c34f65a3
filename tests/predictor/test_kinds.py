"""Which kind each failure of a call is, over both protocols; that decides what is tried again."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.predictor import PROTOCOLS, kinds
from hf_transformer.predictor.base import PredictorSettings
from hf_transformer.predictor.kinds import kind_of
from tests.predictor import test_grpc_predictor as over_grpc
from tests.predictor.fault_server import Connection, nobody
from tests.predictor.rest_calls import IDS, fails

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        ("503 Service Unavailable", b"upstream connect error", "unavailable"),
        ("503 Service Unavailable", b'{"error":"[bert] Exceeds maximum queue size"}', "busy"),
        ("503 Service Unavailable", b'{"error":"Request timeout expired"}', "busy"),
        ("404 Not Found", b'{"error":"Request for unknown model"}', "unavailable"),
        ("429 Too Many Requests", b"slowly", "busy"),
        ("502 Bad Gateway", b"no", "lost"),
        ("504 Gateway Timeout", b"no", "timeout"),
        ("500 Internal Server Error", b"no", "error"),
        ("400 Bad Request", b"no", "error"),
    ],
)
async def test_statuses_over_rest(status: str, message: bytes, kind: str) -> None:
    error = await fails(lambda connection: connection.answer(status, message))
    assert isinstance(error, RequestError) and kind_of(error) == kind


@pytest.mark.parametrize(
    ("sent", "kind"), [(b"", "no_answer"), (b"H", "lost"), (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "lost")]
)
@pytest.mark.parametrize("end", ["close", "reset"])
async def test_lost_connections_over_rest(sent: bytes, kind: str, end: str) -> None:
    async def answer(connection: Connection) -> None:
        await connection.send(sent)
        if end == "reset" and not sent:  # what was sent before would be lost with it, or not
            connection.reset()

    error = await fails(answer)
    assert isinstance(error, RequestError) and kind_of(error) == kind


@pytest.mark.parametrize("protocol", list(PROTOCOLS))
async def test_no_connection(protocol: str) -> None:
    async with PROTOCOLS[protocol](PredictorSettings("m", nobody())) as client:
        with pytest.raises(PredictorUnavailable) as caught:
            async with client.infer([IDS], ["logits"], {}):
                pass
        assert kind_of(caught.value) == "connection"


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Request for unknown model: 'bert' is not found", "unavailable"),
        (grpc.StatusCode.UNAVAILABLE, "[bert] Exceeds maximum queue size", "busy"),
        (grpc.StatusCode.NOT_FOUND, "no such model", "unavailable"),
        (grpc.StatusCode.CANCELLED, "going away", "lost"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "late", "timeout"),
        (grpc.StatusCode.INTERNAL, "broken", "error"),
    ],
)
async def test_statuses_over_grpc(code: grpc.StatusCode, message: str, kind: str) -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        await context.abort(code, message)
        return b""

    async with over_grpc.serving(ModelInfer=handler) as host, over_grpc.predictor(host) as client:
        with pytest.raises(RequestError) as caught:
            await over_grpc.infer(client)
    assert kind_of(caught.value) == kind


async def test_what_kinds_are_for() -> None:
    assert kinds.RETRIED < kinds.DEAD < set(kinds.ALL)
    assert not kinds.NEUTRAL & kinds.DEAD
    assert [kind_of(error) for error in (PredictorError("x"), PredictorTimeout("x"), PredictorUnavailable("x"))] == [
        "error",
        "timeout",
        "unavailable",
    ]
