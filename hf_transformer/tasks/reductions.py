"""Models whose graph ends in the task's own reduction are seen by the names of their outputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hf_transformer.tasks.base import Task
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.tasks.reduced_classification import PROBABILITIES, ReducedClassification
from hf_transformer.tasks.reduced_embedding import NORM, ReducedEmbedding
from hf_transformer.tasks.reduced_fill_mask import IDS, SCORES, ReducedFillMask
from hf_transformer.tasks.sequence_classification import SequenceClassification
from hf_transformer.tasks.text_embedding import OUTPUT, TextEmbedding

AnyTask = Task[Any, Any, Any]

REDUCED: Mapping[type[AnyTask], tuple[type[AnyTask], frozenset[str]]] = {
    FillMask: (ReducedFillMask, frozenset((IDS, SCORES))),
    SequenceClassification: (ReducedClassification, frozenset((PROBABILITIES,))),
    TextEmbedding: (ReducedEmbedding, frozenset((OUTPUT, NORM))),
}
"""For each task the one that reads the reduced outputs, and the names of these. A pooled vector alone is found by
TextEmbedding itself, since sentence-transformers exports the same."""
NUMBERED = re.compile(r"__\d+$")
"""The end of a name as Triton's PyTorch backend wants it: logits__0."""


def reading(task: AnyTask, outputs: Iterable[str]) -> AnyTask:
    """The task, or the form of it that reads a model with these outputs.

    Raises:
        ConfigError: a flag asks for what such a model does not give.
    """
    reduced, names = REDUCED.get(type(task), (None, frozenset()))
    given = {NUMBERED.sub("", name) for name in outputs}
    # A model that gives the logits too is read as ever: they serve every request.
    if reduced is None or "logits" in given or not names <= given:
        return task
    return reduced(task.settings)
