"""Prints one copy of the V2 protocol as JSON. A program, because two copies can't be loaded into one process.

python descriptors.py hf_transformer.protocol.pb.open_inference_grpc_pb2
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto


def files(module_name: str) -> Iterator[FileDescriptorProto]:
    """The module's file and those it imports."""
    pending = [importlib.import_module(module_name).DESCRIPTOR]
    while pending:
        descriptor = pending.pop()
        pending += descriptor.dependencies
        file = FileDescriptorProto()
        descriptor.CopyToProto(file)
        yield file


def described(prefix: str, message: DescriptorProto) -> Iterator[tuple[str, Any]]:
    for field in message.field:
        group = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        yield f"{prefix}.{message.name}.{field.name}", [field.number, field.type, field.label, field.type_name, group]
    for nested in message.nested_type:
        yield from described(f"{prefix}.{message.name}", nested)
    for enum in message.enum_type:
        yield from values(f"{prefix}.{message.name}", enum)


def values(prefix: str, enum: EnumDescriptorProto) -> Iterator[tuple[str, Any]]:
    for value in enum.value:
        yield f"{prefix}.{enum.name}.{value.name}", value.number


def everything(module_name: str) -> Iterator[tuple[str, Any]]:
    for file in files(module_name):
        for message in file.message_type:
            yield from described(file.package, message)
        for enum in file.enum_type:
            yield from values(file.package, enum)
        for service in file.service:
            for method in service.method:
                streams = [method.client_streaming, method.server_streaming]
                what = [method.input_type, method.output_type, *streams]
                yield f"{file.package}.{service.name}.{method.name}", what


if __name__ == "__main__":
    json.dump(dict(everything(sys.argv[1])), sys.stdout)
