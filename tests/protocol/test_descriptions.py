"""Descriptions of servers and models, from REST's JSON and from gRPC's messages."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import orjson
import pytest
from hypothesis import given

from hf_transformer.protocol import rest
from hf_transformer.protocol.descriptions import model_spec, repository_entries, server_description
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.types.tensors import ModelSpec, RepositoryEntry, ServerDescription, TensorSpec
from tests.protocol.test_rest import JSON

METADATA = {
    "name": "bert",
    "versions": ["1", "3"],
    "platform": "onnxruntime_onnx",
    "inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]}],
    "outputs": [{"name": "logits", "datatype": "FP32", "shape": [-1, -1, 30522]}],
}
CONFIG = {
    "name": "bert",
    "max_batch_size": 8,
    "input": [
        {"name": "input_ids", "data_type": "TYPE_INT64", "dims": [-1], "optional": False},
        {"name": "text", "data_type": "TYPE_STRING", "dims": ["-1", "2"], "optional": True, "reshape": {"shape": [2]}},
    ],
    "output": [{"name": "logits", "data_type": "TYPE_BF16", "dims": ["-1", "30522"]}],
    "model_transaction_policy": {"decoupled": True},
    "instance_group": [{"count": 2, "gpus": [0, 1]}, {"count": "3", "gpus": []}],
}
IDS, LOGITS = TensorSpec("input_ids", "INT64", (-1, -1)), TensorSpec("logits", "FP32", (-1, -1, 30522))
UNCONFIGURED = ModelSpec("bert", "3", (IDS,), (LOGITS,), max_batch_size=None)
INPUTS = TensorSpec("input_ids", "INT64", (-1,)), TensorSpec("text", "BYTES", (-1, 2), optional=True)
OUTPUTS = (TensorSpec("logits", "BF16", (-1, 30522)),)
CONFIGURED = ModelSpec("bert", "3", INPUTS, OUTPUTS, max_batch_size=8, decoupled=True, instances=7)


def spec(metadata: Any, config: Any = None) -> ModelSpec:
    """Parses a model's description from REST's JSON."""
    configured = None if config is None else memoryview(orjson.dumps(config))
    return rest.parse_model_spec(memoryview(orjson.dumps(metadata)), configured)


def messages() -> tuple[pb.ModelMetadataResponse, pb.ModelConfig]:
    """METADATA and CONFIG as gRPC's messages."""
    metadata = pb.ModelMetadataResponse(name="bert", versions=["1", "3"])
    metadata.inputs.add(name="input_ids", datatype="INT64", shape=[-1, -1])
    metadata.outputs.add(name="logits", datatype="FP32", shape=[-1, -1, 30522])
    config = pb.ModelConfig(max_batch_size=8)
    config.model_transaction_policy.decoupled = True
    config.instance_group.add(count=2, gpus=[0, 1])
    config.instance_group.add(count=3)
    config.input.add(name="input_ids", data_type=pb.TYPE_INT64, dims=[-1])
    config.input.add(name="text", data_type=pb.TYPE_STRING, dims=[-1, 2], optional=True)
    config.output.add(name="logits", data_type=pb.TYPE_BF16, dims=[-1, 30522])
    return metadata, config


def test_a_model_has_the_same_description_over_rest_and_grpc() -> None:
    metadata, config = messages()
    assert spec(METADATA) == model_spec(metadata, None) == UNCONFIGURED
    assert spec(METADATA, CONFIG) == model_spec(metadata, config) == CONFIGURED
    sparse = {"input": [{"name": "a", "data_type": "TYPE_FP16"}], "model_transaction_policy": None}
    assert spec({"name": "m"}, sparse) == ModelSpec("m", "", (TensorSpec("a", "FP16", ()),), (), max_batch_size=0)
    config.dynamic_batching.SetInParent()
    assert model_spec(metadata, config).dynamic_batching
    assert spec({"name": "bert"}, {"dynamic_batching": {}}).dynamic_batching
    for number in (0, 99):
        config.input[0].data_type = cast(Any, number)
        with pytest.raises(Malformed, match=r"config\.input_ids.data_type: expected a known datatype"):
            model_spec(metadata, config)


def tensor(**fields: Any) -> dict[str, Any]:
    return {"name": "a", **fields}


NO_METADATA: tuple[Any, ...] = (
    *([], {}, {"name": 1}, tensor(versions="1"), tensor(inputs={})),
    tensor(inputs=[tensor(datatype="X", shape=[])]),
    tensor(inputs=[{"datatype": "FP32", "shape": []}]),
)
GROUPS: tuple[Any, ...] = (1, [1], [{"count": []}], [{"gpus": 2}])
NO_CONFIG: tuple[dict[str, Any], ...] = (
    *({"max_batch_size": size} for size in (-1, 1.5, "many")),
    {"model_transaction_policy": True},
    *({"instance_group": group} for group in GROUPS),
    *({"input": [tensor(data_type=kind, dims=[])]} for kind in ("INT64", "TYPE_BYTES")),
    *({"input": [tensor(data_type="TYPE_INT64", dims=dims)]} for dims in (4, ["--1"])),
)


def test_malformed_models_are_refused() -> None:
    cases = [*((metadata, None) for metadata in NO_METADATA), *((METADATA, config) for config in NO_CONFIG)]
    for metadata, config in cases:
        with pytest.raises(Malformed):
            pytest.fail(f"{spec(metadata, config)}")


@given(JSON, JSON)
def test_any_json_is_a_model_or_refused(metadata: Any, config: Any) -> None:
    for model, configuration in ((metadata, None), ({"name": "m", "inputs": metadata}, {"input": config})):
        with suppress(Malformed):
            spec(model, configuration)


def test_a_server_has_the_same_description_over_rest_and_grpc() -> None:
    triton = ServerDescription("triton", "2.51.0", ("classification", "model_repository"))
    body = b'{"name": "triton", "version": "2.51.0", "extensions": ["classification", "model_repository"]}'
    message = pb.ServerMetadataResponse(name=triton.name, version=triton.version, extensions=triton.extensions)
    assert rest.parse_server(memoryview(body)) == server_description(message) == triton
    assert rest.parse_server(memoryview(b'{"name": "other"}')) == ServerDescription("other", "", ())


def test_an_index_has_the_same_models_over_rest_and_grpc() -> None:
    index = [
        RepositoryEntry("bert", "1", "READY", ""),
        RepositoryEntry("other", "", "", ""),
        RepositoryEntry("bad", "1", "UNAVAILABLE", "no such file"),
    ]
    body = (
        b'[{"name": "bert", "version": "1", "state": "READY"}, {"name": "other"},'
        b' {"name": "bad", "version": "1", "state": "UNAVAILABLE", "reason": "no such file"}]'
    )
    message = pb.RepositoryIndexResponse()
    for model in index:
        message.models.add(name=model.name, version=model.version, state=model.state, reason=model.reason)
    assert rest.parse_index(memoryview(body)) == repository_entries(message) == index


def test_malformed_servers_and_indexes_are_refused() -> None:
    for parse, bodies in (
        (rest.parse_server, (b"", b"[]", b"{}", b'{"name": 1}', b'{"name": "a", "extensions": 3}')),
        (rest.parse_index, (b"", b"{}", b"[1]", b"[{}]", b'[{"name": 1}]')),
    ):
        for body in bodies:
            with pytest.raises(Malformed):
                parse(memoryview(body))
