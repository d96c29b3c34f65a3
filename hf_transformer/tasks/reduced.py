"""Tasks for models with a built-in reduction of the logits or vectors (``hf-transformer export --reduce``).

The names of a model's outputs identify such a model. Answers equal the plain task's answers; requests that need logits
fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hf_transformer.errors import ConfigError, InvalidInput
from hf_transformer.tasks.base import LOGITS, Axis, OutputRole, Outputs, Task, TaskSettings
from hf_transformer.tasks.fill_mask import FillMask, FillMaskOptions
from hf_transformer.tasks.labels import labels_axis
from hf_transformer.tasks.numerics import require_numbers
from hf_transformer.tasks.pooling import hidden_axis
from hf_transformer.tasks.sequence_classification import SequenceClassification, SequenceClassificationOptions
from hf_transformer.tasks.text_embedding import OUTPUT, PooledWindow, Text, TextEmbedding, TextEmbeddingOptions
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import Encoding, TextInput

AnyTask = Task[Any, Any, Any]
PROBABILITIES = "probabilities"
NORM = "embedding_norm"
IDS, SCORES = "topk_ids", "topk_scores"
NO_LOGITS = "no value for a model exported with --reduce"
"""The ``expected`` of errors about parameters that need logits."""


class ReducedFillMask(FillMask):
    """Reads ``topk_ids`` and ``topk_scores`` [masks, K]: the most likely tokens of each mask, in descending order, and
    their probabilities over the whole vocabulary.

    The batch's largest number of masks determines the masks axis; padding follows a text's own masks. Only the forms
    plain and pipeline are available, since the other forms need the logits of the whole vocabulary.
    """

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        for flag in LOGITS:
            if getattr(settings, flag):
                raise ConfigError(f"--{flag}: the model gives its best tokens alone; export it without --reduce")
        axes = (Axis(name="masks", minimum=0), Axis(name="best tokens"))
        self.outputs = (OutputRole(IDS, axes, datatypes=("INT64", "INT32")), OutputRole(SCORES, axes))

    def options(self, parameters: Mapping[str, Json]) -> FillMaskOptions:
        options = super().options(parameters)
        refused = None
        if options.form in ("probabilities", "raw_logits"):
            refused = f"return_{options.form}"
        elif options.target_ids is not None:
            refused = "targets"
        if refused is not None:
            raise InvalidInput(("parameters", refused), NO_LOGITS, hint="it needs the whole vocabulary's logits")
        return options

    def decode(self, item: str, encoding: Encoding, outputs: Outputs, options: FillMaskOptions) -> Json:
        positions = self.mask_positions(encoding)
        best, scores = outputs[IDS][: len(positions)], outputs[SCORES][: len(positions)]
        require_numbers(scores)
        if options.form == "plain":
            return self.settings.vocabulary.decode(best[:, 0].tolist())
        if options.exact and options.top_k > best.shape[1]:
            expected = f"at most the {best.shape[1]} tokens per mask that the model gives (export --reduce --top_k)"
            raise InvalidInput(("parameters", "top_k"), expected, str(options.top_k))
        rows = zip(best[:, : options.top_k], scores[:, : options.top_k], strict=True)
        return self.candidates(encoding, positions, list(rows))


class ReducedClassification(SequenceClassification):
    """Reads ``probabilities`` [labels]; the model itself applies the default function."""

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        if settings.return_raw_logits:
            raise ConfigError("--return_raw_logits: the model gives probabilities alone; export it without --reduce")
        self.outputs = (OutputRole(PROBABILITIES, (labels_axis(len(self.labels)),)),)

    def options(self, parameters: Mapping[str, Json]) -> SequenceClassificationOptions:
        options = super().options(parameters)
        if options.form == "raw_logits":
            raise InvalidInput(("parameters", "return_raw_logits"), NO_LOGITS, hint="it gives probabilities alone")
        if options.function != self.function:
            expected = f"{self.function!r}, which the model applies itself (export --reduce)"
            raise InvalidInput(("parameters", "function_to_apply"), expected, repr(options.function))
        return options

    def decode(
        self, item: TextInput, encoding: Encoding, outputs: Outputs, options: SequenceClassificationOptions
    ) -> Json:
        scores = outputs[PROBABILITIES].astype(np.float32)
        require_numbers(scores[:, np.newaxis])
        return int(scores.argmax()) if options.form == "plain" else self.render(scores, options)


class ReducedEmbedding(TextEmbedding):
    """Reads ``sentence_embedding`` [D], a unit vector, and ``embedding_norm`` [1], the norm before normalization.

    Their product is the original vector. Averages of windows and "normalize": false need the original vector.
    """

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        norm = Axis(name="1", minimum=1, maximum=1)
        self.outputs = (OutputRole(OUTPUT, (hidden_axis(settings.model_config),)), OutputRole(NORM, (norm,)))

    def decode(self, item: Text, encoding: Encoding, outputs: Outputs, options: TextEmbeddingOptions) -> PooledWindow:
        vector = outputs[OUTPUT].astype(np.float32) * outputs[NORM].astype(np.float32)
        return PooledWindow((vector,) * len(options.skips), len(encoding))


REDUCED: Mapping[type[AnyTask], tuple[type[AnyTask], frozenset[str]]] = {
    FillMask: (ReducedFillMask, frozenset((IDS, SCORES))),
    SequenceClassification: (ReducedClassification, frozenset((PROBABILITIES,))),
    TextEmbedding: (ReducedEmbedding, frozenset((OUTPUT, NORM))),
}
"""The reduced form of each task, with the names of the outputs. A pooled vector without its norm, as in
sentence-transformers' exports, suits TextEmbedding itself."""
NUMBERED = re.compile(r"__\d+$")
"""The suffix of output names in Triton's PyTorch backend: logits__0."""


def fit_reduced(task: AnyTask, outputs: Iterable[str]) -> AnyTask:
    """Returns the task, or its reduced form if the model has the reduced form's outputs.

    Raises ConfigError if a flag requires logits.
    """
    reduced, names = REDUCED.get(type(task), (None, frozenset()))
    available = {NUMBERED.sub("", name) for name in outputs}
    # Logits suffice for every request, so the plain task takes precedence.
    if reduced is None or "logits" in available or not names <= available:
        return task
    return reduced(task.settings)
