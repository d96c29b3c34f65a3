"""What gRPC calls are made of, without a server: ids of requests, bytes that streams hold, clients that are gone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio
import pytest

from hf_transformer.api.grpc.access_log import LoggedCalls
from hf_transformer.api.grpc.calls import AtWork, caller_of
from hf_transformer.api.grpc.infer import Inference
from hf_transformer.api.grpc.stream import STREAMS_AT_MOST, Held, Room, Streams
from hf_transformer.errors import ConfigError
from hf_transformer.observability.metrics import Metrics
from tests.integration.api.grpc_model import ScriptedModel, request, service_of


class Metadata:
    """What a call says of itself."""

    def __init__(self, **headers: str | bytes) -> None:
        self.headers = headers

    def invocation_metadata(self) -> Any:
        return tuple((name.replace("_", "-"), value) for name, value in self.headers.items())

    def time_remaining(self) -> None:
        return None


@pytest.mark.parametrize("given", ["é", "a\x7fb", "a\x01b", "ÿþ", b"\xff", "a b", "", "a" * 129])
def test_an_id_that_can_not_go_back_is_replaced(given: str | bytes) -> None:
    call: Any = Metadata(x_request_id=given, authorization="Bearer é")
    caller = caller_of(call)
    assert (caller.request_id, caller.headers) == ("", {"authorization": "Bearer é"})
    assert caller.identify("7") == caller.headers["x-request-id"] == "7"
    call = Metadata(x_request_id="a" * 128)
    assert caller_of(call).identify("7") == "a" * 128


async def test_room_in_bytes() -> None:
    held = Held(5 << 20)
    assert (held.most_of_one, held.most) == (5 << 20, STREAMS_AT_MOST * 5 << 20)
    held.most = 5 << 20
    first, second = Room(held), Room(held)
    small = first.read(b"q")
    await first.until_free()
    first.answered(bytes(3 << 20), small)
    assert held.bytes == 3 << 20
    assert first.read(b"q") == 3 << 20  # as much as the last answer had
    waiting = asyncio.create_task(first.until_free())
    await second.until_free()  # it holds nothing
    second.read(b"q")
    others = asyncio.create_task(second.until_free())
    await asyncio.sleep(0)
    first.written(bytes(3 << 20))
    assert held.bytes == (3 << 20) + 1
    await waiting
    second.answered(b"", 1)
    await others
    first.close()
    second.close()
    assert held.bytes == 0


class GoneClient:
    """A call whose client has sent two requests and left: gRPC fails to write, before it cancels the call."""

    def __init__(self) -> None:
        self.requests = [request("a").SerializeToString()] * 2

    def invocation_metadata(self) -> None:
        return None

    def time_remaining(self) -> None:
        return None

    async def read(self) -> object:
        if self.requests:
            return self.requests.pop()
        raise grpc.aio.UsageError("the call is over")

    async def write(self, answer: bytes) -> None:
        raise grpc.aio.InternalError("the client is gone")


async def test_a_client_that_is_gone_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """The call ends as cancelled, of which gRPC says nothing."""
    at_work, metrics = AtWork(), Metrics("bert")
    service = service_of(ScriptedModel(), metrics)
    streams = Streams(Inference(service), service.admission, at_work, asyncio.Event(), -1, 60.0)
    handler: Any = streams.handler
    with pytest.raises(asyncio.CancelledError):
        await handler.stream_stream(None, GoneClient())
    assert not at_work and not caplog.records
    assert "hf_transformer_requests_in_flight 0" in metrics.render().decode()


def test_a_format_that_is_none() -> None:
    with pytest.raises(ConfigError, match="--access_log_format"):
        LoggedCalls("%(nonsense)s", logging.getLogger("test.grpc.access"))
