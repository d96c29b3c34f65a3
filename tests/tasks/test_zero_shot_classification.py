from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.errors import InvalidInput, LoadError, PredictorError
from hf_transformer.tasks.zero_shot_classification import ZeroShotClassification, entailment_id, split_template
from tests.tasks.task_settings import ENCODING, logits, named, settings

NLI = named("contradiction", "neutral", "entailment")


def classify(config: dict[str, Any], values: list[tuple[float, ...]], **parameters: Any) -> Any:
    task = ZeroShotClassification(settings(config))
    labels = [chr(ord("a") + number) for number in range(len(values))]
    options = task.options({"candidate_labels": labels, **parameters})
    item = task.item("text", "instances[0]", options)
    parts = [[task.decode(item, ENCODING, logits(*row), options)] for row in values]
    return task.answer(item, parts, options)


@pytest.mark.parametrize(
    ("config", "values", "parameters", "labels", "scores"),
    [
        (NLI, [(9.0, 9.0, 0.0), (-9.0, 0.0, math.log(3))], {}, ["b", "a"], [0.75, 0.25]),
        (
            NLI,
            [(0.0, 9.0, math.log(3)), (0.0, 9.0, math.log(4))],
            {"multi_label": True},
            ["b", "a"],
            [0.8, 0.75],
        ),
        (NLI, [(0.0, 9.0, math.log(3))], {}, ["a"], [0.75]),
        (named("Entailment", "neutral", "contradiction"), [(math.log(3), 9.0, 0.0)], {}, ["a"], [0.75]),
        (named("not_entailment", "entailment"), [(0.0, math.log(3))], {}, ["a"], [0.75]),
        (NLI, [(0.0, 0.0, 1.0)] * 3, {}, ["c", "b", "a"], [1 / 3] * 3),
    ],
    ids=["shared", "several right", "one alone", "contradiction last", "two classes", "equal, as in transformers"],
)
def test_scores(config: Any, values: Any, parameters: Any, labels: list[str], scores: list[float]) -> None:
    found = classify(config, values, **parameters)
    assert found == {"sequence": "text", "labels": labels, "scores": pytest.approx(scores)}


@given(
    st.lists(st.text(st.characters(exclude_characters="{}")), min_size=2, max_size=3),
    st.text(st.sampled_from("ab{}")),
)
def test_a_template_does_what_format_does(pieces: list[str], label: str) -> None:
    template = "{0}".join(pieces) if len(pieces) > 2 else "{}".join(pieces)
    assert label.join(split_template(template)) == template.format(label)


def test_templates_that_are_refused() -> None:
    assert split_template("{{}} is {} {{0}}") == ("{} is ", " {0}"), "doubled braces are braces"
    refused = ["", "none", "{{}}", "{} {}", "{} {0}", "{1}", "{label}", "{", "}", "{0!r}", "{:>9}", "{:{}}", "{0.a}"]
    for template in (*refused, "{0[0]}"):
        with pytest.raises(InvalidInput, match=r"parameters\.hypothesis_template"):
            split_template(template)


def test_which_label_is_entailment() -> None:
    assert entailment_id(NLI) == 2
    assert entailment_id(NLI | {"label2id": {"ENTAILMENT": 0, "neutral": 1, "contradiction": 2}}) == 0
    assert entailment_id(named("a", "entail")) == 1
    for config, says in (
        ({}, "label2id.*'entail': LABEL_0, LABEL_1"),
        (named("NEGATIVE", "POSITIVE"), "'entail': NEGATIVE, POSITIVE"),
        (named("entailment"), "another label"),
        (NLI | {"label2id": {"entailment": 3}}, "entailment as number 3"),
    ):
        with pytest.raises(LoadError, match=says):
            ZeroShotClassification(settings(config))
    for bad in (math.nan, math.inf, -math.inf):
        for row in ((bad, 0.0, 0.0), (0.0, 0.0, bad)):
            with pytest.raises(PredictorError):
                classify(NLI, [(0.0, 0.0, 0.0), row])
