"""The client's side of the V2 protocol over HTTP: bodies <-> tensors and shapes. No sockets.

A body is a JSON header, followed by the raw elements of each tensor with a ``binary_data_size`` parameter, in the order
of the header (the binary tensor data extension). The HTTP header HEADER_LENGTH holds the length of the JSON. Without it
the whole body is JSON, and tensors have ``data``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from hf_transformer.errors import Key, PredictorError, describe
from hf_transformer.protocol.descriptions import from_json, model_spec, repository_entries, server_description
from hf_transformer.protocol.json_text import json_object, parse_answer
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import (
    NO_PLACEMENTS,
    Malformed,
    Placement,
    Unwritable,
    checked_datatype,
    checked_shape,
    decode_json,
    decode_raw,
    placed_tensor,
    raw_view,
    shorten,
)
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import ModelSpec, RepositoryEntry, ServerDescription, Tensor

HEADER_LENGTH = "Inference-Header-Content-Length"
BINARY_DATA_SIZE = "binary_data_size"
"""The parameter of a tensor with the size of its raw elements, in bytes."""
_BINARY: Json = {"binary_data": True}

# Inference


def encode_infer_request(
    inputs: Sequence[Tensor], outputs: Sequence[str], placements: Mapping[str, Placement] = NO_PLACEMENTS
) -> tuple[bytes, list[bytes | memoryview]]:
    """The body of a request: its JSON header, and the raw elements of each input.

    Large inputs may be views of the tensors' memory, so it must not change before the response arrives. The predictor
    writes outputs in ``placements`` to shared memory and sends the others in binary; without ``outputs`` it sends all.
    Raises Unwritable if data doesn't fit its datatype.
    """
    entries: list[Json] = []
    chunks: list[bytes | memoryview] = []
    for tensor in inputs:
        chunk = raw_view(tensor)
        chunks.append(chunk)
        parameters = {BINARY_DATA_SIZE: len(chunk)}
        shape = tensor.data.shape
        entries.append({"name": tensor.name, "datatype": tensor.datatype, "shape": shape, "parameters": parameters})
    if not outputs:
        return orjson.dumps({"inputs": entries, "parameters": {"binary_data_output": True}}), chunks
    wanted: list[Json] = [  # binary_data for each: Triton ignores binary_data_output in a request that lists outputs
        {"name": name, "parameters": placements[name].parameters if name in placements else _BINARY} for name in outputs
    ]
    return orjson.dumps({"inputs": entries, "outputs": wanted}), chunks


def decode_infer_response(
    body: memoryview, header_length: int | None, placements: Mapping[str, Placement] = NO_PLACEMENTS
) -> dict[str, Tensor]:
    """The tensors of a response by name: views of ``body`` or, for outputs in shared memory, of their placements.

    The JSON has ``header_length`` bytes, or is the whole body if that is None. Raises Malformed if the body breaks the
    protocol, PredictorError if it contains an error despite the status 200.
    """
    text, raw = split_body(body, header_length)
    header = json_object(parse_answer(text))
    if "error" in header:
        raise PredictorError(f"the predictor's error: {shorten(header['error'], 500)}")
    entries = header.get("outputs")
    if not isinstance(entries, list):
        raise Malformed("outputs", "a list of tensors", describe(entries))
    tensors: dict[str, Tensor] = {}
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise Malformed("outputs", "tensors with a name", shorten(entry))
        try:
            if name in tensors:
                raise Malformed("name", "a name of its own")
            datatype = checked_datatype(entry.get("datatype"))
            shape = checked_shape(entry.get("shape"))
            parameters = entry.get("parameters") or {}
            if not isinstance(parameters, dict):
                raise Malformed("parameters", "an object", describe(parameters))
            size = binary_size(parameters, len(raw))
            if size is not None:
                if "data" in entry:
                    raise Malformed("", f"data or {BINARY_DATA_SIZE}", "both")
                tensors[name] = Tensor(name, datatype, decode_raw(datatype, shape, raw[:size]))
                raw = raw[size:]
            elif "data" in entry:
                tensors[name] = Tensor(name, datatype, decode_json(datatype, shape, entry["data"]))
            elif name in placements:
                tensors[name] = placed_tensor(name, datatype, shape, placements[name])
            else:
                raise Malformed("", f"data or {BINARY_DATA_SIZE}", "neither")
        except Malformed as error:
            raise error.within(("outputs", Key(name))) from error
    if raw:
        raise Malformed("body", "no bytes behind the last tensor", str(len(raw)))
    return tensors


def binary_size(parameters: Mapping[str, Json], remaining: int) -> int | None:
    """The size of a tensor's binary elements, None if it has none.

    Raises Malformed unless it is a number of bytes up to ``remaining``.
    """
    size = parameters.get(BINARY_DATA_SIZE)
    if size is not None and (type(size) is not int or not 0 <= size <= remaining):
        raise Malformed(
            ("parameters", BINARY_DATA_SIZE), f"a number of bytes up to the remaining {remaining}", shorten(size)
        )
    return size


def parse_header_length(value: bytes) -> int:
    """The value of the HTTP header HEADER_LENGTH. Raises Malformed for any value but a number."""
    if len(value) > 19 or not value.strip().isdigit():
        raise Malformed(HEADER_LENGTH, "a number of bytes", shorten(value.decode("latin-1")))
    return int(value)


def split_body(body: memoryview, header_length: int | None) -> tuple[memoryview, memoryview]:
    """The JSON header and the bytes after it. Raises Malformed for a body shorter than ``header_length``."""
    if header_length is None:
        return body, body[:0]
    if header_length > len(body):
        raise Malformed(HEADER_LENGTH, f"at most the {len(body)} bytes of the body", str(header_length))
    return body[:header_length], body[header_length:]


# Models and servers. Each parser raises Malformed for a body of another form.


def parse_model_spec(metadata: memoryview, config: memoryview | None) -> ModelSpec:
    """The model in the answers of GET /v2/models/{m} and of Triton's /v2/models/{m}/config."""
    message = from_json(pb.ModelMetadataResponse, parse_answer(metadata))
    return model_spec(message, None if config is None else from_json(pb.ModelConfig, parse_answer(config)))


def parse_server(body: memoryview) -> ServerDescription:
    """The server in the answer of GET /v2."""
    return server_description(from_json(pb.ServerMetadataResponse, parse_answer(body)))


def parse_index(body: memoryview) -> list[RepositoryEntry]:
    """The models in the answer of POST /v2/repository/index, Triton's extension."""
    return repository_entries(from_json(pb.RepositoryIndexResponse, {"models": parse_answer(body)}))


def parse_region_names(body: memoryview) -> list[str]:
    """The names of all regions, in the answer of GET /v2/systemsharedmemory/status."""
    try:
        return [str(entry["name"]) for entry in parse_answer(body)]
    except (TypeError, KeyError) as exc:
        raise Malformed("body", "a list of regions with names") from exc


def encode_registration(key: str, byte_size: int) -> bytes:
    """The body of a request that registers a file as a region of system shared memory; the path has the region's name.

    ``key`` is a slash and the name of the file in /dev/shm. The region is the whole file, ``byte_size`` bytes.

    Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_shared_memory.md
    """
    return orjson.dumps({"key": key, "offset": 0, "byte_size": byte_size})


def encode_repository_request(parameters: Mapping[str, Json]) -> bytes:
    """The body of a request that loads or unloads a model. Raises Unwritable for a value without a form in JSON.

    Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
    """
    try:
        return orjson.dumps({"parameters": parameters})
    except TypeError as exc:
        raise Unwritable("parameters", "values for JSON", hint=str(exc)) from exc
