"""Calls that resemble earlier ones: nobody may notice that their headers were kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.errors import PredictorError
from hf_transformer.protocol.rest import LONGEST, MOST, InferCalls, decode_infer_response
from hf_transformer.protocol.tensors import NOWHERE, Placement
from hf_transformer.types import Tensor
from tests.protocol.requests import encoded

VALUES = np.arange(6, dtype="<f4")
PLACE = Placement("region", 64, memoryview(VALUES.tobytes()))


def entry(name: str, datatype: str, shape: list[int], size: int | None = None) -> dict[str, Any]:
    parameters = {} if size is None else {"parameters": {"binary_data_size": size}}
    return {"name": name, "datatype": datatype, "shape": shape, **parameters}


def framed(*entries: Any, raw: bytes = b"") -> tuple[memoryview, int]:
    header = orjson.dumps({"model_name": "bert", "outputs": entries})
    return memoryview(header + raw), len(header)


def plain(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {
        name: (one.name, one.datatype, str(one.data.dtype), one.shape, one.data.tolist())
        for name, one in tensors.items()
    }


def test_a_request() -> None:
    calls = InferCalls()
    for first in (101, 7):
        inputs = [
            Tensor("input_ids", "INT64", np.array([[first, 103]])),
            Tensor("mask", "INT32", np.array([[1, 1]], np.int32)),
        ]
        body, length = encoded(inputs, ["logits", "pooled"], calls=calls)
        assert orjson.loads(body[:length]) == {
            "inputs": [
                {"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "parameters": {"binary_data_size": 16}},
                {"name": "mask", "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
            ],
            "outputs": [
                {"name": "logits", "parameters": {"binary_data": True}},
                {"name": "pooled", "parameters": {"binary_data": True}},
            ],
        }
        assert body[length:] == np.array([first, 103], "<i8").tobytes() + np.array([1, 1], "<i4").tobytes()


def test_requests_that_differ_in_one_thing() -> None:
    calls, seen = InferCalls(), set()
    ids, texts = np.zeros((1, 6), np.int64), np.array([[b"a", b"bc"]], object)
    for inputs, outputs, places in (
        ([Tensor("a", "INT64", ids)], ["x", "y"], NOWHERE),
        ([Tensor("b", "INT64", ids)], ["x", "y"], NOWHERE),
        ([Tensor("a", "INT32", ids)], ["x", "y"], NOWHERE),
        ([Tensor("a", "INT64", ids.reshape(2, 3))], ["x", "y"], NOWHERE),
        ([Tensor("a", "INT64", ids)], ["x"], NOWHERE),
        ([Tensor("a", "INT64", ids)], [], NOWHERE),
        ([], ["x"], NOWHERE),
        ([Tensor("a", "INT64", ids)], ["x"], {"x": PLACE}),
        ([Tensor("a", "INT64", ids)], ["x"], {"x": Placement("other", 64, PLACE.memory)}),
        ([Tensor("a", "INT64", ids)], ["x"], {"x": Placement("region", 0, PLACE.memory)}),
        ([Tensor("a", "INT64", ids)], ["x"], {"x": Placement("region", 64, PLACE.memory[:8])}),
        ([Tensor("a", "BYTES", texts)], ["x"], NOWHERE),
        ([Tensor("a", "BYTES", np.array([[b"a", b"b"]], object))], ["x"], NOWHERE),
    ):
        body, length = encoded(inputs, outputs, places, calls)
        assert encoded(inputs, outputs, places) == (body, length) == encoded(inputs, outputs, places, calls)
        seen.add(body[:length])
    assert len(seen) == 13


def test_a_request_for_all_outputs() -> None:
    body, length = encoded([], [])
    assert orjson.loads(body[:length])["parameters"] == {"binary_data_output": True}


def test_a_request_that_can_not_be_written() -> None:
    with pytest.raises(PredictorError, match="'x' is INT64, its data is float64"):
        InferCalls().encode([Tensor("x", "INT64", np.array([0.5]))], [])


def test_a_large_input_is_not_copied() -> None:
    large, small = np.zeros((3, 2**16), "<f4"), np.ones((2, 2), "<i8")
    inputs = [Tensor("a", "INT64", small), Tensor("b", "FP32", large), Tensor("c", "FP32", large.T)]
    _, chunks, _ = InferCalls().encode(inputs, ["x"])
    assert [len(chunk) for chunk in chunks] == [32, large.nbytes, large.nbytes]
    shared = [np.shares_memory(np.frombuffer(chunk, "u1"), one.data) for chunk, one in zip(chunks, inputs, strict=True)]
    assert shared == [False, True, False], "only what lies there as it travels"


@pytest.mark.parametrize(
    ("datatype", "raw"),
    [
        ("FP32", VALUES.tobytes()),
        ("INT64", VALUES.tobytes()),
        ("UINT8", bytes(24)),
        ("FP16", bytes(24)),
        ("BOOL", bytes([0, 1, 2] * 8)),
        ("BF16", VALUES.tobytes()),
    ],
)
def test_a_response_again(datatype: str, raw: bytes) -> None:
    """BOOL and BF16 are no plain views, so they are decoded anew each time."""
    size = {"FP32": 4, "INT64": 8, "UINT8": 1, "FP16": 2, "BOOL": 1, "BF16": 2}[datatype]
    shape = [24 // size]
    calls = InferCalls()
    for count in range(1, 4):
        data = bytes((byte * count) % 256 for byte in raw)
        body, length = framed(entry("a", datatype, shape, 24), entry("b", "FP64", [], 8), raw=data + bytes(8))
        tensors = calls.decode(body, length)
        assert plain(tensors) == plain(decode_infer_response(body, length))
    if datatype not in ("BOOL", "BF16"):
        assert np.shares_memory(tensors["a"].data, np.frombuffer(body, "u1"))


def test_a_response_with_the_header_of_a_good_one_and_another_length() -> None:
    calls = InferCalls()
    good, length = framed(entry("a", "FP32", [2], 8), raw=bytes(8))
    calls.decode(good, length)
    for body, said in (
        (good[:-1], length),
        (memoryview(bytes(good) + b"x"), length),
        (good, None),
        (good, length + 1),
        (good[:length], length + 8),
        (good, -8),
    ):
        with pytest.raises(PredictorError, match="malformed"):
            calls.decode(body, said)
    assert calls.decode(good, length)["a"].data.tolist() == [0, 0]


def test_a_response_with_the_header_of_a_good_one_and_other_places() -> None:
    calls = InferCalls()
    body, _ = framed(entry("a", "FP32", [2, 3]))
    assert calls.decode(body, None, {"a": PLACE})["a"].data.tolist() == [[0, 1, 2], [3, 4, 5]]
    again = Placement("region", 0, memoryview(VALUES[::-1].tobytes() + bytes(8)))
    assert calls.decode(body, None, {"a": again})["a"].data.tolist() == [[5, 4, 3], [2, 1, 0]]
    with pytest.raises(PredictorError, match="24 bytes, but has room for 8"):
        calls.decode(body, None, {"a": Placement("region", 0, PLACE.memory[:8])})
    for places in (NOWHERE, {"b": PLACE}):
        with pytest.raises(PredictorError, match="neither data nor binary_data_size"):
            calls.decode(body, None, places)


@pytest.mark.parametrize("parameters", [5, True, "binary_data_size", ["binary_data_size"], {}, None])
def test_what_else_is_said_of_a_placed_tensor_does_not_matter(parameters: Any) -> None:
    calls = InferCalls()
    body, length = framed({**entry("a", "FP32", [2, 3]), "parameters": parameters})
    for _ in range(2):
        assert plain(calls.decode(body, length, {"a": PLACE})) == plain(
            decode_infer_response(body, length, {"a": PLACE})
        )


@given(st.data())
def test_mutated_responses_are_read_as_if_they_were_the_first(data: st.DataObject) -> None:
    calls = InferCalls()
    good, length = framed(entry("a", "FP32", [2], 8), entry("b", "INT8", [1, 3], 3), raw=bytes(range(11)))
    calls.decode(good, length)
    mutated = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(mutated) - 1))
        mutated[index : index + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        mutated = mutated or bytearray(b"{")
    body = memoryview(bytes(mutated))
    claimed = data.draw(st.one_of(st.just(length), st.integers(-5, len(mutated) + 5), st.none()))
    try:
        expected = repr(plain(decode_infer_response(body, claimed)))
    except PredictorError as error:
        with pytest.raises(PredictorError) as caught:
            calls.decode(body, claimed)
        assert str(caught.value) == str(error)
    else:
        for _ in range(2):
            assert repr(plain(calls.decode(body, claimed))) == expected


def test_what_is_kept_is_bounded() -> None:
    calls = InferCalls()
    for count in range(1, 3 * MOST):
        calls.encode([Tensor("a", "INT8", np.zeros(count, np.int8))], ["x"])
        calls.decode(*framed(entry("a", "INT8", [count], count), raw=bytes(count)))
        assert max(len(calls._headers), len(calls._layouts)) <= MOST
    calls = InferCalls()
    calls.encode([Tensor("a" * LONGEST, "INT8", np.zeros(1, np.int8))], ["x"])
    calls.decode(*framed(*(entry(f"a{n}", "INT8", [1], 1) for n in range(100)), raw=bytes(100)))
    assert not calls._headers and not calls._layouts
