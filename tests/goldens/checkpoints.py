"""Hugging Face checkpoints of the predictive test models, from the model.onnx files that the test Triton serves.

Hence the repository stores no weights twice, and goldens and Triton use the same weights. Needs torch, transformers and
onnx.
"""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import onnx.numpy_helper
import torch
import transformers
from safetensors.torch import save_file

from tests.support.triton_repository import task_model_folder, weights_of


def checkpoint(name: str, target: Path) -> Path:
    """Write the model's folder, weights included, under target and return it.

    Raises ValueError if the ONNX file lacks a weight of the model.
    """
    folder = target / name
    shutil.copytree(task_model_folder(name), folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    architecture = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    model = getattr(transformers, architecture)(config)
    stored = stored_weights(weights_of(name))
    own = {weight.removeprefix("model."): tensor for weight, tensor in stored.items() if weight.startswith("model.")}
    missing, unexpected = model.load_state_dict(own, strict=False)
    # ONNX files store tied weights under one of their names.
    tied = {weight for pair in getattr(model, "all_tied_weights_keys", {}).items() for weight in pair}
    # The export of a model without a head leaves out its pooler.
    if unexpected or [weight for weight in missing if not weight.startswith("pooler.") and weight not in tied]:
        raise ValueError(f"{name}: the ONNX file lacks {missing} and has the unknown {unexpected}")
    if (folder / "generation_config.json").exists():
        # Otherwise save_pretrained would make one from config.json.
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    model.save_pretrained(folder)
    if name == "m3":
        for file, layer in (("sparse_linear.pt", "weights."), ("colbert_linear.pt", "vectors.")):
            torch.save({kind: stored[layer + kind] for kind in ("weight", "bias")}, folder / file)
    elif name == "colbert":
        save_file({"linear.weight": stored["vectors.0.0.weight"]}, folder / "1_Dense" / "model.safetensors")
    return folder


def stored_weights(path: Path) -> dict[str, torch.Tensor]:
    """The weights in an ONNX file, by their names in the graph: those of the model's checkpoint follow ``model.``."""
    return {
        tensor.name.removeprefix("head."): torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy())
        for tensor in onnx.load(path).graph.initializer
        if tensor.name.removeprefix("head.").startswith(("model.", "weights.", "vectors."))
    }
