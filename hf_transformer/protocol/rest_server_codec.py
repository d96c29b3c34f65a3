"""The server's side of the V2 protocol over HTTP: bodies of requests -> tensors -> bodies of responses. No sockets.

rest.py describes the bodies. Unknown keys and parameters are ignored, as KServe and Triton do, and the request lists
their names.

Source: https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md and
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import orjson

from hf_transformer.errors import Path, TooLarge, describe
from hf_transformer.protocol.json_text import JsonLimits, json_object, parse_json
from hf_transformer.protocol.rest import BINARY_DATA_SIZE, binary_size, split_body
from hf_transformer.protocol.server_codec import (
    BINARY_DATA_OUTPUT,
    BINARY_DATA_OUTPUT_PATH,
    InferRequest,
    InferResponse,
    check_input_parameters,
    check_tensor_count,
    note_unknown,
    read_flag,
    read_raw,
    requested_outputs,
)
from hf_transformer.protocol.tensors import (
    Malformed,
    check_extent,
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
"""Known keys of a request. Clients may repeat the model's name and version from the path."""
INPUT_KEYS = ("name", "datatype", "shape", "parameters", "data")
OUTPUT_KEYS = ("name", "parameters")
NOTHING = memoryview(b"")


def decode_infer_request(
    body: bytes, header_length: int | None, max_elements: int, hold: Callable[[int], None] | None = None
) -> InferRequest:
    """The request in a body. Its JSON has ``header_length`` bytes, or is the whole body if that is None. ``hold`` is
    that of ``parse_json``.

    Raises:
        Malformed: the body breaks the protocol, needs an unsupported extension, or has BYTES that are not UTF-8.
        TooLarge: a tensor that is parsed element by element (BYTES, anything in JSON) has more than ``max_elements``,
            or the JSON has more parts than such tensors have.
    """
    text, raw = (body, NOTHING) if header_length is None else split_body(memoryview(body), header_length)
    header = json_object(parse_json(text, JsonLimits.of_tensors(max_elements), hold))
    ignored: list[str] = []
    note_unknown(header, REQUEST_KEYS, ignored)
    parameters = _parameters(header) if "parameters" in header else {}
    binary = BINARY_DATA_OUTPUT in parameters and read_flag(BINARY_DATA_OUTPUT_PATH, parameters.pop(BINARY_DATA_OUTPUT))
    capacity = len(text) // 2 + 1  # an element takes two bytes: "1,"
    return InferRequest(
        _inputs(header.get("inputs"), raw, capacity, max_elements, ignored),
        _outputs(header["outputs"], ignored) if "outputs" in header else {},
        parameters,
        _string("id", header) if "id" in header else "",
        binary or False,
        _string("model_name", header) if "model_name" in header else "",
        _string("model_version", header) if "model_version" in header else "",
        ignored,
    )


def _dumps(header: Json) -> bytes:
    # orjson writes numpy's float32 with half as many digits as a Python float.
    return orjson.dumps(header, option=orjson.OPT_SERIALIZE_NUMPY)


def encode_infer_response(
    response: InferResponse, request: InferRequest, dumps: Callable[[Json], bytes] = _dumps
) -> tuple[bytes, int | None]:
    """The body, and the length of its JSON, which ``dumps`` writes, if raw elements follow, else None.

    BYTES elements must be UTF-8 if the request wants them in JSON.
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
    text = dumps(header)
    return (b"".join((text, *chunks)), len(text)) if chunks else (text, None)


def _inputs(
    entries: Json, raw: memoryview, capacity: int, max_elements: int, ignored: list[str]
) -> dict[str, Tensor | Texts]:
    """The input tensors by name; the JSON has at most ``capacity`` elements."""
    tensors: dict[str, Tensor | Texts] = {}
    position = 0
    _check_entries("inputs", entries)
    try:
        for entry in entries:
            name = _name(entry, INPUT_KEYS, ignored)
            if name in tensors:
                raise Malformed("name", "a name of its own", repr(name))
            size = None
            if "parameters" in entry:
                parameters = _parameters(entry)
                check_input_parameters(parameters, ignored)
                size = binary_size(parameters, len(raw) - position)
            datatype = checked_datatype(entry.get("datatype"))
            shape = checked_shape(entry.get("shape"))
            data = entry.get("data")
            if (size is None) is (data is None):
                raise Malformed("", f"data or {BINARY_DATA_SIZE}", "neither" if data is None else "both")
            if size is not None:
                tensors[name] = read_raw(name, datatype, shape, raw[position : position + size], max_elements)
                position += size
                continue
            check_extent(shape, capacity, max_elements)
            if datatype == "BYTES":
                tensors[name] = Texts(name, shape, json_strings(shape, data))
            else:
                tensors[name] = Tensor(name, datatype, decode_json(datatype, shape, data))
    except (Malformed, TooLarge) as error:
        raise error.within(("inputs", len(tensors))) from error
    if position != len(raw):
        raise Malformed("body", "no bytes behind the last tensor", str(len(raw) - position))
    return tensors


def _outputs(entries: Json, ignored: list[str]) -> dict[str, bool | None]:
    if entries is None:
        return {}
    _check_entries("outputs", entries)
    return requested_outputs(
        (
            (_name(entry, OUTPUT_KEYS, ignored), _parameters(entry) if "parameters" in entry else {})
            for entry in entries
        ),
        ignored,
    )


def _check_entries(path: Path | str, entries: Json) -> None:
    """Raises Malformed unless ``entries`` is a list of at most MAX_TENSORS tensors."""
    if not isinstance(entries, list):
        raise Malformed(path, "a list of tensors", describe(entries))
    check_tensor_count(path, len(entries))


def _name(entry: Json, keys: Sequence[str], ignored: list[str]) -> str:
    """The name of an input or output, an object with these keys. Notes all unknown keys."""
    if not isinstance(entry, dict):
        raise Malformed("", "an object with a name", describe(entry))
    note_unknown(entry, keys, ignored)
    name = entry.get("name")
    if not isinstance(name, str):
        raise Malformed("name", "a string", describe(name))
    return checked_name(name)


def _string(name: str, header: Mapping[str, Json]) -> str:
    """An optional string, empty for null."""
    value = header[name]
    if not isinstance(value, str | None):
        raise Malformed(name, "a string", describe(value))
    return value or ""


def _parameters(owner: Mapping[str, Json]) -> dict[str, Json]:
    """The parameters of a request or a tensor; none for null."""
    parameters = owner["parameters"]
    if not isinstance(parameters, dict | None):
        raise Malformed("parameters", "an object", describe(parameters))
    return {} if parameters is None else parameters
