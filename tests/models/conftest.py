"""Tests against the real models and the libraries that people compare with. `make test-models` runs them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The model's folder, which scripts/export_minilm writes."""
    folder = ROOT / "build" / "minilm" / "minilm"
    assert (folder / "1" / "model.onnx").is_file(), "run scripts/export_minilm first; scripts/test_models does"
    return folder


@pytest.fixture(scope="session")
def transformers_4() -> Path:
    """The Python of an environment with transformers 4.

    HF_TRANSFORMER_MODELS_4_ENVIRONMENT names the environment; without it, .venv-models-4 of the checkout.
    """
    environment = Path(os.environ.get("HF_TRANSFORMER_MODELS_4_ENVIRONMENT") or ROOT / ".venv-models-4")
    return environment / "bin" / "python"
