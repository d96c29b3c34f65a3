"""zero_shot_classification against transformers' pipeline (scripts/goldens/generate_zero_shot_classification.py)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import Serve, cut_or_refused, goldens, refused
from tests.support.service import Service

CASES = goldens("zero_shot_classification")["cases"]
SCORE = goldens("zero_shot_classification")["about"]["tolerance"]["score_absolute"]
SEQUENCE = "The team won the match."
FORMS = (("single", False), ("multi", True))
"""A key of the goldens, and the value of multi_label."""


def instance(case: Any) -> Any:
    return {"sequence": case["sequence"], "candidate_labels": case["candidate_labels"]}


def assert_equal(prediction: Any, case: Any, golden: Any, near_tie: bool) -> None:
    """The pipeline's answer; the order of scores that are too near each other does not count."""
    assert list(prediction) == ["sequence", "labels", "scores"]
    assert prediction["sequence"] == case["sequence"]
    pairs, expected = (list(zip(answer["labels"], answer["scores"], strict=True)) for answer in (prediction, golden))
    assert sorted((score for _, score in pairs), reverse=True) == [score for _, score in pairs]
    if near_tie:
        pairs, expected = sorted(pairs), sorted(expected)
    assert [label for label, _ in pairs] == [label for label, _ in expected]
    assert [score for _, score in pairs] == pytest.approx([score for _, score in expected], abs=SCORE)


def check_goldens(service: Service, model: str) -> None:
    """With one label and several, in one request and alone."""
    assert len(CASES) >= 40
    for key, multi in FORMS:
        parameters = {"multi_label": multi, "output_format": "pipeline"}
        together = service.predict([instance(case) for case in CASES], parameters)
        for found, case in zip(together, CASES, strict=True):
            for one in (found, service.predict([instance(case)], {"multi_label": multi})[0]):
                assert_equal(one, case, case[key], key in case.get("near_tie", ()))


def test_answers_are_those_of_the_transformers_pipeline(serve: Serve) -> None:
    check_goldens(serve("nli", "v2", "--user_special_tokens=tokens"), "nli")


def test_hypothesis_templates_give_the_scores_of_the_pipeline(serve: Serve) -> None:
    service = serve("nli")
    asked = [(case, template) for case in CASES for template in case.get("templates", ())]
    assert asked
    for case, template in asked:
        for key, multi in FORMS:
            (found,) = service.predict([instance(case)], {"multi_label": multi, "hypothesis_template": template})
            near_tie = f"{template}/{key}" in case.get("near_tie", ())
            assert_equal(found, case, case["templates"][template][key], near_tie)


def test_every_form_of_an_instance_has_the_same_answer(serve: Serve) -> None:
    service = serve("nli")
    labels = ["sport", "politics"]
    expected = service.predict([{"sequence": SEQUENCE, "candidate_labels": labels}])
    assert expected[0]["labels"][0] == "sport"
    for form in (
        {"sequences": SEQUENCE, "candidate_labels": labels},
        {"text": SEQUENCE, "candidate_labels": " sport,politics ,, "},
    ):
        assert service.predict([form]) == expected
    for shared in (labels, "sport, politics"):
        assert service.predict([SEQUENCE, {"text": SEQUENCE}], {"candidate_labels": shared}) == expected * 2
    own = {"sequence": SEQUENCE, "candidate_labels": labels}
    assert service.predict([own], {"candidate_labels": ["money"]}) == expected


BAD: list[tuple[Any, Any, str]] = [
    ([7], {}, "instances[0]: expected a string or {"),
    ([SEQUENCE], {}, "instances[0]: expected candidate_labels"),
    ([{"sequence": SEQUENCE}], {}, "instances[0]: expected candidate_labels"),
    ([{"candidate_labels": ["a"]}], {}, "instances[0]: expected a string or {"),
    ([{"text": SEQUENCE, "sequence": SEQUENCE}], {}, "the keys sequence, text"),
    ([{"text": SEQUENCE, "labels": ["a"]}], {}, "the keys labels, text"),
    ([{"text": 3}], {"candidate_labels": "a"}, "instances[0].text: expected a string"),
    ([{"sequences": [SEQUENCE]}], {"candidate_labels": "a"}, "an instance for each"),
    ([SEQUENCE, ""], {"candidate_labels": "a"}, "instances[1]: expected a text, got an empty one"),
    ([{"text": SEQUENCE, "candidate_labels": []}], {}, "instances[0].candidate_labels: expected"),
    ([SEQUENCE], {"candidate_labels": " , "}, "parameters.candidate_labels: expected"),
    ([SEQUENCE], {"candidate_labels": {"a": 1}}, "parameters.candidate_labels: expected"),
    ([SEQUENCE], {"candidate_labels": ["a", 1]}, "parameters.candidate_labels[1]: expected"),
    ([], {"hypothesis_template": "no place"}, "parameters.hypothesis_template: expected"),
    ([], {"hypothesis_template": "{} {}"}, "parameters.hypothesis_template: expected"),
    ([], {"hypothesis_template": "{0.__class__}"}, "hypothesis_template: expected"),
    ([], {"hypothesis_template": "{:>999999999}"}, "hypothesis_template: expected"),
    ([], {"candidate_labels": "good " * 150}, "leaves room for the first in"),
]
TOO_MUCH: list[tuple[Any, str]] = [
    ({"candidate_labels": ["a"] * 1001}, "at most 1000 labels, got 1001"),
    ({"candidate_labels": ["a" * 1000]}, "a hypothesis of at most 1000 characters, got one of 1017"),
    ({"candidate_labels": ["ab" * 50], "hypothesis_template": "{0}" * 11}, "got one of 1100"),
]


def test_wrong_and_too_many_labels_are_refused(serve: Serve) -> None:
    service = serve("nli")
    for instances, parameters, says in BAD:
        given = parameters if instances else {"candidate_labels": "a"} | parameters
        refused(service, instances or [SEQUENCE], given, says)
    for parameters, says in TOO_MUCH:
        refused(service, [SEQUENCE], parameters, says, 413)


def test_a_long_sequence_is_cut_or_refused_as_asked(serve: Serve) -> None:
    says, labels = "instances[0]: expected at most ", ["sport", "money"]
    (found,) = cut_or_refused(serve("nli"), [SEQUENCE * 60], says, candidate_labels=labels)
    assert found["labels"][0] == "sport"
