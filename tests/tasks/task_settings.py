"""Settings and outputs for tasks without a model or a tokenizer."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from hf_transformer.tasks.base import TaskSettings
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding, TaskTokenizer

ENCODING = Encoding([1, 2, 3], [0, 0, 0])


def settings(config: dict[str, Json] | None = None, **options: Any) -> TaskSettings:
    """The settings of a model with this config.json, for tasks that use no tokenizer."""
    return TaskSettings(config or {}, cast(TaskTokenizer, None), **options)


def named(*labels: str, **more: Json) -> dict[str, Json]:
    """A config.json with these labels."""
    return {"id2label": {str(number): label for number, label in enumerate(labels)}, **more}


def logits(*values: float, dtype: str = "<f4") -> dict[str, Array]:
    """The outputs for one text."""
    return {"logits": np.array(values, dtype)}
