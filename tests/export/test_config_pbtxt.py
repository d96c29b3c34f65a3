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


CASES = [
    pytest.param(name, form, backend, id=f"{name}-{backend}-{form}")
    for name in GRAPHS
    for form, backends in (("onnx", ("onnxruntime", "python")), ("torchscript", ("pytorch", "python")))
    for backend in backends
]


@pytest.mark.parametrize(("name", "form", "backend"), CASES)
def test_every_field(tmp_path: Path, name: str, form: str, backend: str) -> None:
    graph = GRAPHS[name]
    given = settings(form, backend=backend, max_batch_size=7, instances=3)
    (config,) = parse(tmp_path, config_pbtxt(graph, given, "fill_mask"))
    file = "model.py" if backend == "python" else {"onnx": "model.onnx", "torchscript": "model.pt"}[form]

    def tensors(names: Sequence[str], types: Sequence[str], axes: Sequence[tuple[str | int, ...]]) -> list[Any]:
        return [
            {
                "name": f"{one}__{number}" if form == "torchscript" else one,
                "data_type": f"TYPE_{datatype}",
                "dims": [str(-1 if isinstance(axis, str) else axis) for axis in shape[1:]],
            }
            for number, (one, datatype, shape) in enumerate(zip(names, types, axes, strict=True))
        ]

    expected: dict[str, Any] = {
        "name": "bert",
        "backend": backend,
        "default_model_filename": file,
        "max_batch_size": 7,
        "input": tensors(graph.inputs, ["INT64"] * len(graph.inputs), [("batch", "any")] * len(graph.inputs)),
        "output": tensors(
            [one.name for one in graph.outputs],
            [one.datatype for one in graph.outputs],
            [one.axes for one in graph.outputs],
        ),
        "dynamic_batching": {},
        "instance_group": [{"count": 3}],
    }
    if backend == "python":
        expected["parameters"] = {"intra_op_thread_count": {"string_value": "1"}}
    assert config == expected


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("form", ["onnx", "torchscript"])
def test_what_is_commented_fits_too(tmp_path: Path, form: str, batching: bool) -> None:
    text = config_pbtxt(GRAPHS["fill_mask"], settings(form, dynamic_batching=batching), "fill_mask")
    assert COMMENTED.search(text)
    plain, switched_on = parse(tmp_path, text, COMMENTED.sub(r"\1\2", text))
    assert "model_warmup" not in plain and ("dynamic_batching" in plain) is batching
    names = {tensor["name"] for tensor in plain["input"]}
    (warmup,) = switched_on["model_warmup"]
    assert set(warmup["inputs"]) == names and warmup["batch_size"] == 1
    assert {tuple(one["dims"]) for one in warmup["inputs"].values()} == {("16",)}
    if batching:
        policy = switched_on["dynamic_batching"]["default_queue_policy"]
        assert (policy["max_queue_size"], policy["default_timeout_microseconds"]) == (256, "5000000")
    else:
        assert switched_on["dynamic_batching"] == {}


def test_a_wrong_field_is_found(tmp_path: Path) -> None:
    text = config_pbtxt(GRAPHS["fill_mask"], settings(), "fill_mask")
    wrong = (
        text.replace("data_type", "datatype"),
        text.replace("TYPE_INT64", "INT64"),
        text.replace("count: 1", 'count: "1"'),
    )
    for found in parse(tmp_path, *wrong):
        assert isinstance(found, str)


def test_every_config_in_the_repository() -> None:
    paths = sorted(path for folder in ("deploy", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.pbtxt"))
    assert len(paths) > 20
    for path, config in zip(paths, parsed(paths), strict=True):
        assert isinstance(config, dict), config
        assert config["input"] and config["output"], path
