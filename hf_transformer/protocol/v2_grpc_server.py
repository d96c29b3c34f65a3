"""What a predictor says of itself and of its models over gRPC: messages -> shapes. No sockets."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from hf_transformer.errors import PredictorError
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.types import RepositoryEntry, ServerDescription


def decode_live(body: bytes) -> bool:
    """A serialized ServerLiveResponse. Raises PredictorError where it can't be read."""
    try:
        return pb.ServerLiveResponse.FromString(body).live
    except DecodeError as exc:
        raise _malformed(exc) from exc


def decode_ready(body: bytes) -> bool:
    """A serialized ServerReadyResponse. Raises PredictorError where it can't be read."""
    try:
        return pb.ServerReadyResponse.FromString(body).ready
    except DecodeError as exc:
        raise _malformed(exc) from exc


def parse_server(body: bytes) -> ServerDescription:
    """A serialized ServerMetadataResponse. Raises PredictorError where it can't be read."""
    try:
        about = pb.ServerMetadataResponse.FromString(body)
    except DecodeError as exc:
        raise _malformed(exc) from exc
    return ServerDescription(about.name, about.version, tuple(about.extensions))


def parse_index(body: bytes) -> list[RepositoryEntry]:
    """A serialized RepositoryIndexResponse, Triton's extension. Raises PredictorError where it can't be read."""
    try:
        models = pb.RepositoryIndexResponse.FromString(body).models
    except DecodeError as exc:
        raise _malformed(exc) from exc
    return [RepositoryEntry(one.name, one.version, one.state, one.reason) for one in models]


def _malformed(exc: DecodeError) -> PredictorError:
    return PredictorError(f"the predictor's response is malformed: {exc}")
