"""Triton's generate extension, towards the predictor."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.protocol.generate import KEPT_MEMBERS, GenerateEncoder, decode_generate_response
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
    assert orjson.loads(GenerateEncoder().encode(inputs)) == {
        "text_input": "é",
        "input_ids": [1, 2, 3],
        "stream": True,
        "temperature": 0.5,
        "random_seed": 2**63 - 1,
    }


def test_tensors_that_come_again() -> None:
    encoder = GenerateEncoder()
    kept = [Tensor(name, "INT32", np.array([[5]], "<i4")) for name in ("a", "b")]
    for one in kept:
        one.data.flags.writeable = False
    changing, constant = Tensor("c", "FP32", np.array([0.5], "<f4")), Tensor("d", "BYTES", np.array(["x"], np.object_))
    constant.data.flags.writeable = False
    for count in range(2 * KEPT_MEMBERS):
        changing.data[0] = count
        fresh = Tensor("seed", "INT64", np.array([count], "<i8"))
        fresh.data.flags.writeable = False  # its place in memory is soon another one's
        text = texts(str(count).encode() * count)
        text.data.flags.writeable = False
        body = orjson.loads(encoder.encode([*kept, changing, constant, fresh, text]))
        said = {"a": 5, "b": 5, "c": float(count), "d": "x", "seed": count, "text_input": str(count) * count}
        assert body == said
    assert encoder.encode([]) == b"{}"


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
    with pytest.raises(PredictorError, match=message):
        GenerateEncoder().encode([tensor])


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
    ids=[
        "nothing",
        "cut off",
        "a list",
        "null",
        "nested",
        "mixed",
        "mixed booleans",
        "beyond 64 bits",
        "a number beyond 64 bits",
    ],
)
def test_what_is_no_response(body: bytes) -> None:
    with pytest.raises(PredictorError, match="response is malformed"):
        decode_generate_response(body, ["a"])
