"""What a predictor says of itself, in both forms."""

from __future__ import annotations

import pytest

from hf_transformer.errors import PredictorError
from hf_transformer.protocol import grpc, rest
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.types import RepositoryEntry, ServerDescription

TRITON = ServerDescription("triton", "2.51.0", ("classification", "model_repository"))
INDEX = [
    RepositoryEntry("bert", "1", "READY", ""),
    RepositoryEntry("other", "", "", ""),
    RepositoryEntry("bad", "1", "UNAVAILABLE", "no such file"),
]


def test_rest() -> None:
    server = b'{"name": "triton", "version": "2.51.0", "extensions": ["classification", "model_repository"]}'
    assert rest.parse_server(server) == TRITON
    assert rest.parse_server(b'{"name": "other"}') == ServerDescription("other", "", ())
    index = (
        b'[{"name": "bert", "version": "1", "state": "READY"}, {"name": "other"},'
        b' {"name": "bad", "version": "1", "state": "UNAVAILABLE", "reason": "no such file"}]'
    )
    assert rest.parse_index(index) == INDEX


@pytest.mark.parametrize("body", [b"", b"[]", b'{"name": 1}', b'{"name": "a", "extensions": 3}'])
def test_a_malformed_description_over_rest(body: bytes) -> None:
    with pytest.raises(PredictorError, match="malformed"):
        rest.parse_server(body)


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'[{"name": 1}]'])
def test_a_malformed_index_over_rest(body: bytes) -> None:
    with pytest.raises(PredictorError, match="malformed"):
        rest.parse_index(body)


def test_grpc() -> None:
    server = pb.ServerMetadataResponse(name=TRITON.name, version=TRITON.version, extensions=TRITON.extensions)
    assert grpc.parse_server(server.SerializeToString()) == TRITON
    models = [
        pb.RepositoryIndexResponse.ModelIndex(name=one.name, version=one.version, state=one.state, reason=one.reason)
        for one in INDEX
    ]
    assert grpc.parse_index(pb.RepositoryIndexResponse(models=models).SerializeToString()) == INDEX
    assert grpc.decode_live(pb.ServerLiveResponse(live=True).SerializeToString())
    assert not grpc.decode_ready(pb.ServerReadyResponse(ready=False).SerializeToString())


@pytest.mark.parametrize(
    "decode",
    [
        grpc.parse_server,
        grpc.parse_index,
        grpc.decode_live,
        grpc.decode_ready,
    ],
    ids=["server", "index", "live", "ready"],
)
def test_messages_that_can_not_be_read(decode: object) -> None:
    assert callable(decode)
    with pytest.raises(PredictorError, match="malformed"):
        decode(b"\xff\xff")


def test_whether_a_model_is_batched_dynamically() -> None:
    config = pb.ModelConfigResponse()
    metadata = pb.ModelMetadataResponse(name="bert").SerializeToString()
    assert not grpc.parse_model_spec(metadata, config.SerializeToString()).dynamic_batching
    config.config.dynamic_batching.SetInParent()
    assert grpc.parse_model_spec(metadata, config.SerializeToString()).dynamic_batching
    assert not rest.parse_model_spec(b'{"name": "bert"}', b'{"instance_group": []}').dynamic_batching
    assert rest.parse_model_spec(b'{"name": "bert"}', b'{"dynamic_batching": {}}').dynamic_batching
