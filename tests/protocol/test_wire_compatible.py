"""The service's copy of the protocol has the same fields as Triton's.

As a program it prints one copy as JSON, because two copies can't be loaded into one process:
python -m tests.protocol.test_wire_compatible hf_transformer.protocol.pb.open_inference_grpc_pb2
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.json_format import MessageToDict

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WHOLE = ("ModelInferRequest", "ModelInferResponse", "InferTensorContents", "InferParameter", "DataType")
"""Messages of an inference, which are complete in the service's copy."""


def described(path: str, scope: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The definitions in a file, message, enumeration or service: their paths and their plain attributes."""
    for definitions in scope.values():
        for definition in definitions if isinstance(definitions, list) else ():
            if "name" in definition:
                name = f"{path}.{definition['name']}"
                yield name, {key: value for key, value in definition.items() if not isinstance(value, list)}
                yield from described(name, definition)


def everything(module: str) -> Iterator[tuple[str, Any]]:
    """The definitions in a module's file and its imports."""
    pending = [importlib.import_module(module).DESCRIPTOR]
    while pending:
        descriptor = pending.pop()
        pending += descriptor.dependencies
        file = FileDescriptorProto()
        descriptor.CopyToProto(file)
        yield from described(file.package, MessageToDict(file))


def printed(module: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.protocol.test_wire_compatible", module]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout
    definitions: dict[str, Any] = json.loads(output)
    return definitions


def test_every_field_is_tritons_and_messages_of_an_inference_are_complete() -> None:
    ours, theirs = (
        printed("hf_transformer.protocol.pb.open_inference_grpc_pb2"),
        printed("tritonclient.grpc.service_pb2"),
    )
    raw = ours["inference.ModelInferResponse.raw_output_contents"]
    assert (raw["number"], raw["type"], raw["label"]) == (6, "TYPE_BYTES", "LABEL_REPEATED")
    assert ours["inference.GRPCInferenceService.ModelStreamInfer"]["clientStreaming"]
    assert {name for name, definition in ours.items() if theirs.get(name) != definition} == set()
    prefixes = tuple(f"inference.{name}." for name in WHOLE)
    assert {name for name in theirs if name.startswith(prefixes)} <= set(ours)


if __name__ == "__main__":
    json.dump(dict(everything(sys.argv[1])), sys.stdout)
