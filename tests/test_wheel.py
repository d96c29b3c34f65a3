"""The wheel's contents, and the package without extras."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hf_transformer
from hf_transformer.api.pages import PLAYGROUND
from hf_transformer.commands.demo import EXAMPLES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "deploy" / "model_repository"
MAX_BYTES = 5_000_000


def test_the_wheel_carries_the_package_and_the_demo_models(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"hf_transformer-{hf_transformer.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    assert wheel.stat().st_size < MAX_BYTES
    files = {path.relative_to(MODELS) for path in MODELS.rglob("*") if path.is_file()}
    files = {path for path in files if "__pycache__" not in path.parts}
    for model in {example.model for example in EXAMPLES.values()}:
        for name in ("1/model.onnx", "1/model.py", "config.pbtxt", "configs/python.pbtxt", "tokenizer.json"):
            assert Path(model, name) in files
    assert {f"hf_transformer/_model_repository/{path}" for path in files} <= names
    playground = {f"hf_transformer/api/ui/playground/{path.name}" for path in PLAYGROUND.folder.iterdir()}
    assert len(playground) > 10 and playground <= names
    assert {"hf_transformer/commands/cli.py", "hf_transformer/api/openapi.yaml"} <= names
    page = ("index.html", "start.js", "swagger-ui-bundle.js.gz", "swagger-ui.css.gz", "LICENSE", "NOTICE")
    assert {f"hf_transformer/api/ui/{name}" for name in page} <= names
    information = wheel.name.replace("-py3-none-any.whl", ".dist-info")
    assert {name.split("/")[0] for name in names} == {"hf_transformer", information}


LOAD = """
import sys
sys.modules["transformers"] = None
from hf_transformer.errors import LoadError
from hf_transformer.tokenizer.tokenizer import load_tokenizer
try:
    print(len(load_tokenizer(sys.argv[1], {}).encode(["paris"])[0].ids))
except LoadError as error:
    print(error)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in (MODELS / "bert").glob("*.json"):
        shutil.copy(file, tmp_path)
    return tmp_path


def load(folder: Path) -> str:
    return subprocess.run([sys.executable, "-c", LOAD, folder], capture_output=True, text=True, cwd=ROOT).stdout


def test_a_tokenizer_json_needs_no_transformers(folder: Path) -> None:
    assert load(folder).strip() == "3"


def test_without_tokenizer_json_the_error_names_the_extra(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "pip install 'hf-transformer[transformers]'" in load(folder)
