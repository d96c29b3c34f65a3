"""The V2 protocol over HTTP, as a server speaks it: bodies of requests -> tensors -> bodies of responses. No sockets.

Bodies are framed as in rest.py. Unknown keys and parameters are ignored, as KServe and Triton do, and their names are
noted in the request.

Source: https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md and
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from hf_transformer.errors import describe
from hf_transformer.protocol.json_text import JsonLimits, json_object, parse_json
from hf_transformer.protocol.rest import binary_size, split_body
from hf_transformer.protocol.server_codec import (
    BINARY_DATA_OUTPUT,
    BINARY_DATA_SIZE,
    InferRequest,
    InferResponse,
    check_input_parameters,
    check_number,
    note_unknown,
    read_flag,
    read_raw,
    requested_outputs,
)
from hf_transformer.protocol.tensors import (
    Malformed,
    check_count,
    checked_datatype,
    checked_name,
    checked_shape,
    decode_json,
    json_strings,
    raw_view,
)
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array, Tensor, Texts

REQUEST_KEYS = ("id", "parameters", "inputs", "outputs", "model_name", "model_version")
"""The keys of a request; clients may repeat the model's name and version from the path."""
INPUT_KEYS = ("name", "datatype", "shape", "parameters", "data")
OUTPUT_KEYS = ("name", "parameters")
NOTHING = memoryview(b"")


def decode_infer_request(body: bytes, header_length: int | None, max_elements: int) -> InferRequest:
    """A request's tensors, parameters and wanted outputs. The JSON has ``header_length`` bytes, None where it is the
    whole body.

    Raises:
        Malformed: the body breaks the protocol, needs an extension that is not here, or has BYTES that are not UTF-8.
        TooLarge: a tensor that is read element by element (BYTES, anything in JSON) has more than ``max_elements``, or
            the JSON has more parts than such tensors have.
    """
    text, raw = (body, NOTHING) if header_length is None else split_body(memoryview(body), header_length)
    header = json_object(parse_json(text, JsonLimits.of_tensors(max_elements)))
    ignored: list[str] = []
    note_unknown(header, REQUEST_KEYS, ignored)
    parameters = _parameters("parameters", header) if "parameters" in header else {}
    binary = BINARY_DATA_OUTPUT in parameters and read_flag(
        f"parameters.{BINARY_DATA_OUTPUT}", parameters.pop(BINARY_DATA_OUTPUT)
    )
    return InferRequest(
        _inputs(
            header.get("inputs"), raw, len(text) // 2 + 1, max_elements, ignored
        ),  # an element takes two bytes: "1,"
        _outputs(header["outputs"], ignored) if "outputs" in header else {},
        parameters,
        _string("id", header) if "id" in header else "",
        binary or False,
        _string("model_name", header) if "model_name" in header else "",
        _string("model_version", header) if "model_version" in header else "",
        ignored,
    )


def encode_infer_response(response: InferResponse, request: InferRequest) -> tuple[bytes, int | None]:
    """The body, and the length of its JSON if raw elements follow; None if all of it is JSON.

    BYTES elements are UTF-8 where the request wants them in JSON.
    """
    chunks: list[bytes | memoryview] = []
    outputs = []
    for tensor in response.outputs:
        entry: dict[str, Json] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if request.wants_binary(tensor.name):
            chunks.append(raw_view(tensor))
            entry["parameters"] = {BINARY_DATA_SIZE: len(chunks[-1])}
        else:
            flat: Array = tensor.data.ravel()  # row-major, the protocol's preferred form
            entry["data"] = [element.decode() for element in flat] if tensor.datatype == "BYTES" else flat
        outputs.append(entry)
    header: dict[str, Json] = {"model_name": response.model_name}
    if response.model_version:
        header["model_version"] = response.model_version
    if response.id:
        header["id"] = response.id
    header["outputs"] = outputs
    # numpy's float32 is written with half as many digits as a Python float.
    text = orjson.dumps(header, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join((text, *chunks)), len(text)) if chunks else (text, None)


def _inputs(
    entries: Json, raw: memoryview, room: int, max_elements: int, ignored: list[str]
) -> dict[str, Tensor | Texts]:
    """The input tensors by name; the JSON holds at most ``room`` elements."""
    tensors: dict[str, Tensor | Texts] = {}
    position = 0
    for index, entry in enumerate(_entries("inputs", entries)):
        name = _name(f"inputs[{index}]", entry, INPUT_KEYS, ignored)
        if name in tensors:
            raise Malformed(f"inputs: tensor {name!r} comes twice")
        size = None
        if "parameters" in entry:
            parameters = _parameters(f"inputs: the parameters of tensor {name!r}", entry)
            check_input_parameters(name, parameters, ignored)
            size = binary_size(name, parameters, len(raw) - position)
        datatype = checked_datatype(name, entry.get("datatype"))
        shape = checked_shape(name, entry.get("shape"))
        data = entry.get("data")
        if (size is None) is (data is None):
            has = "neither data nor" if data is None else "both data and"
            raise Malformed(f"tensor {name!r} has {has} {BINARY_DATA_SIZE}")
        if size is not None:
            tensors[name] = read_raw(name, datatype, shape, raw[position : position + size], max_elements)
            position += size
            continue
        check_count(name, shape, room, max_elements)
        if datatype == "BYTES":
            tensors[name] = Texts(name, shape, json_strings(name, shape, data))
        else:
            tensors[name] = Tensor(name, datatype, decode_json(name, datatype, shape, data))
    if position != len(raw):
        raise Malformed(f"body: {len(raw) - position} bytes stand behind the last tensor")
    return tensors


def _outputs(entries: Json, ignored: list[str]) -> dict[str, bool | None]:
    if entries is None:
        return {}
    named = (
        (
            name := _name(f"outputs[{index}]", one, OUTPUT_KEYS, ignored),
            _parameters(f"outputs: the parameters of {name!r}", one) if "parameters" in one else {},
        )
        for index, one in enumerate(_entries("outputs", entries))
    )
    return requested_outputs(named, ignored)


def _entries(what: str, entries: Json) -> list[Json]:
    """The list of inputs or outputs, which holds no more than any task has."""
    if not isinstance(entries, list):
        raise Malformed(f"{what}: expected a list of tensors, got {describe(entries)}")
    check_number(what, len(entries))
    return entries


def _name(where: str, entry: Json, keys: Sequence[str], ignored: list[str]) -> str:
    """The name of one input or output, an object with these keys."""
    if not isinstance(entry, dict):
        raise Malformed(f"{where}: expected an object with a name, got {describe(entry)}")
    note_unknown(entry, keys, ignored)
    name = entry.get("name")
    if not isinstance(name, str):
        raise Malformed(f"{where}.name: expected a string, got {describe(name)}")
    return checked_name(name)


def _string(name: str, header: Mapping[str, Json]) -> str:
    """An optional string, empty for null."""
    value = header[name]
    if not isinstance(value, str | None):
        raise Malformed(f"{name}: expected a string, got {describe(value)}")
    return value or ""


def _parameters(where: str, holder: Mapping[str, Json]) -> dict[str, Json]:
    """The parameters of a request or a tensor; none for null."""
    parameters = holder["parameters"]
    if not isinstance(parameters, dict | None):
        raise Malformed(f"{where}: expected an object, got {describe(parameters)}")
    return {} if parameters is None else parameters
