"""Descriptions of models and of servers: protobuf messages, or the JSON that REST has in their place, -> shapes."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message

from hf_transformer.protocol.json_text import json_object
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import DATATYPES, Malformed, checked_datatype, shorten
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import ModelSpec, RepositoryEntry, ServerDescription, TensorSpec

_Described = TypeVar("_Described", bound=Message)


def from_json(kind: type[_Described], value: Json) -> _Described:
    """The message that a JSON object stands for, as Triton writes it; unknown keys are ignored.

    Raises Malformed for any other value, and for a key whose value is of another type than the message's field.
    """
    try:
        return ParseDict(json_object(value), kind(), ignore_unknown_fields=True)
    except (ParseError, TypeError, OverflowError) as exc:
        raise Malformed(f"not a {kind.DESCRIPTOR.name}: {shorten(str(exc), 300)}") from exc


def model_spec(about: pb.ModelMetadataResponse, config: pb.ModelConfig | None) -> ModelSpec:
    """The model that its metadata and Triton's configuration describe.

    Only the configuration tells whether there is a batch axis, which inputs are optional and whether the model is
    decoupled. Without it the shapes are those of the metadata and max_batch_size is None. Raises Malformed for a
    missing name, an unknown datatype and a negative max_batch_size.
    """
    version = about.versions[-1] if about.versions else ""
    if config is None:
        inputs, outputs = (
            tuple(TensorSpec(_name(t), checked_datatype(t.name, t.datatype), tuple(t.shape)) for t in tensors)
            for tensors in (about.inputs, about.outputs)
        )
        return ModelSpec(_name(about), version, inputs, outputs, max_batch_size=None)
    if config.max_batch_size < 0:
        raise Malformed(f"max_batch_size is {config.max_batch_size}")
    return ModelSpec(
        _name(about),
        version,
        tuple(TensorSpec(_name(t), _datatype(t.name, t.data_type), tuple(t.dims), t.optional) for t in config.input),
        tuple(TensorSpec(_name(t), _datatype(t.name, t.data_type), tuple(t.dims)) for t in config.output),
        config.max_batch_size,
        decoupled=config.model_transaction_policy.decoupled,
        # The count of a group is for each of its GPUs.
        instances=max(1, sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)),
        dynamic_batching=config.WhichOneof("scheduling_choice") == "dynamic_batching",
    )


def server_description(about: pb.ServerMetadataResponse) -> ServerDescription:
    """The server that its metadata describe. Raises Malformed for one without a name."""
    return ServerDescription(_name(about), about.version, tuple(about.extensions))


def repository_entries(index: pb.RepositoryIndexResponse) -> list[RepositoryEntry]:
    """The models in the index of a repository. Raises Malformed for one without a name."""
    return [RepositoryEntry(_name(one), one.version, one.state, one.reason) for one in index.models]


def _name(described: Any) -> str:
    """The name of a message. Raises Malformed where it is missing."""
    name: str = described.name
    if not name:
        raise Malformed(f"a {described.DESCRIPTOR.name} has no name")
    return name


def data_type(datatype: str) -> str:
    """The name of the protocol's datatype in Triton's configuration: INT64 is TYPE_INT64, BYTES is TYPE_STRING."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


_DATATYPES = {data_type(datatype): datatype for datatype in DATATYPES}


def _datatype(name: str, number: pb.DataType) -> str:
    """The protocol's datatype for a number of the enumeration, which in proto3 may be one that we don't know."""
    known = pb.DataType.DESCRIPTOR.values_by_number.get(number)
    if known is None or known.name not in _DATATYPES:
        raise Malformed(f"tensor {name!r} has the unknown data_type {number if known is None else known.name!r}")
    return _DATATYPES[known.name]
