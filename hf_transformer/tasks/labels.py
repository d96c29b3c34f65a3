"""A classifier's labels in config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hf_transformer.errors import LoadError
from hf_transformer.tasks.base import Axis, OutputRole
from hf_transformer.tasks.declaration import BATCH, STRING, ExportHead, array
from hf_transformer.types.request import Json

DEFAULT_LABELS = 2
"""The number of labels if config.json has none, as in transformers."""
CLASSIFIER = ExportHead("AutoModelForSequenceClassification", {"logits": (BATCH, "num_labels")})
LABELS_SCHEMA = {**array(STRING), "description": "By number, for classification."}
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")


def read_labels(model_config: Mapping[str, Json]) -> tuple[str, ...]:
    """The labels' names in order of id, from ``id2label``, or LABEL_0, ... for ``num_labels`` labels.

    Raises LoadError if either field has an invalid form.
    """
    names_by_id = model_config.get("id2label")
    if names_by_id is None:
        count = model_config.get("num_labels", DEFAULT_LABELS)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise LoadError("config.json: num_labels is not a whole number of at least 1")
        return tuple(f"LABEL_{index}" for index in range(count))
    try:
        names = {int(key): str(name) for key, name in names_by_id.items()}
    except (AttributeError, TypeError, ValueError):
        raise LoadError("config.json: id2label is not an object from whole numbers to names") from None
    if not names or sorted(names) != list(range(len(names))):
        raise LoadError("config.json: id2label does not name the labels 0, 1, ... without gaps")
    return tuple(names[index] for index in range(len(names)))


def score_label(model_config: Mapping[str, Json]) -> str:
    """The label of a reranker's score. The score of a causal or an embedding model belongs to no label, and has the
    name that transformers gives a single label."""
    labels = read_labels(model_config)
    return labels[0] if len(labels) == 1 else "LABEL_0"


def tei_labels(labels: Sequence[str]) -> dict[str, Json]:
    """The labels in both directions, as in text-embeddings-inference's /info."""
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def labels_axis(count: int) -> Axis:
    """The labels axis of an output."""
    why = f"config.json names {count} label{'s' * (count > 1)} (id2label)"
    return Axis(name="labels", minimum=count, maximum=count, why=why)


def text_logits(count: int) -> OutputRole:
    """``logits`` [labels], the output of a text classifier."""
    return OutputRole("logits", (labels_axis(count),))


def read_problem_type(model_config: Mapping[str, Json]) -> str | None:
    """The ``problem_type`` in config.json, if any. Raises LoadError for a value outside PROBLEM_TYPES."""
    problem = model_config.get("problem_type")
    if problem is not None and problem not in PROBLEM_TYPES:
        expected = ", ".join(PROBLEM_TYPES)
        raise LoadError(f"config.json: problem_type is {str(problem)[:60]!r}, expected one of {expected}")
    return problem
