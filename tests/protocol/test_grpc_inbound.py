"""Requests of V2 clients over gRPC, and their answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

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
from tests.protocol.fuzzing import MAX_ELEMENTS, GrpcBodies, raw_request, typed_request


def decoded(message: pb.ModelInferRequest) -> InferRequest:
    return decode_infer_request(message.SerializeToString(), MAX_ELEMENTS)


def parsed(text: str) -> pb.ModelInferRequest:
    """A request in protobuf's text format."""
    return text_format.Parse(text, pb.ModelInferRequest())


def test_typed_contents() -> None:
    request = decoded(typed_request())
    assert (request.model_name, request.model_version, request.id, request.binary) == ("bert", "1", "17", True)
    parameters = {"top_k": 3, "parameters": '{"targets": ["a"]}', "threshold": 0.5, "seed": 2**64 - 1}
    assert request.parameters == parameters
    assert request.inputs["question"] == Texts("question", (2, 1), ["Who?", "I."])
    assert request.inputs["context"] == Texts("context", (1,), ["Привет"])
    numbers = request.inputs["x"]
    assert isinstance(numbers, Tensor)
    assert numbers.data.tolist() == [1, -2, 2**60]
    assert request.outputs == [RequestedOutput("output-0", False), RequestedOutput("offset_mapping")]


def test_raw_contents() -> None:
    request = decoded(raw_request())
    assert (request.model_name, request.model_version, request.id, request.parameters) == ("cross", "", "", {})
    texts = ["The capital of France is [MASK].", "Überraschung"]
    assert request.inputs["query"] == Texts("query", (2,), texts)
    assert request.inputs["texts"] == Texts("texts", (1, 2), texts)
    numbers = request.inputs["z"]
    assert isinstance(numbers, Tensor)
    assert numbers.data.sum() == 15 and not request.outputs


TEXT = 'name: "a" datatype: "BYTES" shape: 1'
OTHER = 'name: "b" datatype: "BYTES" shape: 1'
RAW = r'raw_input_contents: "\001\000\000\000a" '
ENDLESS = f"shape: {2**40}"


@pytest.mark.parametrize("raw", [False, True], ids=["typed", "raw"])
@pytest.mark.parametrize("said", [None, False, True], ids=str)
def test_answers_are_raw_if_the_request_was_or_says_so(raw: bool, said: bool | None) -> None:
    message = parsed(f"inputs {{ {TEXT} }} {RAW}" if raw else f'inputs {{ {TEXT} contents {{ bytes_contents: "a" }} }}')
    if said is not None:
        message.parameters["binary_data_output"].bool_param = said
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    request = decoded(message)
    assert (request.binary, request.parameters) == (raw if said is None else said, {})


def parameter(name: str, value: str) -> str:
    return f' parameters {{ key: "{name}" value {{ {value} }} }}'


LONG = "x" * 300
STRING, CLASSES = parameter("binary_data", 'string_param: "true"'), parameter("classification", "int64_param: 3")
MALFORMED: list[tuple[list[str], str, str]] = [
    ([TEXT, TEXT], RAW * 2, "inputs: tensor 'a' comes twice"),
    ([f'name: "{LONG}"'], "", "a name of 300 characters"),
    (['name: "a" datatype: "FP8"'], "", "unknown datatype 'FP8'"),
    (['name: "a" datatype: "INT64" shape: -1'], "", "the shape .-1."),
    ([TEXT + " shape: 1" * 1000], RAW, r"inputs\[0\]: the shape has 1001 bytes"),
    ([f"{TEXT} {ENDLESS}"], RAW, "no bytes for so many elements"),
    ([f"{TEXT} {ENDLESS}"], "", "no bytes for so many elements"),
    ([f"{TEXT} {ENDLESS} shape: 0"], 'raw_input_contents: ""', "no bytes for so many elements"),
    ([TEXT, OTHER], RAW, "1 raw contents for 2 inputs"),
    ([], RAW, "1 raw contents for 0 inputs"),
    ([TEXT + ' contents { bytes_contents: "a" }'], RAW, "'a' has typed contents beside"),
    ([TEXT], r'raw_input_contents: "\001\000\000\000"', "ends within element 0 of 1"),
    ([TEXT], r'raw_input_contents: "\001\000\000\000\377"', "^inputs: element 0 of 'a' is not UTF-8$"),
    ([TEXT + r' contents { bytes_contents: "\377" }'], "", "^inputs: element 0 of 'a' is not UTF-8$"),
    ([TEXT + " shape: 3" + ' contents { bytes_contents: "a" }'], "", "has 1 elements, but .1, 3. takes 3"),
    (['name: "a" datatype: "INT64" shape: 1'], "", "has 0 elements"),
    (['name: "a" datatype: "FP16" shape: 1'], "", "only raw contents can hold"),
    ([TEXT + parameter("shared_memory_region", 'string_param: "x"')], RAW, "parameters of tensor 'a': 'shared_memory_"),
    ([TEXT + parameter("binary_data_size", "int64_param: 7")], RAW, "binary_data_size differs from the 5"),
    ([], parameter("top_k", ""), "parameters: 'top_k' has no value"),
    ([], parameter("binary_data_output", "int64_param: 1"), "parameters.binary_data_output: expected true or false"),
    ([], 'outputs { name: "a" } outputs { name: "a" }', "outputs: 'a' comes twice"),
    ([], f'outputs {{ name: "{LONG}" }}', "a name of 300 characters"),
    ([], f'outputs {{ name: "a" {CLASSES} }}', "'a': 'classification' is not"),
    ([], f'outputs {{ name: "a" {STRING} }}', "expected true or false"),
]


@pytest.mark.parametrize(("inputs", "more", "problem"), MALFORMED, ids=[row[2][:30] for row in MALFORMED])
def test_malformed_requests(inputs: list[str], more: str, problem: str) -> None:
    with pytest.raises(Malformed, match=problem):
        decoded(parsed("".join(f"inputs {{ {one} }} " for one in inputs) + more))


@pytest.mark.parametrize(
    "body", [b"\x32", b"\x32\x05abc", b"\xff" * 11, b"\x33", b"\x0a\x02\xff\xff", b"\x00\x00", b"\x2a\x02\x2a\x05"]
)
def test_no_message(body: bytes) -> None:
    with pytest.raises(Malformed, match=r"message|not a ModelInferRequest"):
        decode_infer_request(body, MAX_ELEMENTS)
    with pytest.raises(Malformed, match="not a ModelReadyRequest"):
        decode(pb.ModelReadyRequest, b"\x0a\x05abc")


def many(datatype: str, field: str, values: list[Any]) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest()
    entry = message.inputs.add(name="text", datatype=datatype, shape=[len(values)])
    if field:
        getattr(entry.contents, field).extend(values)
    else:
        message.raw_input_contents.append(b"\0\0\0\0" * len(values))
    return message


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [("BYTES", "bytes_contents", [b""]), ("BYTES", "", [b""]), ("INT64", "int64_contents", [1] * 10)],
    ids=["typed", "raw", "packed"],
)
def test_too_many_elements(datatype: str, field: str, values: list[Any]) -> None:
    message = many(datatype, field, values * 2049)
    with pytest.raises(TooLarge, match=r"2048.* --max_instances and --max_sequences"):
        decoded(message)
    GrpcBodies().assert_bounded(message.SerializeToString())
    if datatype == "BYTES":
        assert decoded(many(datatype, field, values * 2048)).inputs["text"] == Texts("text", (2048,), [""] * 2048)


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
    GrpcBodies().assert_bounded(body)


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
    assert 0.05 < GrpcBodies().fuzz(600, seed=1, sample=20) / 600 < 0.5


# Answers

EMBEDDINGS = np.arange(6, dtype="<f4").reshape(2, 3)
OUTPUTS = (
    Tensor("output-0", "FP32", EMBEDDINGS),
    Tensor("json", "BYTES", np.array([[b"{}", "é".encode()]], np.object_)),
    Tensor("offsets", "INT64", np.array([[1, -2]])),
    Tensor("empty", "INT64", np.empty((0, 2), np.int64)),
)
HALF = Tensor("output-0", "FP16", EMBEDDINGS.astype("<f2"))


@pytest.mark.parametrize(
    ("outputs", "wanted", "binary", "raw"),
    [
        (OUTPUTS, [], True, True),
        (OUTPUTS, [], False, False),
        (OUTPUTS, [RequestedOutput("json", True), RequestedOutput("output-0", False)], False, True),
        ((HALF,), [], False, True),
    ],
    ids=["raw", "typed", "one raw output makes all raw", "half floats are always raw"],
)
def test_a_response(outputs: tuple[Tensor, ...], wanted: list[RequestedOutput], binary: bool, raw: bool) -> None:
    response = InferResponse("bert", "1", outputs, "7")
    body = encode_infer_response(response, InferRequest({}, outputs=wanted, binary=binary))
    message = pb.ModelInferResponse.FromString(body)
    assert (message.model_name, message.model_version, message.id) == ("bert", "1", "7")
    assert len(message.raw_output_contents) == (len(outputs) if raw else 0)
    assert not message.parameters
    found = [(one.name, one.datatype, one.shape, one.data.tolist()) for one in decode_infer_response(body).values()]
    assert found == [(one.name, one.datatype, one.shape, one.data.tolist()) for one in outputs]


@pytest.mark.parametrize("size", [0, 127, 128, 16384, 2_100_000])
def test_lengths_of_any_size(size: int) -> None:
    data = (np.arange(size) % 251).astype(np.uint8)
    response = InferResponse("bert", "1", [Tensor("a", "UINT8", data)], "7")
    body = encode_infer_response(response, InferRequest({}, binary=True), final=True)
    message = pb.ModelStreamInferResponse.FromString(encode_stream_response(body))
    assert message.error_message == ""
    assert message.infer_response.raw_output_contents[0] == data.tobytes()
    assert message.infer_response.parameters["triton_final_response"].bool_param


def test_an_error_in_a_stream() -> None:
    message = pb.ModelStreamInferResponse.FromString(encode_stream_error("text: too long", "7"))
    assert (message.error_message, message.infer_response.id) == ("text: too long", "7")
    assert message.infer_response.parameters["triton_final_response"].bool_param
