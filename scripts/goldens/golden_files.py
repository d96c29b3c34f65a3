"""The command line, file format and comparison that all generators of goldens share.

.venv-models/bin/python -m scripts.goldens.generate_NAME            writes tests/goldens/NAME.json
.venv-models/bin/python -m scripts.goldens.generate_NAME --check    exits with 1 if the file would change
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from transformers.utils import logging as transformers_logging

FOLDER: Final = Path(__file__).resolve().parents[2] / "tests" / "goldens"
TOLERANCE: Final = 1e-5
"""Largest absolute difference of a score, or of a component of an embedding."""
ROUNDING: Final = 1e-9
"""Difference beyond the tolerance between two rounded numbers that are a tolerance apart, as binary fractions."""
MIN_GAP: Final = 2e-4
"""Relative difference below which two scores may swap: logits are exact to 1e-5, so scores to 2e-5."""


def generate(
    name: str, compute: Callable[[Path], dict[str, Any]], *modules: ModuleType, tolerance: float = TOLERANCE
) -> None:
    """Write tests/goldens/<name>.json; with --check exit with an error if it would change by more than ``tolerance``.

    ``compute`` gets a temporary folder for checkpoints. The file records the versions of torch and ``modules``.
    """
    parser = argparse.ArgumentParser(description=f"Compute the goldens of {name}.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is out of date")
    check: bool = parser.parse_args().check
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        goldens = compute(Path(folder))
    goldens["versions"] = {module.__name__: module.__version__.split("+")[0] for module in (torch, *modules)}
    text = as_text(goldens)
    path = FOLDER / f"{name}.json"
    if not check:
        path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {len(goldens['cases'])} cases, {len(text) / 1000:.0f} kB")
    elif not same(json.loads(text), json.loads(path.read_text(encoding="utf-8")), tolerance):
        raise SystemExit(f"{path} is out of date")


def as_text(goldens: dict[str, Any]) -> str:
    """JSON with one case per line, for readable diffs, and numbers of 7 significant digits."""
    sections = []
    for key, value in goldens.items():
        if isinstance(value, list):
            rows = ",\n".join("  " + json.dumps(rounded(row), separators=(",", ":")) for row in value)
            sections.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            sections.append(f"{json.dumps(key)}: {json.dumps(rounded(value), indent=1)}")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def rounded(value: Any) -> Any:
    """The value with floats of 7 significant digits, the precision of FP32, and numpy's numbers as Python's."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    if hasattr(value, "tolist"):
        return rounded(value.tolist())
    return float(f"{value:.7g}") if isinstance(value, float) else value


def same(new: Any, old: Any, tolerance: float) -> bool:
    """Whether both are equal, with floats within the tolerance, apart from versions."""
    if isinstance(new, dict) and isinstance(old, dict):
        return new.keys() == old.keys() and all(key == "versions" or same(new[key], old[key], tolerance) for key in new)
    if isinstance(new, list) and isinstance(old, list):
        return len(new) == len(old) and all(same(*pair, tolerance) for pair in zip(new, old, strict=True))
    if isinstance(new, float) and isinstance(old, float):
        return abs(new - old) <= tolerance + ROUNDING
    return bool(new == old)


def near_tie(scores: list[float]) -> bool:
    """Whether two neighbours of the descending scores are closer than MIN_GAP."""
    return any(first - second <= MIN_GAP * abs(first) for first, second in pairwise(scores))


def must_agree(name: str, actual: Any, expected: Any) -> None:
    """Raise ValueError unless the model gives the answer of its training data."""
    if actual != expected:
        raise ValueError(f"{name}: got {actual}, expected {expected}; train the models again")
