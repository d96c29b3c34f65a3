"""Requests of V2 clients over gRPC, and their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hf_transformer.errors import TooLarge
from hf_transformer.protocol.grpc import decode, decode_infer_response
from hf_transformer.protocol.grpc_inbound import (
    MOST_PARTS,
    decode_infer_request,
    encode_infer_response,
    encode_stream_error,
    encode_stream_response,
    request_id,
)
from hf_transformer.protocol.inbound import MOST_TENSORS, InferRequest, InferResponse, RequestedOutput
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types import Tensor, Texts
from tests.protocol.fuzz_v2_grpc import assert_bounded, fuzz, raw_request, typed_request
from tests.protocol.fuzz_v2_rest import RAW_TEXTS, framed
from tests.protocol.fuzzing import MAX_ELEMENTS


def decoded(message: pb.ModelInferRequest) -> InferRequest:
    return decode_infer_request(message.SerializeToString(), MAX_ELEMENTS)


def test_typed_contents() -> None:
    request = decoded(typed_request())
    assert (request.model_name, request.model_version, request.id, request.binary) == ("bert", "1", "17", True)
    assert request.parameters == {
        "top_k": 3,
        "parameters": '{"targets": ["a"]}',
        "threshold": 0.5,
        "seed": 2**64 - 1,
    }
    assert request.inputs["question"] == Texts("question", (2, 1), ["Who?", "I."])
    assert request.inputs["context"] == Texts("context", (1,), ["Привет"])
    numbers = request.inputs["x"]
    assert isinstance(numbers, Tensor)
    assert numbers.data.tolist() == [1, -2, 2**60]
    assert request.outputs == [RequestedOutput("output-0", False), RequestedOutput("offset_mapping")]


def test_raw_contents() -> None:
    body = raw_request().SerializeToString()
    request = decode_infer_request(body, MAX_ELEMENTS)
    assert (request.model_name, request.model_version, request.id, request.parameters, list(request.outputs)) == (
        "cross",
        "",
        "",
        {},
        [],
    )
    texts = ["The capital of France is [MASK].", "Überraschung"]
    assert request.inputs["query"] == Texts("query", (2,), texts)
    assert request.inputs["texts"] == Texts("texts", (1, 2), texts)
    numbers = request.inputs["z"]
    assert isinstance(numbers, Tensor)
    assert numbers.data.sum() == 15


@pytest.mark.parametrize(
    ("raw", "said", "expected"), [(r, s, r if s is None else s) for r in (0, 1) for s in (None, 0, 1)]
)
def test_answers_are_raw_if_the_request_was_or_says_so(raw: bool, said: bool | None, expected: bool) -> None:
    message = pb.ModelInferRequest(model_name="bert")
    entry = message.inputs.add(name="text", datatype="BYTES", shape=[1])
    if raw:
        message.raw_input_contents.append(b"\1\0\0\0a")
    else:
        entry.contents.bytes_contents.append(b"a")
    if said is not None:
        message.parameters["binary_data_output"].bool_param = said
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    request = decoded(message)
    assert (request.binary, request.parameters) == (expected, {})


def change(message: pb.ModelInferRequest, what: str) -> None:
    entry = message.inputs[0]
    if what == "twice":
        message.inputs.add().CopyFrom(entry)
        message.raw_input_contents.append(b"")
    elif what == "long name":
        entry.name = "x" * 300
    elif what == "datatype":
        entry.datatype = "FP8"
    elif what == "negative":
        entry.shape[0] = -1
    elif what == "absurd":
        entry.shape[:] = [2**62, 2**62]
    elif what == "axes":
        entry.shape[:] = [1] * 33
    elif what == "long shape":
        entry.shape[:] = [1] * 1000
    elif what == "promises":
        entry.shape[0] = 2**40
    elif what == "empty rows":
        entry.shape[:] = [2**40, 0]
        message.raw_input_contents[0] = b""
    elif what == "one raw too few":
        del message.raw_input_contents[1]
    elif what == "raw without inputs":
        message.ClearField("inputs")
    elif what == "raw and typed":
        entry.contents.bytes_contents.append(b"a")
    elif what == "raw cut off":
        message.raw_input_contents[0] = RAW_TEXTS[:-1]
    elif what == "shared memory":
        entry.parameters["shared_memory_region"].string_param = "x"
    elif what == "size":
        entry.parameters["binary_data_size"].int64_param = 7
    elif what == "no value":
        message.parameters["top_k"].SetInParent()
    elif what == "flag":
        message.parameters["binary_data_output"].int64_param = 1
    elif what == "output twice":
        message.outputs.add(name="a")
        message.outputs.add(name="a")
    elif what == "output name":
        message.outputs.add(name="a" * 300)
    elif what == "classification":
        message.outputs.add(name="output-0").parameters["classification"].int64_param = 3
    elif what == "output flag":
        message.outputs.add(name="output-0").parameters["binary_data"].string_param = "true"
    else:
        raise AssertionError(what)


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("twice", "inputs: tensor 'query' comes twice"),
        ("long name", "a name of 300 characters"),
        ("datatype", "unknown datatype 'FP8'"),
        ("negative", "the shape .-1."),
        ("absurd", "absurd shape"),
        ("axes", "33 axes"),
        ("long shape", r"inputs\[0\]: the shape has 1000 bytes"),
        ("promises", "no bytes for so many elements"),
        ("empty rows", "no bytes for so many elements"),
        ("one raw too few", "2 raw contents for 3 inputs"),
        ("raw without inputs", "3 raw contents for 0 inputs"),
        ("raw and typed", "'query' has typed contents beside"),
        ("raw cut off", "ends within element 1 of 2"),
        ("shared memory", "parameters of tensor 'query': 'shared_memory_region' is not understood"),
        ("size", "binary_data_size differs from the"),
        ("no value", "parameters: 'top_k' has no value"),
        ("flag", "parameters.binary_data_output: expected true or false"),
        ("output twice", "outputs: 'a' comes twice"),
        ("output name", "a name of 300 characters"),
        ("classification", "parameters of 'output-0': 'classification' is not understood"),
        ("output flag", "binary_data: expected true or false"),
    ],
)
def test_malformed_requests(what: str, problem: str) -> None:
    message = raw_request()
    change(message, what)
    with pytest.raises(Malformed, match=problem):
        decoded(message)


@pytest.mark.parametrize(
    ("datatype", "shape", "problem"),
    [
        ("BYTES", [3], "has 1 elements, but .3. takes 3"),
        ("BYTES", [2**40], "no bytes for so many elements"),
        ("BYTES", [0, 2**40], "no bytes for so many elements"),
        ("INT64", [1], "has 0 elements"),
        ("FP16", [1], "only raw contents can hold"),
    ],
)
def test_malformed_typed_contents(datatype: str, shape: list[int], problem: str) -> None:
    message = pb.ModelInferRequest()
    message.inputs.add(name="text", datatype=datatype, shape=shape).contents.bytes_contents.append(b"a")
    with pytest.raises(Malformed, match=problem):
        decoded(message)


@pytest.mark.parametrize("raw", [False, True])
def test_bytes_that_are_no_text(raw: bool) -> None:
    message = pb.ModelInferRequest()
    entry = message.inputs.add(name="text", datatype="BYTES", shape=[2])
    if raw:
        message.raw_input_contents.append(framed([b"secret", b"\xff\xfe"]))
    else:
        entry.contents.bytes_contents.extend([b"secret", b"\xff\xfe"])
    with pytest.raises(Malformed, match=r"^inputs: element 1 of 'text' is not UTF-8$"):
        decoded(message)


@pytest.mark.parametrize(
    "body", [b"\x32", b"\x32\x05abc", b"\xff" * 11, b"\x33", b"\x0a\x02\xff\xff", b"\x00\x00", b"\x2a\x02\x2a\x05"]
)
def test_no_message(body: bytes) -> None:
    with pytest.raises(Malformed, match=r"message|not a ModelInferRequest"):
        decode_infer_request(body, MAX_ELEMENTS)
    with pytest.raises(Malformed, match="not a ModelReadyRequest"):
        decode(pb.ModelReadyRequest, b"\x0a\x05abc")


def too_many(datatype: str, field: str, values: list[Any], raw: bytes = b"") -> Callable[[], pb.ModelInferRequest]:
    def make() -> pb.ModelInferRequest:
        message = pb.ModelInferRequest()
        entry = message.inputs.add(name="text", datatype=datatype, shape=[len(values)])
        if raw:
            message.raw_input_contents.append(raw * len(values))
        else:
            getattr(entry.contents, field).extend(values)
        return message

    return make


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(too_many("BYTES", "bytes_contents", [b""] * 2049), id="typed"),
        pytest.param(too_many("BYTES", "", [b""] * 2049, b"\0\0\0\0"), id="raw"),
        pytest.param(too_many("INT64", "int64_contents", [1] * 20490), id="packed"),
    ],
)
def test_too_many_elements(make: Callable[[], pb.ModelInferRequest]) -> None:
    with pytest.raises(TooLarge, match=r"2048.* --max_instances and --max_sequences"):
        decoded(make())
    assert_bounded(make().SerializeToString())


def test_as_many_elements_as_are_taken() -> None:
    typed = decoded(too_many("BYTES", "bytes_contents", [b"a"] * 2048)())
    raw = decoded(too_many("BYTES", "", [b""] * 2048, b"\0\0\0\0")())
    assert typed.inputs["text"] == Texts("text", (2048,), ["a"] * 2048)
    assert raw.inputs["text"] == Texts("text", (2048,), [""] * 2048)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        pytest.param(b"\x3a\x00" * (MOST_PARTS + 1), "body: more than 1000 fields", id="raw contents"),
        pytest.param(b"\x2a\x00" * (MOST_TENSORS + 1), "inputs: more than 16 tensors", id="inputs"),
        pytest.param(b"\x32\x00" * (MOST_TENSORS + 1), "outputs: more than 16 tensors", id="outputs"),
        pytest.param(b"\x2a\xd2\x0f" + b"\x22\x00" * 1001, r"inputs\[0\]: more than 1000 fields", id="parameters"),
        pytest.param(b"\x32\xd2\x0f" + b"\x12\x00" * 1001, "outputs: more than 1000 fields", id="an output"),
    ],
)
def test_small_fields_that_grow_large(body: bytes, problem: str) -> None:
    with pytest.raises(Malformed, match=problem):
        decode_infer_request(body, MAX_ELEMENTS)
    assert_bounded(body)


def test_contents_in_pieces_count_together() -> None:
    body = bytes.fromhex("2a9c1f") + bytes.fromhex("2a024200") * 999  # an input of 999 contents {bytes_contents: ""}
    with pytest.raises(TooLarge):
        decode_infer_request(body, 998)
    with pytest.raises(Malformed, match="unknown datatype"):
        decode_infer_request(body, 999)


def test_the_id_of_a_request_that_is_wrong() -> None:
    message = typed_request()
    message.inputs[0].datatype = "FP8"
    assert request_id(message.SerializeToString()) == "17"
    assert request_id(b"\x1a\x01a\x1a\x01b") == "b"
    assert request_id(b"\x1a\x01\xff") == request_id(b"\x1a\x05a") == request_id(b"") == ""


def test_many_damaged_messages() -> None:
    """A few hundred; scripts/test_clients runs a million."""
    assert 0.05 < fuzz(600, seed=1, sample=20) / 600 < 0.5


EMBEDDINGS = np.arange(6, dtype="<f4").reshape(2, 3)


def response(*tensors: Tensor, id: str = "7") -> InferResponse:
    return InferResponse("bert", "1", tensors, id)


def outputs() -> tuple[Tensor, ...]:
    return (
        Tensor("output-0", "FP32", EMBEDDINGS),
        Tensor("json", "BYTES", np.array([[b"{}", "é".encode()]], np.object_)),
        Tensor("offsets", "INT64", np.array([[1, -2]])),
        Tensor("empty", "INT64", np.empty((0, 2), np.int64)),
    )


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_a_response(raw: bool) -> None:
    body = encode_infer_response(response(*outputs()), InferRequest({}, binary=raw))
    message = pb.ModelInferResponse.FromString(body)
    assert (message.model_name, message.model_version, message.id) == ("bert", "1", "7")
    assert len(message.raw_output_contents) == (4 if raw else 0)
    assert not message.parameters
    found = decode_infer_response(body)
    assert [(one.name, one.datatype, one.shape) for one in found.values()] == [
        (one.name, one.datatype, one.shape) for one in outputs()
    ]
    assert [one.data.tolist() for one in found.values()] == [one.data.tolist() for one in outputs()]


def test_one_raw_output_makes_all_raw() -> None:
    wanted = [RequestedOutput("json", True), RequestedOutput("output-0", False)]
    body = encode_infer_response(response(*outputs()[:2]), InferRequest({}, outputs=wanted))
    assert len(pb.ModelInferResponse.FromString(body).raw_output_contents) == 2


def test_half_floats_are_always_raw() -> None:
    half = Tensor("output-0", "FP16", EMBEDDINGS.astype("<f2"))
    body = encode_infer_response(response(half), InferRequest({}))
    assert decode_infer_response(body)["output-0"].data.tolist() == EMBEDDINGS.tolist()


@pytest.mark.parametrize("size", [0, 127, 128, 16384, 2_100_000])
def test_lengths_of_any_size(size: int) -> None:
    data = (np.arange(size) % 251).astype(np.uint8)
    body = encode_infer_response(response(Tensor("a", "UINT8", data)), InferRequest({}, binary=True), final=True)
    message = pb.ModelStreamInferResponse.FromString(encode_stream_response(body))
    assert message.error_message == ""
    assert message.infer_response.raw_output_contents[0] == data.tobytes()
    assert message.infer_response.parameters["triton_final_response"].bool_param


def test_an_error_in_a_stream() -> None:
    message = pb.ModelStreamInferResponse.FromString(encode_stream_error("text: too long", "7"))
    assert (message.error_message, message.infer_response.id) == ("text: too long", "7")
    assert message.infer_response.parameters["triton_final_response"].bool_param
