"""Lays out the model repository of the test Triton.

The repository's own folders hold what differs from model to model, a config.pbtxt each. What they share, the code and
the weights, is linked into place here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parent
DEMO_MODEL: Final = TESTS.parent / "deploy" / "model_repository" / "bert"
VARIANTS: Final = TESTS / "model_repository"
SHARED_CODE: Final = VARIANTS / "onnx_model.py"
SHARED_WEIGHTS: Final = VARIANTS / "bert_masked" / "1" / "model.onnx"


def model_names() -> list[str]:
    """Every model there is: the demo model `bert`, then the variants and faults in the order of their names."""
    return ["bert", *sorted(config.parent.name for config in VARIANTS.glob("*/config.pbtxt"))]


def lay_out(target: Path, models: Iterable[str] | None = None) -> None:
    """Build a repository for `tritonserver --model-repository target`, of all models or of the named ones.

    The demo model `bert` is the deployed one, with its Python backend's configuration as config.pbtxt. target is made
    if it is absent. Raises ValueError for a name that is not in model_names().
    """
    known = model_names()
    names = known if models is None else list(models)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no such test model: {', '.join(unknown)}; there are {', '.join(known)}")
    for name in names:
        version = target / name / "1"
        version.mkdir(parents=True)
        if name == "bert":
            code, weights = DEMO_MODEL / "1" / "model.py", DEMO_MODEL / "1" / "model.onnx"
            _fill(version, DEMO_MODEL / "configs" / "python.pbtxt", code, weights)
        else:
            _fill(version, VARIANTS / name / "config.pbtxt", SHARED_CODE, SHARED_WEIGHTS)


def _fill(version: Path, config: Path, code: Path, weights: Path) -> None:
    shutil.copyfile(config, version.parent / "config.pbtxt")
    shutil.copyfile(code, version / "model.py")
    # A link, since twenty copies of the weights per test run would stay in pytest's temporary folders. Not one for
    # the code: __file__ must lie beside the weights.
    (version / "model.onnx").symlink_to(weights)
