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
def test_alone(serve: Serve, protocol: str, multi: bool) -> None:
    assert len(CASES) >= 40
    service, key = start(serve, protocol), "multi" if multi else "single"
    for case in CASES:
        (found,) = service.predict([instance(case)], {"multi_label": multi})
        assert_equal(found, case, case[key], key in case.get("near_tie", ()))


@BOTH
def test_in_one_mixed_request(serve: Serve, protocol: str, multi: bool) -> None:
    service, key = start(serve, protocol, "--output_format=pipeline"), "multi" if multi else "single"
    found = service.predict([instance(case) for case in CASES], {"multi_label": multi})
    for answer, case in zip(found, CASES, strict=True):
        assert_equal(answer, case, case[key], key in case.get("near_tie", ()))


@BOTH
def test_templates(serve: Serve, protocol: str, multi: bool) -> None:
    service, key = start(serve, protocol), "multi" if multi else "single"
    for case, template in templates():
        (found,) = service.predict([instance(case)], {"multi_label": multi, "hypothesis_template": template})
        near_tie = f"{template}/{key}" in case.get("near_tie", ())
        assert_equal(found, case, case["templates"][template][key], near_tie)


def test_other_forms_of_an_instance(serve: Serve, protocol: str) -> None:
    service = start(serve, protocol)
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


@pytest.mark.parametrize(
    ("instances", "parameters", "says"),
    [
        pytest.param([7], {}, "instances[0]: expected a string or {", id="a number"),
        pytest.param([SEQUENCE], {}, "instances[0]: no candidate_labels", id="no labels"),
        pytest.param([{"sequence": SEQUENCE}], {}, "instances[0]: no candidate_labels", id="none in the object"),
        pytest.param([{"candidate_labels": ["a"]}], {}, "instances[0]: expected a string or {", id="no text"),
        pytest.param([{"text": SEQUENCE, "sequence": SEQUENCE}], {}, "the keys sequence, text", id="two texts"),
        pytest.param([{"text": SEQUENCE, "labels": ["a"]}], {}, "the keys labels, text", id="an unknown key"),
        pytest.param([{"text": 3}], {"candidate_labels": "a"}, "instances[0].text: expected a string", id="text"),
        pytest.param([{"sequences": [SEQUENCE]}], {"candidate_labels": "a"}, "an instance for each", id="a list"),
        pytest.param([SEQUENCE, ""], {"candidate_labels": "a"}, "instances[1]: the text is empty", id="empty text"),
        pytest.param(
            [{"text": SEQUENCE, "candidate_labels": []}], {}, "instances[0].candidate_labels: expected", id="no label"
        ),
        pytest.param([SEQUENCE], {"candidate_labels": " , "}, "parameters.candidate_labels: expected", id="commas"),
        pytest.param([SEQUENCE], {"candidate_labels": {"a": 1}}, "parameters.candidate_labels: expected", id="object"),
        pytest.param([SEQUENCE], {"candidate_labels": ["a", 1]}, "parameters.candidate_labels[1]: expected", id="type"),
        pytest.param([], {"hypothesis_template": "no place"}, "parameters.hypothesis_template: expected", id="place"),
        pytest.param([], {"hypothesis_template": "{} {}"}, "parameters.hypothesis_template: expected", id="places"),
        pytest.param([], {"hypothesis_template": "{0.__class__}"}, "hypothesis_template: expected", id="attribute"),
        pytest.param([], {"hypothesis_template": "{:>999999999}"}, "hypothesis_template: expected", id="width"),
        pytest.param([], {"hypothesis_template": 5}, "parameters.hypothesis_template: expected a string", id="number"),
        pytest.param([], {"multi_label": "yes"}, "parameters.multi_label: expected true or false", id="multi_label"),
        pytest.param([], {"output_format": "xml"}, "parameters.output_format: 'xml'", id="format"),
        pytest.param([], {"return_raw_logits": True}, "parameters.return_raw_logits: unknown", id="logits"),
        pytest.param([], {"truncation": 1}, "parameters.truncation: expected true or false", id="truncation"),
        pytest.param([], {"candidate_labels": "good " * 150}, "leaves no room for the first", id="hypothesis too long"),
    ],
)
def test_bad_requests(serve: Serve, protocol: str, instances: Any, parameters: Any, says: str) -> None:
    body = {
        "instances": instances or [SEQUENCE],
        "parameters": parameters if instances else {"candidate_labels": "a"} | parameters,
    }
    response = start(serve, protocol).post(body)
    assert response.status_code == 400, response.text
    assert says in response.json()["error"]


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        pytest.param({"candidate_labels": ["a"] * 1001}, "1001 labels, at most 1000", id="labels"),
        pytest.param({"candidate_labels": ["a" * 1000]}, "makes 1017 characters, at most 1000", id="a label"),
        pytest.param(
            {"candidate_labels": ["ab" * 50], "hypothesis_template": "{0}" * 11}, "makes 1100 characters", id="template"
        ),
    ],
)
def test_too_many_labels(serve: Serve, protocol: str, parameters: Any, says: str) -> None:
    response = start(serve, protocol).post({"instances": [SEQUENCE], "parameters": parameters})
    assert response.status_code == 413, response.text
    assert says in response.json()["error"]


def test_a_sequence_that_is_too_long(serve: Serve, protocol: str) -> None:
    service = start(serve, protocol)
    counter = 'hf_transformer_truncated_instances_total{model_name="nli"}'
    before = service.metric(counter)
    parameters = {"candidate_labels": ["sport", "money"]}
    assert service.predict([SEQUENCE * 60], parameters)[0]["labels"][0] == "sport"
    assert service.metric(counter) == before + 1
    refused = service.post({"instances": [SEQUENCE * 60], "parameters": parameters | {"truncation": False}})
    assert refused.status_code == 413
    assert "instances[0]: the text is longer" in refused.json()["error"]
