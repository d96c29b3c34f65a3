"""HTTP bodies: as the predictor gets and sends them, and as clients of the service do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.errors import PredictorError, TooLarge
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


def answered(*outputs: Any, raw: bytes = b"") -> tuple[memoryview, int]:
    """A response, and the length of its JSON."""
    text = orjson.dumps({"model_name": "bert", "model_version": "1", "outputs": outputs})
    return memoryview(text + raw), len(text)


def response() -> tuple[memoryview, int]:
    return answered(
        {"name": "logits", "datatype": "FP32", "shape": [1, 2, 3], "parameters": {"binary_data_size": LOGITS.nbytes}},
        {"name": "text", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 15}},
        {"name": "score", "datatype": "FP64", "shape": [1, 2], "data": [[0.5, 1]]},
        raw=LOGITS.tobytes() + b"\5\0\0\0paris\2\0\0\0\xc3\xa9",
    )


def test_request() -> None:
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
    shared = [np.shares_memory(np.frombuffer(chunk, "u1"), one.data) for chunk, one in zip(chunks, inputs, strict=True)]
    assert shared == [False, True, False], "only memory that is laid out like the bytes"


def test_response() -> None:
    body, length = response()
    outputs = decode_infer_response(body, length)
    types = {name: (one.name, one.datatype) for name, one in outputs.items()}
    assert types == {"logits": ("logits", "FP32"), "text": ("text", "BYTES"), "score": ("score", "FP64")}
    np.testing.assert_array_equal(outputs["logits"].data, LOGITS)
    assert np.shares_memory(outputs["logits"].data, np.frombuffer(body, np.uint8))
    assert outputs["text"].data.tolist() == ELEMENTS
    assert outputs["score"].data.tolist() == [[0.5, 1]]
    body, _ = answered({"name": "a", "datatype": "INT64", "shape": [2, 1], "data": [7, 8]})
    assert decode_infer_response(body, None)["a"].data.tolist() == [[7], [8]], "JSON alone"


@pytest.mark.parametrize("spaces", range(8), ids=lambda count: f"{count} bytes further")
def test_elements_at_any_address(spaces: int) -> None:
    body, length = response()
    moved = memoryview(b" " * spaces + body)
    found = decode_infer_response(moved, length + spaces)
    assert found["logits"].data.sum() == LOGITS.sum()
    assert found["logits"].data.argmax(-1).tolist() == LOGITS.argmax(-1).tolist()


def output(**changes: Any) -> dict[str, Any]:
    whole = {"name": "a", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}, **changes}
    return {key: value for key, value in whole.items() if value is not ...}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (output(parameters={"binary_data_size": 5}), "5, but 4 bytes are left"),
        (output(parameters={"binary_data_size": -4}), "binary_data_size -4"),
        (output(parameters={"binary_data_size": True}), "binary_data_size True"),
        (output(parameters={"binary_data_size": 2}), "has 2 bytes, but INT32 .1. takes 4"),
        (output(parameters=[4]), "are no object"),
        (output(parameters=...), "neither data nor"),
        (output(parameters={}), "neither data nor"),
        (output(data=[1]), "both data and"),
        (output(parameters=..., data=[1]), "4 bytes stand behind"),
        (output(shape=...), "has no shape"),
        (output(shape=[2]), "takes 8"),
        (output(datatype="INT33"), "unknown datatype 'INT33'"),
        (output(datatype=...), "unknown datatype"),
        (output(name=7), "not a tensor with a name"),
        (None, "not a tensor with a name"),
    ],
)
def test_malformed_output(entry: Any, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        decode_infer_response(*answered(entry, raw=b"\0\0\0\0"))
    with pytest.raises(Malformed, match="'a' comes twice"):
        decode_infer_response(*answered(output(), output(), raw=bytes(8)))


@pytest.mark.parametrize(
    ("body", "length", "message"),
    [
        (b"", None, "not JSON"),
        (b"[]", None, "not a JSON object"),
        (b"{}", None, "no list of tensors"),
        (b'{"outputs":{}}', None, "no list of tensors"),
        (b"{}", 3, "is 3, but the body has 2 bytes"),
        (b"{}", 1, "not JSON"),
        (b"[" * 100_000, None, "not JSON"),
    ],
)
def test_malformed_responses(body: bytes, length: int | None, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        decode_infer_response(memoryview(body), length)


def test_header_length() -> None:
    assert parse_header_length(b"17") == 17
    for text in ("", "-1", "1.5", "x", "1" * 20, "\u0661"):
        with pytest.raises(Malformed):
            parse_header_length(text.encode())


@given(st.data())
def test_mutated_responses_raise_nothing_else(data: st.DataObject) -> None:
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
"""Any JSON, for where a tensor's fields should be."""


@given(JSON, JSON, JSON, JSON, st.sampled_from(["INT8", "UINT64", "FP16", "FP32", "BF16", "BOOL", "BYTES"]))
def test_any_json_is_decoded_or_refused(shape: Any, data: Any, size: Any, name: Any, datatype: str) -> None:
    entries = [
        {"name": "a", "datatype": datatype, "shape": shape, "data": data},
        {"name": name, "datatype": datatype, "shape": [2], "parameters": {"binary_data_size": size}},
    ]
    for entry in entries:
        with suppress(Malformed):
            decode_infer_response(*answered(entry, raw=bytes(4)))


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
def test_texts(entry: Any, raw: bytes) -> None:
    found = request({"inputs": [entry]}, raw)
    assert found.inputs["text"] == Texts("text", (2,), TEXTS)
    assert (found.id, found.parameters, found.outputs, found.binary) == ("", {}, {}, False)


def test_what_goes_with_them() -> None:
    found = request(
        {
            "id": "17",
            "model_name": "bert",
            "model_version": None,  # as if it were not there
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
    assert (found.id, found.model_name, found.model_version) == ("17", "bert", "")
    assert found.parameters == {"top_k": 3, "targets": ["a"]}
    assert list(found.inputs.values()) == [Texts("text", (2,), TEXTS), Texts("text_pair", (1, 1), ["x"])]
    assert found.outputs == {"output-0": None, "a": False, "b": True}
    assert [found.wants_binary(name) for name in ("output-0", "a", "b")] == [True, False, True]


@pytest.mark.parametrize("datatype", [*NUMPY_DTYPES, "BF16"])
def test_what_the_other_side_writes(datatype: str) -> None:
    """The bodies that the service itself sends to predictors."""
    numbers = np.array([[0, 1], [1, 0]], NUMPY_DTYPES.get(datatype, np.dtype("<f4")))
    texts = np.array(ELEMENTS, np.object_)
    inputs = [Tensor("n", datatype, numbers), Tensor("text", "BYTES", texts)]
    body, length = encoded(inputs, ["a"])
    found = decode_infer_request(body, length, MAX_ELEMENTS)
    sent = found.inputs["n"]
    assert isinstance(sent, Tensor)
    np.testing.assert_array_equal(sent.data, numbers)
    assert found.inputs["text"] == Texts("text", (2,), TEXTS)
    assert found.outputs == {"a": True}


def asking(**more: Any) -> dict[str, Any]:
    return {"inputs": [ENTRY], **more}


def wanting(**output: Any) -> dict[str, Any]:
    return asking(outputs=[{"name": "a", **output}])


def having(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{**ENTRY, **changes}]}


N = {"name": "n", "shape": [1]}
SHARED = "the parameters of tensor 'text': 'shared_memory_region' is not understood here"
WRONG_REQUESTS: list[tuple[Any, str]] = [
    ([], "body: a list is not a JSON object"),
    ({"id": "1"}, "inputs: expected a list of tensors, got null"),
    ({"inputs": {"text": "a"}}, "inputs: expected a list of tensors, got an object"),
    (asking(id=7), "id: expected a string, got a number"),
    (asking(parameters=[1]), "parameters: expected an object, got a list"),
    (asking(parameters={"binary_data_output": "yes"}), "parameters.binary_data_output: expected true or false, got a"),
    (asking(model_name=["bert"]), "model_name: expected a string, got a list"),
    (asking(model_version=1), "model_version: expected a string, got a number"),
    # None of the entries is one: the number is looked at first.
    ({"inputs": [1] * 17}, "inputs: more than 16 tensors"),
    (asking(outputs=[1] * 17), "outputs: more than 16 tensors"),
    ({"inputs": [ENTRY, ENTRY]}, "inputs: tensor 'text' comes twice"),
    (asking(outputs="output-0"), "outputs: expected a list of tensors, got a string"),
    (asking(outputs=["output-0"]), r"outputs\[0\]: expected an object with a name"),
    (asking(outputs=[{"name": 1}]), r"outputs\[0\].name: expected a string"),
    (asking(outputs=[{"name": "a"}, {"name": "a"}]), "outputs: 'a' comes twice"),
    (wanting(parameters={"classification": 3}), "outputs: the parameters of 'a': 'classification' is not understood"),
    (wanting(parameters={"binary_data": 1}), "'a': binary_data: expected true or false, got a number"),
    ({"inputs": DEEP}, r"inputs\[0\]: expected an object with a name, got a list"),
    # One input
    ({"inputs": [DEEP]}, r"inputs\[0\]: expected an object with a name"),
    ({"inputs": [{"data": ["secret"]}]}, r"inputs\[0\].name: expected a string, got null"),
    (having(name="x" * 201), "a name of 201 characters"),
    ({"inputs": [{**N, "dtype": "INT64", "data": [1]}]}, "unknown datatype"),
    (having(datatype="STRING"), "'text' has the unknown datatype 'STRING'"),
    (having(shape=None), "'text' has no shape"),
    (having(shape=[2**40]), "no bytes for so many"),
    (having(shape=[2**40, 0], data=[]), "no bytes for so many"),
    (having(shape=[3]), r"'text' has 2 elements, but \[3\] takes 3"),
    (having(data=["secret", 1]), "'text' is BYTES, so every element of its data is a string"),
    (having(data=["secret", ["b"]]), "mixes lists and elements"),
    (having(data="secret"), "the data of tensor 'text' is a string, expected a list"),
    (having(data=None), "'text' has neither data nor binary_data_size"),
    (having(parameters=1), "inputs: the parameters of tensor 'text': expected an object"),
    (having(parameters={"shared_memory_region": "x"}), f"{SHARED}, expected binary_data_size, content_type"),
    (having(parameters={"content_type": "np"}), "content_type is 'np', expected 'str'"),
    ({"inputs": [{**N, "datatype": "INT64", "data": [0.5]}]}, "'n' is INT64"),
    ({"inputs": [{**N, "datatype": "INT8", "data": [128]}]}, "'n' holds a number"),
]


IGNORED: list[tuple[Any, list[str]]] = [
    (asking(paramters={}, outputs=None), ["paramters"]),
    (asking(instances=["a"], **{"": 1}), ["instances", "_"]),
    (asking(**{"x" * 9999: 1, "a b\r\nc: é": None}), ["x" * 40, "a_b__c___"]),
    (wanting(kind=1, parameters={"binary_dat": True}), ["kind", "binary_dat"]),
    (having(dtype="BYTES", parameters={"content": "np", "binary_data": True}), ["dtype", "content", "binary_data"]),
    (asking(**{str(number): 1 for number in range(9999)}), [str(number) for number in range(10)]),
    (asking(kind=1, outputs=[{"name": "a", "kind": 1}, {"name": "b", "kind": 1}]), ["kind"]),
]


@pytest.mark.parametrize(("header", "names"), IGNORED, ids=[names[0][:20] for _, names in IGNORED])
def test_what_nobody_knows_is_ignored_and_noted(header: Any, names: list[str]) -> None:
    found = request(header)
    assert sorted(found.ignored) == sorted(names)
    assert list(found.inputs) == ["text"] and found.parameters == {}


@pytest.mark.parametrize(("header", "says"), WRONG_REQUESTS, ids=[says[:40] for _, says in WRONG_REQUESTS])
def test_wrong_requests(header: Any, says: str) -> None:
    with pytest.raises(Malformed, match=says) as found:
        request(header)
    assert len(str(found.value)) < 200
    assert "secret" not in str(found.value)


NO_TEXT = framed([b"secret", b"\xff\xfe"])
LISTS = b'{"inputs":[' + b"[]," * 50_000 + b"[]]}"


@pytest.mark.parametrize(
    ("changes", "raw", "says"),
    [
        ({"parameters": {"binary_data_size": len(RAW) + 1}}, RAW, "but 15 bytes are left"),
        ({"parameters": {"binary_data_size": -1}}, RAW, "binary_data_size -1, expected a number of bytes"),
        ({"parameters": {"binary_data_size": DEEP}}, RAW, "expected a number of bytes"),
        ({"parameters": {"binary_data_size": 15, "content_type": "np"}}, RAW, "content_type is 'np', expected 'str'"),
        ({"parameters": {"binary_data_size": 4}, "shape": [1]}, RAW, "ends within element 0 of 1"),
        ({"parameters": {}, "data": ["a", "b"]}, RAW, "body: 15 bytes stand behind the last tensor"),
        ({"data": ["a", "b"]}, RAW, "has both data and binary_data_size"),
        ({"shape": [2**40]}, RAW, "no bytes for so many elements"),
        ({"shape": [2**32, 0]}, RAW, "no bytes for so many elements"),
        ({"datatype": "INT64"}, RAW, "15 bytes, but INT64 .2. takes 16"),
        ({"parameters": {"binary_data_size": len(NO_TEXT)}}, NO_TEXT, "^inputs: element 1 of 'text' is not UTF-8$"),
    ],
    ids=str,
)
def test_wrong_raw_inputs(changes: Any, raw: bytes, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        request({"inputs": [{**RAW_ENTRY, **changes}]}, raw)


@pytest.mark.parametrize(
    ("body", "length", "error", "says"),
    [
        (dump({"inputs": [ENTRY]}), 10**6, Malformed, "Inference-Header-Content-Length is 1000000, but the body has"),
        *[
            (body, None, Malformed, "^body: not JSON: ")
            for body in (b"", b"{", b'{"inputs":[1e999]}', b'{"id":"\xff"}')
        ],
        (b"[" * 40_000, None, Malformed, "^body: not JSON: "),
        (LISTS, None, TooLarge, "50004 lists, objects and keys, at most 42768"),
        (b'{"x":{' + b'"a":0,' * 50_000 + b'"a":0}}', None, TooLarge, "body: 50004 lists, objects and keys, at most"),
        (b'{"inputs":[' + b"0," * 50_000 + b"0]}", None, TooLarge, "50000 values, at most 42768 .*--max_instances"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_wrong_bodies(body: bytes, length: int | None, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        decode_infer_request(body, length, MAX_ELEMENTS)


def test_more_elements_than_are_taken() -> None:
    """The count is checked first: a JSON element that is no string, or a raw one that is cut off, is not reached."""
    count = MAX_ELEMENTS + 1
    raw = bytes(4 * count - 1) + b"\xff"
    entries = [
        (tensor("text", [count], data=[1] * count), b""),
        ({"name": "n", "datatype": "INT64", "shape": [count, 1], "data": ["x"] * count}, b""),
        (tensor("text", [1, count], parameters={"binary_data_size": len(raw)}), raw),
    ]
    for entry, behind in entries:
        with pytest.raises(TooLarge, match=r"2049 elements, at most 2048 .*--max_instances and --max_sequences"):
            request({"inputs": [entry]}, behind)
    assert request({"inputs": [tensor("text", [count - 1], data=["a"] * (count - 1))]}).inputs["text"].shape == (2048,)


def test_answers_in_json() -> None:
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
    found = header.pop("outputs")
    c = found.pop(2)
    assert header == {"model_name": "bert", "model_version": "1", "id": "17"}
    assert found == [
        {"name": "a", "datatype": "INT64", "shape": [2, 1], "data": [1, -2]},
        {"name": "b", "datatype": "BYTES", "shape": [1, 2], "data": TEXTS},
        {"name": "d", "datatype": "INT64", "shape": [0, 2], "data": []},
        {"name": "e", "datatype": "INT64", "shape": [3], "data": [0, 2, 4]},
    ]
    assert c["shape"] == [3, 2]
    assert np.array(c["data"], np.float32).tolist() == floats.ravel().tolist()


def test_answers_in_both_ways_are_read_by_the_other_side() -> None:
    outputs = [
        Tensor("a", "INT64", np.array([[1], [-2]])),
        Tensor("b", "BYTES", np.array(ELEMENTS, np.object_)),
        Tensor("c", "FP32", np.array([0.1, np.inf], np.float32)),
    ]
    wanted = {"a": None, "b": False, "c": True}
    response = InferResponse("bert", "", outputs)
    body, length = encode_infer_response(response, InferRequest({}, outputs=wanted, binary=True))
    assert orjson.loads(body[:length]).keys() == {"model_name", "outputs"}
    assert [list(one) for one in orjson.loads(body[:length])["outputs"]] == [
        ["name", "datatype", "shape", last] for last in ("parameters", "data", "parameters")
    ]
    found = decode_infer_response(memoryview(body), length)
    assert [one.data.tolist() for one in found.values()] == [one.data.tolist() for one in outputs]
    empty = InferResponse("bert", "1", [Tensor("a", "INT64", np.empty((0,), np.int64))])
    body, length = encode_infer_response(empty, InferRequest({}, binary=True))
    assert length == len(body), "also where there are no elements"
    assert orjson.loads(body)["outputs"][0]["parameters"] == {"binary_data_size": 0}


def test_many_damaged_bodies() -> None:
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
