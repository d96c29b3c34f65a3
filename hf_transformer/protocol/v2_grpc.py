"""The V2 protocol over gRPC: protobuf messages as bytes <-> tensors. No sockets.

Raw contents do not go through protobuf's Python classes, which copy a ``bytes`` field twice, once when it is set or
parsed and once when it is serialized or read: that is most of the work where logits or key-value caches are large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from google.protobuf.message import DecodeError

from hf_transformer.errors import PredictorError
from hf_transformer.protocol.datatypes import (
    Malformed,
    checked_datatype,
    checked_shape,
    decode_raw,
    from_elements,
    raw_view,
)
from hf_transformer.protocol.message_fields import split_field, with_field
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.placements import BYTE_SIZE, NOWHERE, OFFSET, REGION, Placement, placed_tensor
from hf_transformer.protocol.specs import config_datatype
from hf_transformer.types import NUMPY_DTYPES, Array, ModelSpec, Tensor, TensorSpec

SERVICE = "inference.GRPCInferenceService"

_RAW_OUTPUT_CONTENTS = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_RAW_INPUT_CONTENTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER

_LARGE = 2**14
"""Bytes of a response that is not worth two copies of its raw contents."""

TYPED_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Which field of InferTensorContents holds a datatype's elements; FP16 and BF16 have none."""


def encode_infer_request(
    model_name: str, inputs: Sequence[Tensor], outputs: Sequence[str], placements: Mapping[str, Placement] = NOWHERE
) -> bytes:
    """A serialized ModelInferRequest with raw contents. Outputs with a place in ``placements`` are to be written there.

    Raises:
        PredictorError: an input's data doesn't fit its datatype.
    """
    request = pb.ModelInferRequest(model_name=model_name)
    for name in outputs:
        output = request.outputs.add(name=name)
        if name in placements:
            place = placements[name]
            output.parameters[REGION].string_param = place.region
            output.parameters[OFFSET].int64_param = place.offset
            output.parameters[BYTE_SIZE].int64_param = len(place.memory)
    return serialized(request, inputs)


def serialized(request: pb.ModelInferRequest, inputs: Sequence[Tensor]) -> bytes:
    """A request, with these inputs and their raw contents. Raises PredictorError as encode_infer_request does."""
    contents = []
    try:
        for tensor in inputs:
            request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            contents.append(raw_view(tensor))
    except Malformed as exc:
        raise PredictorError(f"the request can't be written: {exc}") from exc
    small = [one for one in contents if isinstance(one, bytes)]
    if len(small) < len(contents):
        return with_field(request.SerializeToString(), _RAW_INPUT_CONTENTS, contents)
    request.raw_input_contents.extend(small)  # which is faster then
    return request.SerializeToString()


def decode_infer_response(body: bytes | memoryview, placements: Mapping[str, Placement] = NOWHERE) -> dict[str, Tensor]:
    """The tensors of a serialized ModelInferResponse by name.

    Those of a large one are views into ``body``, and those that came through shared memory into that.

    Raises:
        PredictorError: the message breaks the protocol.
    """
    try:
        if len(body) < _LARGE and not placements:
            tensors = _decode_small(bytes(body))
            if tensors is not None:
                return tensors
        rest, raw = split_field(memoryview(body), _RAW_OUTPUT_CONTENTS)
        try:
            response = pb.ModelInferResponse.FromString(rest)
        except DecodeError as exc:
            raise Malformed(f"not a ModelInferResponse: {exc}") from exc
        if not placements:
            return decode_tensors(response.outputs, raw)
        return _with_placed(response.outputs, raw, placements)
    except Malformed as exc:
        raise PredictorError(f"the predictor's response is malformed: {exc}") from exc


def _decode_small(body: bytes) -> dict[str, Tensor] | None:
    """The tensors of a response that protobuf's class parses whole: its copies cost less than what avoids them.

    None where it is no message: what exactly is wrong is found otherwise.
    """
    try:
        response = pb.ModelInferResponse.FromString(body)
    except DecodeError:
        return None
    outputs, raw = response.outputs, response.raw_output_contents
    return plain_tensors(outputs, raw) or decode_tensors(outputs, [memoryview(contents) for contents in raw])


def _with_placed(
    entries: Sequence[pb.ModelInferResponse.InferOutputTensor],
    raw: Sequence[memoryview],
    placements: Mapping[str, Placement],
) -> dict[str, Tensor]:
    """The tensors of a response of which some were written to their places: those whose raw contents are empty."""
    if len(raw) not in (0, len(entries)):
        raise Malformed(f"{len(entries)} tensors come with {len(raw)} raw contents")
    contents = raw or [memoryview(b"")] * len(entries)
    tensors: dict[str, Tensor] = {}
    inline = []
    for entry, view in zip(entries, contents, strict=True):
        if entry.name not in placements or view or entry.HasField("contents"):
            inline.append((entry, view))
        elif entry.name in tensors:
            raise Malformed(f"tensor {entry.name!r} comes twice")
        else:
            datatype = checked_datatype(entry.name, entry.datatype)
            shape = checked_shape(entry.name, list(entry.shape))
            tensors[entry.name] = placed_tensor(entry.name, datatype, shape, placements[entry.name])
    views = [view for _, view in inline] if raw else []
    others = decode_tensors([entry for entry, _ in inline], views)
    for name in tensors.keys() & others.keys():
        raise Malformed(f"tensor {name!r} comes twice")
    return {**tensors, **others}


def decode_tensors(
    entries: Sequence[pb.ModelInferRequest.InferInputTensor | pb.ModelInferResponse.InferOutputTensor],
    raw: Sequence[memoryview],
) -> dict[str, Tensor]:
    """Tensors from their descriptions and their raw contents, or their typed ones where none are raw.

    Raises:
        Malformed: a name comes twice, or the sizes do not add up.
    """
    if raw and len(raw) != len(entries):
        raise Malformed(f"{len(entries)} tensors come with {len(raw)} raw contents")
    tensors: dict[str, Tensor] = {}
    for index, entry in enumerate(entries):
        if entry.name in tensors:
            raise Malformed(f"tensor {entry.name!r} comes twice")
        datatype = checked_datatype(entry.name, entry.datatype)
        shape = checked_shape(entry.name, list(entry.shape))
        if raw:
            if entry.HasField("contents"):
                raise Malformed(f"tensor {entry.name!r} has typed contents beside the raw ones")
            data = decode_raw(entry.name, datatype, shape, raw[index])
        else:
            data = decode_typed(entry.name, datatype, shape, entry.contents)
        tensors[entry.name] = Tensor(entry.name, datatype, data)
    return tensors


PLAIN = {name: dtype for name, dtype in NUMPY_DTYPES.items() if name != "BOOL"}
"""Datatypes whose raw contents are numpy's."""


def plain_tensors(
    entries: Sequence[pb.ModelInferResponse.InferOutputTensor], raw: Sequence[bytes]
) -> dict[str, Tensor] | None:
    """What decode_tensors gives for numbers where nothing is wrong, in a third of the time; None leaves it to that."""
    if len(raw) != len(entries):
        return None
    tensors: dict[str, Tensor] = {}
    for entry, contents in zip(entries, raw, strict=True):
        datatype, shape = entry.datatype, tuple(entry.shape)
        dtype = PLAIN.get(datatype)
        if dtype is None or not contents or math.prod(shape) * dtype.itemsize != len(contents):
            return None
        try:
            tensors[entry.name] = Tensor(entry.name, datatype, np.frombuffer(contents, dtype).reshape(shape))
        except ValueError:  # negative sizes
            return None
    return tensors if len(tensors) == len(entries) else None


def decode_typed(name: str, datatype: str, shape: Sequence[int], contents: pb.InferTensorContents) -> Array:
    """The elements in the field that the protocol has for their datatype.

    Raises:
        Malformed: there are more or fewer than the shape takes, one does not fit the datatype, or the protocol has no
            field for it.
    """
    if datatype in TYPED_CONTENTS:
        return from_elements(name, datatype, shape, getattr(contents, TYPED_CONTENTS[datatype]))
    if math.prod(shape) == 0:
        return from_elements(name, datatype, shape, ())
    raise Malformed(f"tensor {name!r} is {datatype}, which only raw contents can hold")


def encode_model_request(method: str, model_name: str) -> bytes:
    """A serialized request of ModelReady, ModelMetadata or ModelConfig, whatever version the server takes."""
    requests = {
        "ModelReady": pb.ModelReadyRequest,
        "ModelMetadata": pb.ModelMetadataRequest,
        "ModelConfig": pb.ModelConfigRequest,
    }
    return requests[method](name=model_name).SerializeToString()


def decode_model_ready(body: bytes) -> bool:
    """Whether the model is ready. Raises PredictorError where the message can't be read."""
    try:
        return pb.ModelReadyResponse.FromString(body).ready
    except DecodeError as exc:
        raise PredictorError(f"the predictor's response is malformed: {exc}") from exc


def encode_registration(name: str, key: str, byte_size: int) -> bytes:
    """A serialized request that registers a file in /dev/shm, all of it; ``key`` is its name after a slash."""
    return pb.SystemSharedMemoryRegisterRequest(name=name, key=key, byte_size=byte_size).SerializeToString()


def encode_unregistration(name: str) -> bytes:
    """A serialized request that ends a registration."""
    return pb.SystemSharedMemoryUnregisterRequest(name=name).SerializeToString()


def parse_region_names(body: bytes) -> list[str]:
    """The names in the status of all regions. Raises PredictorError where the message can't be read."""
    try:
        return list(pb.SystemSharedMemoryStatusResponse.FromString(body).regions)
    except DecodeError as exc:
        raise PredictorError(f"the predictor's list of shared-memory regions is malformed: {exc}") from exc


def parse_model_spec(metadata: bytes, config: bytes | None) -> ModelSpec:
    """What ModelMetadata and Triton's ModelConfig say of a model; see v2_rest.parse_model_spec.

    Raises:
        PredictorError: one of the messages can't be read.
    """
    try:
        about = pb.ModelMetadataResponse.FromString(metadata)
        version = about.versions[-1] if about.versions else ""
        if config is not None:
            return _from_config(about.name, version, pb.ModelConfigResponse.FromString(config).config)
        inputs, outputs = (
            tuple(TensorSpec(t.name, checked_datatype(t.name, t.datatype), tuple(t.shape)) for t in tensors)
            for tensors in (about.inputs, about.outputs)
        )
        return ModelSpec(about.name, version, inputs, outputs, max_batch_size=None)
    except (DecodeError, Malformed) as exc:
        raise PredictorError(f"the predictor's description of the model is malformed: {exc}") from exc


def _from_config(name: str, version: str, config: pb.ModelConfig) -> ModelSpec:
    if config.max_batch_size < 0:
        raise Malformed(f"max_batch_size is {config.max_batch_size}")
    inputs = tuple(TensorSpec(t.name, _datatype(t.name, t.data_type), tuple(t.dims), t.optional) for t in config.input)
    outputs = tuple(TensorSpec(t.name, _datatype(t.name, t.data_type), tuple(t.dims)) for t in config.output)
    decoupled = config.model_transaction_policy.decoupled
    instances = sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)
    merges = config.WhichOneof("scheduling_choice") == "dynamic_batching"
    return ModelSpec(name, version, inputs, outputs, config.max_batch_size, decoupled, max(1, instances), merges)


def _datatype(name: str, number: pb.DataType) -> str:
    """The datatype behind a number of the enumeration, which in proto3 may be one that we don't know."""
    known = pb.DataType.DESCRIPTOR.values_by_number.get(number)
    return config_datatype(name, known.name if known is not None else int(number))
