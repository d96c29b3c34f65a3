"""sequence_classification against transformers' own pipeline (tests/goldens/generate_sequence_classification.py)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hf_transformer.commands.local_triton import poll
from tests.integration.conftest import ROOT, Serve
from tests.service import Service
from tests.triton_repository import task_model_folder

GOLDENS = json.loads((ROOT / "tests" / "goldens" / "sequence_classification.json").read_text())
MODELS = ("sentiment", "emotions", "toxicity", "stars", "paraphrase")
SCORE = GOLDENS["about"]["tolerance"]["score_absolute"]
PIPELINE = {"output_format": "pipeline"}
TEXT = "The hotel was wonderful."


def start(serve: Serve, model: str, protocol: str = "v2", *flags: str) -> Service:
    return serve(model, protocol, f"--model_dir={task_model_folder(model)}", *flags)


def cases(model: str, key: str = "default") -> list[Any]:
    found = [case for case in GOLDENS["cases"] if case["model"] == model and key in case]
    assert found
    return found


def instance(case: Any) -> Any:
    return {name: case[name] for name in ("text", "text_pair") if name in case}


def index_of(model: str, label: str) -> int:
    ids: dict[str, int] = json.loads((task_model_folder(model) / "config.json").read_text())["label2id"]
    return ids[label]


def assert_equal(found: Any, golden: Any, near_tie: bool = False) -> None:
    """The same labels in the same order, but for those whose scores are too near each other; the same scores."""
    assert [list(one) for one in found] == [["label", "score"]] * len(golden)
    if near_tie:
        found, golden = (sorted(answers, key=lambda answer: str(answer["label"])) for answers in (found, golden))
    assert [one["label"] for one in found] == [one["label"] for one in golden]
    assert [one["score"] for one in found] == pytest.approx([one["score"] for one in golden], abs=SCORE)


@pytest.mark.parametrize("model", MODELS)
def test_all_labels_alone(serve: Serve, model: str) -> None:
    service = start(serve, model)
    for case in cases(model):
        (found,) = service.predict([instance(case)], PIPELINE | {"top_k": None})
        assert_equal(found, case["all"], case.get("near_tie", False))


@pytest.mark.parametrize("model", MODELS)
def test_one_mixed_request(serve: Serve, protocol: str, model: str) -> None:
    """In every form that the model has."""
    service = start(serve, model, protocol)
    assert len(cases(model)) >= 40 or model == "paraphrase"
    for function in ("default", "softmax", "sigmoid", "none"):
        key = "all" if function == "default" else function
        asked = cases(model, key)
        parameters = PIPELINE | {"top_k": None, "function_to_apply": function}
        for found, case in zip(service.predict([instance(case) for case in asked], parameters), asked, strict=True):
            assert_equal(found, case[key], case.get("near_tie", False))
    asked = [case for case in cases(model) if not case.get("near_tie")]
    best = service.predict([instance(case) for case in asked], PIPELINE)
    assert all(len(answers) == 1 for answers in best)
    assert_equal([answers[0] for answers in best], [case["default"] for case in asked])
    indices = service.predict([instance(case) for case in asked])
    assert indices == [index_of(model, case["default"]["label"]) for case in asked]


@pytest.mark.parametrize("model", ["sentiment", "emotions"])
def test_top_k(serve: Serve, model: str) -> None:
    asked = [case for case in cases(model, "top_2") if not case.get("near_tie")]
    service = start(serve, model)
    for found, case in zip(
        service.predict([instance(case) for case in asked], PIPELINE | {"top_k": 2}), asked, strict=True
    ):
        assert_equal(found, case["top_2"])
    assert_equal(service.predict([instance(asked[0])], PIPELINE | {"top_k": 10**6})[0], asked[0]["all"])


@pytest.mark.parametrize("model", MODELS)
def test_probabilities_and_logits(serve: Serve, model: str) -> None:
    """The probabilities are those of the default function: no softmax for independent labels or a single one."""
    service = start(serve, model)
    asked = cases(model, "none")
    found = service.predict([instance(case) for case in asked], {"return_raw_logits": True})
    for one, case in zip(found, asked, strict=True):
        assert list(one) == [str(label) for label in range(len(case["none"]))]
        golden = {str(index_of(model, label["label"])): label["score"] for label in case["none"]}
        assert one == pytest.approx(golden, abs=SCORE)
        assert all(value == np.float32(value) for value in one.values())
    if model == "stars":
        return
    asked = cases(model)
    found = service.predict([instance(case) for case in asked], {"return_probabilities": True})
    for one, case in zip(found, asked, strict=True):
        golden = {str(index_of(model, label["label"])): label["score"] for label in case["all"]}
        assert one == pytest.approx(golden, abs=0.5e-4 + SCORE)
        assert one == {label: round(score, 4) for label, score in one.items()}


def test_a_request_overrides_the_flags(serve: Serve) -> None:
    service = start(serve, "sentiment", "v2", "--return_probabilities")
    index = index_of("sentiment", "POSITIVE")
    assert service.predict([TEXT], {"return_probabilities": False}) == [index]
    assert service.predict([TEXT], {"return_raw_logits": True})[0][str(index)] > 1
    assert service.predict([TEXT], PIPELINE)[0][0]["label"] == "POSITIVE"


def test_another_name_and_forms_of_an_instance(serve: Serve) -> None:
    instances = [TEXT, {"text": TEXT}, {"text": TEXT, "text_pair": ""}, {"text": TEXT, "text_pair": None}]
    assert start(serve, "sentiment", "v2", "--task=text-classification").predict(instances) == [2] * 4


BAD: list[tuple[Any, dict[str, Any], str]] = [
    ([TEXT, 7], {}, "instances[1]: expected a string"),
    ([[TEXT, TEXT]], {}, "instances[0]: expected a string, .* not a list"),
    ([{"txt": TEXT}], {}, "instances[0]: .* the keys txt"),
    ([{"text": TEXT, "pair": TEXT}], {}, "the keys pair, text"),
    ([{"text_pair": TEXT}], {}, "the keys text_pair"),
    ([{"text": 1}], {}, "instances[0].text: expected a string, got a number"),
    ([{"text": TEXT, "text_pair": [TEXT]}], {}, "instances[0].text_pair: .* got a list"),
    ([TEXT], {"topk": 1}, "parameters.topk: unknown"),
    ([TEXT], {"top_k": 2}, "parameters.top_k: only the pipeline format"),
    ([TEXT], {"top_k": None}, "parameters.top_k: only the pipeline format"),
    ([TEXT], PIPELINE | {"top_k": 0}, "parameters.top_k: 0 is too small"),
    ([TEXT], PIPELINE | {"top_k": "1"}, "parameters.top_k: expected a whole"),
    ([TEXT], {"function_to_apply": "none"}, "parameters.function_to_apply: only the pipeline"),
    ([TEXT], PIPELINE | {"function_to_apply": "tanh"}, "function_to_apply: 'tanh' is not one of"),
    ([TEXT], PIPELINE | {"return_raw_logits": True}, "parameters.return_raw_logits: belongs to"),
    ([TEXT], {"return_raw_logits": True, "return_probabilities": True}, "can't be combined"),
    ([TEXT], {"truncation": "no"}, "parameters.truncation: expected true or false"),
]


def test_bad_requests(serve: Serve) -> None:
    service = start(serve, "sentiment")
    for instances, parameters, says in BAD:
        response = service.post({"instances": instances, "parameters": parameters})
        assert response.status_code == 400, says
        message = response.json()["error"]
        first, _, second = says.partition(" .* ")
        assert first in message and second in message, message


def test_regression_has_no_probabilities(serve: Serve) -> None:
    response = start(serve, "stars").post({"instances": [TEXT], "parameters": {"return_probabilities": True}})
    assert response.status_code == 400
    assert "parameters.return_probabilities: a regression model has none" in response.json()["error"]


def test_a_text_that_is_too_long(serve: Serve) -> None:
    service = start(serve, "sentiment")
    counter = 'hf_transformer_truncated_instances_total{model_name="sentiment"}'
    before = service.metric(counter)
    assert service.predict([TEXT * 100]) == [2]
    assert service.metric(counter) == before + 1
    refused = service.post({"instances": [TEXT, TEXT * 100], "parameters": {"truncation": False}})
    assert refused.status_code == 413
    assert "instances[1]: the text is longer than the 128 tokens" in refused.json()["error"]


def test_a_model_with_another_number_of_labels(serve: Serve) -> None:
    folder = task_model_folder("paraphrase")
    service = serve("sentiment", "v2", f"--model_dir={folder}", ready=False)
    assert poll(lambda: "does not fit" in service.client.get("/v1/models/sentiment").text, 10.0)
    refused = service.post({"instances": [TEXT]})
    assert refused.status_code == 503
    assert "3 along labels, but config.json names 2 labels" in refused.json()["error"]
