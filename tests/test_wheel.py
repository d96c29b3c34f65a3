"""What users get from `pip install`."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hf_transformer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
DEMO_MODEL = ROOT / "deploy" / "model_repository" / "bert"


def test_the_wheel_carries_the_package_and_the_demo_model(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"hf_transformer-{hf_transformer.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    model = {str(path.relative_to(DEMO_MODEL)) for path in DEMO_MODEL.rglob("*") if path.is_file()}
    model = {name for name in model if "__pycache__" not in name}
    assert {"1/model.onnx", "1/model.py", "config.pbtxt", "configs/python.pbtxt", "tokenizer.json"} <= model
    assert {f"hf_transformer/_model_repository/bert/{name}" for name in model} <= names
    assert {"hf_transformer/cli.py", "hf_transformer/api/openapi.yaml"} <= names
    page = ("index.html", "start.js", "swagger-ui-bundle.js.gz", "swagger-ui.css.gz", "LICENSE", "NOTICE")
    assert {f"hf_transformer/api/ui/{name}" for name in page} <= names
    assert {name.split("/")[0] for name in names} == {
        "hf_transformer",
        wheel.name.replace("-py3-none-any.whl", ".dist-info"),
    }
