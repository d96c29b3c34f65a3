"""A graph as a file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from hf_transformer.commands.export.graph import Graph
from hf_transformer.commands.export.samples import Inputs
from hf_transformer.commands.export.settings import Format
from hf_transformer.errors import LoadError

OPSET = 17
"""Of ONNX: old enough for every Triton container since 2023."""
WEIGHTS = "model.onnx.data"
"""Beside model.onnx, where the weights don't fit into it."""


def write_model(graph: Graph, path: Path, form: Format, inputs: Inputs) -> None:
    """Writes model.onnx or model.pt, weights inside. ``inputs`` are a batch of several texts to trace the graph with.

    Raises:
        LoadError: torch can't make such a file of this model.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            # Tracing warns of every shape that it sees; what comes out is compared with the model.
            warnings.simplefilter("ignore")
            if form == "onnx":
                _write_onnx(graph, path, inputs)
            else:
                _write_torchscript(graph, path, inputs)
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as exc:
        reason = " ".join(str(exc).split())[:400]
        raise LoadError(f"torch can't write this model as {form}: {reason}") from exc


def _write_onnx(graph: Graph, path: Path, inputs: Inputs) -> None:
    torch.onnx.export(
        graph.module,
        tuple(inputs.values()),
        str(path),
        input_names=list(graph.inputs),
        output_names=[output.name for output in graph.outputs],
        dynamic_axes=graph.free_axes,
        opset_version=OPSET,
        # The tracing exporter: the newer one stores shared embeddings twice.
        dynamo=False,
    )
    if len(list(path.parent.iterdir())) > 1:
        gather_weights(path)


def gather_weights(path: Path) -> None:
    """One file for the weights, where torch writes one for each: it does for those of more than 2 GB, the most that a
    protobuf message can hold. Takes memory for all of them."""
    import onnx

    model = onnx.load(str(path))
    for file in path.parent.iterdir():
        file.unlink()
    onnx.save_model(model, str(path), save_as_external_data=True, all_tensors_to_one_file=True, location=WEIGHTS)


def _write_torchscript(graph: Graph, path: Path, inputs: Inputs) -> None:
    traced = torch.jit.trace(graph.module, tuple(inputs.values()), strict=False, check_trace=False)
    for module in traced.modules():
        for name in module._c._method_names():  # one for each time that it is called
            _free_devices(module._c._get_method(name).graph)
    traced.save(str(path))


def _free_devices(graph: Any) -> None:
    """Tensors are made where the inputs are: a trace has the device that it ran on, the CPU, written into it."""
    tensors = [value for value in graph.inputs() if value.type().kind() == "TensorType"]
    for node in list(graph.nodes()):
        if tensors and node.kind() == "prim::Constant" and node.output().type().kind() == "DeviceObjType":
            device = graph.create("prim::device", [tensors[0]], 1)
            device.output().setType(torch._C.DeviceObjType.get())
            device.insertBefore(node)
            node.output().replaceAllUsesWith(device.output())
