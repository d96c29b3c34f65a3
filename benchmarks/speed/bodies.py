"""Requests as bytes, and what has to come back."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.speed.cases import ANSWER, DIMENSIONS, REAL_MODELS, Case, Model

HEADER = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Body:
    """One request. ``json_length`` is where Triton's binary part begins, 0 where there is none."""

    content: bytes
    json_length: int = 0


@dataclass(frozen=True, slots=True)
class Region:
    """A registered shared-memory region of ``slots`` places for one output each."""

    name: str
    slot_bytes: int
    slots: int


def v1(texts: Sequence[str]) -> list[Body]:
    """KServe's V1 protocol, one text per request."""
    return [Body(json.dumps({"instances": [text]}).encode()) for text in texts]


def ensemble(texts: Sequence[str]) -> list[Body]:
    """Open inference protocol, the text as a string."""
    return [
        Body(json.dumps({"inputs": [{"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]}).encode())
        for text in texts
    ]


def binary(model: Model, ids: Sequence[Sequence[int]], region: Region | None) -> list[Body]:
    """Tensors in Triton's binary form; the output comes back in the same form, or in the region."""
    return [_binary(model, row, region, index) for index, row in enumerate(ids)]


def _binary(model: Model, ids: Sequence[int], region: Region | None, index: int) -> Body:
    tensors = {"input_ids": np.array(ids, np.int64), "attention_mask": np.ones(len(ids), np.int64)}
    inputs = [
        {
            "name": name,
            "shape": [1, len(ids)],
            "datatype": "INT64",
            "parameters": {"binary_data_size": tensor.nbytes},
        }
        for name, tensor in tensors.items()
    ]
    parameters: dict[str, Any] = {"binary_data": True}
    if region is not None:
        parameters = {
            "shared_memory_region": region.name,
            "shared_memory_offset": index % region.slots * region.slot_bytes,
            "shared_memory_byte_size": region.slot_bytes,
        }
    text = json.dumps({"inputs": inputs, "outputs": [{"name": model.output, "parameters": parameters}]}).encode()
    return Body(text + b"".join(tensor.tobytes() for tensor in tensors.values()), len(text))


def check_prediction(case: Case, prediction: Any) -> None:
    """Raises ValueError if an answer to a text of the case is not what the model makes certain."""
    task = case.model.task
    if task == "text_embedding":
        good = len(prediction) == DIMENSIONS and math.isclose(math.hypot(*prediction), 1.0, abs_tol=1e-3)
    elif task == "fill_mask":
        good = prediction == ANSWER
    else:
        good = prediction == 1
    if not good and not (case.model in REAL_MODELS and len(prediction) == DIMENSIONS):
        raise ValueError(f"{case.name}: wrong answer {str(prediction)[:200]}")
