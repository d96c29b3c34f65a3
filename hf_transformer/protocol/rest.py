"""The V2 protocol over HTTP, as its clients speak it: bodies <-> tensors and shapes. No sockets.

A body is a JSON header, and behind it the raw elements of each tensor that has a ``binary_data_size`` parameter, in the
order of the header (the binary tensor data extension). The HTTP header HEADER_LENGTH holds the length of the JSON;
without it the whole body is JSON and tensors have ``data``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from hf_transformer.errors import PredictorError
from hf_transformer.protocol.tensors import (
    NOWHERE,
    Malformed,
    Placement,
    checked_datatype,
    checked_shape,
    config_datatype,
    decode_json,
    decode_raw,
    json_kind,
    placed_tensor,
    raw_view,
    shorten,
)
from hf_transformer.types import Json, ModelSpec, RepositoryEntry, ServerDescription, Tensor, TensorSpec

HEADER_LENGTH = "Inference-Header-Content-Length"

# Inference


def encode_infer_request(
    inputs: Sequence[Tensor], outputs: Sequence[str], placements: Mapping[str, Placement] = NOWHERE
) -> tuple[bytes, list[bytes | memoryview], int]:
    """The body of a request: its JSON header, the raw elements of each input, and the number of bytes of all.

    Large inputs are views of the tensors' own memory where that is laid out like the bytes, so nobody may change them
    before the request is answered. Outputs with a place in ``placements`` are written there, the others come as binary;
    without ``outputs`` the predictor sends all that it has.

    Raises:
        PredictorError: an input's data doesn't fit its datatype.
    """
    entries: list[Json] = []
    chunks: list[bytes | memoryview] = []
    length = 0
    try:
        for tensor in inputs:
            chunk = raw_view(tensor)
            size = len(chunk)
            chunks.append(chunk)
            length += size
            entries.append(
                {
                    "name": tensor.name,
                    "datatype": tensor.datatype,
                    "shape": tensor.data.shape,
                    "parameters": {"binary_data_size": size},
                }
            )
    except Malformed as exc:
        raise PredictorError(f"the request can't be written: {exc}") from exc
    header: dict[str, Json] = {"inputs": entries}
    if outputs:  # each asks for binary itself: beside a list of outputs Triton ignores binary_data_output
        header["outputs"] = [
            {"name": name, "parameters": placements[name].parameters if name in placements else {"binary_data": True}}
            for name in outputs
        ]
    else:
        header["parameters"] = {"binary_data_output": True}
    text = orjson.dumps(header)
    return text, chunks, len(text) + length


def decode_infer_response(
    body: bytes | memoryview, header_length: int | None, placements: Mapping[str, Placement] = NOWHERE
) -> dict[str, Tensor]:
    """The tensors of a response by name: binary ones are views of ``body``, those in shared memory of their places.

    Args:
        header_length: bytes of the JSON; None where it is the whole body.

    Raises:
        PredictorError: the body breaks the protocol, or is an error in spite of its status.
    """
    try:
        text, raw = split_body(memoryview(body), header_length)
        header = json_object(_parsed(text))
        if "error" in header:
            raise PredictorError(f"the predictor's error: {shorten(header['error'], 500)}")
        return _tensors(header.get("outputs"), raw, placements)
    except Malformed as exc:
        raise PredictorError(f"the predictor's response is malformed: {exc}") from exc


def _tensors(entries: Json, raw: memoryview, placements: Mapping[str, Placement]) -> dict[str, Tensor]:
    """The tensors of the list ``outputs``, whose binary elements are ``raw``.

    Raises:
        Malformed: an entry is not a tensor, a name comes twice, or the sizes do not add up.
    """
    if not isinstance(entries, list):
        raise Malformed("there is no list of tensors")
    tensors: dict[str, Tensor] = {}
    position = 0
    for entry in entries:
        name = _tensor_name(entry)
        if name in tensors:
            raise Malformed(f"tensor {name!r} comes twice")
        datatype = checked_datatype(name, entry.get("datatype"))
        shape = checked_shape(name, entry.get("shape"))
        parameters = entry.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise Malformed(f"the parameters of tensor {name!r} are no object")
        size = binary_size(name, parameters, len(raw) - position)
        if size is not None:
            if "data" in entry:
                raise Malformed(f"tensor {name!r} has both data and binary_data_size")
            data = decode_raw(name, datatype, shape, raw[position : position + size])
            tensors[name] = Tensor(name, datatype, data)
            position += size
        elif "data" in entry:
            tensors[name] = Tensor(name, datatype, decode_json(name, datatype, shape, entry["data"]))
        elif name in placements:
            tensors[name] = placed_tensor(name, datatype, shape, placements[name])
        else:
            raise Malformed(f"tensor {name!r} has neither data nor binary_data_size")
    if position != len(raw):
        raise Malformed(f"{len(raw) - position} bytes stand behind the last tensor")
    return tensors


def binary_size(name: str, parameters: Mapping[str, Json], left: int) -> int | None:
    """The size of a tensor's binary elements, at most the ``left`` bytes; None for a tensor without any.

    Raises:
        Malformed: it is not a number of bytes, or there are fewer.
    """
    size = parameters.get("binary_data_size")
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise Malformed(f"tensor {name!r} has binary_data_size {shorten(size)}, expected a number of bytes")
    if size > left:
        raise Malformed(f"tensor {name!r} has binary_data_size {size}, but {left} bytes are left")
    return size


def parse_header_length(text: str | None) -> int | None:
    """The value of the HTTP header HEADER_LENGTH, None where there is none.

    Raises:
        Malformed: it is not a number.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Malformed(f"{HEADER_LENGTH} is {shorten(text)}, expected a number of bytes")
    return int(text)


def split_body(body: memoryview, header_length: int | None) -> tuple[memoryview, memoryview]:
    """The text of the JSON header and the bytes behind it.

    Raises:
        Malformed: the body is shorter than the header.
    """
    length = len(body) if header_length is None else header_length
    if not 0 <= length <= len(body):
        raise Malformed(f"{HEADER_LENGTH}: the JSON header is said to have {length} bytes, the body has {len(body)}")
    return body[:length], body[length:]


# Models and servers


def parse_model_spec(metadata: bytes | memoryview, config: bytes | memoryview | None) -> ModelSpec:
    """The model that /v2/models/{m} and Triton's /v2/models/{m}/config describe.

    Only the configuration tells whether there is a batch axis, which inputs are optional and whether the model is
    decoupled. Without it the shapes are those of the metadata and max_batch_size is None.

    Raises:
        PredictorError: one of the bodies is malformed.
    """
    try:
        about = json_object(_parsed(metadata))
        name, versions = about.get("name"), about.get("versions") or [""]
        if not isinstance(name, str) or not isinstance(versions, list):
            raise Malformed("the metadata has no name, or its versions are no list")
        version = str(versions[-1])
        if config is not None:
            return _from_config(name, version, json_object(_parsed(config)))
        inputs, outputs = (_metadata_tensors(about, key) for key in ("inputs", "outputs"))
        return ModelSpec(name, version, inputs, outputs, max_batch_size=None)
    except Malformed as exc:
        raise PredictorError(f"the predictor's description of the model is malformed: {exc}") from exc


def _from_config(name: str, version: str, config: Mapping[str, Json]) -> ModelSpec:
    policy = config.get("model_transaction_policy") or {}
    if not isinstance(policy, dict):
        raise Malformed("model_transaction_policy is no object")
    max_batch_size = _integer("max_batch_size", config.get("max_batch_size", 0))
    if max_batch_size < 0:
        raise Malformed(f"max_batch_size is {max_batch_size}")
    inputs, outputs = (_config_tensors(config, key) for key in ("input", "output"))
    decoupled = policy.get("decoupled") is True
    merges = isinstance(config.get("dynamic_batching"), dict)
    return ModelSpec(name, version, inputs, outputs, max_batch_size, decoupled, _instances(config), merges)


def _instances(config: Mapping[str, Json]) -> int:
    """The number of instances in all groups; a group's count is for each of its GPUs."""
    total = 0
    for group in _list(config.get("instance_group") or [], "instance_group"):
        if not isinstance(group, dict):
            raise Malformed(f"instance_group has {shorten(group)}, expected an object")
        count = _integer("count of an instance_group", group.get("count", 1))
        total += count * max(1, len(_list(group.get("gpus") or [], "gpus of an instance_group")))
    return max(1, total)


def _config_tensors(config: Mapping[str, Json], key: str) -> tuple[TensorSpec, ...]:
    specs = []
    for entry in _list(config.get(key, []), key):
        name = _tensor_name(entry)
        datatype = config_datatype(name, entry.get("data_type"))
        dims = _integers(f"dims of {name!r}", entry.get("dims", []))
        specs.append(TensorSpec(name, datatype, dims, entry.get("optional") is True))
    return tuple(specs)


def _metadata_tensors(about: Mapping[str, Json], key: str) -> tuple[TensorSpec, ...]:
    specs = []
    for entry in _list(about.get(key, []), key):
        name = _tensor_name(entry)
        shape = _integers(f"shape of {name!r}", entry.get("shape"))
        specs.append(TensorSpec(name, checked_datatype(name, entry.get("datatype")), shape))
    return tuple(specs)


def parse_server(body: bytes | memoryview) -> ServerDescription:
    """The answer of GET /v2. Raises PredictorError for anything else."""
    try:
        about = _parsed(body)
        if not isinstance(about, dict) or not isinstance(about.get("name"), str):
            raise Malformed(f"{shorten(about)} is not the description of a server")
        extensions = about.get("extensions") or []
        if not isinstance(extensions, list):
            raise Malformed("extensions is no list")
        return ServerDescription(about["name"], str(about.get("version", "")), tuple(map(str, extensions)))
    except Malformed as exc:
        raise PredictorError(f"the predictor's description of itself is malformed: {exc}") from exc


def parse_index(body: bytes | memoryview) -> list[RepositoryEntry]:
    """The answer of POST /v2/repository/index, Triton's extension. Raises PredictorError for anything else."""
    try:
        entries = _parsed(body)
        if not isinstance(entries, list):
            raise Malformed("the index is no list")
        return [_entry(entry) for entry in entries]
    except Malformed as exc:
        raise PredictorError(f"the predictor's list of models is malformed: {exc}") from exc


def _entry(entry: Json) -> RepositoryEntry:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise Malformed(f"{shorten(entry)} is not a model with a name")
    version, state, reason = (str(entry.get(key, "")) for key in ("version", "state", "reason"))
    return RepositoryEntry(entry["name"], version, state, reason)


def encode_registration(key: str, byte_size: int) -> bytes:
    """The body of a request that registers a file as a region of system shared memory; the path has the region's name.

    ``key`` is a slash and the name of the file in /dev/shm. The region is the whole file, ``byte_size`` bytes.

    Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_shared_memory.md
    """
    return orjson.dumps({"key": key, "offset": 0, "byte_size": byte_size})


def parse_region_names(body: bytes | memoryview) -> list[str]:
    """The names in the status of all regions. Raises PredictorError for anything else."""
    try:
        return [str(entry["name"]) for entry in orjson.loads(body)]
    except (ValueError, TypeError, KeyError) as exc:
        raise PredictorError(f"the predictor's list of shared-memory regions is malformed: {exc}") from exc


# JSON


def _tensor_name(entry: Json) -> str:
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str):
        raise Malformed(f"{shorten(entry)} is not a tensor with a name")
    return name


def _list(value: Json, what: str) -> list[Json]:
    if not isinstance(value, list):
        raise Malformed(f"{what} is {shorten(value)}, expected a list")
    return value


def _integers(what: str, value: Json) -> tuple[int, ...]:
    return tuple(_integer(what, item) for item in _list(value, what))


def _integer(what: str, value: Json) -> int:
    """An integer, which JSON made from protobuf may write as a string."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isascii() and len(value) < 20 and value.removeprefix("-").isdigit():
        return int(value)
    raise Malformed(f"{what} is {shorten(value)}, expected an integer")


def _parsed(text: bytes | memoryview) -> Json:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise Malformed(f"body: not JSON: {exc}") from exc


def json_object(value: Json) -> dict[str, Any]:
    """The value if it is a JSON object. Raises Malformed otherwise."""
    if not isinstance(value, dict):
        raise Malformed(f"body: {json_kind(value)} is not a JSON object")
    return value
