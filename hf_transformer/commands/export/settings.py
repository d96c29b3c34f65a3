"""What is to be exported, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Format = Literal["onnx", "torchscript"]
Backend = Literal["onnxruntime", "pytorch", "python"]
Precision = Literal["fp32", "fp16"]

BACKENDS: dict[Format, tuple[Backend, ...]] = {
    "onnx": ("onnxruntime", "python"),
    "torchscript": ("pytorch", "python"),
}
"""Triton's backends that run each format, the default first."""
TOP_K = 10
"""Tokens per mask of a reduced fill_mask model, without --top_k."""
FILES: dict[Format, str] = {"onnx": "model.onnx", "torchscript": "model.pt"}
"""What Triton's backends look for in the folder of a version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """The flags of ``hf-transformer export``.

    ``inputs`` are the model's inputs, empty for all that it takes. ``top_k`` is how many tokens a reduced fill_mask
    model gives per mask, None for the usual number.
    """

    model_id: str
    output: Path
    model_name: str
    format: Format = "onnx"
    backend: Backend = "onnxruntime"
    task: str | None = None
    revision: str | None = None
    inputs: tuple[str, ...] = ()
    max_batch_size: int = 32
    precision: Precision = "fp32"
    instances: int = 1
    dynamic_batching: bool = True
    reduce: bool = False
    top_k: int | None = None
    tolerance: float | None = None
    force: bool = False
    token: str | None = field(default=None, repr=False)
    trust_remote_code: bool = False
