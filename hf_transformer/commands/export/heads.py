"""The model of a task as a function of tensors: what is traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Head(torch.nn.Module):
    """Calls the model with its tensors INT64 [B,S], in the order of ``inputs``, and gives its ``outputs``.

    ``options`` are the call's other arguments. The model builds its attention masks itself: families differ in what
    hides behind one (windows, relative positions, the positions of tokens).
    """

    def __init__(self, model: Any, inputs: Sequence[str], outputs: Sequence[str], options: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.options = dict(options)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        found = self.model(**dict(zip(self.inputs, tensors, strict=True)), **self.options)
        return tuple(getattr(found, name) for name in self.outputs)
