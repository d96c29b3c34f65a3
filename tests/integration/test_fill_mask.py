"""fill_mask against answers of transformers and torch from the same weights (scripts/goldens/generate_fill_mask.py)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.integration.conftest import Serve, goldens, refused
from tests.support.service import Service

each_model = pytest.mark.parametrize("model", ["bert", "bert_masked"])
CASES = goldens("fill_mask")["cases"]
SCORE = 1e-5
LOGIT = 1e-4
PIPELINE = {"output_format": "pipeline"}


def assert_equal(prediction: Any, golden: Any) -> None:
    """The same but for the last digits of the scores."""
    if isinstance(golden, list):
        assert len(prediction) == len(golden)
        for one, other in zip(prediction, golden, strict=True):
            assert_equal(one, other)
        return
    assert prediction | {"score": 0} == golden | {"score": 0}
    assert prediction["score"] == pytest.approx(golden["score"], abs=SCORE)


def check_goldens(service: Service, model: str) -> None:
    """Both forms, with one mask and several, in one request and alone."""
    assert len(CASES) >= 40 and any(isinstance(case["pipeline"][0], list) for case in CASES)
    texts = [case["text"] for case in CASES]
    assert service.predict(texts) == [case["plain"] for case in CASES]
    assert_equal(service.predict(texts, PIPELINE), [case["pipeline"] for case in CASES])
    for case in CASES:
        assert service.predict([case["text"]]) == [case["plain"]], case["id"]
        assert_equal(service.predict([case["text"]], PIPELINE), [case["pipeline"]])


@each_model
def test_answers_are_those_of_the_transformers_pipeline(serve: Serve, protocol: str, model: str) -> None:
    check_goldens(serve(model, protocol), model)


@each_model
def test_top_k_and_targets_choose_the_candidates(serve: Serve, model: str) -> None:
    case = next(case for case in CASES if isinstance(case["pipeline"][0], dict))
    service = serve(model)
    assert_equal(service.predict([case["text"]], PIPELINE | {"top_k": 2}), [case["pipeline"][:2]])
    everything = service.predict([case["text"]], PIPELINE | {"top_k": 10**9})[0]
    assert math.fsum(candidate["score"] for candidate in everything) == pytest.approx(1.0, abs=1e-4)
    assert_equal(everything[:5], case["pipeline"])
    for case in goldens("fill_mask")["targets"]:
        found = service.predict([case["text"]], PIPELINE | {"targets": case["targets"]})
        assert_equal(found, [case["pipeline"]])


def values(mask: Any) -> list[Any]:
    """The values of a whole vocabulary, which is a list of objects with one token id each."""
    assert [list(entry) for entry in mask] == [[str(token)] for token in range(len(mask))]
    return [value for entry in mask for value in entry.values()]


@each_model
def test_logits_and_probabilities_are_those_of_the_model(serve: Serve, model: str) -> None:
    """Probabilities have 4 decimals, as text."""
    service = serve(model)
    for key, form in (("logits", "return_raw_logits"), ("probabilities", "return_probabilities")):
        cases = [case for case in CASES if key in case]
        found = service.predict([case["text"] for case in cases], {form: True})
        for masks, case in zip(found, cases, strict=True):
            for mask, golden in zip(map(values, masks), case[key], strict=True):
                if key == "logits":
                    assert mask == pytest.approx(golden, abs=LOGIT)
                    continue
                assert all(isinstance(value, str) and len(value) == 6 for value in mask)
                assert [float(value) for value in mask] == pytest.approx(golden, abs=0.5e-4 + SCORE)


def test_a_request_overrides_the_flag(serve: Serve) -> None:
    case = CASES[0]
    service = serve("bert", "v2", "--return_probabilities")
    assert len(service.predict([case["text"]])[0][0]) == 1024
    assert service.predict([case["text"]], {"return_probabilities": False}) == [case["plain"]]
    assert_equal(service.predict([case["text"]], PIPELINE), [case["pipeline"]])


def test_texts_without_a_mask_are_refused(serve: Serve) -> None:
    service = serve("bert")
    for case in goldens("fill_mask")["without_mask"]:
        refused(service, [case["text"]], {}, "instances[0]: expected...[MASK]")
