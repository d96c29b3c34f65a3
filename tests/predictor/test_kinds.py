"""Which kind each failure of a call is, over gRPC; that decides what is tried again (over REST see test_rest)."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.predictor import PROTOCOLS, kinds
from hf_transformer.predictor.base import PredictorSettings
from hf_transformer.predictor.kinds import kind_of
from tests.predictor import test_grpc_predictor as over_grpc
from tests.predictor.fault_server import nobody
from tests.predictor.rest_calls import IDS

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("protocol", list(PROTOCOLS))
async def test_no_connection(protocol: str) -> None:
    async with PROTOCOLS[protocol](PredictorSettings("m", nobody())) as client:
        with pytest.raises(PredictorUnavailable) as caught:
            await client.infer([IDS], ["logits"], {})
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
