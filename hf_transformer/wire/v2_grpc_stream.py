"""ModelStreamInfer: the V2 protocol's requests with any number of responses, as bytes <-> tensors. No sockets."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from hf_transformer.errors import PredictorError
from hf_transformer.types import NUMPY_DTYPES, Tensor
from hf_transformer.wire.datatypes import Malformed
from hf_transformer.wire.pb import open_inference_grpc_pb2 as pb
from hf_transformer.wire.v2_grpc import decode_tensors, serialized

EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
"""The request's parameter that asks for a last response where the model has nothing more to send either."""

FINAL_RESPONSE = "triton_final_response"
"""The response's parameter that says whether it is the last one."""


class StreamResponse(NamedTuple):
    """One message of a stream. ``error`` is empty where there is none; ``final`` says that nothing more comes."""

    error: str
    outputs: dict[str, Tensor]
    final: bool


def encode_stream_request(model_name: str, inputs: Sequence[Tensor], outputs: Sequence[str]) -> bytes:
    """A serialized ModelInferRequest with raw contents, whose responses end with one that says so.

    Raises:
        PredictorError: an input's data doesn't fit its datatype.
    """
    request = pb.ModelInferRequest(model_name=model_name)
    request.parameters[EMPTY_FINAL_RESPONSE].bool_param = True
    for name in outputs:
        request.outputs.add(name=name)
    return serialized(request, inputs)


def decode_stream_response(body: bytes) -> StreamResponse:
    """What a serialized ModelStreamInferResponse says; its tensors are views into bytes that nobody else has.

    Such a message is small, so protobuf's class parses it whole, unlike the one response of ModelInfer.

    Raises:
        PredictorError: the message breaks the protocol.
    """
    try:
        message = pb.ModelStreamInferResponse.FromString(body)
        if message.error_message:
            return StreamResponse(message.error_message, {}, False)
        response = message.infer_response
        parameters = response.parameters
        final = FINAL_RESPONSE in parameters and parameters[FINAL_RESPONSE].bool_param
        outputs = response.outputs
        if not outputs:
            return StreamResponse("", {}, final)
        raw = response.raw_output_contents
        tensors = _plain(outputs, raw) or decode_tensors(outputs, [memoryview(contents) for contents in raw])
        return StreamResponse("", tensors, final)
    except DecodeError as exc:
        raise PredictorError(f"the predictor's response is malformed: not a ModelStreamInferResponse: {exc}") from exc
    except Malformed as exc:
        raise PredictorError(f"the predictor's response is malformed: {exc}") from exc


_PLAIN = {name: dtype for name, dtype in NUMPY_DTYPES.items() if name != "BOOL"}
"""Datatypes whose raw contents are numpy's."""


def _plain(
    entries: Sequence[pb.ModelInferResponse.InferOutputTensor], raw: Sequence[bytes]
) -> dict[str, Tensor] | None:
    """What decode_tensors gives for numbers where nothing is wrong, in a third of the time; None leaves it to that."""
    if len(raw) != len(entries):
        return None
    tensors: dict[str, Tensor] = {}
    for entry, contents in zip(entries, raw, strict=True):
        datatype, shape = entry.datatype, tuple(entry.shape)
        dtype = _PLAIN.get(datatype)
        if dtype is None or not contents or prod(shape) * dtype.itemsize != len(contents):
            return None
        try:
            tensors[entry.name] = Tensor(entry.name, datatype, np.frombuffer(contents, dtype).reshape(shape))
        except ValueError:  # negative sizes
            return None
    return tensors if len(tensors) == len(entries) else None
