from __future__ import annotations

from typing import Any

import pytest

from hf_transformer.errors import LoadError
from hf_transformer.tasks.labels import read_labels, read_problem_type, text_logits


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        pytest.param({}, ("LABEL_0", "LABEL_1"), id="transformers leaves two labels out"),
        pytest.param({"num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2"), id="a number alone"),
        pytest.param({"id2label": {"1": "b", "0": "a"}}, ("a", "b"), id="keys that are strings, in another order"),
        pytest.param({"id2label": {0: "a"}}, ("a",), id="keys that are numbers"),
        pytest.param({"id2label": {str(n): f"l{n}" for n in range(11)}}, tuple(f"l{n}" for n in range(11)), id="ten"),
        pytest.param({"id2label": {"0": "a"}, "num_labels": 7}, ("a",), id="the names win over the number"),
    ],
)
def test_labels(config: dict[str, Any], labels: tuple[str, ...]) -> None:
    assert read_labels(config) == labels


def test_labels_that_are_none_and_how_many_the_model_has_to_have() -> None:
    for given in ({}, {"1": "a"}, {"0": "a", "2": "b"}, {"zero": "a"}, ["a"], 0, "2", True):
        name = "id2label" if isinstance(given, dict | list) else "num_labels"
        with pytest.raises(LoadError, match=name):
            read_labels({name: given})
    (axis,) = text_logits(3).axes
    assert (axis.minimum, axis.maximum, axis.why) == (3, 3, "config.json names 3 labels (id2label)")
    assert "1 label (" in text_logits(1).axes[0].why
    assert read_problem_type({}) is None
    assert read_problem_type({"problem_type": "regression"}) == "regression"
    with pytest.raises(LoadError, match="'ranking'"):
        read_problem_type({"problem_type": "ranking"})
