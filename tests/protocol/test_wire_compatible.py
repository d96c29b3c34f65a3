"""Our copy of the protocol says the same as Triton's, field by field.

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
"""Messages on the way of an inference, of which ours has every field."""


def described(path: str, scope: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is in a file, a message, an enumeration or a service, by its path, with all that it has but its parts."""
    for things in scope.values():
        for thing in things if isinstance(things, list) else ():
            if "name" in thing:
                name = f"{path}.{thing['name']}"
                yield name, {key: value for key, value in thing.items() if not isinstance(value, list)}
                yield from described(name, thing)


def everything(module: str) -> Iterator[tuple[str, Any]]:
    """All that a module's file has, and those that it imports."""
    pending = [importlib.import_module(module).DESCRIPTOR]
    while pending:
        descriptor = pending.pop()
        pending += descriptor.dependencies
        file = FileDescriptorProto()
        descriptor.CopyToProto(file)
        yield from described(file.package, MessageToDict(file))


def printed(module: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.protocol.test_wire_compatible", module]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)
    return found


def test_every_field_is_tritons_and_messages_of_an_inference_are_complete() -> None:
    ours, theirs = (
        printed("hf_transformer.protocol.pb.open_inference_grpc_pb2"),
        printed("tritonclient.grpc.service_pb2"),
    )
    raw = ours["inference.ModelInferResponse.raw_output_contents"]
    assert (raw["number"], raw["type"], raw["label"]) == (6, "TYPE_BYTES", "LABEL_REPEATED")
    assert ours["inference.GRPCInferenceService.ModelStreamInfer"]["clientStreaming"]
    assert {name: what for name, what in ours.items() if theirs.get(name) != what} == {}
    prefixes = tuple(f"inference.{name}." for name in WHOLE)
    assert {name for name in theirs if name.startswith(prefixes)} <= set(ours)


if __name__ == "__main__":
    json.dump(dict(everything(sys.argv[1])), sys.stdout)
