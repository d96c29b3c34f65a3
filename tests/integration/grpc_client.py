"""A client of the gRPC API with our own messages, in the process of the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from hf_transformer.protocol.grpc import decode_infer_response
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from hf_transformer.protocol.tensors import raw_view
from hf_transformer.types.tensors import Array, Tensor
from tests.pb.open_inference_grpc_pb2_grpc import GRPCInferenceServiceStub
from tests.support.service import Service

OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]


@contextmanager
def channel_to(service: Service, credentials: grpc.ChannelCredentials | None = None) -> Iterator[grpc.Channel]:
    """A connection of its own, over TLS where there are credentials."""
    address = service.grpc_address
    if credentials is None:
        with grpc.insecure_channel(address, OPTIONS) as channel:
            yield channel
    else:
        target = [*OPTIONS, ("grpc.ssl_target_name_override", "localhost")]
        with grpc.secure_channel(address, credentials, target) as channel:
            yield channel


@contextmanager
def stub(service: Service, credentials: grpc.ChannelCredentials | None = None) -> Iterator[Any]:
    """The methods of the service."""
    with channel_to(service, credentials) as channel:
        yield GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]


def request(
    model: str,
    inputs: Mapping[str, Any],
    *,
    raw: bool = False,
    id: str = "",
    outputs: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
) -> pb.ModelInferRequest:
    """Named inputs of (nested) lists of strings, and parameters; those that are no scalars as JSON."""
    message = pb.ModelInferRequest(model_name=model, id=id)
    for name, rows in inputs.items():
        array: Array = np.array(rows, np.object_)
        entry = message.inputs.add(name=name, datatype="BYTES", shape=array.shape)
        if raw:
            message.raw_input_contents.append(bytes(raw_view(Tensor(name, "BYTES", array))))
        else:
            entry.contents.bytes_contents.extend(str(text).encode() for text in array.flat)
    for name in outputs:
        message.outputs.add(name=name)
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    for name, value in (parameters or {}).items():
        if type(value) in kinds:
            setattr(message.parameters[name], kinds[type(value)], value)
        else:
            message.parameters["parameters"].string_param = json.dumps({name: value})
    return message


def values(response: pb.ModelInferResponse, name: str = "output-0") -> Any:
    """An output as nested lists; BYTES as strings."""
    data = decode_infer_response(response.SerializeToString())[name].data
    if data.dtype == np.object_:
        data = np.vectorize(bytes.decode, otypes=[np.object_])(data)
    return data.tolist()


@contextmanager
def fails(code: grpc.StatusCode, says: str = "") -> Iterator[dict[str, str]]:
    """Expects a call to fail; gives its trailing metadata."""
    trailing: dict[str, str] = {}
    with pytest.raises(grpc.RpcError) as caught:
        yield trailing
    error: Any = caught.value
    assert error.code() is code, error
    assert says in error.details()
    trailing.update(error.trailing_metadata())
