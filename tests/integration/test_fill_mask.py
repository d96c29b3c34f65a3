"""fill_mask against answers of transformers and torch from the same weights (tests/goldens/generate_fill_mask.py)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.integration.conftest import Serve

each_model = pytest.mark.parametrize("model", ["bert", "bert_masked"])

SCORE = 1e-5
LOGIT = 1e-4
PIPELINE = {"output_format": "pipeline"}


def assert_equal(found: Any, golden: Any) -> None:
    """The same but for the last digits of the scores."""
    if isinstance(golden, list):
        assert len(found) == len(golden)
        for one, other in zip(found, golden, strict=True):
            assert_equal(one, other)
        return
    assert found | {"score": 0} == golden | {"score": 0}
    assert found["score"] == pytest.approx(golden["score"], abs=SCORE)


@each_model
def test_alone(serve: Serve, model: str, goldens: Any) -> None:
    service = serve(model)
    for case in goldens["cases"]:
        assert service.predict([case["text"]]) == [case["plain"]], case["id"]
        assert_equal(service.predict([case["text"]], PIPELINE), [case["pipeline"]])


@each_model
def test_one_mixed_request(serve: Serve, protocol: str, model: str, goldens: Any) -> None:
    cases = goldens["cases"]
    assert len(cases) >= 40
    service, texts = serve(model, protocol), [case["text"] for case in cases]
    assert service.predict(texts) == [case["plain"] for case in cases]
    assert_equal(service.predict(texts, PIPELINE), [case["pipeline"] for case in cases])


@each_model
def test_top_k_and_targets(serve: Serve, model: str, goldens: Any) -> None:
    case = next(case for case in goldens["cases"] if isinstance(case["pipeline"][0], dict))
    service = serve(model)
    assert_equal(service.predict([case["text"]], PIPELINE | {"top_k": 2}), [case["pipeline"][:2]])
    everything = service.predict([case["text"]], PIPELINE | {"top_k": 10**9})[0]
    assert math.fsum(candidate["score"] for candidate in everything) == pytest.approx(1.0, abs=1e-4)
    assert_equal(everything[:5], case["pipeline"])
    for case in goldens["targets"]:
        found = service.predict([case["text"]], PIPELINE | {"targets": case["targets"]})
        assert_equal(found, [case["pipeline"]])


@each_model
def test_raw_logits_and_probabilities(serve: Serve, model: str, goldens: Any) -> None:
    """Probabilities have 4 decimals, as text."""
    service = serve(model)
    cases = [case for case in goldens["cases"] if "logits" in case]
    found = service.predict([case["text"] for case in cases], {"return_raw_logits": True})
    for masks, case in zip(found, cases, strict=True):
        for mask, golden in zip(masks, case["logits"], strict=True):
            assert [list(entry) for entry in mask] == [[str(token)] for token in range(len(golden))]
            values = [value for entry in mask for value in entry.values()]
            assert values == pytest.approx(golden, abs=LOGIT)
    cases = [case for case in goldens["cases"] if "probabilities" in case]
    found = service.predict([case["text"] for case in cases], {"return_probabilities": True})
    for masks, case in zip(found, cases, strict=True):
        for mask, golden in zip(masks, case["probabilities"], strict=True):
            values = [value for entry in mask for value in entry.values()]
            assert all(isinstance(value, str) and len(value) == 6 for value in values)
            assert [float(value) for value in values] == pytest.approx(golden, abs=0.5e-4 + SCORE)


def test_a_request_overrides_the_flag(serve: Serve, goldens: Any) -> None:
    case = goldens["cases"][0]
    service = serve("bert", "v2", "--return_probabilities")
    assert len(service.predict([case["text"]])[0][0]) == 1024
    assert service.predict([case["text"]], {"return_probabilities": False}) == [case["plain"]]
    assert_equal(service.predict([case["text"]], PIPELINE), [case["pipeline"]])


def test_texts_without_a_mask(serve: Serve, goldens: Any) -> None:
    service = serve("bert")
    for case in goldens["without_mask"]:
        response = service.post({"instances": [case["text"]]})
        assert response.status_code == 400, case["id"]
        assert "no [MASK]" in response.json()["error"]
