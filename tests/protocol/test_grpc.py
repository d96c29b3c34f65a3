"""Messages of the V2 protocol over gRPC: the predictor's and those of the service's clients."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.errors import TooLarge
from hf_transformer.protocol.grpc import (
    StreamDecoder,
    decode,
    decode_infer_response,
    decode_response,
    encode_infer_request,
    encode_request,
)
from hf_transformer.protocol.grpc_server_codec import (
    MAX_FIELDS,
    decode_infer_request,
    encode_infer_response,
    encode_stream_error,
    encode_stream_response,
    request_id,
)
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.server_codec import MAX_TENSORS, InferRequest, InferResponse
from hf_transformer.protocol.tensors import Malformed, Unwritable
from hf_transformer.types.tensors import Tensor, Texts
from tests.protocol.fuzzing import MAX_ELEMENTS, GrpcBodies, raw_request, typed_request

# To the predictor

LOGITS = np.arange(6, dtype="<f4").reshape(1, 2, 3)


def response() -> pb.ModelInferResponse:
    message = pb.ModelInferResponse(model_name="bert", model_version="1", id="7")
    message.parameters["sequence_end"].bool_param = True
    message.outputs.add(name="logits", datatype="FP32", shape=[1, 2, 3])
    message.outputs.add(name="text", datatype="BYTES", shape=[1])
    message.raw_output_contents.extend([LOGITS.tobytes(), b"\5\0\0\0paris"])
    return message


def test_a_request_has_raw_contents() -> None:
    texts = Tensor("text", "BYTES", np.array(["é"], np.object_))
    inputs = [Tensor("input_ids", "INT64", np.array([[101, 103]])), texts]
    message = pb.ModelInferRequest.FromString(encode_infer_request("bert", inputs, ["logits"]))
    assert message.model_name == "bert"
    entries = [(entry.name, entry.datatype, list(entry.shape)) for entry in message.inputs]
    assert entries == [("input_ids", "INT64", [1, 2]), ("text", "BYTES", [1])]
    assert list(message.raw_input_contents) == [np.array([101, 103], "<i8").tobytes(), b"\2\0\0\0\xc3\xa9"]
    assert [output.name for output in message.outputs] == ["logits"]
    assert not message.parameters
    message = pb.ModelInferRequest.FromString(encode_infer_request("gpt2", [], ["ids"], streamed=True))
    assert (message.model_name, [entry.name for entry in message.outputs]) == ("gpt2", ["ids"])
    assert message.parameters["triton_enable_empty_final_response"].bool_param, "asks for a final response"
    with pytest.raises(Unwritable, match="x: expected data that INT64 can hold, got float64"):
        encode_infer_request("bert", [Tensor("x", "INT64", np.array([0.5]))], [])


@pytest.mark.parametrize("count", [0, 15, 16, 2047, 2048, 2**18])
def test_raw_contents_of_every_length(count: int) -> None:
    inputs = [Tensor(name, "INT64", np.arange(count) + start) for start, name in enumerate("ab")]
    message = pb.ModelInferRequest.FromString(encode_infer_request("bert", inputs, []))
    assert list(message.raw_input_contents) == [tensor.data.tobytes() for tensor in inputs]
    assert [list(entry.shape) for entry in message.inputs] == [[count], [count]]


def test_a_response_is_decoded_as_views() -> None:
    body = response().SerializeToString()
    outputs = decode_infer_response(body)
    assert list(outputs) == ["logits", "text"]
    np.testing.assert_array_equal(outputs["logits"].data, LOGITS)
    assert np.shares_memory(outputs["logits"].data, np.frombuffer(body, np.uint8))
    assert outputs["text"].data.tolist() == [b"paris"]
    unknown = b"\x68\x96\x01" + b"\x69" + bytes(8) + b"\x6d" + bytes(4) + b"\x6a\x03abc"  # a field of every wire type
    np.testing.assert_array_equal(decode_infer_response(unknown + body + unknown)["logits"].data, LOGITS)
    whole, raw = response(), response()
    whole.ClearField("raw_output_contents")
    raw.ClearField("outputs")
    body = raw.SerializeToString() + whole.SerializeToString()  # fields may come in any order
    np.testing.assert_array_equal(decode_infer_response(body)["logits"].data, LOGITS)


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        *(("BOOL", "bool_contents", [True, False]), ("BYTES", "bytes_contents", [b"a", b""])),
        *(("INT8", "int_contents", [-128, 127]), ("INT16", "int_contents", [-1, 1])),
        *(("INT32", "int_contents", [-(2**31), 1]), ("INT64", "int64_contents", [-(2**63), 1])),
        *(("UINT8", "uint_contents", [0, 255]), ("UINT16", "uint_contents", [0, 2**16 - 1])),
        *(("UINT32", "uint_contents", [0, 2**32 - 1]), ("UINT64", "uint64_contents", [0, 2**64 - 1])),
        *(("FP32", "fp32_contents", [0.5, -1]), ("FP64", "fp64_contents", [0.1, -1])),
        ("FP16", "", []),  # has no typed contents
    ],
)
def test_typed_contents_of_a_response_are_decoded(datatype: str, field: str, values: list[Any]) -> None:
    message = pb.ModelInferResponse()
    tensor = message.outputs.add(name="a", datatype=datatype, shape=[len(values), 1])
    if field:
        getattr(tensor.contents, field).extend(values)
    decoded = decode_infer_response(message.SerializeToString())["a"]
    assert (decoded.datatype, decoded.data.tolist()) == (datatype, [[value] for value in values])


A = 'name: "a" datatype: "INT32" shape: 1'
RAW_A = r'raw_output_contents: "\001\000\000\000" '
MALFORMED_RESPONSES: list[tuple[list[str], str, str]] = [
    ([A, 'name: "b" datatype: "INT32" shape: 1'], RAW_A, "raw_output_contents: expected contents for 2 tensors, got 1"),
    ([A + " contents { int_contents: 1 }"], RAW_A, "'a'].contents: expected raw or typed contents, got both"),
    ([A, A], RAW_A * 2, "'a'].name: expected a name of its own"),
    ([A], 'raw_output_contents: "ab"', "'a'].data: expected 4 bytes for INT32 .1., got 2"),
    (['name: "a" datatype: "INT32" shape: -1'], RAW_A, "'a'].shape: expected integers of at least 0, got .-1."),
    (['name: "a" datatype: "FP8" shape: 1'], RAW_A, "'a'].datatype: expected one of .*, got 'FP8'"),
    ([A], "", "'a'].data: expected 1 elements for the shape .1., got 0"),
    (
        ['name: "a" datatype: "INT8" shape: 1 contents { int_contents: 1000 }'],
        "",
        "'a'].data: expected numbers that fit INT8",
    ),
    (['name: "a" datatype: "FP16" shape: 1'], "", "'a'].contents: expected raw contents for FP16"),
]


@pytest.mark.parametrize(("outputs", "more", "problem"), MALFORMED_RESPONSES, ids=lambda value: value[:60])
def test_malformed_responses_are_refused(outputs: list[str], more: str, problem: str) -> None:
    text = "".join(f"outputs {{ {output} }} " for output in outputs) + more
    message = text_format.Parse(text, pb.ModelInferResponse())
    with pytest.raises(Malformed, match=problem):
        decode_infer_response(message.SerializeToString())
    with pytest.raises(Malformed, match=problem):
        StreamDecoder().decode(stream_response(message=message))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"\x32", "^body: expected a protobuf message, got a number without an end"),
        (b"\x32\x05abc", "^body: expected a protobuf message, got a truncated one"),
        (b"\xff" * 11, "^body: expected a protobuf message, got a number without an end"),
        (b"\x33", "^body: expected a protobuf message, got the wire type 3"),
        (b"\x6e\x00", "^body: expected a protobuf message, got the wire type 6"),
        (b"\x0d\x00", "^body: expected a protobuf message, got a truncated one"),
        (b"\x0a\x02\xff\xff", "^body: expected a serialized ModelInferResponse"),
        (b"\x00\x00", "^body: expected a serialized ModelInferResponse"),
    ],
)
def test_bytes_that_are_no_message_are_refused(body: bytes, problem: str) -> None:
    with pytest.raises(Malformed, match=problem):
        decode_infer_response(body)
    with pytest.raises(Malformed, match=problem.replace("Response", "Request")):
        decode_infer_request(body, MAX_ELEMENTS)


@given(st.data())
def test_mutated_responses_are_decoded_or_malformed(data: st.DataObject) -> None:
    mutated = bytearray(response().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, max(0, len(mutated) - 1)))
        mutated[index : index + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    for decoder in (decode_infer_response, StreamDecoder().decode):
        with suppress(Malformed):
            decoder(bytes(mutated))


def stream_response(final: bool | None = None, message: pb.ModelInferResponse | None = None) -> bytes:
    whole = pb.ModelStreamInferResponse(infer_response=message)
    if final is not None:
        whole.infer_response.parameters["triton_final_response"].bool_param = final
    return whole.SerializeToString()


@pytest.mark.parametrize("final", [None, False, True])
def test_responses_of_a_stream_say_whether_they_are_final(final: bool | None) -> None:
    error, outputs, last = StreamDecoder().decode(stream_response(final, response()))
    assert (error, last) == ("", bool(final))
    tensors = [(tensor.name, tensor.datatype, tensor.data.tolist()) for tensor in outputs.values()]
    assert tensors == [("logits", "FP32", LOGITS.tolist()), ("text", "BYTES", [b"paris"])]
    assert StreamDecoder().decode(stream_response(final=True)) == ("", {}, True)
    failed = pb.ModelStreamInferResponse(error_message="why").SerializeToString()
    assert StreamDecoder().decode(failed) == ("why", {}, False)
    for broken in (b"\xff\xff", stream_response(message=response())[:-1]):
        with pytest.raises(Malformed):
            StreamDecoder().decode(broken)


def token(text: bytes, *ids: int, final: bool | None = False, name: str = "text") -> bytes:
    """A response of a stream with a text and a number of ids."""
    message = pb.ModelInferResponse(model_name="gpt2", model_version="1")
    message.outputs.add(name=name, datatype="BYTES", shape=[1, 1])
    message.outputs.add(name="ids", datatype="INT32", shape=[len(ids)])
    message.raw_output_contents.extend([len(text).to_bytes(4, "little") + text, np.array(ids, "<i4").tobytes()])
    return stream_response(final, message)


TOKENS = {
    "as before": token(b" is", 5),
    "no text": token(b"", 5),
    "a longer text": token(b"x" * 200, 5),
    "a text of kilobytes": token(b"x" * 20_000, 5),
    "more ids": token(b" is", 5, 6),
    "no ids": token(b" is"),
    "another name": token(b" is", 5, name="texts"),
    "the last one": token(b" is", 5, final=True),
    "no parameter": token(b" is", 5, final=None),
    "the last one, empty": stream_response(True, pb.ModelInferResponse(model_name="gpt2", model_version="1")),
    "an error": pb.ModelStreamInferResponse(error_message="why").SerializeToString(),
    "nothing": b"",
}


def outcome(decoder: StreamDecoder, body: bytes) -> object:
    """The decoder's result, or its error's text."""
    try:
        error, outputs, final = decoder.decode(body)
    except Malformed as problem:
        return str(problem)
    tensors = [(one.name, one.datatype, one.data.dtype, one.data.shape, one.data.tolist()) for one in outputs.values()]
    return error, tensors, final


@pytest.mark.parametrize("second", TOKENS)
@pytest.mark.parametrize("first", TOKENS)
def test_a_response_means_the_same_after_any_other_one(first: str, second: str) -> None:
    decoder = StreamDecoder()
    for name in (first, second, second):
        assert outcome(decoder, TOKENS[name]) == outcome(StreamDecoder(), TOKENS[name])


@given(st.data())
def test_a_mutated_response_means_the_same_after_a_good_one(data: st.DataObject) -> None:
    decoder, mutated = StreamDecoder(), bytearray(token(b" the", 7))
    decoder.decode(token(b" is", 5))
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, max(0, len(mutated) - 1)))
        mutated[index : index + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    assert outcome(decoder, bytes(mutated)) == outcome(StreamDecoder(), bytes(mutated))


def test_a_usual_response_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = StreamDecoder()
    decoder.decode(token(b" is", 5))
    monkeypatch.delattr(decoder.__class__, "_parse")
    assert outcome(decoder, token(b" paris", 9)) == (
        "",
        [("text", "BYTES", np.dtype(object), (1, 1), [[b" paris"]]), ("ids", "INT32", np.dtype("<i4"), (1,), [9])],
        False,
    )


def test_other_methods_have_requests_and_responses() -> None:
    request = pb.ModelMetadataRequest.FromString(encode_request("ModelMetadata", name="bert"))
    assert (request.name, request.version) == ("bert", "")
    body = encode_request("SystemSharedMemoryRegister", name="n", key="/n", byte_size=9)
    register = pb.SystemSharedMemoryRegisterRequest.FromString(body)
    assert (register.name, register.key, register.offset, register.byte_size) == ("n", "/n", 0, 9)
    assert decode_response("ModelReady", pb.ModelReadyResponse(ready=True).SerializeToString()).ready
    assert not decode_response("ServerLive", b"").live
    with pytest.raises(Malformed, match="a serialized RepositoryIndexResponse"):
        decode_response("RepositoryIndex", b"\xff\xff")
    with pytest.raises(Malformed, match="a serialized ModelReadyRequest"):
        decode(pb.ModelReadyRequest, b"\x0a\x05abc")


# From clients


def decoded(message: pb.ModelInferRequest) -> InferRequest:
    return decode_infer_request(message.SerializeToString(), MAX_ELEMENTS)


def parsed(text: str) -> pb.ModelInferRequest:
    return text_format.Parse(text, pb.ModelInferRequest())


def test_a_request_with_typed_contents() -> None:
    request = decoded(typed_request())
    assert (request.model_name, request.model_version, request.id, request.binary) == ("bert", "1", "17", True)
    parameters = {"top_k": 3, "parameters": '{"targets": ["a"]}', "threshold": 0.5, "seed": 2**64 - 1}
    assert request.parameters == parameters
    assert request.inputs["question"] == Texts("question", (2, 1), ["Who?", "I."])
    assert request.inputs["context"] == Texts("context", (1,), ["Привет"])
    numbers = request.inputs["x"]
    assert isinstance(numbers, Tensor)
    assert numbers.data.tolist() == [1, -2, 2**60]
    assert request.outputs == {"output-0": False, "offset_mapping": None}


def test_a_request_with_raw_contents() -> None:
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
HUGE = f"shape: {2**40}"


@pytest.mark.parametrize("raw", [False, True], ids=["typed", "raw"])
@pytest.mark.parametrize("flag", [None, False, True], ids=str)
def test_outputs_are_raw_if_inputs_are_unless_the_request_has_binary_data_output(raw: bool, flag: bool | None) -> None:
    message = parsed(f"inputs {{ {TEXT} }} {RAW}" if raw else f'inputs {{ {TEXT} contents {{ bytes_contents: "a" }} }}')
    if flag is not None:
        message.parameters["binary_data_output"].bool_param = flag
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    request = decoded(message)
    assert (request.binary, request.parameters) == (raw if flag is None else flag, {})


def parameter(name: str, value: str) -> str:
    return f' parameters {{ key: "{name}" value {{ {value} }} }}'


LONG_NAME = "x" * 300
STRING, CLASSES = parameter("binary_data", 'string_param: "true"'), parameter("classification", "int64_param: 3")
NO_ELEMENTS = "shape: expected no more elements than the data has"
NO_UTF8 = r"data\[0\]: expected text in UTF-8$"
MALFORMED: list[tuple[list[str], str, str]] = [
    ([TEXT, TEXT], RAW * 2, "inputs.1..name: expected a name of its own, got 'a'"),
    ([f'name: "{LONG_NAME}"'], "", "inputs.0..name: expected at most 200 characters, got 300"),
    (['name: "a" datatype: "FP8"'], "", "inputs.0..datatype: expected one of .*, got 'FP8'"),
    (['name: "a" datatype: "INT64" shape: -1'], "", "inputs.0..shape: expected integers of at least 0, got .-1."),
    ([TEXT + " shape: 1" * 1000], RAW, "inputs.0..shape: expected at most 320 bytes, got 1001"),
    ([f"{TEXT} {HUGE}"], RAW, f"inputs.0..{NO_ELEMENTS}"),
    ([f"{TEXT} {HUGE}"], "", f"inputs.0..{NO_ELEMENTS}"),
    ([f"{TEXT} {HUGE} shape: 0"], 'raw_input_contents: ""', f"inputs.0..{NO_ELEMENTS}"),
    ([TEXT, OTHER], RAW, "raw_input_contents: expected contents for 2 inputs, got 1"),
    ([], RAW, "raw_input_contents: expected contents for 0 inputs, got 1"),
    ([TEXT + ' contents { bytes_contents: "a" }'], RAW, "inputs.0..contents: expected raw or typed contents, got both"),
    ([TEXT], r'raw_input_contents: "\001\000\000\000"', "inputs.0..data: .*, got an end within element 0"),
    ([TEXT], r'raw_input_contents: "\001\000\000\000\377"', f"inputs.0..{NO_UTF8}"),
    ([TEXT + r' contents { bytes_contents: "\377" }'], "", f"inputs.0..{NO_UTF8}"),
    ([TEXT + " shape: 3" + ' contents { bytes_contents: "a" }'], "", "expected 3 elements for the shape .1, 3., got 1"),
    (['name: "a" datatype: "INT64" shape: 1'], "", "inputs.0..data: expected 1 elements for the shape .1., got 0"),
    (['name: "a" datatype: "FP16" shape: 1'], "", "inputs.0..contents: expected raw contents for FP16"),
    (
        [TEXT + parameter("shared_memory_region", 'string_param: "x"')],
        RAW,
        "inputs.0..parameters: expected binary_data_size or content_type, got 'shared_memory_region'",
    ),
    (
        [TEXT + parameter("binary_data_size", "int64_param: 7")],
        RAW,
        "inputs.0..parameters.binary_data_size: expected the 5 bytes of the raw contents",
    ),
    ([], parameter("top_k", ""), "parameters.top_k: expected a boolean, number or string"),
    ([], parameter("binary_data_output", "int64_param: 1"), "parameters.binary_data_output: expected true or false"),
    ([], 'outputs { name: "a" } outputs { name: "a" }', "outputs.1..name: expected a name of its own, got 'a'"),
    ([], f'outputs {{ name: "{LONG_NAME}" }}', "outputs.0..name: expected at most 200 characters, got 300"),
    ([], f'outputs {{ name: "a" {CLASSES} }}', "outputs.0..parameters: expected binary_data, got 'classification'"),
    (
        [],
        f'outputs {{ name: "a" {STRING} }}',
        "outputs.0..parameters.binary_data: expected true or false, got a string",
    ),
]


def test_unknown_parameters_are_ignored_and_noted() -> None:
    entry = TEXT + parameter("content", 'string_param: "np"')
    text = f'inputs {{ {entry} }} {RAW} outputs {{ name: "a" {parameter("é", "int64_param: 3")} }}'
    request = decoded(parsed(text))
    assert list(request.ignored) == ["content", "_"]
    assert list(request.inputs) == ["a"] and request.outputs == {"a": None}


@pytest.mark.parametrize(("inputs", "more", "message"), MALFORMED, ids=[row[2][:50] for row in MALFORMED])
def test_malformed_requests_are_refused_with_the_path_of_the_field(inputs: list[str], more: str, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        decoded(parsed("".join(f"inputs {{ {entry} }} " for entry in inputs) + more))


def request_of(datatype: str, field: str, values: list[Any]) -> pb.ModelInferRequest:
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
def test_too_many_elements_are_refused_in_bounded_memory(datatype: str, field: str, values: list[Any]) -> None:
    message = request_of(datatype, field, values * 2049)
    with pytest.raises(
        TooLarge, match=r"^inputs\[0\]\..*: expected at most 2048 elements .*--max_instances and --max_sequences"
    ):
        decoded(message)
    GrpcBodies().assert_bounded((message.SerializeToString(), None))
    if datatype == "BYTES":
        assert decoded(request_of(datatype, field, values * 2048)).inputs["text"] == Texts("text", (2048,), [""] * 2048)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        pytest.param(b"\x3a\x00" * (MAX_FIELDS + 1), "body: expected at most 1000 fields", id="raw contents"),
        pytest.param(b"\x2a\x00" * (MAX_TENSORS + 1), "inputs: expected at most 16 tensors", id="inputs"),
        pytest.param(b"\x32\x00" * (MAX_TENSORS + 1), "outputs: expected at most 16 tensors", id="outputs"),
        pytest.param(
            b"\x2a\xd2\x0f" + b"\x22\x00" * 1001, r"inputs\[0\]: expected at most 1000 fields", id="parameters"
        ),
        pytest.param(b"\x32\xd2\x0f" + b"\x12\x00" * 1001, "outputs: expected at most 1000 fields", id="an output"),
        pytest.param(
            b"\x2a\x02\x2a\x05", r"inputs\[0\]: expected a protobuf message, got a truncated one", id="no input"
        ),
    ],
)
def test_many_small_fields_are_refused_in_bounded_memory(body: bytes, problem: str) -> None:
    with pytest.raises(Malformed, match=problem):
        decode_infer_request(body, MAX_ELEMENTS)
    GrpcBodies().assert_bounded((body, None))


def test_repeated_contents_of_an_input_count_together() -> None:
    body = bytes.fromhex("2a9c1f") + bytes.fromhex("2a024200") * 999  # an input of 999 contents {bytes_contents: ""}
    with pytest.raises(TooLarge):
        decode_infer_request(body, 998)
    with pytest.raises(Malformed, match="datatype: expected"):
        decode_infer_request(body, 999)


def test_a_malformed_request_has_an_id() -> None:
    message = typed_request()
    message.inputs[0].datatype = "FP8"
    assert request_id(message.SerializeToString()) == "17"
    assert request_id(b"\x1a\x01a\x1a\x01b") == "b"
    assert request_id(b"\x1a\x01\xff") == request_id(b"\x1a\x05a") == request_id(b"") == ""


def test_damaged_messages_are_decoded_or_refused() -> None:
    """A few hundred; scripts/test_clients runs a million."""
    assert 0.05 < GrpcBodies().fuzz(600, seed=1, sample=20) / 600 < 0.5


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
        (OUTPUTS, {}, True, True),
        (OUTPUTS, {}, False, False),
        (OUTPUTS, {"json": True, "output-0": False}, False, True),
        ((HALF,), {}, False, True),
    ],
    ids=["raw", "typed", "one raw output makes all raw", "half floats are always raw"],
)
def test_a_response_is_raw_or_typed_as_a_whole(
    outputs: tuple[Tensor, ...], wanted: dict[str, bool | None], binary: bool, raw: bool
) -> None:
    answer = InferResponse("bert", "1", outputs, "7")
    body = encode_infer_response(answer, InferRequest({}, outputs=wanted, binary=binary))
    message = pb.ModelInferResponse.FromString(body)
    assert (message.model_name, message.model_version, message.id) == ("bert", "1", "7")
    assert len(message.raw_output_contents) == (len(outputs) if raw else 0)
    assert not message.parameters
    tensors = tuple(decode_infer_response(body).values())
    assert [(tensor.name, tensor.datatype, tensor.shape) for tensor in tensors] == [
        (tensor.name, tensor.datatype, tensor.shape) for tensor in outputs
    ]
    assert [tensor.data.tolist() for tensor in tensors] == [tensor.data.tolist() for tensor in outputs]


@pytest.mark.parametrize("size", [0, 127, 128, 16384, 2_100_000])
def test_stream_responses_of_every_size(size: int) -> None:
    data = (np.arange(size) % 251).astype(np.uint8)
    answer = InferResponse("bert", "1", [Tensor("a", "UINT8", data)], "7")
    body = encode_infer_response(answer, InferRequest({}, binary=True), final=True)
    message = pb.ModelStreamInferResponse.FromString(encode_stream_response(body))
    assert message.error_message == ""
    assert message.infer_response.raw_output_contents[0] == data.tobytes()
    assert message.infer_response.parameters["triton_final_response"].bool_param
    message = pb.ModelStreamInferResponse.FromString(encode_stream_error("text: too long", "7"))
    assert (message.error_message, message.infer_response.id) == ("text: too long", "7")
    assert message.infer_response.parameters["triton_final_response"].bool_param
