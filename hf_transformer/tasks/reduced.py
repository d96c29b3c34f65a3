"""Tasks for models whose graph ends in the task's own reduction (``hf-transformer export --reduce``).

The names of a model's outputs tell whether it is one. Answers are those of the plain task, but for requests that need
the logits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hf_transformer.errors import ConfigError, InvalidInput
from hf_transformer.tasks.base import Axis, OutputRole, Task, TaskSettings
from hf_transformer.tasks.fill_mask import FillMask, FillMaskOptions
from hf_transformer.tasks.labels import labels_axis
from hf_transformer.tasks.numerics import require_numbers
from hf_transformer.tasks.pooling import hidden_axis
from hf_transformer.tasks.sequence_classification import SequenceClassification, SequenceClassificationOptions
from hf_transformer.tasks.text_embedding import OUTPUT, PooledWindow, Text, TextEmbedding, TextEmbeddingOptions
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding, TextInput

AnyTask = Task[Any, Any, Any]
PROBABILITIES = "probabilities"
NORM = "embedding_norm"
IDS, SCORES = "topk_ids", "topk_scores"


class ReducedFillMask(FillMask):
    """Reads ``topk_ids`` and ``topk_scores`` [masks, K]: the likeliest tokens of each mask, the best first, with their
    probabilities over the whole vocabulary.

    The masks are those of the longest text of the batch; a text's own come first. Answers have the forms plain and
    pipeline; the others need the logits of the whole vocabulary.
    """

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        for flag in ("return_probabilities", "return_raw_logits"):
            if getattr(settings, flag):
                raise ConfigError(f"--{flag}: the model gives its best tokens alone; export it without --reduce")
        axes = (Axis(name="masks", minimum=0), Axis(name="best tokens"))
        self.outputs = (OutputRole(IDS, axes, datatypes=("INT64", "INT32")), OutputRole(SCORES, axes))

    def options(self, parameters: Mapping[str, Json]) -> FillMaskOptions:
        options = super().options(parameters)
        wrong = None
        if options.form in ("probabilities", "raw_logits"):
            wrong = f"return_{options.form}"
        elif options.target_ids is not None:
            wrong = "targets"
        if wrong is not None:
            raise InvalidInput.of(
                f"parameters.{wrong}: needs the whole vocabulary's logits, and the model was exported with --reduce"
            )
        return options

    def decode(self, item: str, encoding: Encoding, outputs: Mapping[str, Array], options: FillMaskOptions) -> Json:
        positions = self.mask_positions(encoding)
        best, scores = outputs[IDS][: len(positions)], outputs[SCORES][: len(positions)]
        require_numbers(scores)
        if options.form == "plain":
            return self.settings.vocabulary.decode(best[:, 0].tolist())
        if options.exact and options.top_k > best.shape[1]:
            raise InvalidInput.of(
                f"parameters.top_k: {options.top_k}, and the model gives {best.shape[1]} tokens per mask "
                "(export --reduce --top_k)"
            )
        most = slice(options.top_k)
        lists = [
            self.candidates(encoding, position, ids[most].tolist(), row[most].tolist(), alone=len(best) == 1)
            for position, ids, row in zip(positions, best, scores, strict=True)
        ]
        return lists[0] if len(lists) == 1 else lists


class ReducedClassification(SequenceClassification):
    """Reads ``probabilities`` [labels], by the function that config.json names."""

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        if settings.return_raw_logits:
            raise ConfigError("--return_raw_logits: the model gives probabilities alone; export it without --reduce")
        self.outputs = (OutputRole(PROBABILITIES, (labels_axis(len(self.labels)),)),)

    def options(self, parameters: Mapping[str, Json]) -> SequenceClassificationOptions:
        options = super().options(parameters)
        if options.form == "raw_logits":
            raise InvalidInput.of(
                "parameters.return_raw_logits: the model gives probabilities, it was exported with --reduce"
            )
        if options.function != self.function:
            raise InvalidInput.of(
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


class ReducedEmbedding(TextEmbedding):
    """Reads ``sentence_embedding`` [D], of length 1, and ``embedding_norm`` [1], its length before.

    Both give the vector before it was normalized, so all answers are those of TextEmbedding: windows are averaged
    before that, and a request may ask for it as it was.
    """

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        one = Axis(name="1", minimum=1, maximum=1)
        self.outputs = (OutputRole(OUTPUT, (hidden_axis(settings.model_config),)), OutputRole(NORM, (one,)))

    def decode(
        self, item: Text, encoding: Encoding, outputs: Mapping[str, Array], options: TextEmbeddingOptions
    ) -> PooledWindow:
        vector = outputs[OUTPUT].astype(np.float32) * outputs[NORM].astype(np.float32)
        return PooledWindow((vector,) * len(options.skips), len(encoding))


REDUCED: Mapping[type[AnyTask], tuple[type[AnyTask], frozenset[str]]] = {
    FillMask: (ReducedFillMask, frozenset((IDS, SCORES))),
    SequenceClassification: (ReducedClassification, frozenset((PROBABILITIES,))),
    TextEmbedding: (ReducedEmbedding, frozenset((OUTPUT, NORM))),
}
"""The reduced form of each task, and the names of its outputs. TextEmbedding itself reads a pooled vector alone, as
sentence-transformers exports it."""
NUMBERED = re.compile(r"__\d+$")
"""The end of a name in Triton's PyTorch backend: logits__0."""


def fit_reduced(task: AnyTask, outputs: Iterable[str]) -> AnyTask:
    """The task, or its reduced form where the model has these outputs.

    Raises:
        ConfigError: a flag asks for answers that such a model does not give.
    """
    reduced, names = REDUCED.get(type(task), (None, frozenset()))
    given = {NUMBERED.sub("", name) for name in outputs}
    # Logits serve every request, so a model that gives them too is read by the plain task.
    if reduced is None or "logits" in given or not names <= given:
        return task
    return reduced(task.settings)
