"""Outputs in shared memory, in requests and responses over REST and gRPC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from hf_transformer.protocol import grpc, rest
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import MAX_COPIED_BYTES, Malformed, Placement
from hf_transformer.types.tensors import Tensor

IDS = Tensor("input_ids", "INT64", np.array([[1, 2]]))
VALUES = np.arange(6, dtype="<f4")
PLACEMENTS = {
    "logits": Placement("region", 128, memoryview(VALUES.tobytes())),
    "half": Placement("region", 192, memoryview(np.array([1.5, -2], "<f4").tobytes())),
}


def over_rest(*entries: Any, raw: bytes = b"") -> dict[str, Tensor]:
    header = orjson.dumps({"outputs": entries})
    return rest.decode_infer_response(memoryview(header + raw), len(header), PLACEMENTS)


def over_grpc(*entries: Any, raw: bytes = b"") -> dict[str, Tensor]:
    """Decodes a response in Triton's form: an output in shared memory has empty raw contents."""
    response = pb.ModelInferResponse()
    for entry in entries:
        response.outputs.add(name=entry["name"], datatype=entry["datatype"], shape=entry["shape"])
        response.raw_output_contents.append(raw if "parameters" in entry else b"")
    return grpc.decode_infer_response(response.SerializeToString(), PLACEMENTS)


LOGITS = {"name": "logits", "datatype": "FP32", "shape": [2, 3]}
POOLED = {"name": "pooled", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}}
both = pytest.mark.parametrize("decode", [over_rest, over_grpc], ids=["rest", "grpc"])


def test_a_grpc_request_names_the_placement_of_each_output() -> None:
    request = pb.ModelInferRequest.FromString(
        grpc.encode_infer_request("bert", [IDS], ["logits", "pooled"], PLACEMENTS)
    )
    logits, pooled = request.outputs
    assert logits.parameters["shared_memory_region"].string_param == "region"
    assert logits.parameters["shared_memory_offset"].int64_param == 128
    assert logits.parameters["shared_memory_byte_size"].int64_param == 24
    assert not pooled.parameters


@both
def test_one_response_has_outputs_in_shared_memory_and_inline(decode: Any) -> None:
    tensors = decode(LOGITS, POOLED, raw=b"\x07\0\0\0")
    assert np.array_equal(tensors["logits"].data, VALUES.reshape(2, 3))
    assert np.shares_memory(tensors["logits"].data, np.frombuffer(PLACEMENTS["logits"].memory, "u1"))
    assert tensors["pooled"].data.tolist() == [7]


@both
def test_an_output_with_a_placement_may_be_inline(decode: Any) -> None:
    inline = {**LOGITS, "shape": [1], "parameters": {"binary_data_size": 4}}
    assert decode(inline, raw=np.array([9], "<f4").tobytes())["logits"].data.tolist() == [9]


@both
def test_an_output_may_be_smaller_than_its_placement(decode: Any) -> None:
    assert decode({**LOGITS, "shape": [1, 2]})["logits"].data.tolist() == [[0, 1]]
    assert decode({**LOGITS, "shape": [0, 2]})["logits"].shape == (0, 2)
    half = decode({"name": "half", "datatype": "BF16", "shape": [4]})["half"]
    assert half.data.tolist() == [0, 1.5, 0, -2]


@both
@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            [{**LOGITS, "shape": [2, 4]}],
            r"shape: expected at most 24 bytes in shared memory, got 32 bytes for FP32 \[2, 4\]",
        ),
        ([{**LOGITS, "datatype": "BYTES"}], "datatype: expected a datatype of fixed size in shared memory, got BYTES"),
        ([{**LOGITS, "datatype": "FP31"}], "datatype: expected one of .*, got 'FP31'"),
        ([{**LOGITS, "shape": [-1]}], "shape: expected integers of at least 0"),
        ([LOGITS, LOGITS], "name: expected a name of its own"),
        ([LOGITS, {**POOLED, "name": "logits"}], "name: expected a name of its own"),
    ],
    ids=["too large", "strings", "datatype", "shape", "twice", "in place and inline"],
)
def test_responses_that_break_the_protocol_are_malformed(decode: Any, entries: list[Any], message: str) -> None:
    with pytest.raises(Malformed, match=rf"^outputs\['logits'\]\.{message}"):
        decode(*entries, raw=b"\x07\0\0\0")


def test_a_grpc_response_with_typed_contents_has_outputs_in_shared_memory() -> None:
    response = pb.ModelInferResponse()
    response.outputs.add(name="logits", datatype="FP32", shape=[6])
    response.outputs.add(name="pooled", datatype="INT32", shape=[1]).contents.int_contents.append(7)
    tensors = grpc.decode_infer_response(response.SerializeToString(), PLACEMENTS)
    assert (tensors["logits"].data.tolist(), tensors["pooled"].data.tolist()) == ([0, 1, 2, 3, 4, 5], [7])


@pytest.mark.parametrize("size", [MAX_COPIED_BYTES, MAX_COPIED_BYTES + 1], ids=["copied", "mapped"])
def test_a_truncated_file_is_refused(size: int, tmp_path: Path) -> None:
    """Reading mapped memory behind a file's end would end the process."""
    offset, path = 4096, tmp_path / "region"
    path.write_bytes(bytes(offset) + b"x" * size)
    with path.open("r+b") as file:
        placement = Placement("region", offset, memoryview(b"x" * size), file.fileno())
        assert placement.read(size) == b"x" * size
        file.truncate(offset + size - 1)
        with pytest.raises(Malformed, match=f"{size} bytes at 4096 of the shared memory region, got a truncated file"):
            placement.read(size)


def test_regions_are_registered_and_listed_over_rest() -> None:
    assert orjson.loads(rest.encode_registration("/n", 9)) == {"key": "/n", "offset": 0, "byte_size": 9}
    body = orjson.dumps([{"name": "a", "key": "/a", "offset": 0, "byte_size": 1}])
    assert rest.parse_region_names(memoryview(body)) == ["a"]
    for body in (b"", b"7", b"[7]", b'[{"key":"/a"}]', b'{"error":"x"}'):
        with pytest.raises(Malformed):
            rest.parse_region_names(memoryview(body))
