"""zero_shot_classification against transformers' pipeline (tests/goldens/generate_zero_shot_classification.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.conftest import ROOT, Serve
from tests.service import Service
from tests.triton_repository import task_model_folder

GOLDENS = json.loads((ROOT / "tests" / "goldens" / "zero_shot_classification.json").read_text())
CASES = GOLDENS["cases"]
SCORE = GOLDENS["about"]["tolerance"]["score_absolute"]
SEQUENCE = "The team won the match."
BOTH = pytest.mark.parametrize("multi", [False, True], ids=["single", "multi"])


def start(serve: Serve, protocol: str = "v2", *flags: str) -> Service:
    folder = task_model_folder("nli")
    return serve("nli", protocol, f"--model_dir={folder}", "--task=zero-shot-classification", *flags)


def instance(case: Any) -> Any:
    return {"sequence": case["sequence"], "candidate_labels": case["candidate_labels"]}


def templates() -> Iterator[tuple[Any, str]]:
    for case in CASES:
        for template in case.get("templates", ()):
            yield case, template


def assert_equal(found: Any, case: Any, golden: Any, near_tie: bool) -> None:
    """The pipeline's answer; the order of scores that are too near each other does not count."""
    assert list(found) == ["sequence", "labels", "scores"]
    assert found["sequence"] == case["sequence"]
    pairs, expected = (list(zip(answer["labels"], answer["scores"], strict=True)) for answer in (found, golden))
    assert sorted((score for _, score in pairs), reverse=True) == [score for _, score in pairs]
    if near_tie:
        pairs, expected = sorted(pairs), sorted(expected)
    assert [label for label, _ in pairs] == [label for label, _ in expected]
    assert [score for _, score in pairs] == pytest.approx([score for _, score in expected], abs=SCORE)


@BOTH
def test_alone(serve: Serve, multi: bool) -> None:
    assert len(CASES) >= 40
    service, key = start(serve), "multi" if multi else "single"
    for case in CASES:
        (found,) = service.predict([instance(case)], {"multi_label": multi})
        assert_equal(found, case, case[key], key in case.get("near_tie", ()))


@BOTH
def test_one_mixed_request_and_templates(serve: Serve, protocol: str, multi: bool) -> None:
    service, key = start(serve, protocol), "multi" if multi else "single"
    parameters = {"multi_label": multi, "output_format": "pipeline"}
    found = service.predict([instance(case) for case in CASES], parameters)
    for answer, case in zip(found, CASES, strict=True):
        assert_equal(answer, case, case[key], key in case.get("near_tie", ()))
    for case, template in templates():
        (found,) = service.predict([instance(case)], {"multi_label": multi, "hypothesis_template": template})
        near_tie = f"{template}/{key}" in case.get("near_tie", ())
        assert_equal(found, case, case["templates"][template][key], near_tie)


def test_other_forms_of_an_instance(serve: Serve) -> None:
    service = start(serve)
    labels = ["sport", "politics"]
    expected = service.predict([{"sequence": SEQUENCE, "candidate_labels": labels}])
    assert expected[0]["labels"][0] == "sport"
    for one in (
        {"sequences": SEQUENCE, "candidate_labels": labels},
        {"text": SEQUENCE, "candidate_labels": " sport,politics ,, "},
    ):
        assert service.predict([one]) == expected
    for shared in (labels, "sport, politics"):
        assert service.predict([SEQUENCE, {"text": SEQUENCE}], {"candidate_labels": shared}) == expected * 2
    own = {"sequence": SEQUENCE, "candidate_labels": labels}
    assert service.predict([own], {"candidate_labels": ["money"]}) == expected


BAD: list[tuple[Any, Any, str]] = [
    ([7], {}, "instances[0]: expected a string or {"),
    ([SEQUENCE], {}, "instances[0]: no candidate_labels"),
    ([{"sequence": SEQUENCE}], {}, "instances[0]: no candidate_labels"),
    ([{"candidate_labels": ["a"]}], {}, "instances[0]: expected a string or {"),
    ([{"text": SEQUENCE, "sequence": SEQUENCE}], {}, "the keys sequence, text"),
    ([{"text": SEQUENCE, "labels": ["a"]}], {}, "the keys labels, text"),
    ([{"text": 3}], {"candidate_labels": "a"}, "instances[0].text: expected a string"),
    ([{"sequences": [SEQUENCE]}], {"candidate_labels": "a"}, "an instance for each"),
    ([SEQUENCE, ""], {"candidate_labels": "a"}, "instances[1]: the text is empty"),
    ([{"text": SEQUENCE, "candidate_labels": []}], {}, "instances[0].candidate_labels: expected"),
    ([SEQUENCE], {"candidate_labels": " , "}, "parameters.candidate_labels: expected"),
    ([SEQUENCE], {"candidate_labels": {"a": 1}}, "parameters.candidate_labels: expected"),
    ([SEQUENCE], {"candidate_labels": ["a", 1]}, "parameters.candidate_labels[1]: expected"),
    ([], {"hypothesis_template": "no place"}, "parameters.hypothesis_template: expected"),
    ([], {"hypothesis_template": "{} {}"}, "parameters.hypothesis_template: expected"),
    ([], {"hypothesis_template": "{0.__class__}"}, "hypothesis_template: expected"),
    ([], {"hypothesis_template": "{:>999999999}"}, "hypothesis_template: expected"),
    ([], {"hypothesis_template": 5}, "parameters.hypothesis_template: expected a string"),
    ([], {"multi_label": "yes"}, "parameters.multi_label: expected true or false"),
    ([], {"output_format": "xml"}, "parameters.output_format: 'xml'"),
    ([], {"return_raw_logits": True}, "parameters.return_raw_logits: unknown"),
    ([], {"truncation": 1}, "parameters.truncation: expected true or false"),
    ([], {"candidate_labels": "good " * 150}, "leaves no room for the first"),
]
TOO_MUCH: list[tuple[Any, str]] = [
    ({"candidate_labels": ["a"] * 1001}, "1001 labels, at most 1000"),
    ({"candidate_labels": ["a" * 1000]}, "makes 1017 characters, at most 1000"),
    ({"candidate_labels": ["ab" * 50], "hypothesis_template": "{0}" * 11}, "makes 1100 characters"),
]


def test_bad_requests(serve: Serve) -> None:
    service = start(serve)
    for instances, parameters, says in BAD:
        given = parameters if instances else {"candidate_labels": "a"} | parameters
        response = service.post({"instances": instances or [SEQUENCE], "parameters": given})
        assert response.status_code == 400, response.text
        assert says in response.json()["error"]
    for parameters, says in TOO_MUCH:
        response = service.post({"instances": [SEQUENCE], "parameters": parameters})
        assert response.status_code == 413, response.text
        assert says in response.json()["error"]


def test_a_sequence_that_is_too_long(serve: Serve) -> None:
    service = start(serve)
    counter = 'hf_transformer_truncated_instances_total{model_name="nli"}'
    before = service.metric(counter)
    parameters = {"candidate_labels": ["sport", "money"]}
    assert service.predict([SEQUENCE * 60], parameters)[0]["labels"][0] == "sport"
    assert service.metric(counter) == before + 1
    refused = service.post({"instances": [SEQUENCE * 60], "parameters": parameters | {"truncation": False}})
    assert refused.status_code == 413
    assert "instances[0]: the text is longer" in refused.json()["error"]
