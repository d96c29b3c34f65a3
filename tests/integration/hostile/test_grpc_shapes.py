"""gRPC calls that no client of good will makes. The codec's own limits are tried in tests/protocol, the server here."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from hf_transformer.commands.local_triton import HOST, poll
from hf_transformer.protocol.grpc import SERVICE
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.integration.conftest import Serve
from tests.integration.grpc_client import channel_to, fails, request, stub, values
from tests.integration.hostile.memory import resident
from tests.integration.hostile.wire import TEXT, others_are_served
from tests.service import Service

INFER = f"/{SERVICE}/ModelInfer"
INVALID, EXHAUSTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED
RESOURCE_EXHAUSTED = b"grpc-status\x018"
"""As a header's name and value, the length of the value between them."""
MOST_GROWTH = 64 * 2**20
"""Bytes that the service may hold more after a message that is too large: four times --max_request_bytes."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
START = PREFACE + b"\0\0\0\4\0\0\0\0\0"
"""The preface and a frame of no settings."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One frame of HTTP/2 (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def served(service: Service) -> None:
    """Normal clients of both protocols get their answers."""
    with stub(service) as calls:
        assert values(calls.ModelInfer(request("bert", {"text": [TEXT]}))) == ["paris"]
    others_are_served(service)


def raw(service: Service, body: bytes, **options: Any) -> bytes:
    """A call with any bytes as its message."""
    with channel_to(service) as channel:
        answer: bytes = channel.unary_unary(INFER, bytes, bytes)(body, timeout=20.0, **options)
        return answer


def lying(*contents: bytes, shape: tuple[int, ...] = (1,), datatype: str = "BYTES") -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="bert", raw_input_contents=contents)
    message.inputs.add(name="text", datatype=datatype, shape=shape)
    return message


def both_contents() -> pb.ModelInferRequest:
    message = request("bert", {"text": [TEXT]}, raw=True)
    message.inputs[0].contents.bytes_contents.append(b"another")
    return message


LIES = {
    "an element of 4 GB": (lying(b"\xff\xff\xff\xff" + TEXT.encode()), "element 0"),
    "an element that goes on": (lying(b"\x40\0\0\0" + TEXT.encode()), "element 0"),
    "a cut length": (lying(b"\x01\0"), "'text' has 2 bytes, too few"),
    "more elements than said": (lying(b"\x01\0\0\0a" * 3), "'text'"),
    "fewer elements than said": (lying(b"\x01\0\0\0a", shape=(2,)), "'text'"),
    "2**62 elements": (lying(b"", shape=(2**62,)), "2"),
    "2**31 times 2**31 elements": (lying(b"", shape=(2**31, 2**31)), "shape"),
    "a negative shape": (lying(b"\x01\0\0\0a", shape=(-1,)), "shape"),
    "a shape of 1,000 dimensions": (lying(b"\x01\0\0\0a", shape=(1,) * 1000), "inputs[0]: the shape has 1000 bytes"),
    "no contents at all": (lying(), "'text'"),
    "more contents than inputs": (lying(b"\x01\0\0\0a", b"\x01\0\0\0a"), "raw_input_contents"),
    "contents twice": (both_contents(), "contents"),
    "not UTF-8": (lying(b"\x02\0\0\0\xff\xfe"), "not UTF-8"),
    "an unknown datatype": (lying(b"\0" * 4, datatype="X" * 5000), "datatype"),
    "another datatype": (lying(b"\0" * 8, datatype="FP64"), "FP64"),
}


@pytest.mark.parametrize(("message", "says"), LIES.values(), ids=list(LIES))
def test_contents_that_lie(serve: Serve, message: pb.ModelInferRequest, says: str) -> None:
    service = serve("bert")
    with stub(service) as calls, fails(INVALID, says):
        calls.ModelInfer(message)
    served(service)


@pytest.mark.parametrize(
    "body",
    [b"\xff" * 1000, b"\0" * 1000, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a" * 10_000, b"{}", TEXT.encode()],
    ids=["ones", "zeros", "a length of 4 GB", "tags", "JSON", "text"],
)
def test_what_is_no_message(serve: Serve, body: bytes) -> None:
    service = serve("bert")
    with fails(INVALID):
        raw(service, body)
    served(service)


def test_ten_thousand_of_everything(serve: Serve) -> None:
    """Inputs, outputs and parameters are not looked at one by one for ever."""
    service = serve("bert")
    message = request("bert", {"text": [TEXT]})
    for number in range(10_000):
        message.inputs.add(name=f"i{number}")
        message.outputs.add(name=f"o{number}")
        message.parameters[f"p{number}"].int64_param = number
    with stub(service) as calls, fails(INVALID):
        calls.ModelInfer(message)
    served(service)


def test_a_message_that_is_too_large_is_not_kept(serve: Serve) -> None:
    service = serve("bert")
    before = resident(service)
    with fails(EXHAUSTED):
        raw(service, b"\0" * (64 * 2**20))
    assert resident(service) - before < MOST_GROWTH
    served(service)


def test_a_message_that_says_it_has_4_gb(serve: Serve) -> None:
    """Refused by its length: a client that sends the five bytes before it and a little of it gets the answer."""
    service = serve("bert")
    before = resident(service)
    with socket.create_connection((HOST, int(service.grpc_address.rpartition(":")[2])), 20.0) as connection:
        connection.sendall(START + frame(1, 4, 1, headers_of(INFER)))
        connection.sendall(frame(0, 0, 1, b"\0\xff\xff\xff\xff" + b"x" * 1000))
        received = b""
        while RESOURCE_EXHAUSTED not in received:
            data = connection.recv(2**16)
            assert data, received
            received += data
    assert resident(service) - before < MOST_GROWTH
    served(service)


def headers_of(path: str) -> bytes:
    """The headers of a call, without compression (RFC 7541, 6.2.2)."""
    named = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
    named["content-type"] = "application/grpc"
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in named.items()
    )


def test_metadata_of_a_megabyte(serve: Serve) -> None:
    service = serve("bert")
    message = request("bert", {"text": [TEXT]}).SerializeToString()
    for metadata in ([("x-test", "v" * 2**20)], [(f"x-test-{number}", "v" * 100) for number in range(10_000)]):
        with fails(EXHAUSTED):
            raw(service, message, metadata=metadata)
    served(service)


@pytest.mark.parametrize("method", ["Nothing", "ModelInfer/", "../ModelInfer", "x" * 2000])
def test_methods_that_are_none(serve: Serve, method: str) -> None:
    service = serve("bert")
    with channel_to(service) as channel, fails(grpc.StatusCode.UNIMPLEMENTED):
        channel.unary_unary(f"/{SERVICE}/{method}", bytes, bytes)(b"", timeout=20.0)
    served(service)


def test_a_deadline_that_is_over(serve: Serve) -> None:
    service = serve("bert")
    with stub(service) as calls:
        for seconds in (1e-6, 1e-4, -1.0):
            with fails(grpc.StatusCode.DEADLINE_EXCEEDED):
                for _ in range(1000):
                    calls.ModelInfer(request("bert", {"text": [TEXT]}), timeout=seconds)
    served(service)


def rapid_reset() -> bytes:
    """Ten thousand calls that are cancelled at once (CVE-2023-44487)."""
    headers = bytes.fromhex("838604") + b"\x01/"  # POST, http, a path; by the table of RFC 7541, A
    streams = range(1, 20_001, 2)
    return b"".join(frame(1, 4, number, headers) + frame(3, 0, number, b"\0\0\0\x08") for number in streams)


SHOTS: dict[str, Callable[[], bytes]] = {
    "HTTP/1.1": lambda: b"POST / HTTP/1.1\r\nhost: x\r\n\r\n",
    "garbage behind the preface": lambda: PREFACE + b"\xff" * 4096,
    "a frame of 16 MB": lambda: START + b"\xff\xff\xff\0\0\0\0\0\1" + b"\0" * 4096,
    "headers without end": lambda: START + frame(1, 0, 1, b"\x82") + frame(9, 0, 1, b"\0") * 9999,
    "a thousand settings": lambda: START + frame(4, 0, 0, b"") * 1000,
    "ten thousand pings": lambda: START + frame(6, 0, 0, b"\0" * 8) * 10_000,
    "rapid reset": lambda: START + rapid_reset(),
}


@pytest.mark.parametrize("shot", SHOTS.values(), ids=list(SHOTS))
def test_frames_that_are_none(serve: Serve, shot: Callable[[], bytes]) -> None:
    """Whatever becomes of the connection, the service stays, and keeps no more of it than of others."""
    service = serve("bert")
    port = int(service.grpc_address.rpartition(":")[2])
    before = resident(service)
    for _ in range(3):
        with socket.create_connection((HOST, port), 20.0) as connection:
            try:
                connection.sendall(shot())
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(2**16):
                    pass
            except OSError:
                continue
    served(service)
    assert poll(lambda: resident(service) - before < MOST_GROWTH, 10.0)
