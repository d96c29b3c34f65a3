"""Loading and unloading models at the real Triton, which leaves that to its clients (``explicit``)."""

from __future__ import annotations

import json
from base64 import b64encode

import numpy as np
import pytest

from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.errors import PredictorError
from hf_transformer.predictor import Connections
from hf_transformer.predictor.base import ModelCall, PredictorSettings, Transport
from hf_transformer.types.tensors import Tensor

MODEL = b"""
import triton_python_backend_utils as utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [utils.InferenceResponse([utils.Tensor("y", data * FACTOR)]) for data in inputs]
"""


def parameters(factor: int, batch: int = 4) -> dict[str, str]:
    """The parameters for a model that is not in the repository, and multiplies its input."""
    config = {
        "backend": "python",
        "max_batch_size": batch,
        "input": [{"name": "x", "data_type": "TYPE_INT64", "dims": [-1]}],
        "output": [{"name": "y", "data_type": "TYPE_INT64", "dims": [-1]}],
    }
    model = MODEL.replace(b"FACTOR", str(factor).encode())
    return {"config": json.dumps(config), "file:1/model.py": b64encode(model).decode()}


async def product(transport: Transport, data: list[int]) -> list[int]:
    reply = await transport.infer(ModelCall([Tensor("x", "INT64", np.array([data]))], ["y"], {}))
    values: list[int] = reply.tensors["y"].data.ravel().tolist()
    reply.release()
    return values


async def test_models_are_loaded_changed_and_unloaded(triton: LocalTriton, protocol: str) -> None:
    address = triton.http_address if protocol == "v2" else triton.grpc_address
    connections = Connections()
    names = [f"loaded_{protocol}_{number}" for number in (0, 1)]
    settings = [PredictorSettings(name, address, timeout=60.0) for name in names]
    first, another = (connections.transport(protocol, each) for each in settings)
    async with first, another:
        assert not await first.model_ready()
        await first.load_model(names[0], parameters(2))
        await first.load_model(names[1], parameters(3))
        assert await first.model_ready() and await another.model_ready()
        assert (await first.model_spec()).max_batch_size == 4
        assert (await product(first, [1, 2]), await product(another, [1, 2])) == ([2, 4], [3, 6])
        await another.load_model(names[0], parameters(5, batch=8))
        assert (await product(first, [1, 2]), await product(another, [1, 2])) == ([5, 10], [3, 6])
        for name in names:
            await first.unload_model(name, {"unload_dependents": True})
        for transport in (first, another):
            await until_unloaded(transport)
        with pytest.raises(PredictorError, match="no_such_model"):
            await first.load_model("no_such_model", {})
        broken = {**parameters(1), "file:1/model.py": b64encode(b"raise ValueError('no memory')").decode()}
        with pytest.raises(PredictorError, match="no memory"):
            await first.load_model(names[0], broken)


async def until_unloaded(transport: Transport) -> None:
    """Triton answers the request to unload before it has done so."""
    while await transport.model_ready():
        pass
