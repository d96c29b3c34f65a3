"""Triton's generate extension, and its streams of events, cut anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from hf_transformer.protocol.generate import EventReader, decode_generate_response, encode_generate_request
from hf_transformer.protocol.tensors import Malformed, Unwritable
from hf_transformer.types import Tensor


def texts(*values: bytes) -> Tensor:
    return Tensor("text_input", "BYTES", np.array(values, np.object_))


def test_a_request() -> None:
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
        (texts(b"\xff"), "'text_input' is no text in UTF-8"),
        (Tensor("temperature", "FP16", np.array([1.0], "<f2")), "'temperature' is FP16, which JSON has no form for"),
        (Tensor("temperature", "BF16", np.array([1.0], "<f4")), "'temperature' is BF16, which JSON has no form for"),
    ],
    ids=["bytes", "FP16", "BF16"],
)
def test_what_a_request_can_not_hold(tensor: Tensor, message: str) -> None:
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
def test_an_output(value: Any, datatype: str, data: list[Any]) -> None:
    body = orjson.dumps({"model_name": "m", "model_version": "1", "more": 1, "found": value})
    error, tensors = decode_generate_response(body, ["found", "absent"])
    assert error == ""
    assert list(tensors) == ["found"]
    assert (tensors["found"].datatype, tensors["found"].data.tolist()) == (datatype, data)
    assert tensors["found"].data.ndim == 1


def test_all_outputs() -> None:
    _, tensors = decode_generate_response(b'{"id":"1","model_name":"m","model_version":"1","a":1,"b":"x"}', ())
    assert set(tensors) == {"a", "b"}


def test_an_error() -> None:
    assert decode_generate_response(b'{"error":"why"}', ["a"]) == ("why", {})
    assert decode_generate_response(b'{"error":{"code":1}}', ["a"]) == ("{'code': 1}", {})
    assert decode_generate_response(b'{"error":""}', ["a"]) == ("''", {})


def test_an_output_that_is_called_error() -> None:
    _, tensors = decode_generate_response(b'{"error":0.5}', ["error"])
    assert tensors["error"].data.tolist() == [0.5]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"a":null}',
        b'{"a":[[1]]}',
        b'{"a":[1,"x"]}',
        b'{"a":[1,true]}',
        b'{"a":[9223372036854775808]}',
        b'{"a":9223372036854775808}',
    ],
    ids=repr,
)
def test_what_is_no_response(body: bytes) -> None:
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


def test_cut_at_every_place() -> None:
    for place in range(len(STREAM) + 1):
        reader = EventReader(1000)
        assert reader.feed(STREAM[:place]) + reader.feed(STREAM[place:]) == EVENTS, place
    reader = EventReader(1000)
    assert [event for byte in STREAM for event in reader.feed(bytes([byte]))] == EVENTS


def test_an_event_comes_with_its_last_byte() -> None:
    reader = EventReader(1000)
    assert reader.feed(b"data: 1\n") == []
    assert reader.feed(b"\ndata: 2\n\n") == [b"1", b"2"]


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 101, b"data: 1\n" * 101], ids=["a line", "lines"])
def test_an_event_that_is_too_large(stream: bytes) -> None:
    with pytest.raises(Malformed, match="more than 100 bytes"):
        EventReader(100).feed(stream)


def test_many_small_events_are_not_too_large() -> None:
    assert len(EventReader(100).feed(b"data: 12345\n\n" * 1000)) == 1000


def test_an_event_of_too_many_lines() -> None:
    with pytest.raises(Malformed, match="more than 10000 lines"):
        EventReader(10**9).feed(b"data:\n" * 10_001)


def test_a_line_without_end_is_looked_at_once() -> None:
    """Each piece looked at again with all before it would take minutes."""
    reader = EventReader(10**8)
    for _ in range(5_000):
        assert reader.feed(b"x" * 10_000) == []
    assert reader.feed(b"\rdata: 1\n\n") == [b"1"]
