"""For each task, whether a service gives the committed goldens: those of transformers and sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.integration import (
    test_fill_mask,
    test_question_answering,
    test_rerank,
    test_sequence_classification,
    test_text_embedding,
    test_token_classification,
    test_zero_shot_classification,
)
from tests.integration.conftest import ROOT
from tests.integration.generating import CASES, TOKENS
from tests.integration.test_feature_extraction import assert_features
from tests.service import Service

PIPELINE = {"output_format": "pipeline"}


def goldens(task: str) -> Any:
    return json.loads((ROOT / "tests" / "goldens" / f"{task}.json").read_text(encoding="utf-8"))


def fill_mask(service: Service, model: str) -> None:
    """Both forms, with one mask and several, alone and in one batch of different lengths."""
    cases = goldens("fill_mask")["cases"]
    texts = [case["text"] for case in cases]
    assert any(isinstance(case["pipeline"][0], list) for case in cases), "some have several masks"
    assert service.predict(texts) == [case["plain"] for case in cases]
    test_fill_mask.assert_equal(service.predict(texts, PIPELINE), [case["pipeline"] for case in cases])
    for case in cases[::4]:
        assert service.predict([case["text"]]) == [case["plain"]]
        test_fill_mask.assert_equal(service.predict([case["text"]], PIPELINE), [case["pipeline"]])


def sequence_classification(service: Service, model: str) -> None:
    check = test_sequence_classification
    cases = check.cases(model)
    found = service.predict([check.instance(case) for case in cases], PIPELINE | {"top_k": None})
    for one, case in zip(found, cases, strict=True):
        check.assert_equal(one, case["all"], case.get("near_tie", False))
    clear = [case for case in cases if not case.get("near_tie")]
    assert service.predict([check.instance(case) for case in clear]) == [
        check.index_of(model, case["default"]["label"]) for case in clear
    ]


def text_embedding(service: Service, model: str) -> None:
    cases = test_text_embedding.cases_of(goldens("text_embedding"), model, "default")
    found = service.predict([case["text"] for case in cases])
    test_text_embedding.assert_close(found, [case["default"] for case in cases])
    for case in cases[::8]:
        test_text_embedding.assert_close(service.predict([case["text"]]), [case["default"]])


def feature_extraction(service: Service, model: str) -> None:
    cases = goldens("feature_extraction")["cases"]
    for found, case in zip(service.predict([case["text"] for case in cases]), cases, strict=True):
        assert_features(found, case)


def token_classification(service: Service, model: str) -> None:
    check = test_token_classification
    cases = check.cases("cases", model)
    texts = [case["text"] for case in cases]
    assert service.predict(texts) == [[case["classes"]] for case in cases]
    for found, case in zip(service.predict(texts, PIPELINE | {"aggregation_strategy": "first"}), cases, strict=True):
        check.assert_same(found, case["first"], case["id"])


def question_answering(service: Service, model: str) -> None:
    check = test_question_answering
    cases = check.answered("default")
    for found, case in zip(service.predict([check.instance(case) for case in cases]), cases, strict=True):
        check.assert_equal(found, case["default"], case["id"], near_tie="default" in case.get("near_tie", ()))


def rerank(service: Service, model: str) -> None:
    check = test_rerank
    parameters = PIPELINE | {"return_documents": True}
    for found, case in zip(
        service.predict(list(map(check.instance, check.CASES)), parameters), check.CASES, strict=True
    ):
        check.assert_equal(found, case)


def zero_shot_classification(service: Service, model: str) -> None:
    check = test_zero_shot_classification
    for key, multi in (("single", False), ("multi", True)):
        found = service.predict([check.instance(case) for case in check.CASES], {"multi_label": multi})
        for answer, case in zip(found, check.CASES, strict=True):
            check.assert_equal(answer, case, case[key], key in case.get("near_tie", ()))


def generation(service: Service, model: str) -> None:
    """Greedy texts, some prompts of different lengths in one request."""
    kind = model.partition("_")[0]
    cases = CASES[kind][::3]
    found = service.predict([case["prompt"] for case in cases], {"max_new_tokens": TOKENS, "return_full_text": False})
    assert [answer["generated_text"] for (answer,) in found] == [case["text"] for case in cases]


CHECKS: Mapping[str, Callable[[Service, str], None]] = {
    "fill_mask": fill_mask,
    "sequence_classification": sequence_classification,
    "text_embedding": text_embedding,
    "feature_extraction": feature_extraction,
    "token_classification": token_classification,
    "question_answering": question_answering,
    "rerank": rerank,
    "zero_shot_classification": zero_shot_classification,
    "text_generation": generation,
    "text2text_generation": generation,
}
