"""Descriptions of models and servers: protobuf messages, or REST's JSON form of them, -> ModelSpec and the like."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message

from hf_transformer.protocol.json_text import json_object
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import DATATYPES, Malformed, checked_datatype, shorten
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import ModelSpec, RepositoryEntry, ServerDescription, TensorSpec

_AnyMessage = TypeVar("_AnyMessage", bound=Message)


def from_json(kind: type[_AnyMessage], value: Json) -> _AnyMessage:
    """The message in protobuf's JSON form, without unknown keys.

    Raises Malformed unless the value is an object, and for a value whose type differs from the field's.
    """
    try:
        return ParseDict(json_object(value), kind(), ignore_unknown_fields=True)
    except (ParseError, TypeError, OverflowError) as exc:
        raise Malformed("body", f"a {kind.DESCRIPTOR.name}", hint=shorten(str(exc), 300)) from exc


def model_spec(metadata: pb.ModelMetadataResponse, config: pb.ModelConfig | None) -> ModelSpec:
    """The model's description, from its metadata and Triton's configuration of it.

    Only the configuration has the batch axis, optional inputs and decoupled models. Without it the shapes are the
    metadata's, and max_batch_size is None. Raises Malformed for a missing name, an unknown datatype and a negative
    max_batch_size.
    """
    version = metadata.versions[-1] if metadata.versions else ""
    if config is None:
        inputs, outputs = (
            tuple(TensorSpec(_name(t), checked_datatype(t.datatype), tuple(t.shape)) for t in tensors)
            for tensors in (metadata.inputs, metadata.outputs)
        )
        return ModelSpec(_name(metadata), version, inputs, outputs, max_batch_size=None)
    if config.max_batch_size < 0:
        raise Malformed(("config", "max_batch_size"), "a number of at least 0", str(config.max_batch_size))
    return ModelSpec(
        _name(metadata),
        version,
        tuple(TensorSpec(_name(t), _datatype(t.name, t.data_type), tuple(t.dims), t.optional) for t in config.input),
        tuple(TensorSpec(_name(t), _datatype(t.name, t.data_type), tuple(t.dims)) for t in config.output),
        config.max_batch_size,
        decoupled=config.model_transaction_policy.decoupled,
        # A group has ``count`` instances on each of its GPUs.
        instances=sum(group.count * max(1, len(group.gpus)) for group in config.instance_group) or None,
        dynamic_batching=config.WhichOneof("scheduling_choice") == "dynamic_batching",
    )


def server_description(metadata: pb.ServerMetadataResponse) -> ServerDescription:
    """The server's description, from its metadata. Raises Malformed for a missing name."""
    return ServerDescription(_name(metadata), metadata.version, tuple(metadata.extensions))


def repository_entries(index: pb.RepositoryIndexResponse) -> list[RepositoryEntry]:
    """The models in the index of a repository. Raises Malformed for a missing name."""
    return [RepositoryEntry(_name(model), model.version, model.state, model.reason) for model in index.models]


def _name(message: Any) -> str:
    """The name in a message. Raises Malformed where it is missing."""
    name: str = message.name
    if not name:
        raise Malformed((message.DESCRIPTOR.name, "name"), "a name")
    return name


def data_type(datatype: str) -> str:
    """The name of a datatype in Triton's configuration: TYPE_INT64 for INT64, TYPE_STRING for BYTES."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


_DATATYPES = {data_type(datatype): datatype for datatype in DATATYPES}


def _datatype(name: str, number: pb.DataType) -> str:
    """The protocol's datatype for a number of protobuf's enumeration. Raises Malformed for an unknown one."""
    known = pb.DataType.DESCRIPTOR.values_by_number.get(number)
    if known is None or known.name not in _DATATYPES:
        raise Malformed(("config", name, "data_type"), "a known datatype", str(number) if known is None else known.name)
    return _DATATYPES[known.name]
