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
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WHOLE = ("ModelInferRequest", "ModelInferResponse", "InferTensorContents", "InferParameter", "DataType")
"""Messages on the way of an inference, of which ours has every field."""


def described(prefix: str, scope: DescriptorProto | FileDescriptorProto) -> Iterator[tuple[str, Any]]:
    """The fields, values and methods of a file or a message, and of what is in it."""
    for enum in scope.enum_type:
        yield from ((f"{prefix}.{enum.name}.{value.name}", value.number) for value in enum.value)
    if isinstance(scope, DescriptorProto):
        for field in scope.field:
            group = scope.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            yield f"{prefix}.{field.name}", [field.number, field.type, field.label, field.type_name, group]
    else:
        for service in scope.service:
            for method in service.method:
                streams = [method.client_streaming, method.server_streaming]
                yield f"{prefix}.{service.name}.{method.name}", [method.input_type, method.output_type, *streams]
    for nested in scope.nested_type if isinstance(scope, DescriptorProto) else scope.message_type:
        yield from described(f"{prefix}.{nested.name}", nested)


def everything(module: str) -> Iterator[tuple[str, Any]]:
    """All that a module's file has, and those that it imports."""
    pending = [importlib.import_module(module).DESCRIPTOR]
    while pending:
        descriptor = pending.pop()
        pending += descriptor.dependencies
        file = FileDescriptorProto()
        descriptor.CopyToProto(file)
        yield from described(file.package, file)


def printed(module: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.protocol.test_wire_compatible", module]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)
    return found


def test_every_field_is_tritons_and_messages_of_an_inference_are_complete() -> None:
    ours, theirs = (
        printed("hf_transformer.protocol.pb.open_inference_grpc_pb2"),
        printed("tritonclient.grpc.service_pb2"),
    )
    assert ours["inference.ModelInferResponse.raw_output_contents"][:3] == [6, 12, 3]
    assert ours["inference.GRPCInferenceService.ModelInfer"][2:] == [False, False]
    assert {name: what for name, what in ours.items() if theirs.get(name) != what} == {}
    prefixes = tuple(f"inference.{name}." for name in WHOLE)
    assert {name for name in theirs if name.startswith(prefixes)} <= set(ours)


if __name__ == "__main__":
    json.dump(dict(everything(sys.argv[1])), sys.stdout)
