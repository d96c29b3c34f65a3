"""A graph as a file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from hf_transformer.commands.export.checkpoint import explained
from hf_transformer.commands.export.graph import Graph
from hf_transformer.commands.export.verifying import Inputs

OPSET = 17
"""Of ONNX: old enough for every Triton container since 2023."""
WEIGHTS = "model.onnx.data"
"""Beside model.onnx, where the weights don't fit into it."""


def write_model(graph: Graph, path: Path, form: str, inputs: Inputs) -> None:
    """Writes model.onnx or model.pt with its weights. The graph is traced with ``inputs``, a batch of several texts.

    Raises:
        LoadError: torch can't make such a file of this model.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write = _write_onnx if form == "onnx" else _write_torchscript
    with explained(f"torch can't write this model as {form}"), warnings.catch_warnings(), torch.no_grad():
        # Tracing warns of every shape that it sees; the result is compared with the model.
        warnings.simplefilter("ignore")
        write(graph, path, inputs)


def _write_onnx(graph: Graph, path: Path, inputs: Inputs) -> None:
    torch.onnx.export(
        graph,
        tuple(inputs.values()),
        str(path),
        input_names=[tensor.name for tensor in graph.inputs],
        output_names=[tensor.name for tensor in graph.outputs],
        dynamic_axes={
            tensor.name: {number: axis for number, axis in enumerate(tensor.axes) if isinstance(axis, str)}
            for tensor in (*graph.inputs, *graph.outputs)
        },
        opset_version=OPSET,
        # The tracing exporter: the newer one stores shared embeddings twice.
        dynamo=False,
    )
    if len(list(path.parent.iterdir())) > 1:
        gather_weights(path)


def gather_weights(path: Path) -> None:
    """Puts all weights into one file, where torch writes one file for each; takes memory for all of them.

    torch does so above 2 GB, the most that a protobuf message can hold.
    """
    import onnx

    model = onnx.load(str(path))
    for file in path.parent.iterdir():
        file.unlink()
    onnx.save_model(model, str(path), save_as_external_data=True, all_tensors_to_one_file=True, location=WEIGHTS)


def _write_torchscript(graph: Graph, path: Path, inputs: Inputs) -> None:
    traced = torch.jit.trace(graph, tuple(inputs.values()), strict=False, check_trace=False)
    for module in traced.modules():
        for name in module._c._method_names():  # one for each time that it is called
            _free_devices(module._c._get_method(name).graph)
    traced.save(str(path))


def _free_devices(graph: Any) -> None:
    """Makes tensors on the device of the inputs. A trace has the device that it ran on, the CPU, as a constant."""
    tensors = [value for value in graph.inputs() if value.type().kind() == "TensorType"]
    for node in list(graph.nodes()):
        if tensors and node.kind() == "prim::Constant" and node.output().type().kind() == "DeviceObjType":
            device = graph.create("prim::device", [tensors[0]], 1)
            device.output().setType(torch._C.DeviceObjType.get())
            device.insertBefore(node)
            node.output().replaceAllUsesWith(device.output())
