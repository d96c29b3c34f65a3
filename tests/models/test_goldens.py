"""The committed goldens are what transformers and sentence-transformers say today."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATORS = sorted((ROOT / "scripts" / "goldens").glob("generate_*.py"))


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda path: path.stem.removeprefix("generate_"))
def test_goldens_are_up_to_date(generator: Path) -> None:
    """Goldens of question answering need transformers 4, which .venv-models-4 of the checkout has, or the environment
    that HF_TRANSFORMER_MODELS_4_ENVIRONMENT names. Those of responses have the transformers of the service's .venv."""
    python = Path(sys.executable)
    if generator.stem == "generate_question_answering":
        python = Path(os.environ.get("HF_TRANSFORMER_MODELS_4_ENVIRONMENT") or ROOT / ".venv-models-4", "bin", "python")
    elif generator.stem == "generate_responses":
        python = ROOT / ".venv" / "bin" / "python"
    file = ROOT / "tests" / "goldens" / f"{generator.stem.removeprefix('generate_')}.json"
    before = file.read_bytes()
    command = [str(python), "-m", f"scripts.goldens.{generator.stem}", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    assert file.read_bytes() == before
