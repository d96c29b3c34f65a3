"""Hugging Face checkpoints of the predictive test models, made from the model.onnx files that the test Triton serves.

So nothing is stored twice, and the goldens are about the very weights that are served. Needs torch, transformers and
onnx.
"""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Final

import onnx
import onnx.numpy_helper
import torch
import transformers

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.triton_repository import task_model_folder, weights_of  # noqa: E402


def checkpoint(name: str, target: Path) -> Path:
    """Write the model's folder, weights included, under target and return it.

    Raises ValueError if the ONNX file lacks a weight of the model.
    """
    folder = target / name
    shutil.copytree(task_model_folder(name), folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    architecture = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    model = getattr(transformers, architecture)(config)
    missing, unexpected = model.load_state_dict(stored_weights(weights_of(name)), strict=False)
    # Weights that are used in two places were exported under one of their names.
    tied = {weight for pair in getattr(model, "all_tied_weights_keys", {}).items() for weight in pair}
    # The pooler of a model without a head has no part in its last hidden state, so it was not exported.
    if unexpected or [weight for weight in missing if not weight.startswith("pooler.") and weight not in tied]:
        raise ValueError(f"{name}: the ONNX file lacks {missing} and has {unexpected} besides")
    if (folder / "generation_config.json").exists():
        # Saving the model would make one from config.json.
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def stored_weights(path: Path) -> dict[str, torch.Tensor]:
    """The weights in an ONNX file, by the names that the checkpoint had."""
    return {
        tensor.name.removeprefix("model."): torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
        for tensor in onnx.load(path).graph.initializer
        if tensor.name.startswith("model.")
    }
