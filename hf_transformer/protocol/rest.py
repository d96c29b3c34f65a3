"""The V2 protocol over HTTP, as its clients speak it: bodies <-> tensors and shapes. No sockets.

A body is a JSON header, and behind it the raw elements of each tensor that has a ``binary_data_size`` parameter, in the
order of the header (the binary tensor data extension). The HTTP header HEADER_LENGTH holds the length of the JSON;
without it the whole body is JSON and tensors have ``data``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from hf_transformer.errors import PredictorError
from hf_transformer.protocol.descriptions import from_json, model_spec, repository_entries, server_description
from hf_transformer.protocol.json_text import json_object, parse_answer
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import (
    NOWHERE,
    Malformed,
    Placement,
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
_BINARY: Json = {"binary_data": True}

# Inference


def encode_infer_request(
    inputs: Sequence[Tensor], outputs: Sequence[str], placements: Mapping[str, Placement] = NOWHERE
) -> tuple[bytes, list[bytes | memoryview]]:
    """The body of a request: its JSON header, and the raw elements of each input.

    Large inputs are views of the tensors' own memory where that is laid out like the bytes, so nobody may change them
    before the request is answered. Outputs with a place in ``placements`` are written there, the others come as binary;
    without ``outputs`` the predictor sends all that it has. Raises Unwritable if data doesn't fit its datatype.
    """
    entries: list[Json] = []
    chunks: list[bytes | memoryview] = []
    for tensor in inputs:
        chunk = raw_view(tensor)
        chunks.append(chunk)
        entry: Json = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.data.shape}
        entry["parameters"] = {"binary_data_size": len(chunk)}
        entries.append(entry)
    if not outputs:
        return orjson.dumps({"inputs": entries, "parameters": {"binary_data_output": True}}), chunks
    wanted: list[Json] = [  # each asks for binary itself: beside a list of outputs Triton ignores binary_data_output
        {"name": name, "parameters": placements[name].parameters if name in placements else _BINARY} for name in outputs
    ]
    return orjson.dumps({"inputs": entries, "outputs": wanted}), chunks


def decode_infer_response(
    body: memoryview, header_length: int | None, placements: Mapping[str, Placement] = NOWHERE
) -> dict[str, Tensor]:
    """The tensors of a response by name: binary ones are views of ``body``, those in shared memory of their places. The
    JSON has ``header_length`` bytes, None where it is the whole body.

    Raises Malformed if the body breaks the protocol, PredictorError if it is an error in spite of its status.
    """
    text, raw = split_body(body, header_length)
    header = json_object(parse_answer(text))
    if "error" in header:
        raise PredictorError(f"the predictor's error: {shorten(header['error'], 500)}")
    entries = header.get("outputs")
    if not isinstance(entries, list):
        raise Malformed("there is no list of tensors")
    tensors: dict[str, Tensor] = {}
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise Malformed(f"{shorten(entry)} is not a tensor with a name")
        if name in tensors:
            raise Malformed(f"tensor {name!r} comes twice")
        datatype = checked_datatype(name, entry.get("datatype"))
        shape = checked_shape(name, entry.get("shape"))
        parameters = entry.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise Malformed(f"the parameters of tensor {name!r} are no object")
        size = binary_size(name, parameters, len(raw))
        if size is not None:
            if "data" in entry:
                raise Malformed(f"tensor {name!r} has both data and binary_data_size")
            tensors[name] = Tensor(name, datatype, decode_raw(name, datatype, shape, raw[:size]))
            raw = raw[size:]
        elif "data" in entry:
            tensors[name] = Tensor(name, datatype, decode_json(name, datatype, shape, entry["data"]))
        elif name in placements:
            tensors[name] = placed_tensor(name, datatype, shape, placements[name])
        else:
            raise Malformed(f"tensor {name!r} has neither data nor binary_data_size")
    if raw:
        raise Malformed(f"{len(raw)} bytes stand behind the last tensor")
    return tensors


def binary_size(name: str, parameters: Mapping[str, Json], left: int) -> int | None:
    """The size of a tensor's binary elements, None for a tensor without any.

    Raises Malformed for anything but a number of bytes that is at most ``left``.
    """
    size = parameters.get("binary_data_size")
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise Malformed(f"tensor {name!r} has binary_data_size {shorten(size)}, expected a number of bytes")
    if size > left:
        raise Malformed(f"tensor {name!r} has binary_data_size {size}, but {left} bytes are left")
    return size


def parse_header_length(value: bytes) -> int:
    """The value of the HTTP header HEADER_LENGTH. Raises Malformed for anything but a number."""
    if len(value) > 19 or not value.strip().isdigit():
        raise Malformed(f"{HEADER_LENGTH} is {shorten(value.decode('latin-1'))}, expected a number of bytes")
    return int(value)


def split_body(body: memoryview, header_length: int | None) -> tuple[memoryview, memoryview]:
    """The text of the JSON header and the bytes behind it. Raises Malformed for a body shorter than its header."""
    if header_length is None:
        return body, body[:0]
    if header_length > len(body):
        raise Malformed(f"{HEADER_LENGTH} is {header_length}, but the body has {len(body)} bytes")
    return body[:header_length], body[header_length:]


# Models and servers. All raise Malformed for anything else than what they read.


def parse_model_spec(metadata: memoryview, config: memoryview | None) -> ModelSpec:
    """The model in the answers of GET /v2/models/{m} and of Triton's /v2/models/{m}/config."""
    about = from_json(pb.ModelMetadataResponse, parse_answer(metadata))
    return model_spec(about, None if config is None else from_json(pb.ModelConfig, parse_answer(config)))


def parse_server(body: memoryview) -> ServerDescription:
    """The answer of GET /v2."""
    return server_description(from_json(pb.ServerMetadataResponse, parse_answer(body)))


def parse_index(body: memoryview) -> list[RepositoryEntry]:
    """The answer of POST /v2/repository/index, Triton's extension."""
    return repository_entries(from_json(pb.RepositoryIndexResponse, {"models": parse_answer(body)}))


def parse_region_names(body: memoryview) -> list[str]:
    """The names in the status of all regions."""
    try:
        return [str(entry["name"]) for entry in parse_answer(body)]
    except (TypeError, KeyError) as exc:
        raise Malformed(f"an entry has no name: {exc}") from exc


def encode_registration(key: str, byte_size: int) -> bytes:
    """The body of a request that registers a file as a region of system shared memory; the path has the region's name.

    ``key`` is a slash and the name of the file in /dev/shm. The region is the whole file, ``byte_size`` bytes.

    Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_shared_memory.md
    """
    return orjson.dumps({"key": key, "offset": 0, "byte_size": byte_size})
