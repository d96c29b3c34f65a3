"""Refused gRPC calls keep none of their messages, however they are refused."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from hf_transformer.commands.child_process import poll
from hf_transformer.commands.loopback import HOST
from hf_transformer.protocol.grpc import SERVICE
from tests.integration.api.bare_grpc import DATA, END_HEADERS, END_STREAM, HEADERS, START, call_fields, frame
from tests.integration.conftest import Serve
from tests.integration.grpc_client import channel_to, request, stub
from tests.integration.hostile.conftest import MAX_GROWTH_BYTES, MEGABYTE
from tests.support.polling import SECONDS
from tests.support.raw_http import PREDICT, TEXT
from tests.support.service import Service

LARGE = 15 * MEGABYTE
"""Bytes of a message, just within --max_request_bytes."""
CALLS = 16
"""Kept, their messages would be four times MAX_GROWTH_BYTES."""
KEY = (("authorization", "Bearer secret"),)
CODES = grpc.StatusCode
HEALTH = "/grpc.health.v1.Health/"


def long_name() -> bytes:
    """The first field, of LARGE bytes."""
    return b"\x0a\x80\x80\xc0\x07" + b"a" * LARGE


@pytest.fixture(scope="module")
def guarded(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that wants an API key."""
    keys: Path = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("secret\n")
    with serve.own("bert", "v2", f"--api_keys_file={keys}", "--max_request_bytes=16777216") as service:
        yield service.wait_until("/v1/models/bert")


def message(text: str, model: str = "bert") -> bytes:
    return request(model, {"text": [text]}).SerializeToString()


REFUSED: dict[str, tuple[Callable[[], bytes], Any, str, grpc.StatusCode]] = {
    "without a key": (lambda: message("a" * LARGE), (), "ModelInfer", CODES.UNAUTHENTICATED),
    "a text that is too long": (lambda: message("a" * LARGE), KEY, "ModelInfer", CODES.RESOURCE_EXHAUSTED),
    "an unknown model": (lambda: message("a" * LARGE, "nobody"), KEY, "ModelInfer", CODES.NOT_FOUND),
    "no protobuf": (lambda: b"\xff" * LARGE, KEY, "ModelInfer", CODES.INVALID_ARGUMENT),
    "a question without a key": (long_name, (), "ModelMetadata", CODES.UNAUTHENTICATED),
    "a question about a long name": (long_name, KEY, "ModelMetadata", CODES.RESOURCE_EXHAUSTED),
    "a probe of a long name": (long_name, (), "ModelReady", CODES.RESOURCE_EXHAUSTED),
    "a probe with a long message": (long_name, (), "ServerLive", CODES.RESOURCE_EXHAUSTED),
    "a health check of a long name": (long_name, (), HEALTH + "Check", CODES.RESOURCE_EXHAUSTED),
    "a watch of a long name": (long_name, (), HEALTH + "Watch", CODES.RESOURCE_EXHAUSTED),
    "an unknown method": (lambda: b"a" * LARGE, KEY, "NoSuchMethod", CODES.UNIMPLEMENTED),
}


def refused(service: Service, body: bytes, metadata: Any, method: str, **options: Any) -> grpc.StatusCode:
    """The status of a call that fails."""
    with channel_to(service) as channel:
        call = channel.unary_unary(method if "/" in method else f"/{SERVICE}/{method}", bytes, bytes)
        with pytest.raises(grpc.RpcError) as caught:
            call(body, timeout=SECONDS, metadata=metadata, **options)
    code: grpc.StatusCode = caught.value.code()
    return code


def settles(service: Service, most: int) -> bool:
    """Whether the service holds fewer bytes than ``most``, at once or when it has given free memory back."""
    for _ in range(100):
        if service.resident_bytes < most:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_refused_call_keeps_no_message(
    guarded: Service, case: tuple[Callable[[], bytes], Any, str, grpc.StatusCode]
) -> None:
    make, metadata, method, code = case
    body = make()
    assert refused(guarded, body, metadata, method) is code
    before = guarded.resident_bytes
    for _ in range(CALLS):
        assert refused(guarded, body, metadata, method) is code
    assert settles(guarded, before + MAX_GROWTH_BYTES)


def test_a_stream_of_refused_requests_keeps_none(guarded: Service) -> None:
    asked = request("bert", {"text": ["a" * LARGE]})
    with stub(guarded) as client:
        assert [bool(one.error_message) for one in client.ModelStreamInfer(iter([asked]), metadata=KEY)] == [True]
        before = guarded.resident_bytes
        answers = client.ModelStreamInfer(iter([asked] * 3 * CALLS), metadata=KEY, timeout=SECONDS)
        assert all(one.error_message for one in answers)
    assert settles(guarded, before + 2 * MAX_GROWTH_BYTES)


@pytest.mark.parametrize(
    ("algorithm", "metadata"),
    [
        pytest.param(grpc.Compression.Gzip, (), id="gzip, without a key"),
        pytest.param(grpc.Compression.Deflate, KEY, id="deflate, with a key"),
    ],
)
def test_a_compressed_message_is_not_inflated(guarded: Service, algorithm: grpc.Compression, metadata: object) -> None:
    body = message("a" * LARGE)
    before = guarded.resident_bytes
    codes = {refused(guarded, body, metadata, "ModelInfer", compression=algorithm) for _ in range(CALLS)}
    assert codes == {CODES.UNIMPLEMENTED}
    assert settles(guarded, before + MAX_GROWTH_BYTES)


def test_answers_that_no_client_reads_count_among_the_bytes_in_flight(serve: Serve) -> None:
    """gRPC keeps an answer until its client takes it, which a client without a window never does."""
    asked = request("bert", {"text": ["[MASK] " * 20]})
    asked.parameters["return_probabilities"].bool_param = True
    body = asked.SerializeToString()
    calls = [
        frame(HEADERS, END_HEADERS, number, call_fields("ModelInfer"))
        + frame(DATA, END_STREAM, number, b"\0" + len(body).to_bytes(4, "big") + body)
        for number in range(1, 128, 2)
    ]
    large = json.dumps({"instances": [TEXT], "ignored": "a" * (12 * MEGABYTE)})
    with serve.own("bert", "v2", "--max_bytes_in_flight=33554432") as service:
        service.wait_until("/v1/models/bert")
        with stub(service) as client:
            assert client.ModelInfer(asked).model_name == "bert"
        before = service.resident_bytes
        with socket.create_connection((HOST, int(service.grpc_address.rpartition(":")[2])), SECONDS) as connection:
            connection.sendall(START)
            for call in calls:
                connection.sendall(call)
                time.sleep(0.1)  # most of them one after another, so that few are refused
            assert poll(lambda: service.metric("hf_transformer_requests_in_flight") == 0, SECONDS)
            assert service.client.post(PREDICT, content=large).status_code == 429
            assert service.resident_bytes - before < 2 * MAX_GROWTH_BYTES
        assert poll(lambda: service.client.post(PREDICT, content=large).status_code == 200, SECONDS)


def test_many_large_health_checks_at_once_take_little_memory(guarded: Service) -> None:
    """gRPC receives a few of them at a time."""
    before, name = guarded.peak_bytes, long_name()
    with ExitStack() as stack:
        channels = [stack.enter_context(channel_to(guarded)) for _ in range(4)]
        calls = [
            channels[n % 4].unary_unary(HEALTH + "Check", None, None).future(name, timeout=SECONDS) for n in range(40)
        ]
        assert {call.code() for call in calls} == {CODES.RESOURCE_EXHAUSTED}
    assert guarded.peak_bytes - before < 4 * MAX_GROWTH_BYTES  # 600 MB, were all of them received at once
