"""sequence_classification against transformers' own pipeline (scripts/goldens/generate_sequence_classification.py)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.integration.conftest import Serve, cut_or_refused, goldens, refused
from tests.support.service import Service
from tests.support.triton_repository import task_model_folder

GOLDENS = goldens("sequence_classification")
SCORE = GOLDENS["about"]["tolerance"]["score_absolute"]
PIPELINE = {"output_format": "pipeline"}
TEXT = "The hotel was wonderful."
each_model = pytest.mark.parametrize("model", ["sentiment", "emotions", "toxicity", "stars", "paraphrase"])


def cases(model: str, key: str = "default") -> list[Any]:
    found = [case for case in GOLDENS["cases"] if case["model"] == model and key in case]
    assert found
    return found


def instance(case: Any) -> Any:
    return {name: case[name] for name in ("text", "text_pair") if name in case}


def index_of(model: str, label: str) -> int:
    ids: dict[str, int] = json.loads((task_model_folder(model) / "config.json").read_text())["label2id"]
    return ids[label]


def assert_equal(prediction: Any, golden: Any, near_tie: bool = False) -> None:
    """The same labels in the same order, but for those whose scores are too near each other; the same scores."""
    assert [list(result) for result in prediction] == [["label", "score"]] * len(golden)
    if near_tie:
        prediction, golden = (
            sorted(answers, key=lambda answer: str(answer["label"])) for answers in (prediction, golden)
        )
    assert [result["label"] for result in prediction] == [result["label"] for result in golden]
    assert [result["score"] for result in prediction] == pytest.approx(
        [result["score"] for result in golden], abs=SCORE
    )


def check_goldens(service: Service, model: str) -> None:
    """All labels of all cases in one request and alone; the best label as an index and as a pair."""
    asked = cases(model)
    assert len(asked) >= 40 or model == "paraphrase"
    everything = PIPELINE | {"top_k": None}
    for found, case in zip(service.predict([instance(case) for case in asked], everything), asked, strict=True):
        assert_equal(found, case["all"], case.get("near_tie", False))
        (found,) = service.predict([instance(case)], everything)
        assert_equal(found, case["all"], case.get("near_tie", False))
    clear = [case for case in asked if not case.get("near_tie")]
    best = service.predict([instance(case) for case in clear], PIPELINE)
    assert all(len(answers) == 1 for answers in best)
    assert_equal([answers[0] for answers in best], [case["default"] for case in clear])
    indices = [index_of(model, case["default"]["label"]) for case in clear]
    assert service.predict([instance(case) for case in clear]) == indices


@each_model
def test_answers_are_those_of_the_transformers_pipeline(serve: Serve, model: str) -> None:
    check_goldens(serve(model), model)


@each_model
def test_functions_and_top_k_give_the_scores_of_the_pipeline(serve: Serve, model: str) -> None:
    service = serve(model)
    asked: list[tuple[str, dict[str, Any]]] = [
        (name, {"top_k": None, "function_to_apply": name}) for name in ("softmax", "sigmoid", "none")
    ]
    if model in ("sentiment", "emotions"):
        asked += [("top_2", {"top_k": 2}), ("all", {"top_k": 10**6})]
    for key, parameters in asked:
        mine = [case for case in cases(model, key) if key != "top_2" or not case.get("near_tie")]
        found = service.predict([instance(case) for case in mine], PIPELINE | parameters)
        for one, case in zip(found, mine, strict=True):
            assert_equal(one, case[key], case.get("near_tie", False))


@each_model
def test_logits_are_raw_and_probabilities_use_the_default_function(serve: Serve, model: str) -> None:
    """The probabilities are those of the default function: no softmax for independent labels or a single one."""
    service = serve(model)
    asked = cases(model, "none")
    predictions = service.predict([instance(case) for case in asked], {"return_raw_logits": True})
    for prediction, case in zip(predictions, asked, strict=True):
        assert list(prediction) == [str(label) for label in range(len(case["none"]))]
        golden = {str(index_of(model, label["label"])): label["score"] for label in case["none"]}
        assert prediction == pytest.approx(golden, abs=SCORE)
        assert all(value == np.float32(value) for value in prediction.values())
    if model == "stars":
        says = "parameters.return_probabilities: expected no value for a regression model"
        refused(service, [TEXT], {"return_probabilities": True}, says)
        return
    asked = cases(model)
    predictions = service.predict([instance(case) for case in asked], {"return_probabilities": True})
    for prediction, case in zip(predictions, asked, strict=True):
        golden = {str(index_of(model, label["label"])): label["score"] for label in case["all"]}
        assert prediction == pytest.approx(golden, abs=0.5e-4 + SCORE)
        assert prediction == {label: round(score, 4) for label, score in prediction.items()}


def test_a_request_overrides_the_flags(serve: Serve) -> None:
    service = serve("sentiment", "v2", "--return_probabilities", "--task=text-classification")
    index = index_of("sentiment", "POSITIVE")
    instances = [TEXT, {"text": TEXT}, {"text": TEXT, "text_pair": ""}, {"text": TEXT, "text_pair": None}]
    assert service.predict(instances, {"return_probabilities": False}) == [index] * 4
    assert service.predict([TEXT], {"return_raw_logits": True})[0][str(index)] > 1
    assert service.predict([TEXT], PIPELINE)[0][0]["label"] == "POSITIVE"


BAD: list[tuple[Any, dict[str, Any], str]] = [
    ([TEXT, 7], {}, "instances[1]: expected a string"),
    ([[TEXT, TEXT]], {}, "instances[0]: expected a string,...not a list"),
    ([{"txt": TEXT}], {}, "instances[0]:...the keys txt"),
    ([{"text": TEXT, "pair": TEXT}], {}, "the keys pair, text"),
    ([{"text_pair": TEXT}], {}, "the keys text_pair"),
    ([{"text": 1}], {}, "instances[0].text: expected a string, got a number"),
    ([{"text": TEXT, "text_pair": [TEXT]}], {}, "instances[0].text_pair:...got a list"),
    ([TEXT], {"top_k": 2}, "parameters.top_k: expected no value in the kserve format"),
    ([TEXT], {"top_k": None}, "parameters.top_k: expected no value in the kserve format"),
    ([TEXT], {"function_to_apply": "none"}, "parameters.function_to_apply: expected no value in the kserve format"),
    (
        [TEXT],
        PIPELINE | {"return_raw_logits": True},
        "parameters.return_raw_logits: expected no value in the pipeline format",
    ),
    ([TEXT], {"return_raw_logits": True, "return_probabilities": True}, "return_raw_logits, got both"),
]


def test_wrong_instances_and_parameters_are_refused(serve: Serve) -> None:
    service = serve("sentiment")
    for instances, parameters, says in BAD:
        refused(service, instances, parameters, says)


def test_a_long_text_is_cut_or_refused_as_asked(serve: Serve) -> None:
    says = "instances[1]: expected at most 128 tokens"
    assert cut_or_refused(serve("sentiment"), [TEXT, TEXT * 100], says) == [2, 2]
