"""The committed goldens are what transformers and sentence-transformers say today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GOLDENS = Path(__file__).parents[1] / "goldens"
WITH_TRANSFORMERS_4 = "question_answering"


def check(python: str | Path, task: str) -> None:
    generator = GOLDENS / f"generate_{task}.py"
    result = subprocess.run([python, generator, "--check"], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "task",
    sorted(
        task
        for path in GOLDENS.glob("generate_*.py")
        if (task := path.stem.removeprefix("generate_")) != WITH_TRANSFORMERS_4
    ),
)
def test_goldens_are_up_to_date(task: str) -> None:
    check(sys.executable, task)


def test_goldens_of_question_answering_are_up_to_date(transformers_4: Path) -> None:
    check(transformers_4, WITH_TRANSFORMERS_4)
