"""What the package does without its extras: a fresh process in which a library can't be imported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
BERT = ROOT / "deploy" / "model_repository" / "bert"
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
    for file in BERT.glob("*.json"):
        shutil.copy(file, tmp_path)
    return tmp_path


def load(folder: Path) -> str:
    return subprocess.run([sys.executable, "-c", LOAD, folder], capture_output=True, text=True, cwd=ROOT).stdout


def test_a_tokenizer_json_needs_no_transformers(folder: Path) -> None:
    assert load(folder).strip() == "3"


def test_without_one_the_error_names_the_extra(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "pip install 'hf-transformer[transformers]'" in load(folder)
