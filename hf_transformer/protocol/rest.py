"""The V2 protocol over HTTP: bodies <-> tensors, with the binary tensor data extension. No sockets.

A body is a JSON header, and behind it the raw elements of each tensor that has a ``binary_data_size``
parameter, in the order in which the header lists them. The length of the JSON travels in the HTTP header
named HEADER_LENGTH; where that is missing, the whole body is JSON and tensors have ``data``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
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
from hf_transformer.types import (
    NUMPY_DTYPES,
    Array,
    Json,
    ModelSpec,
    RepositoryEntry,
    ServerDescription,
    Tensor,
    TensorSpec,
)

HEADER_LENGTH = "Inference-Header-Content-Length"


def encode_infer_header(
    inputs: Sequence[Tensor], sizes: Sequence[int], outputs: Sequence[str], placements: Mapping[str, Placement]
) -> bytes:
    """The JSON header of a request whose inputs have so many bytes behind it.

    Each output is asked for as binary by its own parameter: the request's ``binary_data_output`` is ignored
    where outputs are listed. Those with a place in ``placements`` are to be written there. Without outputs the
    predictor sends all that it has, as binary too.
    """
    header: dict[str, Json] = {
        "inputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": tensor.shape,
                "parameters": {"binary_data_size": size},
            }
            for tensor, size in zip(inputs, sizes, strict=True)
        ]
    }
    if outputs:
        header["outputs"] = [
            {"name": name, "parameters": placements[name].parameters if name in placements else {"binary_data": True}}
            for name in outputs
        ]
    else:
        header["parameters"] = {"binary_data_output": True}
    return orjson.dumps(header)


def decode_infer_response(
    body: bytes | memoryview, header_length: int | None, placements: Mapping[str, Placement] = NOWHERE
) -> dict[str, Tensor]:
    """The tensors by name; binary ones are views into ``body``, and those that came through shared memory into that.

    Raises:
        PredictorError: the body breaks the protocol, or is an error in spite of its status.
    """
    try:
        text, raw = split_body(memoryview(body), header_length)
        header = json_object(_parsed(text))
        if "error" in header:
            raise PredictorError(f"the predictor's error: {shorten(header['error'], 500)}")
        outputs = header.get("outputs")
        return _with_placed(outputs, raw, placements) if placements else decode_tensors(outputs, raw)
    except Malformed as exc:
        raise PredictorError(f"the predictor's response is malformed: {exc}") from exc


def _with_placed(entries: Json, raw: memoryview, placements: Mapping[str, Placement]) -> dict[str, Tensor]:
    """The tensors of a response of which some were written to their places: those that have no data of their own."""
    placed: dict[str, Tensor] = {}
    inline: list[Json] = []
    for entry in entries if isinstance(entries, list) else ():
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in placements or _has_data(entry):
            inline.append(entry)
            continue
        if name in placed:
            raise Malformed(f"tensor {name!r} comes twice")
        datatype = checked_datatype(name, entry.get("datatype"))
        placed[name] = placed_tensor(name, datatype, checked_shape(name, entry.get("shape")), placements[name])
    tensors = decode_tensors(inline, raw) if placed else decode_tensors(entries, raw)
    for name in placed.keys() & tensors.keys():
        raise Malformed(f"tensor {name!r} comes twice")
    return {**placed, **tensors}


def _has_data(entry: Mapping[str, Json]) -> bool:
    parameters = entry.get("parameters")
    return "data" in entry or (isinstance(parameters, dict) and "binary_data_size" in parameters)


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
    """The JSON header's text and the bytes behind it.

    Raises:
        Malformed: the body is shorter than that.
    """
    length = len(body) if header_length is None else header_length
    if not 0 <= length <= len(body):
        raise Malformed(f"{HEADER_LENGTH}: the JSON header is said to have {length} bytes, the body has {len(body)}")
    return body[:length], body[length:]


def decode_tensors(entries: Json, raw: memoryview) -> dict[str, Tensor]:
    """The tensors of the list ``inputs`` or ``outputs``, with the bytes that stand behind the header.

    Raises:
        Malformed: an entry is not a tensor, a name comes twice, or the sizes do not add up.
    """
    if not isinstance(entries, list):
        raise Malformed("there is no list of tensors")
    tensors: dict[str, Tensor] = {}
    position = 0
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise Malformed(f"{shorten(entry)} is not a tensor with a name")
        name = entry["name"]
        if name in tensors:
            raise Malformed(f"tensor {name!r} comes twice")
        datatype = checked_datatype(name, entry.get("datatype"))
        parameters = entry.get("parameters")
        if not isinstance(parameters, dict | None):
            raise Malformed(f"the parameters of tensor {name!r} are no object")
        size = binary_size(name, parameters or {}, len(raw) - position)
        data = _elements(name, datatype, entry, None if size is None else raw[position : position + size])
        position += size or 0
        tensors[name] = Tensor(name, datatype, data)
    if position != len(raw):
        raise Malformed(f"{len(raw) - position} bytes stand behind the last tensor")
    return tensors


def binary_size(name: str, parameters: Mapping[str, Json], left: int) -> int | None:
    """How many of the bytes behind the header are a tensor's, of those that are left; None for one with ``data``.

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


def _elements(name: str, datatype: str, entry: Mapping[str, Json], raw: memoryview | None) -> Array:
    shape = checked_shape(name, entry.get("shape"))
    if raw is None:
        if "data" not in entry:
            raise Malformed(f"tensor {name!r} has neither data nor binary_data_size")
        return decode_json(name, datatype, shape, entry["data"])
    if "data" in entry:
        raise Malformed(f"tensor {name!r} has both data and binary_data_size")
    return decode_raw(name, datatype, shape, raw)


def parse_model_spec(metadata: bytes | memoryview, config: bytes | memoryview | None) -> ModelSpec:
    """What /v2/models/{m} and Triton's /v2/models/{m}/config say of a model.

    The configuration is preferred: only it tells whether there is a batch axis, which inputs are optional and
    whether the model is decoupled. Without one the shapes are those of the metadata and max_batch_size is
    None.

    Raises:
        PredictorError: one of the bodies is not what it should be.
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
    """Of all groups together: Triton writes down how many there are of each, on each GPU that it names."""
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


def _tensor_name(entry: Json) -> str:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise Malformed(f"{shorten(entry)} is not a tensor with a name")
    name: str = entry["name"]
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
    """A JSON value that has to be an object. Raises Malformed where it is another."""
    if not isinstance(value, dict):
        raise Malformed(f"body: {json_kind(value)} is not a JSON object")
    return value


MOST = 256
"""Headers that are kept, of requests and of responses."""

LONGEST = 4096
"""Bytes of a header that is kept."""


class InferCalls:
    """Writes the requests of one model and reads their responses, as ``decode_infer_response`` would."""

    def __init__(self) -> None:
        self._headers: dict[tuple[object, ...], tuple[bytes, int]] = {}
        self._layouts: dict[bytes, _Layout] = {}

    def encode(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], placements: Mapping[str, Placement] = NOWHERE
    ) -> tuple[bytes, list[bytes | memoryview], int]:
        """The body of a request: its JSON header, see ``encode_infer_header``, what stands behind that, in pieces, and
        the number of bytes of all.

        Pieces of large tensors are views of them, where they are already as they should be: nobody may change those
        before the request is answered.

        Raises:
            PredictorError: an input's data doesn't fit its datatype.
        """
        chunks: list[bytes | memoryview] = []
        told: list[object] = [*outputs, None]
        try:
            for tensor in inputs:
                chunk = raw_view(tensor)
                chunks.append(chunk)
                told += (tensor.name, tensor.datatype, tensor.data.shape, len(chunk))
        except Malformed as exc:
            raise PredictorError(f"the request can't be written: {exc}") from exc
        for name, place in placements.items():
            told += (name, place.region, place.offset, len(place.memory))
        key = tuple(told)
        known = self._headers.get(key)
        if known is None:
            sizes = [len(chunk) for chunk in chunks]
            header = encode_infer_header(inputs, sizes, outputs, placements)
            known = header, len(header) + sum(sizes)
            if len(header) <= LONGEST:
                if len(self._headers) >= MOST:
                    self._headers.clear()
                self._headers[key] = known
        header, length = known
        return header, chunks, length

    def decode(
        self, body: memoryview, header_length: int | None, placements: Mapping[str, Placement] = NOWHERE
    ) -> dict[str, Tensor]:
        """The tensors of a response by name, as views of ``body`` and of their places.

        Raises:
            PredictorError: the body breaks the protocol, or is an error in spite of its status.
        """
        length = len(body) if header_length is None else header_length
        if not 0 <= length <= min(len(body), LONGEST):
            return decode_infer_response(body, header_length, placements)
        header = bytes(body if length == len(body) else body[:length])
        layout = self._layouts.get(header)
        if layout is not None:
            known = layout.tensors(body, placements)
            if known is not None:
                return known
        tensors = decode_infer_response(body, header_length, placements)
        if layout is None and (layout := _layout(header)) is not None:
            if len(self._layouts) >= MOST:
                self._layouts.clear()
            self._layouts[header] = layout
        return tensors


_Entry: TypeAlias = tuple[str, str, np.dtype[Any], tuple[int, ...], int, int | None]
"""Name, datatype (also as numpy's), shape, bytes, and where it begins; see _Layout."""


class _Layout:
    """What a response's header says, once it was found to be right: each tensor's name, datatype, shape and size in
    bytes, and where it begins in the body, None where it has been written to its place in shared memory."""

    __slots__ = ("_entries", "_length")

    def __init__(
        self, entries: Sequence[tuple[str, str, np.dtype[Any], tuple[int, ...], int, int | None]], length: int
    ) -> None:
        self._entries = entries
        self._length = length

    def tensors(self, body: memoryview, placements: Mapping[str, Placement]) -> dict[str, Tensor] | None:
        """The tensors of a body with this header; None where it is not of the right length, or a tensor has no place
        or not enough of it."""
        if len(body) != self._length:
            return None
        tensors = {}
        for name, datatype, dtype, shape, size, start in self._entries:
            if start is not None:
                data: Array = np.ndarray(shape, dtype, body, start)
            else:
                place = placements.get(name)
                if place is None or size > len(place.memory):
                    return None
                data = np.ndarray(shape, dtype, place.memory)
            tensors[name] = Tensor(name, datatype, data)
        return tensors


def _layout(header: bytes) -> _Layout | None:
    """The layout of a response that was decoded with this header; None where its tensors are no plain views of bytes:
    JSON, BOOL, BF16, BYTES and those without elements."""
    entries = []
    start = len(header)
    for entry in orjson.loads(header)["outputs"]:
        name, datatype, shape = entry["name"], entry["datatype"], tuple(entry["shape"])
        size = prod(shape) * (0 if datatype in ("BOOL", "BF16", "BYTES") else NUMPY_DTYPES[datatype].itemsize)
        if not size or "data" in entry:
            return None
        parameters = entry.get("parameters")  # of one that was placed, anything at all
        placed = not (isinstance(parameters, dict) and "binary_data_size" in parameters)
        entries.append((name, datatype, NUMPY_DTYPES[datatype], shape, size, None if placed else start))
        start += 0 if placed else size
    return _Layout(entries, start)


def encode_registration(key: str, byte_size: int) -> bytes:
    """The body of a request that registers a file; the region's name is in the path."""
    return orjson.dumps({"key": key, "offset": 0, "byte_size": byte_size})


def parse_region_names(body: bytes | memoryview) -> list[str]:
    """The names in the status of all regions. Raises PredictorError where the body is no such thing."""
    try:
        return [str(entry["name"]) for entry in orjson.loads(body)]
    except (ValueError, TypeError, KeyError) as exc:
        raise PredictorError(f"the predictor's list of shared-memory regions is malformed: {exc}") from exc


def parse_server(body: bytes | memoryview) -> ServerDescription:
    """The answer of GET /v2. Raises PredictorError where it is none."""
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
    """The answer of POST /v2/repository/index, Triton's extension. Raises PredictorError where it is none."""
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
