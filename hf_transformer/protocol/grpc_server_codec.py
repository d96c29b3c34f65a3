"""The server's side of the V2 protocol over gRPC: serialized requests -> tensors -> serialized responses. No sockets.

Unknown parameters are ignored, as KServe and Triton do, and the request lists their names. Each request is checked
field by field before protobuf parses it, since protobuf may need a hundred times the bytes of a message.

Source: protos/open_inference_grpc.proto, and for streams and parameters
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_parameters.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import TypeAlias

from hf_transformer.errors import TooLarge
from hf_transformer.protocol.grpc import (
    DELIMITED,
    EMPTY_FINAL_RESPONSE,
    FINAL_RESPONSE,
    TYPED_CONTENTS,
    bytes_field_head,
    decode,
    decode_typed,
    fields,
)
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.rest import BINARY_DATA_SIZE
from hf_transformer.protocol.server_codec import (
    BINARY_DATA_OUTPUT,
    BINARY_DATA_OUTPUT_PATH,
    InferRequest,
    InferResponse,
    check_input_parameters,
    check_tensor_count,
    read_flag,
    read_raw,
    read_texts,
    requested_outputs,
)
from hf_transformer.protocol.tensors import (
    Malformed,
    check_element_count,
    check_extent,
    checked_datatype,
    checked_name,
    checked_shape,
    raw_view,
    shorten,
)
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Tensor, Texts

MAX_FIELDS = 1000
"""The maximum number of fields in a message, and in each of its inputs and outputs."""
STEP_ELEMENTS = 20_000
"""Elements of an output that are converted at a time, about 1 ms."""
MAX_SHAPE_BYTES = 320
"""The longest encoded shape: checked_shape allows 32 axes, and each takes up to ten bytes."""

_Input: TypeAlias = pb.ModelInferRequest.InferInputTensor
_ID = pb.ModelInferRequest.ID_FIELD_NUMBER << 3 | DELIMITED
_INPUTS = pb.ModelInferRequest.INPUTS_FIELD_NUMBER << 3 | DELIMITED
_OUTPUTS = pb.ModelInferRequest.OUTPUTS_FIELD_NUMBER << 3 | DELIMITED
_RAW_INPUT = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | DELIMITED
_SHAPE = _Input.SHAPE_FIELD_NUMBER << 3 | DELIMITED
_CONTENTS = _Input.CONTENTS_FIELD_NUMBER << 3 | DELIMITED
_BYTES_ELEMENT = pb.InferTensorContents.BYTES_CONTENTS_FIELD_NUMBER << 3 | DELIMITED


def decode_infer_request(body: bytes, max_elements: int) -> InferRequest:
    """The request in a serialized ModelInferRequest. Without ``binary_data_output``, outputs are raw if inputs are.

    Raises:
        Malformed: the message breaks the protocol, needs an unsupported extension, or has BYTES that are not UTF-8.
        TooLarge: a tensor that is parsed element by element (BYTES, typed contents) has more than ``max_elements``.
    """
    rest, raw = _split_raw(memoryview(body), max_elements)
    message = decode(pb.ModelInferRequest, rest)
    parameters = _parameters(message.parameters)
    parameters.pop(EMPTY_FINAL_RESPONSE, None)  # irrelevant: this server sends no empty response
    binary = read_flag(BINARY_DATA_OUTPUT_PATH, parameters.pop(BINARY_DATA_OUTPUT, None))
    ignored: list[str] = []
    return InferRequest(
        inputs=_inputs(message.inputs, raw, max_elements, ignored),
        outputs=_outputs(message.outputs, ignored),
        parameters=parameters,
        id=message.id,
        binary=bool(raw) if binary is None else binary,
        model_name=message.model_name,
        model_version=message.model_version,
        ignored=ignored,
    )


def request_id(body: bytes) -> str:
    """The id in a serialized, possibly malformed ModelInferRequest; empty if there is none."""
    encoded = b""
    try:
        for key, _, value, end in fields(memoryview(body), MAX_FIELDS):
            encoded = body[value:end] if key == _ID else encoded
        return encoded.decode()
    except (Malformed, UnicodeDecodeError):
        return ""


def encode_infer_response(
    response: InferResponse,
    request: InferRequest,
    *,
    final: bool = False,
    parameters: Mapping[str, bool | int | str] | None = None,
) -> bytes:
    """A serialized ModelInferResponse.

    All outputs are raw if the request wants any output raw, or a datatype has no typed contents; else all are typed.
    ``final`` marks the last response of a stream's request. Give ``parameters`` for one of several responses; it then
    always has triton_final_response, true or false.
    """
    name, version = response.model_name, response.model_version
    message = pb.ModelInferResponse(model_name=name, model_version=version, id=response.id)
    if final or parameters is not None:
        message.parameters[FINAL_RESPONSE].bool_param = final
    for name, value in (parameters or {}).items():
        kind = "bool_param" if isinstance(value, bool) else "int64_param" if isinstance(value, int) else "string_param"
        setattr(message.parameters[name], kind, value)
    raw = any(request.wants_binary(tensor.name) or tensor.datatype not in TYPED_CONTENTS for tensor in response.outputs)
    chunks: list[bytes | memoryview] = []
    for tensor in response.outputs:
        entry = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if raw:
            data = raw_view(tensor)
            chunks += (bytes_field_head(pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER, len(data)), data)
        else:
            flat, contents = tensor.data.reshape(-1), getattr(entry.contents, TYPED_CONTENTS[tensor.datatype])
            for start in range(0, len(flat), STEP_ELEMENTS):  # each step holds the interpreter's lock
                contents.extend(flat[start : start + STEP_ELEMENTS].tolist())
    return b"".join((message.SerializeToString(), *chunks))


def encode_stream_response(infer_response: bytes) -> bytes:
    """A serialized ModelStreamInferResponse around a serialized ModelInferResponse."""
    number = pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER
    return bytes_field_head(number, len(infer_response)) + infer_response


def encode_stream_error(error: str, request_id: str) -> bytes:
    """A serialized ModelStreamInferResponse with the error of one request."""
    message = pb.ModelStreamInferResponse(error_message=error)
    message.infer_response.id = request_id
    message.infer_response.parameters[FINAL_RESPONSE].bool_param = True
    return message.SerializeToString()


def _split_raw(body: memoryview, max_elements: int) -> tuple[bytes, list[memoryview]]:
    """The message without its raw contents, for protobuf to parse, and views of the raw contents."""
    rest: list[memoryview] = []
    raw: list[memoryview] = []
    inputs = 0
    for key, start, value, end in fields(body, MAX_FIELDS):
        if key == _RAW_INPUT:
            raw.append(body[value:end])
            continue
        rest.append(body[start:end])
        if key == _INPUTS:
            try:
                _check_input(body[value:end], max_elements)
            except (Malformed, TooLarge) as error:
                raise error.within(("inputs", inputs)) from error
            inputs += 1
            check_tensor_count("inputs", inputs)
        elif key == _OUTPUTS:
            for _ in fields(body[value:end], MAX_FIELDS, "outputs"):
                pass
    return b"".join(rest), raw


def _check_input(message: memoryview, max_elements: int) -> None:
    """Checks the size of a serialized input. Raises Malformed and TooLarge, with a path relative to it."""
    elements = 0
    for key, _, value, end in fields(message, MAX_FIELDS, ""):
        if key == _SHAPE and end - value > MAX_SHAPE_BYTES:
            raise Malformed("shape", f"at most {MAX_SHAPE_BYTES} bytes", str(end - value))
        if key != _CONTENTS:
            continue
        for element, _, first, last in fields(message[value:end], None, "contents"):
            # A number takes ten bytes at most. In a list that is not packed, each number is a field of its own.
            packed = element & 7 == DELIMITED and element != _BYTES_ELEMENT
            elements += max((last - first) // 10, 1) if packed else 1
            if elements > max_elements:
                flags = "the larger of --max_instances and --max_sequences"
                raise TooLarge("contents", f"at most {max_elements} elements ({flags})", "more")


def _inputs(
    entries: Sequence[_Input], raw: Sequence[memoryview], max_elements: int, ignored: list[str]
) -> dict[str, Tensor | Texts]:
    if raw and len(raw) != len(entries):
        raise Malformed("raw_input_contents", f"contents for {len(entries)} inputs", str(len(raw)))
    tensors: dict[str, Tensor | Texts] = {}
    try:
        for entry, contents in zip(entries, raw or repeat(None), strict=False):
            name = checked_name(entry.name)
            if name in tensors:
                raise Malformed("name", "a name of its own", repr(name))
            parameters = _parameters(entry.parameters)
            check_input_parameters(parameters, ignored)
            size = 0 if contents is None else len(contents)
            if parameters.get(BINARY_DATA_SIZE, size) != size:  # KServe's clients send it, also over REST
                raise Malformed(("parameters", BINARY_DATA_SIZE), f"the {size} bytes of the raw contents")
            tensors[name] = _input(name, entry, contents, max_elements)
    except (Malformed, TooLarge) as error:
        raise error.within(("inputs", len(tensors))) from error
    return tensors


def _input(name: str, entry: _Input, raw: memoryview | None, max_elements: int) -> Tensor | Texts:
    datatype = checked_datatype(entry.datatype)
    shape = checked_shape(list(entry.shape))
    if raw is None:
        check_extent(shape, max_elements, max_elements)  # _check_input has bounded the contents
        if datatype == "BYTES":
            elements = entry.contents.bytes_contents
            check_element_count(shape, len(elements))
            return read_texts(name, shape, elements)
        return Tensor(name, datatype, decode_typed(datatype, shape, entry.contents))
    if entry.HasField("contents"):
        raise Malformed("contents", "raw or typed contents", "both")
    return read_raw(name, datatype, shape, raw, max_elements)


def _outputs(
    entries: Sequence[pb.ModelInferRequest.InferRequestedOutputTensor], ignored: list[str]
) -> dict[str, bool | None]:
    check_tensor_count("outputs", len(entries))
    return requested_outputs(((checked_name(entry.name), _parameters(entry.parameters)) for entry in entries), ignored)


def _parameters(messages: Mapping[str, pb.InferParameter]) -> dict[str, Json]:
    """The parameters' values as booleans, integers, floats and strings. Raises Malformed for a missing value."""
    parameters: dict[str, Json] = {}
    if not messages:  # the usual case; iterating an empty map costs 1 us
        return parameters
    for name, message in messages.items():
        choice = message.WhichOneof("parameter_choice")
        if choice is None:
            raise Malformed(("parameters", shorten(name, 40)), "a boolean, number or string")
        parameters[name] = getattr(message, choice)
    return parameters
