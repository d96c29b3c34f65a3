"""A model at the predictor and the service's half of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_transformer.config.options import Config
from hf_transformer.core.contract import Signature
from hf_transformer.tasks.base import Servable, Task
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import Json, ModelSpec


@dataclass(frozen=True, slots=True)
class Pair:
    """What the flags, the model's files and the predictor say. ``tokenizer`` cuts where the files (or --max_model_len)
    have it cut, whatever the model's own length."""

    config: Config
    tokenizer: Tokenizer
    task: Servable
    spec: ModelSpec

    @property
    def model_config(self) -> Mapping[str, Json]:
        """config.json."""
        return self.task.settings.model_config


@dataclass(frozen=True, slots=True)
class BoundPair(Pair):
    """A model of a predictive task, once it fits."""

    task: Task[Any, Any, Any]
    signature: Signature

    @property
    def length(self) -> int:
        """Tokens of the longest text that the service sends, special ones included."""
        return min(self.signature.length or self.tokenizer.max_length, self.tokenizer.max_length)


Diagnose = Callable[[Pair], None]
"""Looks at a pair that was just bound."""


def no_diagnosis(pair: Pair) -> None:
    """For callers that look at the pair themselves."""
