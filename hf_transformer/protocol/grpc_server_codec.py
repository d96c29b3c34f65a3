"""The V2 protocol over gRPC, as a server speaks it: serialized requests -> tensors -> serialized responses. No sockets.

Unknown parameters are ignored, as KServe and Triton do, and their names are noted in the request. Requests are walked
field by field before protobuf parses them, since a few bytes may take it a hundred times as many.

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
from hf_transformer.protocol.server_codec import (
    BINARY_DATA_OUTPUT,
    BINARY_DATA_SIZE,
    InferRequest,
    InferResponse,
    check_input_parameters,
    check_number,
    read_flag,
    read_raw,
    read_texts,
    requested_outputs,
)
from hf_transformer.protocol.tensors import (
    Malformed,
    check_count,
    check_sizes_agree,
    checked_datatype,
    checked_name,
    checked_shape,
    raw_view,
    shorten,
)
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Tensor, Texts

MOST_PARTS = 1000
"""Fields of a message, and of each of its inputs and outputs."""
MOST_SHAPE_BYTES = 320
"""Bytes of a shape: the 32 axes that checked_shape allows, of ten bytes each."""

_Input: TypeAlias = pb.ModelInferRequest.InferInputTensor
_ID = pb.ModelInferRequest.ID_FIELD_NUMBER << 3 | DELIMITED
_INPUTS = pb.ModelInferRequest.INPUTS_FIELD_NUMBER << 3 | DELIMITED
_OUTPUTS = pb.ModelInferRequest.OUTPUTS_FIELD_NUMBER << 3 | DELIMITED
_RAW_INPUT = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | DELIMITED
_SHAPE = _Input.SHAPE_FIELD_NUMBER << 3 | DELIMITED
_CONTENTS = _Input.CONTENTS_FIELD_NUMBER << 3 | DELIMITED
_BYTES_ELEMENT = pb.InferTensorContents.BYTES_CONTENTS_FIELD_NUMBER << 3 | DELIMITED


def decode_infer_request(body: bytes, max_elements: int) -> InferRequest:
    """The request in a serialized ModelInferRequest; its ``binary`` is whether its inputs are raw, unless it says more.

    Raises:
        Malformed: the message breaks the protocol, needs an extension that is not here, or has BYTES that are not
            UTF-8.
        TooLarge: a tensor that is read element by element (BYTES, typed contents) has more than ``max_elements``.
    """
    rest, raw = _take_apart(memoryview(body), max_elements)
    message = decode(pb.ModelInferRequest, rest)
    parameters = _parameters("parameters", message.parameters)
    parameters.pop(EMPTY_FINAL_RESPONSE, None)  # none of our responses is empty
    binary = read_flag(f"parameters.{BINARY_DATA_OUTPUT}", parameters.pop(BINARY_DATA_OUTPUT, None))
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
    """The id in a serialized ModelInferRequest that may be malformed; empty if there is none."""
    found = b""
    try:
        for key, _, value, end in fields(memoryview(body), MOST_PARTS):
            found = body[value:end] if key == _ID else found
        return found.decode()
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

    A response is raw or typed as a whole: raw where the request wants one of the outputs raw, or one has a datatype
    that only raw contents can hold. ``final`` adds the parameter that tells a stream's client that no response follows.
    ``parameters`` are those of one of several responses, which then says in either case whether it is the last one.
    """
    name, version = response.model_name, response.model_version
    message = pb.ModelInferResponse(model_name=name, model_version=version, id=response.id)
    if final or parameters is not None:
        message.parameters[FINAL_RESPONSE].bool_param = final
    for name, value in (parameters or {}).items():
        kind = "bool_param" if isinstance(value, bool) else "int64_param" if isinstance(value, int) else "string_param"
        setattr(message.parameters[name], kind, value)
    raw = any(request.wants_binary(one.name) or one.datatype not in TYPED_CONTENTS for one in response.outputs)
    chunks: list[bytes | memoryview] = []
    for tensor in response.outputs:
        entry = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if raw:
            data = raw_view(tensor)
            chunks += (bytes_field_head(pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER, len(data)), data)
        else:
            getattr(entry.contents, TYPED_CONTENTS[tensor.datatype]).extend(tensor.data.reshape(-1).tolist())
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


def _take_apart(body: memoryview, max_elements: int) -> tuple[bytes, list[memoryview]]:
    """The message without its raw contents, which is then small when parsed, too, and views of the raw contents."""
    rest: list[memoryview] = []
    raw: list[memoryview] = []
    inputs = 0
    for key, start, value, end in fields(body, MOST_PARTS):
        if key == _RAW_INPUT:
            raw.append(body[value:end])
            continue
        rest.append(body[start:end])
        if key == _INPUTS:
            _check_input(inputs, body[value:end], max_elements)
            inputs += 1
            check_number("inputs", inputs)
        elif key == _OUTPUTS:
            for _ in fields(body[value:end], MOST_PARTS, "outputs"):
                pass
    return b"".join(rest), raw


def _check_input(index: int, message: memoryview, max_elements: int) -> None:
    elements = 0
    for key, _, value, end in fields(message, MOST_PARTS, f"inputs[{index}]"):
        if key == _SHAPE and end - value > MOST_SHAPE_BYTES:
            raise Malformed(f"inputs[{index}]: the shape has {end - value} bytes, more than any takes")
        if key != _CONTENTS:
            continue
        for element, _, first, last in fields(message[value:end]):
            # A number takes ten bytes at most; in a list that is not packed each is a field of its own.
            packed = element & 7 == DELIMITED and element != _BYTES_ELEMENT
            elements += max((last - first) // 10, 1) if packed else 1
            if elements > max_elements:
                raise TooLarge.of(
                    f"inputs[{index}]: more than {max_elements} elements, which is what is taken (the larger of "
                    "--max_instances and --max_sequences)"
                )


def _inputs(
    entries: Sequence[_Input], raw: Sequence[memoryview], max_elements: int, ignored: list[str]
) -> dict[str, Tensor | Texts]:
    if raw and len(raw) != len(entries):
        raise Malformed(f"raw_input_contents: {len(raw)} raw contents for {len(entries)} inputs")
    tensors: dict[str, Tensor | Texts] = {}
    for entry, contents in zip(entries, raw or repeat(None), strict=False):
        name = checked_name(entry.name)
        if name in tensors:
            raise Malformed(f"inputs: tensor {name!r} comes twice")
        where = f"inputs: the parameters of tensor {name!r}"
        parameters = _parameters(where, entry.parameters)
        check_input_parameters(name, parameters, ignored)
        size = 0 if contents is None else len(contents)
        if parameters.get(BINARY_DATA_SIZE, size) != size:  # KServe's clients send it, as over REST
            raise Malformed(f"{where}: {BINARY_DATA_SIZE} differs from the {size} raw bytes that it has")
        tensors[name] = _input(name, entry, contents, max_elements)
    return tensors


def _input(name: str, entry: _Input, raw: memoryview | None, max_elements: int) -> Tensor | Texts:
    datatype = checked_datatype(name, entry.datatype)
    shape = checked_shape(name, list(entry.shape))
    if raw is None:
        check_count(name, shape, max_elements, max_elements)  # there are no more: see _check_input
        if datatype == "BYTES":
            elements = entry.contents.bytes_contents
            check_sizes_agree(name, shape, len(elements))
            return read_texts(name, shape, elements)
        return Tensor(name, datatype, decode_typed(name, datatype, shape, entry.contents))
    if entry.HasField("contents"):
        raise Malformed(f"tensor {name!r} has typed contents beside the raw ones")
    return read_raw(name, datatype, shape, raw, max_elements)


def _outputs(
    entries: Sequence[pb.ModelInferRequest.InferRequestedOutputTensor], ignored: list[str]
) -> dict[str, bool | None]:
    check_number("outputs", len(entries))
    named = (
        (name := checked_name(one.name), _parameters(f"outputs: the parameters of {name!r}", one.parameters))
        for one in entries
    )
    return requested_outputs(named, ignored)


def _parameters(where: str, given: Mapping[str, pb.InferParameter]) -> dict[str, Json]:
    """The values as Python's: booleans, integers, floats and strings."""
    parameters: dict[str, Json] = {}
    if not given:  # as mostly; going through it costs 1 us all the same
        return parameters
    for name, value in given.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise Malformed(f"{where}: {shorten(name, 40)!r} has no value that is understood")
        parameters[name] = getattr(value, choice)
    return parameters
