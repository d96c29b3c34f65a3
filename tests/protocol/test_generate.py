"""Triton's generate extension: requests, responses and event streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from hf_transformer.protocol.generate import EventReader, decode_generate_response, encode_generate_request
from hf_transformer.protocol.tensors import Malformed, Unwritable
from hf_transformer.types.tensors import Tensor


def texts(*values: bytes) -> Tensor:
    return Tensor("text_input", "BYTES", np.array(values, np.object_))


def test_a_request_has_plain_values_by_name() -> None:
    inputs = [
        texts("é".encode()),
        Tensor("input_ids", "INT32", np.array([[1, 2, 3]], "<i4")),
        Tensor("stream", "BOOL", np.array([[True]])),
        Tensor("temperature", "FP32", np.array([0.5], "<f4")),
        Tensor("random_seed", "UINT64", np.array([2**63 - 1], "<u8")),
    ]
    assert orjson.loads(encode_generate_request(inputs)) == {
        "text_input": "é",
        "input_ids": [1, 2, 3],
        "stream": True,
        "temperature": 0.5,
        "random_seed": 2**63 - 1,
    }


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (texts(b"\xff"), "text_input: expected text in UTF-8"),
        (
            Tensor("temperature", "FP16", np.array([1.0], "<f2")),
            "temperature: expected a datatype that JSON can hold, got FP16",
        ),
        (
            Tensor("temperature", "BF16", np.array([1.0], "<f4")),
            "temperature: expected a datatype that JSON can hold, got BF16",
        ),
    ],
    ids=["bytes", "FP16", "BF16"],
)
def test_data_that_json_can_not_hold_is_unwritable(tensor: Tensor, message: str) -> None:
    with pytest.raises(Unwritable, match=message):
        encode_generate_request([tensor])


@pytest.mark.parametrize(
    ("value", "datatype", "data"),
    [
        ("é", "BYTES", ["é".encode()]),
        (["a", ""], "BYTES", [b"a", b""]),
        ([], "BYTES", []),
        (7, "INT64", [7]),
        (2**63 - 1, "INT64", [2**63 - 1]),
        (-(2**63), "INT64", [-(2**63)]),
        ([1, -2], "INT64", [1, -2]),
        (0.5, "FP64", [0.5]),
        ([0.5, 1], "FP64", [0.5, 1.0]),
        ([True, False], "BOOL", [True, False]),
    ],
    ids=str,
)
def test_an_output_is_a_flat_tensor_of_the_type_of_its_values(value: Any, datatype: str, data: list[Any]) -> None:
    body = orjson.dumps({"model_name": "m", "model_version": "1", "extra": 1, "a": value})
    error, tensors = decode_generate_response(body, ["a", "absent"])
    assert error == ""
    assert list(tensors) == ["a"]
    assert (tensors["a"].datatype, tensors["a"].data.tolist()) == (datatype, data)
    assert tensors["a"].data.ndim == 1


def test_errors_and_malformed_responses_are_told_from_outputs() -> None:
    assert decode_generate_response(b'{"error":"why"}', ["a"]) == ("why", {})
    assert decode_generate_response(b'{"error":{"code":1}}', ["a"]) == ("{'code': 1}", {})
    assert decode_generate_response(b'{"error":""}', ["a"]) == ("''", {})
    _, tensors = decode_generate_response(b'{"error":0.5}', ["error"])
    assert tensors["error"].data.tolist() == [0.5], "an output may have the name error"
    _, tensors = decode_generate_response(b'{"id":"1","model_name":"m","model_version":"1","a":1,"b":"x"}', ())
    assert set(tensors) == {"a", "b"}
    elements = ("null", "[[1]]", '[1,"x"]', "[1,true]", "[9223372036854775808]", "9223372036854775808")
    for body in (b"", b"{", b"[]", *(f'{{"a":{element}}}'.encode() for element in elements)):
        with pytest.raises(Malformed):
            decode_generate_response(body, ["a"])


STREAM = (
    b'data: {"a": 1}\n\n'
    b": a comment\n\n"
    b"event: x\r\nid: 7\r\ndata: two\r\ndata:lines\r\n\r\n"
    b"data\n\n"
    b"retry: 10\rdata:  one space is dropped\r\r"
    b"data: \xc3\xa9\n\n"
    b"data: never ended\n"
)
EVENTS = [b'{"a": 1}', b"two\nlines", b"", b" one space is dropped", b"\xc3\xa9"]


def test_a_stream_may_be_split_at_any_byte() -> None:
    for index in range(len(STREAM) + 1):
        reader = EventReader(1000)
        assert reader.feed(STREAM[:index]) + reader.feed(STREAM[index:]) == EVENTS, index
    reader = EventReader(1000)
    assert [event for byte in STREAM for event in reader.feed(bytes([byte]))] == EVENTS


@pytest.mark.parametrize(
    ("limit", "stream", "message"),
    [
        (100, b"data: " + b"x" * 101, "events of at most 100 bytes"),
        (100, b"data: 1\n" * 101, "events of at most 100 bytes"),
        (10**9, b"data:\n" * 10_001, "events of at most 10000 lines"),
    ],
    ids=["a line", "lines", "many lines"],
)
def test_an_event_over_a_limit_is_malformed(limit: int, stream: bytes, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        EventReader(limit).feed(stream)


def test_small_events_are_not_counted_together_and_no_byte_is_searched_twice() -> None:
    """A quadratic search of a line in pieces would take minutes."""
    assert len(EventReader(100).feed(b"data: 12345\n\n" * 1000)) == 1000
    reader = EventReader(10**8)
    for _ in range(5_000):
        assert reader.feed(b"x" * 10_000) == []
    assert reader.feed(b"\rdata: 1\n\n") == [b"1"]
