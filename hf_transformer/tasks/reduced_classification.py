"""sequence_classification with a model whose graph ends in probabilities (``hf-transformer export --reduce``)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hf_transformer.errors import ConfigError, InvalidInput
from hf_transformer.tasks.base import OutputRole, TaskSettings
from hf_transformer.tasks.labels import labels_axis
from hf_transformer.tasks.numerics import require_numbers
from hf_transformer.tasks.sequence_classification import SequenceClassification, SequenceClassificationOptions
from hf_transformer.types import Array, Encoding, Json, TextInput

PROBABILITIES = "probabilities"


class ReducedClassification(SequenceClassification):
    """Reads ``probabilities`` [labels], of the function that config.json stands for.

    Answers are those of SequenceClassification, but for raw logits and other functions, which need the logits.
    """

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        if settings.return_raw_logits:
            raise ConfigError("--return_raw_logits: the model gives probabilities alone; export it without --reduce")

    @property
    def outputs(self) -> tuple[OutputRole, ...]:
        return (OutputRole(PROBABILITIES, (labels_axis(len(self.labels)),)),)

    def options(self, parameters: Mapping[str, Json]) -> SequenceClassificationOptions:
        options = super().options(parameters)
        if options.form == "raw_logits":
            raise InvalidInput(
                "parameters.return_raw_logits: the model gives probabilities, it was exported with --reduce"
            )
        if options.function != self.function:
            raise InvalidInput(
                f"parameters.function_to_apply: {options.function!r} needs the logits, and the model gives the "
                f"probabilities of {self.function} (it was exported with --reduce)"
            )
        return options

    def decode(
        self,
        item: TextInput,
        encoding: Encoding,
        outputs: Mapping[str, Array],
        options: SequenceClassificationOptions,
    ) -> Json:
        scores = outputs[PROBABILITIES].astype(np.float32)
        require_numbers(scores[:, np.newaxis])
        return int(scores.argmax()) if options.form == "plain" else self.render(scores, options)
