"""Export a BertForMaskedLM checkpoint to ONNX, without and with an attention mask.

train_capitals.py calls this; to export again from the stored checkpoint, without training:

    python scripts/models/export_onnx.py
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnxruntime
import torch
from short_names import shorten
from transformers import BertForMaskedLM

ROOT: Final = Path(__file__).resolve().parents[2]
OPSET: Final = 17  # old enough for every Triton container since 2023
TOLERANCE: Final = 1e-4  # largest difference of a logit between torch and ONNX Runtime


class FromIds(torch.nn.Module):
    """input_ids INT64 [B,S] -> logits FP32 [B,S,V], attending to every token: texts of one length only."""

    input_names = ("input_ids",)

    def __init__(self, model: BertForMaskedLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=input_ids).logits
        return logits


class FromIdsMaskAndTypes(torch.nn.Module):
    """input_ids, attention_mask and token_type_ids, each INT64 [B,S] -> logits FP32 [B,S,V]."""

    input_names = ("input_ids", "attention_mask", "token_type_ids")

    def __init__(self, model: BertForMaskedLM) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        # The mask as what is added to the scores, [B,1,1,S]: given so, transformers passes it on untouched, and none
        # of its own mask building, which traces badly, ends up in the graph.
        added = (1.0 - attention_mask.to(torch.float32)) * torch.finfo(torch.float32).min
        logits: torch.Tensor = self.model(
            input_ids=input_ids, attention_mask=added[:, None, None, :], token_type_ids=token_type_ids
        ).logits
        return logits


def export_models(model: BertForMaskedLM, plain: Path, masked: Path) -> None:
    """Write both exports, weights inside, and check them against the model.

    Raises ValueError if an export differs from the model by more than TOLERANCE, or if padding changes an answer.
    """
    model.train(False)
    model.set_attn_implementation("eager")
    for wrapper, path in ((FromIds(model), plain), (FromIdsMaskAndTypes(model), masked)):
        _export(wrapper, path)
        _compare(wrapper, path)
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
    _check_padding(masked)


def _export(wrapper: FromIds | FromIdsMaskAndTypes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    example = tuple(_example_inputs(2, 7)[name] for name in wrapper.input_names)
    axes = {0: "batch", 1: "sequence"}
    with warnings.catch_warnings():
        # The tracing exporter is old and says so. The newer one stores the shared embedding twice: 0.85 MB, not 0.64.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            wrapper,
            example,
            str(path),
            input_names=list(wrapper.input_names),
            output_names=["logits"],
            dynamic_axes={name: axes for name in (*wrapper.input_names, "logits")},
            opset_version=OPSET,
            external_data=False,
            dynamo=False,
            do_constant_folding=False,  # folding would store the shared embedding a second time, transposed
        )
    shorten(path)
    onnx.checker.check_model(str(path), full_check=True)


def _example_inputs(batch: int, length: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    ids = torch.randint(5, 1000, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, max(1, length - 3) :] = 0
    types = torch.zeros_like(ids)
    types[:, length // 2 :] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _compare(wrapper: FromIds | FromIdsMaskAndTypes, path: Path) -> None:
    session = _session(path)
    for shape in ((1, 1), (1, 12), (3, 5), (8, 128)):
        inputs = {name: _example_inputs(*shape)[name] for name in wrapper.input_names}
        with torch.no_grad():
            expected = wrapper(**inputs).numpy()
        (actual,) = session.run(["logits"], {name: tensor.numpy() for name, tensor in inputs.items()})
        difference = float(np.abs(expected - actual).max())
        if actual.shape != expected.shape or difference > TOLERANCE:
            raise ValueError(f"{path} differs from the model by {difference} for shape {shape}")


def _check_padding(path: Path) -> None:
    session = _session(path)
    short = {name: tensor.numpy() for name, tensor in _example_inputs(1, 9).items()}
    padded = {name: np.pad(array, ((0, 0), (0, 40))) for name, array in short.items()}
    (expected,) = session.run(["logits"], short)
    (actual,) = session.run(["logits"], padded)
    difference = float(np.abs(expected - actual[:, :9]).max())
    if difference > 1e-5:
        raise ValueError(f"padding changes the logits of {path} by {difference}")


def main() -> None:
    model = BertForMaskedLM.from_pretrained(ROOT / "tests/goldens/checkpoint")
    export_models(
        model,
        ROOT / "deploy/model_repository/bert/1/model.onnx",
        ROOT / "tests/model_repository/bert_masked/1/model.onnx",
    )


if __name__ == "__main__":
    main()
