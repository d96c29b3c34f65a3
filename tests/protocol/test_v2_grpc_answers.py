"""What V2 clients over gRPC are answered."""

from __future__ import annotations

import numpy as np
import pytest

from hf_transformer.protocol.grpc import decode_infer_response
from hf_transformer.protocol.grpc_inbound import (
    encode_infer_response,
    encode_model_metadata,
    encode_stream_error,
    encode_stream_response,
)
from hf_transformer.protocol.inbound import InferRequest, InferResponse, RequestedOutput
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.types import ModelDescription, Tensor, TensorSpec

EMBEDDINGS = np.arange(6, dtype="<f4").reshape(2, 3)


def response(*tensors: Tensor, id: str = "7") -> InferResponse:
    return InferResponse("bert", "1", tensors, id)


def outputs() -> tuple[Tensor, ...]:
    return (
        Tensor("output-0", "FP32", EMBEDDINGS),
        Tensor("json", "BYTES", np.array([[b"{}", "é".encode()]], np.object_)),
        Tensor("offsets", "INT64", np.array([[1, -2]])),
        Tensor("empty", "INT64", np.empty((0, 2), np.int64)),
    )


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "typed"])
def test_a_response(raw: bool) -> None:
    body = encode_infer_response(response(*outputs()), InferRequest({}, binary=raw))
    message = pb.ModelInferResponse.FromString(body)
    assert (message.model_name, message.model_version, message.id) == ("bert", "1", "7")
    assert len(message.raw_output_contents) == (4 if raw else 0)
    assert not message.parameters
    found = decode_infer_response(body)
    assert [(one.name, one.datatype, one.shape) for one in found.values()] == [
        (one.name, one.datatype, one.shape) for one in outputs()
    ]
    assert [one.data.tolist() for one in found.values()] == [one.data.tolist() for one in outputs()]


def test_one_raw_output_makes_all_raw() -> None:
    wanted = [RequestedOutput("json", True), RequestedOutput("output-0", False)]
    body = encode_infer_response(response(*outputs()[:2]), InferRequest({}, outputs=wanted))
    assert len(pb.ModelInferResponse.FromString(body).raw_output_contents) == 2


def test_half_floats_are_always_raw() -> None:
    half = Tensor("output-0", "FP16", EMBEDDINGS.astype("<f2"))
    body = encode_infer_response(response(half), InferRequest({}))
    assert decode_infer_response(body)["output-0"].data.tolist() == EMBEDDINGS.tolist()


@pytest.mark.parametrize("size", [0, 127, 128, 16384, 2_100_000])
def test_lengths_of_any_size(size: int) -> None:
    data = (np.arange(size) % 251).astype(np.uint8)
    body = encode_infer_response(response(Tensor("a", "UINT8", data)), InferRequest({}, binary=True), final=True)
    message = pb.ModelStreamInferResponse.FromString(encode_stream_response(body))
    assert message.error_message == ""
    assert message.infer_response.raw_output_contents[0] == data.tobytes()
    assert message.infer_response.parameters["triton_final_response"].bool_param


def test_an_error_in_a_stream() -> None:
    message = pb.ModelStreamInferResponse.FromString(encode_stream_error("text: too long", "7"))
    assert (message.error_message, message.infer_response.id) == ("text: too long", "7")
    assert message.infer_response.parameters["triton_final_response"].bool_param


def test_metadata() -> None:
    about = ModelDescription(
        "bert",
        "3",
        "fill_mask",
        (TensorSpec("text", "BYTES", (-1,)),),
        (TensorSpec("output-0", "FP32", (-1, 384)),),
        512,
    )
    message = pb.ModelMetadataResponse.FromString(encode_model_metadata(about, "x"))
    assert (message.name, list(message.versions), message.platform) == ("bert", ["3"], "x")
    assert [(one.name, one.datatype, list(one.shape)) for one in (*message.inputs, *message.outputs)] == [
        ("text", "BYTES", [-1]),
        ("output-0", "FP32", [-1, 384]),
    ]
