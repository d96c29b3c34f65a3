"""question_answering against the pipeline of transformers 4 (scripts/goldens/generate_question_answering.py)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import Serve, goldens, refused
from tests.support.service import Service

GOLDENS = goldens("question_answering")
SCORE = GOLDENS["about"]["tolerance"]["score_absolute"]
VARIANTS: dict[str, dict[str, Any]] = {"default": {}, **GOLDENS["variants"]}
CASES: list[dict[str, Any]] = GOLDENS["cases"]
PARIS = {"question": "What is the capital of France?", "context": "The capital of France is Paris."}
LONG = {"question": "Where is it?", "context": "There are many cities, some large and some small. " * 30}


@pytest.fixture
def squad(serve: Serve) -> Service:
    return serve("squad")


def instance(case: dict[str, Any]) -> dict[str, str]:
    return {"question": case["question"], "context": case["context"]}


def answered(variant: str) -> list[dict[str, Any]]:
    """The cases that have an answer of this kind."""
    return [case for case in CASES if variant in case and "error" not in case[variant]]


def assert_equal(prediction: Any, golden: Any, name: str, *, near_tie: bool = False) -> None:
    """The same but for the last digits of the scores; near ties may also be in another order."""
    if isinstance(golden, dict):
        prediction, golden = [prediction], [golden]
    assert len(prediction) == len(golden), name
    assert [one["score"] for one in prediction] == pytest.approx([one["score"] for one in golden], abs=SCORE), name
    if not near_tie:
        assert [one | {"score": 0} for one in prediction] == [one | {"score": 0} for one in golden], name


def check_goldens(service: Service, model: str, variant: str = "default") -> None:
    """In one request and alone."""
    cases = answered(variant)
    parameters = VARIANTS[variant]
    together = service.predict([instance(case) for case in cases], {**parameters, "output_format": "pipeline"})
    for found, case in zip(together, cases, strict=True):
        near_tie = variant in case.get("near_tie", ())
        assert_equal(found, case[variant], case["id"], near_tie=near_tie)
        assert_equal(service.predict([instance(case)], parameters)[0], case[variant], case["id"], near_tie=near_tie)


def test_answers_are_those_of_the_transformers_pipeline(serve: Serve, protocol: str) -> None:
    assert len(answered("default")) >= 40
    assert [case["id"] for case in CASES if "error" in case] == ["long_question"]
    for variant in VARIANTS if protocol == "v2" else ("default",):
        assert answered(variant)
        check_goldens(serve("squad", protocol, "--user_special_tokens=tokens"), "squad", variant)


def test_a_question_that_leaves_no_room_for_the_stride_is_refused(squad: Service) -> None:
    """The pipeline of transformers refuses it, too."""
    case = next(case for case in CASES if "error" in case)
    refused(squad, [instance(case)], {}, "a stride of less than ... in 128 tokens, got 64")
    assert "answer" in squad.predict([instance(case)], {"doc_stride": 16})[0]


def test_a_long_question_is_answered_if_the_context_fits(squad: Service) -> None:
    question = "what is it " * 25
    assert "answer" in squad.predict([PARIS | {"question": question}])[0]
    refused(squad, [LONG | {"question": question * 3}], {}, "leaves room for the second in")
    mixed = squad.predict([PARIS | {"question": question}, LONG])
    assert mixed[1] == squad.predict([LONG])[0]


def test_long_contexts_are_windows_also_where_texts_are_cut(serve: Serve, squad: Service) -> None:
    late = {"question": "When was it?", "context": LONG["context"] + "It was in 1984."}
    strided = serve("squad", "v2", "--on_overflow=window", "--stride=16")
    assert strided.predict([late]) == squad.predict([late], {"doc_stride": 16})
    parameters = {"max_seq_len": 48, "handle_impossible_answer": True}
    for stride, given in ((16, {}), (3, {"stride": 3})):
        assert strided.predict([LONG], parameters | given) == squad.predict([LONG], parameters | {"doc_stride": stride})
    says = "parameters.doc_stride: expected at most max_seq_len, 10, got 16"
    refused(strided, [LONG], {"max_seq_len": 10}, says)
    assert squad.predict([late])[0]["answer"] == "1984"
    counter = 'hf_transformer_truncated_instances_total{model_name="squad"}'
    before = squad.metric(counter)
    assert squad.predict([late], {"truncation": True})[0]["answer"] != "1984"
    assert squad.metric(counter) == before + 1


def test_long_contexts_are_refused_where_that_is_asked_for(serve: Serve, squad: Service) -> None:
    strict = serve("squad", "v2", "--on_overflow=error", "--output_format=pipeline")
    assert_equal(strict.predict([PARIS])[0], answered("default")[0]["default"], "trained_0")
    refused(strict, [PARIS, LONG], {}, "instances[1]: expected at most ", 413)
    refused(squad, [LONG], {"truncation": False}, "instances[0]: expected at most ", 413)
    assert "answer" in strict.predict([LONG], {"truncation": True})[0]
    refused(strict, [LONG], {"stride": 1}, "parameters.stride: expected no value without windows")


WRONG_INSTANCES: list[tuple[Any, str]] = [
    ("Where?", 'instances[1]: expected {"question": string, "context": string}, got a string'),
    ({"question": "Where?"}, "instances[1]: expected"),
    (PARIS | {"top_k": 2}, "got an object with the keys context, question, top_k"),
    (PARIS | {"question": ""}, "instances[1].question: expected a string, got an empty one"),
    (PARIS | {"context": ""}, "instances[1].context: expected a string, got an empty one"),
    (PARIS | {"context": None}, "instances[1].context: expected a string, got null"),
    (PARIS | {"question": ["Where?"]}, "instances[1].question: expected a string, got a list"),
]
WRONG_PARAMETERS: list[tuple[dict[str, Any], str]] = [
    ({"max_seq_len": 129}, "parameters.max_seq_len: expected at most 128, the model's length in tokens, got 129"),
    ({"max_seq_len": 3}, "a length of more than 3 tokens"),
    ({"doc_stride": 129}, "parameters.doc_stride: expected at most max_seq_len, 128, got 129"),
    ({"doc_stride": 126}, "a stride of less than 125 tokens...got 126"),
    ({"stride": "4"}, "parameters.stride: expected a whole number, got a string"),
    ({"stride": 4, "doc_stride": 4}, "parameters.stride: expected doc_stride or stride, got both"),
    ({"truncation": True, "doc_stride": 4}, "parameters.doc_stride: expected no value without windows"),
]


def test_wrong_instances_and_parameters_are_refused(squad: Service) -> None:
    for wrong, says in WRONG_INSTANCES:
        refused(squad, [PARIS, wrong], {}, says)
    for parameters, says in WRONG_PARAMETERS:
        refused(squad, [PARIS], parameters, says)


def test_answers_over_the_limit_of_values_are_refused(squad: Service) -> None:
    everything = {"top_k": 10**9, "max_answer_len": 10**9}
    refused(squad, [LONG] * 20, everything, "--max_answer_values", 413)
    alone = squad.predict([PARIS], everything)[0]
    assert len(alone) > 20
    assert alone[-1] == {"score": 0.0, "start": 0, "end": 0, "answer": ""}
