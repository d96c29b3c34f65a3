"""Our copy of the protocol says the same as Triton's, field by field."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def descriptor(module: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.protocol.descriptors", module]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
    parsed: dict[str, Any] = json.loads(output.stdout)
    return parsed


def test_every_field_is_tritons() -> None:
    ours = descriptor("hf_transformer.protocol.pb.open_inference_grpc_pb2")
    theirs = descriptor("tritonclient.grpc.service_pb2")
    assert ours["inference.ModelInferResponse.raw_output_contents"][:3] == [6, 12, 3]
    assert ours["inference.GRPCInferenceService.ModelInfer"][2:] == [False, False]
    assert {name: what for name, what in ours.items() if theirs.get(name) != what} == {}


def test_messages_on_the_infer_path_are_complete() -> None:
    ours = descriptor("hf_transformer.protocol.pb.open_inference_grpc_pb2")
    theirs = descriptor("tritonclient.grpc.service_pb2")
    whole = ("ModelInferRequest", "ModelInferResponse", "InferTensorContents", "InferParameter", "DataType")
    prefixes = tuple(f"inference.{name}." for name in whole)
    assert {name for name in theirs if name.startswith(prefixes)} <= set(ours)
