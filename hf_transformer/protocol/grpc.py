"""A serialized protobuf message, field by field: what is large is read and written without the message's class.

The format is a key (field number << 3 | wire type) as a varint, then the value; the order of different fields is free.
Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from hf_transformer.by_identity import ByIdentity
from hf_transformer.errors import PredictorError
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import (
    BYTE_SIZE,
    NOWHERE,
    OFFSET,
    REGION,
    Malformed,
    Placement,
    checked_datatype,
    checked_shape,
    config_datatype,
    decode_raw,
    from_elements,
    placed_tensor,
    raw_view,
)
from hf_transformer.types import NUMPY_DTYPES, Array, ModelSpec, RepositoryEntry, ServerDescription, Tensor, TensorSpec

_VARINT, _FIXED64, DELIMITED, _FIXED32 = 0, 1, 2, 5


def with_field(message: bytes, number: int, values: Iterable[bytes | memoryview]) -> bytes:
    """A message with a bytes field put behind it, which may occur any number of times; each value is copied once."""
    chunks: list[bytes | memoryview] = [message]
    for value in values:
        chunks += (_encoded_varint(number << 3 | DELIMITED), _encoded_varint(len(value)), value)
    return b"".join(chunks)


def _encoded_varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def split_field(body: memoryview, number: int) -> tuple[bytes, list[memoryview]]:
    """Takes one bytes field out of a serialized message without parsing the rest.

    Gives the message without the field, and a view for each occurrence of it.

    Raises:
        Malformed: the bytes are not a message.
    """
    views: list[memoryview] = []
    rest: list[memoryview] = []
    for part in parts(body):
        if part.key == number << 3 | DELIMITED:
            views.append(part.value)
        else:
            rest.append(part.whole)
    return b"".join(rest), views


class Part(NamedTuple):
    """One field of a serialized message: its key (number << 3 | wire type), its value's bytes, and all of its bytes."""

    key: int
    value: memoryview
    whole: memoryview


def parts(body: memoryview) -> Iterator[Part]:
    """The fields of a serialized message, one after the other.

    Raises:
        Malformed: the bytes are not a message.
    """
    position = 0
    while position < len(body):
        start = position
        key, position = _varint(body, position)
        wire_type = key & 7
        value = position
        if wire_type == _VARINT:
            _, position = _varint(body, position)
        elif wire_type == DELIMITED:
            length, value = _varint(body, position)
            position = value + length
        elif wire_type in (_FIXED64, _FIXED32):
            position += 8 if wire_type == _FIXED64 else 4
        else:  # groups, which nobody has used since proto3, and the two types that do not exist
            raise Malformed(f"not a protobuf message: wire type {wire_type}")
        if position > len(body):
            raise Malformed("the protobuf message is cut off")
        yield Part(key, body[value:position], body[start:position])


def _varint(body: memoryview, position: int) -> tuple[int, int]:
    """The number at this position, at most 64 bits in ten bytes, and the position behind it."""
    number = shift = 0
    for index in range(position, min(position + 10, len(body))):
        byte = body[index]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, index + 1
        shift += 7
    raise Malformed("not a protobuf message: a number does not end")


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


EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
"""The request's parameter that asks for a last response where the model has nothing more to send either."""

FINAL_RESPONSE = "triton_final_response"
"""The response's parameter that says whether it is the last one."""


class StreamResponse(NamedTuple):
    """One message of a stream. ``error`` is empty where there is none; ``final`` says that nothing more comes."""

    error: str
    outputs: dict[str, Tensor]
    final: bool


KEPT_HEADS = 256
"""Requests of which what stands before the raw contents is kept: a model's differ in their prompts' lengths alone."""

KEPT_INPUTS, LONGEST_KEPT = 256, 1024
"""Tensors whose contents are kept, and their bytes."""


class _Input(NamedTuple):
    """What a request says of a tensor, and its raw contents as they stand there."""

    said: tuple[object, ...]
    contents: bytes


_SAID, _CONTENTS = itemgetter(0), itemgetter(1)


class StreamEncoder:
    """Writes the requests of one model. What stands before their raw contents is written once for each shape of the
    inputs (measured with nine of them: half the time of writing all), and so is a value that nobody can change: most of
    a request's tensors are the very same as the last one's."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._heads: dict[tuple[object, ...], bytes] = {}
        self._kept = ByIdentity[_Input](KEPT_INPUTS)

    def encode(self, inputs: Sequence[Tensor], outputs: Sequence[str]) -> bytes:
        """A serialized ModelInferRequest with raw contents, whose responses end with one that says so.

        Raises:
            PredictorError: an input's data doesn't fit its datatype.
        """
        kept = self._kept
        found = [kept.get(id(one)) or self._input(one) for one in inputs]
        key = (*outputs, *map(_SAID, found))
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) == KEPT_HEADS:
                self._heads.clear()
            head = self._heads[key] = self._head(inputs, outputs)
        return b"".join((head, *map(_CONTENTS, found)))

    def _input(self, tensor: Tensor) -> _Input:
        try:
            raw = raw_view(tensor)
        except Malformed as exc:
            raise PredictorError(f"the request can't be written: {exc}") from exc
        data, size = tensor.data, len(raw)
        contents = _SHORT_CONTENTS[size] + raw if size < 128 else with_field(b"", RAW_INPUT_CONTENTS, (raw,))
        found = _Input((tensor.name, tensor.datatype, data.shape), contents)
        if data.size == 1 and size <= LONGEST_KEPT and not data.flags.writeable:
            self._kept.keep(tensor, found)
        return found

    def _head(self, inputs: Sequence[Tensor], outputs: Sequence[str]) -> bytes:
        request = pb.ModelInferRequest(model_name=self._model_name)
        request.parameters[EMPTY_FINAL_RESPONSE].bool_param = True
        for name in outputs:
            request.outputs.add(name=name)
        for one in inputs:
            request.inputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
        return request.SerializeToString()


def decode_stream_response(body: bytes) -> StreamResponse:
    """What a serialized ModelStreamInferResponse says; its tensors are views into bytes that nobody else has.

    Such a message is small, so protobuf's class parses it whole, as it does small ones of ModelInfer.

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
        tensors = plain_tensors(outputs, raw) or decode_tensors(outputs, [memoryview(contents) for contents in raw])
        return StreamResponse("", tensors, final)
    except DecodeError as exc:
        raise PredictorError(f"the predictor's response is malformed: not a ModelStreamInferResponse: {exc}") from exc
    except Malformed as exc:
        raise PredictorError(f"the predictor's response is malformed: {exc}") from exc


KEPT_LAYOUTS = 64
"""Layouts that are kept: messages have a few lengths, as tokens have."""
PATIENCE = 256
"""Messages of other lengths, once so many are kept, after which all are forgotten."""


class StreamDecoder:
    """``decode_stream_response`` for the messages of one model's streams.

    These differ in little but their raw contents. What stands around them is parsed once for each length of a message,
    and compared from then on, which takes a third of the time or less. Last messages are parsed each.
    """

    def __init__(self) -> None:
        self._layouts: dict[int, _Layout] = {}
        self._others = 0

    def decode(self, body: bytes) -> StreamResponse:
        """What a message says. Raises PredictorError as decode_stream_response does."""
        found = self.usual(body)
        if found is not None:
            return found
        response = decode_stream_response(body)
        if response.outputs and not response.final and self._has_room(len(body)):
            made = _layout_of(body, response)
            if made is not None:
                self._layouts[len(body)] = made
        return response

    def _has_room(self, length: int) -> bool:
        """Whether the layout of messages of this length is kept."""
        if len(self._layouts) < KEPT_LAYOUTS or length in self._layouts:
            return True
        self._others += 1
        if self._others < PATIENCE:
            return False
        self._others = 0
        self._layouts.clear()
        return True

    def usual(self, body: bytes | memoryview) -> StreamResponse | None:
        """What a message says that looks like one before it; None for any other."""
        layout = self._layouts.get(len(body))
        return None if layout is None or type(body) is not bytes else layout.read(body)


class _Room(NamedTuple):
    """Where a tensor's contents stand; ``dtype`` is None for one element of BYTES."""

    name: str
    datatype: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    start: int
    end: int


class _Layout(NamedTuple):
    """A message, not the last one, without its raw contents: the pieces between them and where they begin, and the
    rooms for contents."""

    pieces: list[tuple[int, int, bytes]]
    rooms: list[_Room]

    def read(self, body: bytes) -> StreamResponse | None:
        """What a message of the same length says, None if it is another one."""
        for start, end, piece in self.pieces:
            if body[start:end] != piece:
                return None
        tensors: dict[str, Tensor] = {}
        for name, datatype, dtype, shape, start, end in self.rooms:
            if dtype is not None:
                tensors[name] = Tensor(name, datatype, np.ndarray(shape, dtype, body, start))
            elif int.from_bytes(body[start : start + 4], "little") == end - start - 4:
                data = np.empty(shape, np.object_)
                data.fill(body[start + 4 : end])
                tensors[name] = Tensor(name, datatype, data)
            else:
                return None
        return StreamResponse("", tensors, False)


def _layout_of(body: bytes, response: StreamResponse) -> _Layout | None:
    """The layout of a message that was read; None for an unusual one."""
    outer = [*parts(memoryview(body))]
    if len(outer) != 1 or outer[0].key != _INFER_RESPONSE:
        return None
    piece_start, position = 0, len(body) - len(outer[0].value)
    spans, pieces = [], []
    for part in parts(outer[0].value):
        position += len(part.whole)
        if part.key == _RAW_CONTENTS:
            start = position - len(part.value)
            spans.append((start, position))
            pieces.append((piece_start, start, body[piece_start:start]))
            piece_start = position
    pieces.append((piece_start, len(body), body[piece_start:]))
    rooms = []
    if len(spans) != len(response.outputs):
        return None
    for tensor, (start, end) in zip(response.outputs.values(), spans, strict=True):
        dtype = PLAIN.get(tensor.datatype)
        size = tensor.data.size
        if size * dtype.itemsize != end - start if dtype is not None else (tensor.datatype, size) != ("BYTES", 1):
            return None
        rooms.append(_Room(tensor.name, tensor.datatype, dtype, tensor.data.shape, start, end))
    return _Layout(pieces, rooms)


_INFER_RESPONSE = 2 << 3 | DELIMITED
"""The key of ModelStreamInferResponse.infer_response."""

_RAW_CONTENTS = 6 << 3 | DELIMITED
"""The key of ModelInferResponse.raw_output_contents."""

RAW_INPUT_CONTENTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER

_SHORT_CONTENTS = [bytes((RAW_INPUT_CONTENTS << 3 | DELIMITED, size)) for size in range(128)]
"""What stands before contents of fewer than 128 bytes."""


def decode_live(body: bytes) -> bool:
    """A serialized ServerLiveResponse. Raises PredictorError where it can't be read."""
    try:
        return pb.ServerLiveResponse.FromString(body).live
    except DecodeError as exc:
        raise _malformed(exc) from exc


def decode_ready(body: bytes) -> bool:
    """A serialized ServerReadyResponse. Raises PredictorError where it can't be read."""
    try:
        return pb.ServerReadyResponse.FromString(body).ready
    except DecodeError as exc:
        raise _malformed(exc) from exc


def parse_server(body: bytes) -> ServerDescription:
    """A serialized ServerMetadataResponse. Raises PredictorError where it can't be read."""
    try:
        about = pb.ServerMetadataResponse.FromString(body)
    except DecodeError as exc:
        raise _malformed(exc) from exc
    return ServerDescription(about.name, about.version, tuple(about.extensions))


def parse_index(body: bytes) -> list[RepositoryEntry]:
    """A serialized RepositoryIndexResponse, Triton's extension. Raises PredictorError where it can't be read."""
    try:
        models = pb.RepositoryIndexResponse.FromString(body).models
    except DecodeError as exc:
        raise _malformed(exc) from exc
    return [RepositoryEntry(one.name, one.version, one.state, one.reason) for one in models]


def _malformed(exc: DecodeError) -> PredictorError:
    return PredictorError(f"the predictor's response is malformed: {exc}")
