"""A classifier's labels, as config.json names them."""

from __future__ import annotations

from collections.abc import Mapping

from hf_transformer.errors import LoadError
from hf_transformer.tasks.base import Axis, OutputRole
from hf_transformer.types.request import Json

DEFAULT_LABELS = 2
"""transformers leaves the number of labels out of config.json where it is 2."""
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")


def read_labels(model_config: Mapping[str, Json]) -> tuple[str, ...]:
    """The labels' names by id, from ``id2label`` (its keys may be strings), else LABEL_0, ... up to ``num_labels``.

    Raises:
        LoadError: one of them has another form.
    """
    named = model_config.get("id2label")
    if named is None:
        count = model_config.get("num_labels", DEFAULT_LABELS)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise LoadError("config.json: num_labels is not a whole number of at least 1")
        return tuple(f"LABEL_{number}" for number in range(count))
    try:
        names = {int(key): str(name) for key, name in named.items()}
    except (AttributeError, TypeError, ValueError):
        raise LoadError("config.json: id2label is not an object from whole numbers to names") from None
    if not names or sorted(names) != list(range(len(names))):
        raise LoadError("config.json: id2label does not name the labels 0, 1, ... without gaps")
    return tuple(names[number] for number in range(len(names)))


def labels_axis(count: int) -> Axis:
    """The axis of an output that has a logit per label."""
    why = f"config.json names {count} label{'s' * (count > 1)} (id2label)"
    return Axis(name="labels", minimum=count, maximum=count, why=why)


def text_logits(count: int) -> OutputRole:
    """``logits`` [labels], the output of a classifier of whole texts."""
    return OutputRole("logits", (labels_axis(count),))


def read_problem_type(model_config: Mapping[str, Json]) -> str | None:
    """config.json's ``problem_type``, one of PROBLEM_TYPES, or None.

    Raises:
        LoadError: it is something else.
    """
    found = model_config.get("problem_type")
    if found is not None and found not in PROBLEM_TYPES:
        raise LoadError(f"config.json: problem_type is {str(found)[:60]!r}, expected one of {', '.join(PROBLEM_TYPES)}")
    return found
