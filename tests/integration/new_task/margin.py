"""margin: the distance of a classifier's two highest logits. A task for tests/integration/test_new_task.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from hf_transformer.tasks.base import Outputs, Overflow, Task, TaskSettings
from hf_transformer.tasks.declaration import NUMBER, Demo, Example, closed
from hf_transformer.tasks.labels import CLASSIFIER, read_labels, text_logits
from hf_transformer.tasks.long_texts import read_tokenization, read_truncation
from hf_transformer.tasks.options import Format, MaxTokens, TaskParameters, Truncation, TruncationSide, by_flag
from hf_transformer.types.fields import Natural, about
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import Encoding, Tokenization


class MarginParameters(TaskParameters):
    """The parameters of a request."""

    output_format: Format = "kserve"
    digits: Annotated[Natural, about("Decimal places of the margin."), by_flag("margin_digits")] = 3
    factor: Annotated[Annotated[float, Meta(ge=0, le=10)], about("Multiplies the margin.")] = 1.0
    truncation: Truncation = None
    truncation_side: TruncationSide = None
    max_tokens: MaxTokens = None


@dataclass(frozen=True, slots=True)
class MarginOptions:
    """The effect of a request's parameters."""

    digits: int
    factor: float
    overflow: Overflow
    tokenization: Tokenization


class Margin(Task[str, MarginOptions, Json]):
    """Reads ``logits`` [labels]. The answer is {"margin"} in both formats."""

    name = "margin"
    options_type = MarginParameters
    purpose = "Tells how sure a classifier is"
    examples = (Example("a margin", {"instances": ["The hotel was wonderful."], "parameters": {"digits": 1}}),)
    demo = Demo("sentiment", "The hotel was wonderful.")
    export_head = CLASSIFIER
    prediction_schemas = ({"description": "The margin; for margin.", **closed(["margin"], margin=NUMBER)},)

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self.outputs = (text_logits(len(read_labels(settings.model_config))),)

    def options(self, parameters: Mapping[str, Json]) -> MarginOptions:
        given, _ = self.read(MarginParameters, parameters)
        overflow = read_truncation(given, self.settings)
        return MarginOptions(given.digits, given.factor, overflow, read_tokenization(given))

    def answer_size(self, encoding: Encoding, options: MarginOptions) -> int:
        return 1

    def decode(self, item: str, encoding: Encoding, outputs: Outputs, options: MarginOptions) -> Json:
        second, first = np.sort(outputs["logits"])[-2:].tolist()
        return {"margin": round((first - second) * options.factor, options.digits)}
