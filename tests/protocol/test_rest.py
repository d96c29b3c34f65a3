"""Bodies of the V2 protocol over HTTP: the predictor's and those of the service's clients."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.errors import PredictorError, TooLarge, show_path
from hf_transformer.protocol.rest import decode_infer_response, encode_infer_request, parse_header_length
from hf_transformer.protocol.rest_server_codec import decode_infer_request, encode_infer_response
from hf_transformer.protocol.server_codec import InferRequest, InferResponse
from hf_transformer.protocol.tensors import NO_PLACEMENTS, Malformed, Placement
from hf_transformer.types.tensors import NUMPY_DTYPES, Tensor, Texts
from tests.protocol.fuzzing import DEEP, MAX_ELEMENTS, Body, RestBodies, dump, framed, tensor

# To the predictor


def encoded(
    inputs: Sequence[Tensor], outputs: Sequence[str], placements: Mapping[str, Placement] = NO_PLACEMENTS
) -> tuple[bytes, int]:
    """The body of a request, and the length of its JSON header."""
    header, chunks = encode_infer_request(inputs, outputs, placements)
    return b"".join((header, *chunks)), len(header)


LOGITS = np.arange(6, dtype="<f4").reshape(1, 2, 3)
TEXTS = ["paris", "é"]
ELEMENTS = [text.encode() for text in TEXTS]


def response_body(*outputs: Any, raw: bytes = b"") -> tuple[memoryview, int]:
    """A response with these outputs, and the length of its JSON."""
    text = orjson.dumps({"model_name": "bert", "model_version": "1", "outputs": outputs})
    return memoryview(text + raw), len(text)


def response() -> tuple[memoryview, int]:
    return response_body(
        {"name": "logits", "datatype": "FP32", "shape": [1, 2, 3], "parameters": {"binary_data_size": LOGITS.nbytes}},
        {"name": "text", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 15}},
        {"name": "score", "datatype": "FP64", "shape": [1, 2], "data": [[0.5, 1]]},
        raw=LOGITS.tobytes() + b"\5\0\0\0paris\2\0\0\0\xc3\xa9",
    )


def test_a_request_has_a_json_header_and_raw_elements() -> None:
    inputs = [
        Tensor("input_ids", "INT64", np.array([[101, 103]])),
        Tensor("mask", "INT32", np.array([[1, 1]], np.int32)),
        Tensor("text", "BYTES", np.array(["é"], np.object_)),
    ]
    body, length = encoded(inputs, ["logits", "pooled"])
    assert orjson.loads(body[:length]) == {
        "inputs": [
            {"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "parameters": {"binary_data_size": 16}},
            {"name": "mask", "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
            {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}},
        ],
        "outputs": [
            {"name": "logits", "parameters": {"binary_data": True}},
            {"name": "pooled", "parameters": {"binary_data": True}},
        ],
    }
    numbers = np.array([101, 103], "<i8").tobytes() + np.array([1, 1], "<i4").tobytes()
    assert body[length:] == numbers + b"\2\0\0\0\xc3\xa9"
    body, length = encoded([], [])  # all outputs
    assert orjson.loads(body[:length]) == {"inputs": [], "parameters": {"binary_data_output": True}}


def test_a_large_input_is_not_copied() -> None:
    large, small = np.zeros((3, 2**16), "<f4"), np.ones((2, 2), "<i8")
    inputs = [Tensor("a", "INT64", small), Tensor("b", "FP32", large), Tensor("c", "FP32", large.T)]
    _, chunks = encode_infer_request(inputs, ["x"])
    assert [len(chunk) for chunk in chunks] == [32, large.nbytes, large.nbytes]
    pairs = zip(chunks, inputs, strict=True)
    shared = [np.shares_memory(np.frombuffer(chunk, "u1"), tensor.data) for chunk, tensor in pairs]
    assert shared == [False, True, False], "only memory that is laid out like the bytes"


def test_a_response_has_raw_and_json_outputs() -> None:
    body, length = response()
    outputs = decode_infer_response(body, length)
    types = {name: (tensor.name, tensor.datatype) for name, tensor in outputs.items()}
    assert types == {"logits": ("logits", "FP32"), "text": ("text", "BYTES"), "score": ("score", "FP64")}
    np.testing.assert_array_equal(outputs["logits"].data, LOGITS)
    assert np.shares_memory(outputs["logits"].data, np.frombuffer(body, np.uint8))
    assert outputs["text"].data.tolist() == ELEMENTS
    assert outputs["score"].data.tolist() == [[0.5, 1]]
    body, _ = response_body({"name": "a", "datatype": "INT64", "shape": [2, 1], "data": [7, 8]})
    assert decode_infer_response(body, None)["a"].data.tolist() == [[7], [8]], "JSON alone"


@pytest.mark.parametrize("spaces", range(8), ids=lambda count: f"{count} bytes further")
def test_elements_may_be_unaligned(spaces: int) -> None:
    body, length = response()
    moved = memoryview(b" " * spaces + body)
    logits = decode_infer_response(moved, length + spaces)["logits"].data
    assert logits.sum() == LOGITS.sum()
    assert logits.argmax(-1).tolist() == LOGITS.argmax(-1).tolist()


SIZE_OF_A = "outputs['a'].parameters.binary_data_size: expected a number of bytes"


def output(**changes: Any) -> dict[str, Any]:
    whole = {"name": "a", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}, **changes}
    return {key: value for key, value in whole.items() if value is not ...}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (output(parameters={"binary_data_size": 5}), f"{SIZE_OF_A} up to the remaining 4, got 5"),
        (output(parameters={"binary_data_size": -4}), f"{SIZE_OF_A} up to the remaining 4, got -4"),
        (output(parameters={"binary_data_size": True}), f"{SIZE_OF_A} up to the remaining 4, got True"),
        (output(parameters={"binary_data_size": 2}), "outputs['a'].data: expected 4 bytes for INT32 [1], got 2"),
        (output(parameters=[4]), "outputs['a'].parameters: expected an object, got a list"),
        (output(parameters=...), "outputs['a']: expected data or binary_data_size, got neither"),
        (output(parameters={}), "outputs['a']: expected data or binary_data_size, got neither"),
        (output(data=[1]), "outputs['a']: expected data or binary_data_size, got both"),
        (output(parameters=..., data=[1]), "body: expected no bytes behind the last tensor, got 4"),
        (output(shape=...), "outputs['a'].shape: expected a list of integers, got null"),
        (output(shape=[2]), "outputs['a'].data: expected 8 bytes for INT32 [2], got 4"),
        (output(datatype="INT33"), "outputs['a'].datatype: expected one of BF16, BOOL"),
        (output(datatype=...), "outputs['a'].datatype: expected one of BF16, BOOL"),
        (output(name=7), "outputs: expected tensors with a name, got {"),
        (None, "outputs: expected tensors with a name, got None"),
    ],
)
def test_malformed_outputs_are_named(entry: Any, message: str) -> None:
    with pytest.raises(Malformed, match=re.escape(message)):
        decode_infer_response(*response_body(entry, raw=b"\0\0\0\0"))


def test_two_outputs_of_one_name_are_malformed() -> None:
    with pytest.raises(Malformed, match=r"'a'\]\.name: expected a name of its own"):
        decode_infer_response(*response_body(output(), output(), raw=bytes(8)))


@pytest.mark.parametrize(
    ("body", "length", "message"),
    [
        (b"", None, "body: expected JSON"),
        (b"[]", None, "body: expected a JSON object, got a list"),
        (b"{}", None, "outputs: expected a list of tensors, got null"),
        (b'{"outputs":{}}', None, "outputs: expected a list of tensors, got an empty object"),
        (b"{}", 3, "Inference-Header-Content-Length: expected at most the 2 bytes of the body, got 3"),
        (b"{}", 1, "body: expected JSON"),
        (b"[" * 150, None, "body: expected JSON"),
        (b"[" * 100_000, None, "body: expected lists and objects nested at most 200 deep"),
    ],
)
def test_malformed_responses_are_refused(body: bytes, length: int | None, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        decode_infer_response(memoryview(body), length)


def test_the_header_length_is_a_number() -> None:
    assert parse_header_length(b"17") == 17
    for text in ("", "-1", "1.5", "x", "1" * 20, "\u0661"):
        with pytest.raises(Malformed):
            parse_header_length(text.encode())


@given(st.data())
def test_mutated_responses_are_decoded_or_malformed(data: st.DataObject) -> None:
    body, length = response()
    mutated = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(mutated) - 1))
        mutated[index : index + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        mutated = mutated or bytearray(b"{")
    claimed = data.draw(st.one_of(st.just(length), st.integers(0, len(mutated) + 5), st.none()))
    with suppress(Malformed, PredictorError):
        decode_infer_response(memoryview(mutated), claimed)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=12,
)
"""Any JSON, in the place of a tensor's fields."""


@given(JSON, JSON, JSON, JSON, st.sampled_from(["INT8", "UINT64", "FP16", "FP32", "BF16", "BOOL", "BYTES"]))
def test_any_json_is_decoded_or_malformed(shape: Any, data: Any, size: Any, name: Any, datatype: str) -> None:
    entries = [
        {"name": "a", "datatype": datatype, "shape": shape, "data": data},
        {"name": name, "datatype": datatype, "shape": [2], "parameters": {"binary_data_size": size}},
    ]
    for entry in entries:
        with suppress(Malformed):
            decode_infer_response(*response_body(entry, raw=bytes(4)))


# From clients

ENTRY = tensor("text", [2], data=["paris", "é"])
RAW = framed(ELEMENTS)
RAW_ENTRY = tensor("text", [2], parameters={"binary_data_size": len(RAW)})


def request(header: Any, raw: bytes = b"") -> InferRequest:
    text = dump(header)
    return decode_infer_request(text + raw, len(text) if raw else None, MAX_ELEMENTS)


@pytest.mark.parametrize(
    ("entry", "raw"),
    [
        pytest.param(ENTRY, b"", id="json"),
        pytest.param(tensor("text", [2], data=[["paris"], ["é"]]), b"", id="nested"),
        pytest.param(RAW_ENTRY, RAW, id="raw"),
        pytest.param({**RAW_ENTRY, "data": None}, RAW, id="raw, data null"),
        pytest.param({**ENTRY, "parameters": None}, b"", id="parameters null"),
        pytest.param({**ENTRY, "parameters": {"content_type": "str"}}, b"", id="content type"),
    ],
)
def test_texts_are_read_in_every_form(entry: Any, raw: bytes) -> None:
    decoded = request({"inputs": [entry]}, raw)
    assert decoded.inputs["text"] == Texts("text", (2,), TEXTS)
    assert (decoded.id, decoded.parameters, decoded.outputs, decoded.binary) == ("", {}, {}, False)


def test_a_request_has_an_id_parameters_and_outputs() -> None:
    decoded = request(
        {
            "id": "17",
            "model_name": "bert",
            "model_version": None,  # like a missing key
            "parameters": {"top_k": 3, "targets": ["a"], "binary_data_output": True},
            "inputs": [RAW_ENTRY, tensor("text_pair", [1, 1], data=["x"])],
            "outputs": [
                {"name": "output-0"},
                {"name": "a", "parameters": {"binary_data": False}},
                {"name": "b", "parameters": {"binary_data": True}},
            ],
        },
        RAW,
    )
    assert (decoded.id, decoded.model_name, decoded.model_version) == ("17", "bert", "")
    assert decoded.parameters == {"top_k": 3, "targets": ["a"]}
    assert list(decoded.inputs.values()) == [Texts("text", (2,), TEXTS), Texts("text_pair", (1, 1), ["x"])]
    assert decoded.outputs == {"output-0": None, "a": False, "b": True}
    assert [decoded.wants_binary(name) for name in ("output-0", "a", "b")] == [True, False, True]


@pytest.mark.parametrize("datatype", [*NUMPY_DTYPES, "BF16"])
def test_requests_to_predictors_are_decoded_by_the_server(datatype: str) -> None:
    numbers = np.array([[0, 1], [1, 0]], NUMPY_DTYPES.get(datatype, np.dtype("<f4")))
    texts = np.array(ELEMENTS, np.object_)
    inputs = [Tensor("n", datatype, numbers), Tensor("text", "BYTES", texts)]
    body, length = encoded(inputs, ["a"])
    decoded = decode_infer_request(body, length, MAX_ELEMENTS)
    tensor = decoded.inputs["n"]
    assert isinstance(tensor, Tensor)
    np.testing.assert_array_equal(tensor.data, numbers)
    assert decoded.inputs["text"] == Texts("text", (2,), TEXTS)
    assert decoded.outputs == {"a": True}


def with_keys(**keys: Any) -> dict[str, Any]:
    return {"inputs": [ENTRY], **keys}


def with_output(**fields: Any) -> dict[str, Any]:
    return with_keys(outputs=[{"name": "a", **fields}])


def with_input(**fields: Any) -> dict[str, Any]:
    return {"inputs": [{**ENTRY, **fields}]}


N = {"name": "n", "shape": [1]}
NESTED = json.loads("[" * 150 + "]" * 150)
"""Lists nested less deep than MAX_NESTING."""
EXTENSION = "this extension of Triton is not supported"
WRONG_REQUESTS: list[tuple[Any, str, str]] = [
    ([], "body", "a JSON object, got a list"),
    ({"id": "1"}, "inputs", "a list of tensors, got null"),
    ({"inputs": {"text": "a"}}, "inputs", "a list of tensors, got an object"),
    (with_keys(id=7), "id", "a string, got a number"),
    (with_keys(parameters=[1]), "parameters", "an object, got a list"),
    (
        with_keys(parameters={"binary_data_output": "yes"}),
        "parameters.binary_data_output",
        "true or false, got a string",
    ),
    (with_keys(model_name=["bert"]), "model_name", "a string, got a list"),
    (with_keys(model_version=1), "model_version", "a string, got a number"),
    # No entry is valid: the number is checked first.
    ({"inputs": [1] * 17}, "inputs", "at most 16 tensors, got 17"),
    (with_keys(outputs=[1] * 17), "outputs", "at most 16 tensors, got 17"),
    ({"inputs": [ENTRY, ENTRY]}, "inputs[1].name", "a name of its own, got 'text'"),
    (with_keys(outputs="output-0"), "outputs", "a list of tensors, got a string"),
    (with_keys(outputs=["output-0"]), "outputs[0]", "an object with a name, got a string"),
    (with_keys(outputs=[{"name": 1}]), "outputs[0].name", "a string, got a number"),
    (with_keys(outputs=[{"name": "a"}, {"name": "a"}]), "outputs[1].name", "a name of its own, got 'a'"),
    (with_output(parameters={"classification": 3}), "outputs[0].parameters", f"got 'classification'; {EXTENSION}"),
    (with_output(parameters={"binary_data": 1}), "outputs[0].parameters.binary_data", "true or false, got a number"),
    ({"inputs": NESTED}, "inputs[0]", "an object with a name, got a list"),
    # One input
    ({"inputs": [NESTED]}, "inputs[0]", "an object with a name, got a list"),
    ({"inputs": [{"data": ["secret"]}]}, "inputs[0].name", "a string, got null"),
    (with_input(name="x" * 201), "inputs[0].name", "at most 200 characters, got 201"),
    ({"inputs": [{**N, "dtype": "INT64", "data": [1]}]}, "inputs[0].datatype", "UINT8, got null"),
    (with_input(datatype="STRING"), "inputs[0].datatype", "UINT8, got 'STRING'"),
    (with_input(shape=None), "inputs[0].shape", "a list of integers, got null"),
    (with_input(shape=[2**40]), "inputs[0].shape", "no more elements than the data has"),
    (with_input(shape=[2**40, 0], data=[]), "inputs[0].shape", "no more elements than the data has"),
    (with_input(shape=[3]), "inputs[0].data", "3 elements for the shape [3], got 2"),
    (with_input(data=["secret", 1]), "inputs[0].data", "strings, which BYTES are in JSON, got int"),
    (with_input(data=["secret", ["b"]]), "inputs[0].data", "all elements at one depth"),
    (with_input(data="secret"), "inputs[0].data", "a list, got a string"),
    (with_input(data=None), "inputs[0]", "data or binary_data_size, got neither"),
    (with_input(parameters=1), "inputs[0].parameters", "an object, got a number"),
    (
        with_input(parameters={"shared_memory_region": "x"}),
        "inputs[0].parameters",
        f"binary_data_size or content_type, got 'shared_memory_region'; {EXTENSION}",
    ),
    (with_input(parameters={"content_type": "np"}), "inputs[0].parameters.content_type", "'str', got 'np'"),
    ({"inputs": [{**N, "datatype": "INT64", "data": [0.5]}]}, "inputs[0].data", "elements of INT64, got float"),
    ({"inputs": [{**N, "datatype": "INT8", "data": [128]}]}, "inputs[0].data", "numbers that fit INT8"),
]


IGNORED: list[tuple[Any, list[str]]] = [
    (with_keys(paramters={}, outputs=None), ["paramters"]),
    (with_keys(instances=["a"], **{"": 1}), ["instances", "_"]),
    (with_keys(**{"x" * 9999: 1, "a b\r\nc: é": None}), ["x" * 40, "a_b__c___"]),
    (with_output(kind=1, parameters={"binary_dat": True}), ["kind", "binary_dat"]),
    (with_input(dtype="BYTES", parameters={"content": "np", "binary_data": True}), ["dtype", "content", "binary_data"]),
    (with_keys(**{str(number): 1 for number in range(9999)}), [str(number) for number in range(10)]),
    (with_keys(kind=1, outputs=[{"name": "a", "kind": 1}, {"name": "b", "kind": 1}]), ["kind"]),
]


@pytest.mark.parametrize(("header", "names"), IGNORED, ids=[names[0][:20] for _, names in IGNORED])
def test_unknown_names_are_ignored_and_noted(header: Any, names: list[str]) -> None:
    decoded = request(header)
    assert sorted(decoded.ignored) == sorted(names)
    assert list(decoded.inputs) == ["text"] and decoded.parameters == {}


@pytest.mark.parametrize(
    ("header", "path", "message"), WRONG_REQUESTS, ids=[f"{path} {message}"[:40] for _, path, message in WRONG_REQUESTS]
)
def test_wrong_requests_are_refused_with_the_path_of_the_field(header: Any, path: str, message: str) -> None:
    with pytest.raises(Malformed, match=f"expected .*{re.escape(message)}") as raised:
        request(header)
    assert show_path(raised.value.path) == path
    assert len(str(raised.value)) < 200
    assert "secret" not in str(raised.value)


NOT_UTF8 = framed([b"secret", b"\xff\xfe"])
LISTS = b'{"inputs":[' + b"[]," * 50_000 + b"[]]}"
RAW_SIZE = "parameters.binary_data_size: expected a number of bytes up to the remaining 15"


@pytest.mark.parametrize(
    ("changes", "raw", "message"),
    [
        ({"parameters": {"binary_data_size": len(RAW) + 1}}, RAW, f"{RAW_SIZE}, got 16"),
        ({"parameters": {"binary_data_size": -1}}, RAW, f"{RAW_SIZE}, got -1"),
        ({"parameters": {"binary_data_size": NESTED}}, RAW, RAW_SIZE),
        ({"parameters": {"binary_data_size": 15, "content_type": "np"}}, RAW, "content_type: expected 'str', got 'np'"),
        ({"parameters": {"binary_data_size": 4}, "shape": [1]}, RAW, "got an end within element 0"),
        ({"parameters": {}, "data": ["a", "b"]}, RAW, "body: expected no bytes behind the last tensor, got 15"),
        ({"data": ["a", "b"]}, RAW, "expected data or binary_data_size, got both"),
        ({"shape": [2**40]}, RAW, "shape: expected no more elements than the data has"),
        ({"shape": [2**32, 0]}, RAW, "shape: expected no more elements than the data has"),
        ({"datatype": "INT64"}, RAW, "data: expected 16 bytes for INT64 .2., got 15"),
        ({"parameters": {"binary_data_size": len(NOT_UTF8)}}, NOT_UTF8, r"data\[1\]: expected text in UTF-8$"),
    ],
    ids=str,
)
def test_wrong_raw_inputs_are_refused(changes: Any, raw: bytes, message: str) -> None:
    with pytest.raises(Malformed, match=message) as raised:
        request({"inputs": [{**RAW_ENTRY, **changes}]}, raw)
    assert raised.value.path[:2] in ([("body",)] if message.startswith("body") else [("inputs", 0)])


@pytest.mark.parametrize(
    ("body", "length", "error", "message"),
    [
        (
            dump({"inputs": [ENTRY]}),
            10**6,
            Malformed,
            "Inference-Header-Content-Length: expected at most the .* bytes of the body, got 1000000",
        ),
        *[
            (body, None, Malformed, "^body: expected JSON in UTF-8; ")
            for body in (b"", b"{", b'{"inputs":[1e999]}', b'{"id":"\xff"}', b"[" * 150)
        ],
        *[
            (body, None, TooLarge, "^body: expected lists and objects nested at most 200 deep$")
            for body in (b"[" * 40_000, dump({"inputs": DEEP}), dump({"inputs": [DEEP]}), dump(with_keys(id=DEEP)))
        ],
        (LISTS, None, TooLarge, "^body: expected at most 42768 lists, objects and keys, got 50004"),
        (b'{"x":{' + b'"a":0,' * 50_000 + b'"a":0}}', None, TooLarge, "lists, objects and keys, got 50004"),
        (b'{"inputs":[' + b"0," * 50_000 + b"0]}", None, TooLarge, "42768 values, got 50000; .*--max_instances"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_wrong_bodies_are_refused(body: bytes, length: int | None, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        decode_infer_request(body, length, MAX_ELEMENTS)


def test_too_many_elements_are_refused_before_any_is_read() -> None:
    """No error about an element that is no string in JSON, or cut off in raw data."""
    count = MAX_ELEMENTS + 1
    raw = bytes(4 * count - 1) + b"\xff"
    entries = [
        (tensor("text", [count], data=[1] * count), b""),
        ({"name": "n", "datatype": "INT64", "shape": [count, 1], "data": ["x"] * count}, b""),
        (tensor("text", [1, count], parameters={"binary_data_size": len(raw)}), raw),
    ]
    message = r"shape: expected at most 2048 elements .*--max_instances and --max_sequences\), got 2049"
    for entry, raw_data in entries:
        with pytest.raises(TooLarge, match=message):
            request({"inputs": [entry]}, raw_data)
    assert request({"inputs": [tensor("text", [count - 1], data=["a"] * (count - 1))]}).inputs["text"].shape == (2048,)


def test_responses_in_json() -> None:
    floats = np.arange(6, dtype=np.float32).reshape(2, 3).T / 3
    outputs = [
        Tensor("a", "INT64", np.array([[1], [-2]])),
        Tensor("b", "BYTES", np.array([ELEMENTS], np.object_)),
        Tensor("c", "FP32", floats),
        Tensor("d", "INT64", np.empty((0, 2), np.int64)),
        Tensor("e", "INT64", np.arange(6)[::2]),  # not contiguous
    ]
    body, length = encode_infer_response(InferResponse("bert", "1", outputs, "17"), InferRequest({}))
    assert length is None
    header = orjson.loads(body)
    entries = header.pop("outputs")
    c = entries.pop(2)
    assert header == {"model_name": "bert", "model_version": "1", "id": "17"}
    assert entries == [
        {"name": "a", "datatype": "INT64", "shape": [2, 1], "data": [1, -2]},
        {"name": "b", "datatype": "BYTES", "shape": [1, 2], "data": TEXTS},
        {"name": "d", "datatype": "INT64", "shape": [0, 2], "data": []},
        {"name": "e", "datatype": "INT64", "shape": [3], "data": [0, 2, 4]},
    ]
    assert c["shape"] == [3, 2]
    assert np.array(c["data"], np.float32).tolist() == floats.ravel().tolist()


def test_raw_and_json_responses_are_read_by_the_client_side() -> None:
    outputs = [
        Tensor("a", "INT64", np.array([[1], [-2]])),
        Tensor("b", "BYTES", np.array(ELEMENTS, np.object_)),
        Tensor("c", "FP32", np.array([0.1, np.inf], np.float32)),
    ]
    wanted = {"a": None, "b": False, "c": True}
    response = InferResponse("bert", "", outputs)
    body, length = encode_infer_response(response, InferRequest({}, outputs=wanted, binary=True))
    assert orjson.loads(body[:length]).keys() == {"model_name", "outputs"}
    assert [list(entry) for entry in orjson.loads(body[:length])["outputs"]] == [
        ["name", "datatype", "shape", last] for last in ("parameters", "data", "parameters")
    ]
    decoded = decode_infer_response(memoryview(body), length)
    assert [tensor.data.tolist() for tensor in decoded.values()] == [tensor.data.tolist() for tensor in outputs]
    empty = InferResponse("bert", "1", [Tensor("a", "INT64", np.empty((0,), np.int64))])
    body, length = encode_infer_response(empty, InferRequest({}, binary=True))
    assert length == len(body), "even without elements"
    assert orjson.loads(body)["outputs"][0]["parameters"] == {"binary_data_size": 0}


def test_damaged_bodies_are_decoded_or_refused() -> None:
    assert 0.02 < RestBodies().fuzz(5000, seed=1, sample=50) / 5000 < 0.5


@pytest.mark.parametrize(
    "body",
    [
        (dump({"inputs": [tensor("text", [2**40], data=["a"])]}), None),
        (dump({"inputs": [tensor("texts", [2**40, 0], data=[])]}), None),
        (dump({"inputs": [tensor("text", [2**44], parameters={"binary_data_size": 0})]}), str(2**60)),
        (dump({"inputs": [{"name": "n", "datatype": "FP64", "shape": [2**44], "data": [1]}]}), None),
        (LISTS, None),
        (dump({"inputs": [tensor("text", [1], data=["a"] * 20_000)]}), None),
        (dump({"inputs": [tensor("text", [20_000], data=["a"] * 20_000)]}), None),
    ],
    ids=["json", "empty rows", "header", "numbers", "lists", "more than the shape", "too many"],
)
def test_no_more_memory_than_the_body_justifies(body: Body) -> None:
    RestBodies().assert_bounded(body)
