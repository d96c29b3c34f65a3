"""Shortens a small ONNX file: inner values get short names, nodes none. In a tiny model names are up to a third."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx


def shorten(path: Path) -> None:
    """Rewrites the file. The names of inputs, outputs and weights stay."""
    model = onnx.load(str(path))
    graph = model.graph
    _shorten(graph, {value.name for value in [*graph.input, *graph.output, *graph.initializer]}, {})
    path.write_bytes(model.SerializeToString())


def _shorten(graph: Any, kept: set[str], names: dict[str, str]) -> None:
    """Renames the values of a graph and of the graphs in its nodes, which may read those around them."""
    del graph.value_info[:]
    for node in graph.node:
        node.name = node.doc_string = ""
        for values in (node.input, node.output):
            values[:] = [
                value if value in kept or not value else names.setdefault(value, f"v{len(names)}") for value in values
            ]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                for value in attribute.g.output:
                    value.name = names.setdefault(value.name, f"v{len(names)}")
                _shorten(attribute.g, kept | {value.name for value in attribute.g.initializer}, names)
