"""config.pbtxt, field by field: by the ModelConfig of Triton's model_config.proto, of which tritonclient has a copy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.commands.export.config_pbtxt import config_pbtxt
from tests.export.graphs import GRAPHS, settings

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMMENTED = re.compile(r"^( *)#   (.*)$", re.MULTILINE)
"""Settings that are written down and switched off; sentences have one space behind the #."""


def parsed(paths: Sequence[Path]) -> list[Any]:
    """Each file as a dict of what it sets, or the parser's complaint."""
    result = subprocess.run(
        [sys.executable, HERE / "parse_pbtxt.py", *paths], capture_output=True, text=True, timeout=60, check=True
    )
    found: list[Any] = json.loads(result.stdout)
    return found


def parse(folder: Path, *texts: str) -> list[Any]:
    paths = [folder / f"{number}.pbtxt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return parsed(paths)


@pytest.mark.parametrize(
    ("form", "backend", "file"),
    [
        ("onnx", "onnxruntime", "model.onnx"),
        ("onnx", "python", "model.py"),
        ("torchscript", "pytorch", "model.pt"),
        ("torchscript", "python", "model.py"),
    ],
)
def test_every_field(tmp_path: Path, form: str, backend: str, file: str) -> None:
    given = settings(f"--format={form}", f"--backend={backend}", "--max_batch_size=7", "--instances=3")
    found = parse(tmp_path, *(config_pbtxt(*graph, given, "fill_mask") for graph in GRAPHS.values()))
    for config, (inputs, outputs) in zip(found, GRAPHS.values(), strict=True):
        tensors = [
            [
                {
                    "name": f"{tensor.name}__{number}" if form == "torchscript" else tensor.name,
                    "data_type": f"TYPE_{tensor.datatype}",
                    "dims": [str(-1 if isinstance(axis, str) else axis) for axis in tensor.axes[1:]],
                }
                for number, tensor in enumerate(one)
            ]
            for one in (inputs, outputs)
        ]
        assert config == {
            "name": "bert",
            "backend": backend,
            "default_model_filename": file,
            "max_batch_size": 7,
            "input": tensors[0],
            "output": tensors[1],
            "dynamic_batching": {},
            "instance_group": [{"count": 3}],
            **({"parameters": {"intra_op_thread_count": {"string_value": "1"}}} if backend == "python" else {}),
        }


@pytest.mark.parametrize("form", ["onnx", "torchscript"])
@pytest.mark.parametrize("batching", [True, False])
def test_what_is_commented_fits_too(tmp_path: Path, form: str, batching: bool) -> None:
    given = settings(f"--format={form}", f"--dynamic_batching={batching}")
    text = config_pbtxt(*GRAPHS["fill_mask"], given, "fill_mask")
    plain, switched_on = parse(tmp_path, text, COMMENTED.sub(r"\1\2", text))
    assert "model_warmup" not in plain and ("dynamic_batching" in plain) is batching
    (warmup,) = switched_on["model_warmup"]
    assert set(warmup["inputs"]) == {tensor["name"] for tensor in plain["input"]} and warmup["batch_size"] == 1
    assert {tuple(one["dims"]) for one in warmup["inputs"].values()} == {("16",)}
    assert ("default_queue_policy" in switched_on["dynamic_batching"]) is batching


def test_every_config_in_the_repository() -> None:
    paths = sorted(path for folder in ("deploy", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.pbtxt"))
    assert len(paths) > 20
    for path, config in zip(paths, parsed(paths), strict=True):
        assert isinstance(config, dict), config
        assert config["input"] and config["output"], path
