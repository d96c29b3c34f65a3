"""Settings and outputs for tasks without a model or a tokenizer."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

import numpy as np

from hf_transformer.tasks.base import TaskSettings
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding, TaskTokenizer

ENCODING = Encoding([1, 2, 3], [0, 0, 0])


def settings(config: dict[str, Json] | None = None, vocabulary: Any = None, **options: Any) -> TaskSettings:
    """The settings of a model with this config.json. Options are fields, or flags that give defaults of parameters."""
    names = {field.name for field in fields(TaskSettings)}
    flags = {name: value for name, value in options.items() if name not in names}
    given = {name: value for name, value in options.items() if name in names}
    return TaskSettings(config or {}, cast(TaskTokenizer, vocabulary), flags, **given)


def named(*labels: str, **more: Json) -> dict[str, Json]:
    """A config.json with these labels."""
    return {"id2label": {str(number): label for number, label in enumerate(labels)}, **more}


def logits(*values: float, dtype: str = "<f4") -> dict[str, Array]:
    """The outputs for one text."""
    return {"logits": np.array(values, dtype)}
