"""HTTP bodies, as the predictor gets and sends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.errors import PredictorError
from hf_transformer.protocol.rest import (
    decode_infer_response,
    encode_infer_request,
    parse_header_length,
)
from hf_transformer.protocol.tensors import NOWHERE, Malformed, Placement
from hf_transformer.types import Tensor


def encoded(
    inputs: Sequence[Tensor], outputs: Sequence[str], placements: Mapping[str, Placement] = NOWHERE
) -> tuple[bytes, int]:
    """The body of a request, and the length of its JSON header."""
    header, chunks = encode_infer_request(inputs, outputs, placements)
    return b"".join((header, *chunks)), len(header)


LOGITS = np.arange(6, dtype="<f4").reshape(1, 2, 3)
TEXTS = [b"paris", "é".encode()]


def framed(header: Any, raw: bytes = b"") -> tuple[memoryview, int]:
    text = orjson.dumps(header)
    return memoryview(text + raw), len(text)


def response() -> tuple[memoryview, int]:
    raw = LOGITS.tobytes(), b"\5\0\0\0paris\2\0\0\0\xc3\xa9"
    outputs = [
        {"name": "logits", "datatype": "FP32", "shape": [1, 2, 3], "parameters": {"binary_data_size": len(raw[0])}},
        {"name": "text", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(raw[1])}},
        {"name": "score", "datatype": "FP64", "shape": [1, 2], "data": [[0.5, 1]]},
    ]
    return framed({"model_name": "bert", "model_version": "1", "outputs": outputs}, b"".join(raw))


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


def test_request_for_all_outputs() -> None:
    body, length = encoded([], [])
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
    assert [(tensor.name, tensor.datatype) for tensor in outputs.values()] == [
        ("logits", "FP32"),
        ("text", "BYTES"),
        ("score", "FP64"),
    ]
    np.testing.assert_array_equal(outputs["logits"].data, LOGITS)
    assert np.shares_memory(outputs["logits"].data, np.frombuffer(body, np.uint8))
    assert outputs["text"].data.tolist() == TEXTS
    assert outputs["score"].data.tolist() == [[0.5, 1]]


@pytest.mark.parametrize("spaces", range(8), ids=lambda count: f"{count} bytes further")
def test_elements_at_any_address(spaces: int) -> None:
    body, length = response()
    moved = memoryview(b" " * spaces + body)
    found = decode_infer_response(moved, length + spaces)
    assert found["logits"].data.sum() == LOGITS.sum()
    assert found["logits"].data.argmax(-1).tolist() == LOGITS.argmax(-1).tolist()


def test_response_in_json_only() -> None:
    body, _ = framed({"outputs": [{"name": "a", "datatype": "INT64", "shape": [2, 1], "data": [7, 8]}]})
    assert decode_infer_response(body, None)["a"].data.tolist() == [[7], [8]]


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
        decode_infer_response(*framed({"outputs": [entry]}, b"\0\0\0\0"))
    with pytest.raises(Malformed, match="'a' comes twice"):
        decode_infer_response(*framed({"outputs": [output(), output()]}, bytes(8)))


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
def test_malformed_body(body: bytes, length: int | None, message: str) -> None:
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
            decode_infer_response(*framed({"outputs": [entry]}, bytes(4)))
