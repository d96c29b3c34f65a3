"""Export the predictive test models to ONNX, the weights under the names that they have in the checkpoint."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnxruntime
import torch
from short_names import shorten
from task_models import TaskModel
from transformers import PreTrainedModel

OPSET: Final = 17  # old enough for every Triton container since 2023
TOLERANCE: Final = 1e-5  # largest difference of an output between torch and ONNX Runtime
MOST_BYTES: Final = 1_000_000


class Exported(torch.nn.Module):
    """The model's inputs, each INT64 [B,S], in the order of their names -> its outputs.

    With pooled, the output is one vector per text: the mean of the last hidden state over the attention mask,
    FP32 [B,D] of length 1.
    """

    def __init__(self, model: PreTrainedModel, spec: TaskModel, pooled: bool = False) -> None:
        super().__init__()
        self.model = model
        self.spec = spec
        self.pooled = pooled

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        named = dict(zip(self.spec.inputs, inputs, strict=True))
        mask = named["attention_mask"].to(torch.float32)
        # The mask as what is added to the scores, [B,1,1,S]: given so, transformers passes it on untouched, and none
        # of its own mask building, which traces badly, ends up in the graph.
        named["attention_mask"] = ((1.0 - mask) * torch.finfo(torch.float32).min)[:, None, None, :]
        output = self.model(**named)
        if self.pooled:
            summed = (output.last_hidden_state * mask[..., None]).sum(1)
            return (torch.nn.functional.normalize(summed / mask.sum(1, keepdim=True).clamp(min=1e-9), dim=-1),)
        return tuple(getattr(output, name) for name in self.spec.outputs)


def export(
    spec: TaskModel,
    model: PreTrainedModel,
    path: Path,
    *,
    pooled: bool = False,
    most_bytes: int = MOST_BYTES,
    tolerance: float = TOLERANCE,
) -> None:
    """Write model.onnx and check it.

    Raises ValueError if an output differs from the model's by more than tolerance or the file has more than most_bytes.
    """
    model.set_attn_implementation("eager")
    wrapper = Exported(model, spec, pooled).train(False)
    outputs = ("sentence_embedding",) if pooled else spec.outputs
    axes = {name: {0: "batch", 1: "sequence"} for name in spec.inputs}
    per_text = pooled or spec.learns in ("classes", "flags", "number")
    axes |= {name: {0: "batch"} if per_text else {0: "batch", 1: "sequence"} for name in outputs}
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # The tracing exporter is old and says so. It is the one that keeps the names of the weights.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            wrapper,
            example(spec, 2, 7),
            str(path),
            input_names=list(spec.inputs),
            output_names=list(outputs),
            dynamic_axes=axes,
            opset_version=OPSET,
            external_data=False,
            dynamo=False,
            do_constant_folding=False,  # folding would transpose the weights and lose their names
        )
    shorten(path)
    onnx.checker.check_model(str(path), full_check=True)
    compare(wrapper, spec, path, tolerance)
    if path.stat().st_size > most_bytes:
        raise ValueError(f"{path} has {path.stat().st_size} bytes")


def example(spec: TaskModel, batch: int, length: int) -> tuple[torch.Tensor, ...]:
    """Arbitrary ids; the last text is shorter and padded."""
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    ids = torch.randint(5, 800, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, max(1, length - 3) :] = 0
    ids[mask == 0] = 0 if spec.family == "Bert" else 1
    types = torch.zeros_like(ids)
    types[:, length // 2 :] = 1
    return (ids, mask, types)[: len(spec.inputs)]


def compare(wrapper: Exported, spec: TaskModel, path: Path, tolerance: float) -> None:
    """Run torch and ONNX Runtime on the same inputs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for shape in ((1, 1), (1, 12), (3, 5), (8, spec.max_length)):
        inputs = example(spec, *shape)
        with torch.no_grad():
            expected = wrapper(*inputs)
        found = session.run(None, {name: tensor.numpy() for name, tensor in zip(spec.inputs, inputs, strict=True)})
        for one, other in zip(expected, found, strict=True):
            difference = float(np.abs(one.numpy() - other).max())
            if other.shape != tuple(one.shape) or difference > tolerance:
                raise ValueError(f"{path} differs from the model by {difference} for shape {shape}")
