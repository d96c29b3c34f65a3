"""Serialized messages, as the predictor gets and sends them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.protocol.grpc import (
    StreamResponse,
    decode_infer_response,
    decode_response,
    decode_stream_response,
    encode_infer_request,
    encode_request,
)
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import Malformed, Unwritable
from hf_transformer.types import Tensor

LOGITS = np.arange(6, dtype="<f4").reshape(1, 2, 3)


def response() -> pb.ModelInferResponse:
    message = pb.ModelInferResponse(model_name="bert", model_version="1", id="7")
    message.parameters["sequence_end"].bool_param = True
    message.outputs.add(name="logits", datatype="FP32", shape=[1, 2, 3])
    message.outputs.add(name="text", datatype="BYTES", shape=[1])
    message.raw_output_contents.extend([LOGITS.tobytes(), b"\5\0\0\0paris"])
    return message


def test_request() -> None:
    inputs = [
        Tensor("input_ids", "INT64", np.array([[101, 103]])),
        Tensor("text", "BYTES", np.array(["é"], np.object_)),
    ]
    message = pb.ModelInferRequest.FromString(encode_infer_request("bert", inputs, ["logits"]))
    assert message.model_name == "bert"
    assert [(t.name, t.datatype, list(t.shape)) for t in message.inputs] == [
        ("input_ids", "INT64", [1, 2]),
        ("text", "BYTES", [1]),
    ]
    assert list(message.raw_input_contents) == [np.array([101, 103], "<i8").tobytes(), b"\2\0\0\0\xc3\xa9"]
    assert [output.name for output in message.outputs] == ["logits"]
    assert not message.parameters
    message = pb.ModelInferRequest.FromString(encode_infer_request("gpt2", [], ["ids"], streamed=True))
    assert (message.model_name, [one.name for one in message.outputs]) == ("gpt2", ["ids"])
    assert message.parameters["triton_enable_empty_final_response"].bool_param, "asks a stream for a last response"
    with pytest.raises(Unwritable, match="'x' is INT64, its data is float64"):
        encode_infer_request("bert", [Tensor("x", "INT64", np.array([0.5]))], [])


@pytest.mark.parametrize("count", [0, 15, 16, 2047, 2048, 2**18])
def test_raw_contents_of_every_length(count: int) -> None:
    inputs = [Tensor(name, "INT64", np.arange(count) + start) for start, name in enumerate("ab")]
    message = pb.ModelInferRequest.FromString(encode_infer_request("bert", inputs, []))
    assert list(message.raw_input_contents) == [tensor.data.tobytes() for tensor in inputs]
    assert [list(one.shape) for one in message.inputs] == [[count], [count]]


def test_response() -> None:
    body = response().SerializeToString()
    outputs = decode_infer_response(body)
    assert list(outputs) == ["logits", "text"]
    np.testing.assert_array_equal(outputs["logits"].data, LOGITS)
    assert np.shares_memory(outputs["logits"].data, np.frombuffer(body, np.uint8))
    assert outputs["text"].data.tolist() == [b"paris"]
    whole, raw = response(), response()
    whole.ClearField("raw_output_contents")
    raw.ClearField("outputs")
    body = raw.SerializeToString() + whole.SerializeToString()  # fields may come in any order
    np.testing.assert_array_equal(decode_infer_response(body)["logits"].data, LOGITS)


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("BOOL", "bool_contents", [True, False]),
        ("INT8", "int_contents", [-128, 127]),
        ("INT16", "int_contents", [-1, 1]),
        ("INT32", "int_contents", [-(2**31), 1]),
        ("INT64", "int64_contents", [-(2**63), 1]),
        ("UINT8", "uint_contents", [0, 255]),
        ("UINT16", "uint_contents", [0, 2**16 - 1]),
        ("UINT32", "uint_contents", [0, 2**32 - 1]),
        ("UINT64", "uint64_contents", [0, 2**64 - 1]),
        ("FP32", "fp32_contents", [0.5, -1]),
        ("FP64", "fp64_contents", [0.1, -1]),
        ("BYTES", "bytes_contents", [b"a", b""]),
        ("FP16", "", []),  # has no typed contents
    ],
)
def test_typed_contents(datatype: str, field: str, values: list[Any]) -> None:
    message = pb.ModelInferResponse()
    tensor = message.outputs.add(name="a", datatype=datatype, shape=[len(values), 1])
    if field:
        getattr(tensor.contents, field).extend(values)
    decoded = decode_infer_response(message.SerializeToString())["a"]
    assert (decoded.datatype, decoded.data.tolist()) == (datatype, [[value] for value in values])


A = 'name: "a" datatype: "INT32" shape: 1'
RAW = r'raw_output_contents: "\001\000\000\000" '
MALFORMED: list[tuple[list[str], str, str]] = [
    ([A, 'name: "b" datatype: "INT32" shape: 1'], RAW, "2 tensors come with 1 raw contents"),
    ([A + " contents { int_contents: 1 }"], RAW, "'a' has typed contents beside"),
    ([A, A], RAW * 2, "'a' comes twice"),
    ([A], 'raw_output_contents: "ab"', "has 2 bytes, but INT32 .1. takes 4"),
    (['name: "a" datatype: "INT32" shape: -1'], RAW, "the shape .-1."),
    (['name: "a" datatype: "FP8" shape: 1'], RAW, "unknown datatype 'FP8'"),
    ([A], "", "'a' has 0 elements"),
    (['name: "a" datatype: "INT8" shape: 1 contents { int_contents: 1000 }'], "", "does not fit INT8"),
    (['name: "a" datatype: "FP16" shape: 1'], "", "FP16, which only raw contents can hold"),
]


@pytest.mark.parametrize(("outputs", "more", "problem"), MALFORMED, ids=[row[2] for row in MALFORMED])
def test_malformed_responses(outputs: list[str], more: str, problem: str) -> None:
    text = "".join(f"outputs {{ {one} }} " for one in outputs) + more
    message = text_format.Parse(text, pb.ModelInferResponse())
    with pytest.raises(Malformed, match=problem):
        decode_infer_response(message.SerializeToString())
    with pytest.raises(Malformed, match=problem):
        decode_stream_response(stream_response(message=message))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"\x32", "does not end"),
        (b"\x32\x05abc", "cut off"),
        (b"\xff" * 11, "does not end"),
        (b"\x33", "wire type 3"),
        (b"\x6e\x00", "wire type 6"),
        (b"\x0d\x00", "cut off"),
        (b"\x0a\x02\xff\xff", "not a ModelInferResponse"),
        (b"\x00\x00", "not a ModelInferResponse"),
    ],
)
def test_no_message(body: bytes, problem: str) -> None:
    with pytest.raises(Malformed, match=problem):
        decode_infer_response(body)


def test_unknown_fields_of_every_wire_type_are_skipped() -> None:
    unknown = b"\x68\x96\x01" + b"\x69" + bytes(8) + b"\x6d" + bytes(4) + b"\x6a\x03abc"
    body = response().SerializeToString()
    np.testing.assert_array_equal(decode_infer_response(unknown + body + unknown)["logits"].data, LOGITS)


@given(st.data())
def test_mutated_responses_raise_nothing_else(data: st.DataObject) -> None:
    mutated = bytearray(response().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, max(0, len(mutated) - 1)))
        mutated[index : index + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    for decode in (decode_infer_response, decode_stream_response):
        with suppress(Malformed):
            decode(bytes(mutated))


def stream_response(final: bool | None = None, message: pb.ModelInferResponse | None = None) -> bytes:
    whole = pb.ModelStreamInferResponse(infer_response=message)
    if final is not None:
        whole.infer_response.parameters["triton_final_response"].bool_param = final
    return whole.SerializeToString()


@pytest.mark.parametrize("final", [None, False, True])
def test_response_of_a_stream(final: bool | None) -> None:
    error, outputs, last = decode_stream_response(stream_response(final, response()))
    assert (error, last) == ("", bool(final))
    assert {name: (one.name, one.datatype, one.data.tolist()) for name, one in outputs.items()} == {
        "logits": ("logits", "FP32", LOGITS.tolist()),
        "text": ("text", "BYTES", [b"paris"]),
    }
    assert decode_stream_response(stream_response(final=True)) == StreamResponse("", {}, True)
    failed = pb.ModelStreamInferResponse(error_message="why").SerializeToString()
    assert decode_stream_response(failed) == StreamResponse("why", {}, False)
    for broken in (b"\xff\xff", stream_response(message=response())[:-1]):
        with pytest.raises(Malformed):
            decode_stream_response(broken)


def test_other_calls() -> None:
    """Each method has its request and its response, named after it."""
    question = pb.ModelMetadataRequest.FromString(encode_request("ModelMetadata", name="bert"))
    assert (question.name, question.version) == ("bert", "")
    register = pb.SystemSharedMemoryRegisterRequest.FromString(
        encode_request("SystemSharedMemoryRegister", name="n", key="/n", byte_size=9)
    )
    assert (register.name, register.key, register.offset, register.byte_size) == ("n", "/n", 0, 9)
    assert decode_response("ModelReady", pb.ModelReadyResponse(ready=True).SerializeToString()).ready
    assert not decode_response("ServerLive", b"").live
    with pytest.raises(Malformed, match="not a RepositoryIndexResponse"):
        decode_response("RepositoryIndex", b"\xff\xff")
