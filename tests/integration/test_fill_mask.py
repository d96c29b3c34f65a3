"""fill_mask against answers of transformers and torch from the same weights (tests/goldens/generate_fill_mask.py)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.integration.conftest import Serve

pytestmark = pytest.mark.parametrize("model", ["bert", "bert_masked"])

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


def test_plain_answers_alone(serve: Serve, protocol: str, model: str, goldens: Any) -> None:
    service = serve(model, protocol)
    for case in goldens["cases"]:
        assert service.predict([case["text"]]) == [case["plain"]], case["id"]


def test_plain_answers_in_one_mixed_request(serve: Serve, protocol: str, model: str, goldens: Any) -> None:
    cases = goldens["cases"]
    assert len(cases) >= 40
    assert serve(model, protocol).predict([case["text"] for case in cases]) == [case["plain"] for case in cases]


def test_pipeline_answers_alone(serve: Serve, protocol: str, model: str, goldens: Any) -> None:
    service = serve(model, protocol)
    for case in goldens["cases"]:
        assert_equal(service.predict([case["text"]], PIPELINE), [case["pipeline"]])


def test_pipeline_answers_in_one_mixed_request(serve: Serve, protocol: str, model: str, goldens: Any) -> None:
    cases = goldens["cases"]
    found = serve(model, protocol, "--output_format=pipeline").predict([case["text"] for case in cases])
    assert_equal(found, [case["pipeline"] for case in cases])


def test_top_k(serve: Serve, protocol: str, model: str, goldens: Any) -> None:
    case = next(case for case in goldens["cases"] if isinstance(case["pipeline"][0], dict))
    service = serve(model, protocol)
    assert_equal(service.predict([case["text"]], PIPELINE | {"top_k": 2}), [case["pipeline"][:2]])
    everything = service.predict([case["text"]], PIPELINE | {"top_k": 10**9})[0]
    assert math.fsum(candidate["score"] for candidate in everything) == pytest.approx(1.0, abs=1e-4)
    assert_equal(everything[:5], case["pipeline"])


def test_targets(serve: Serve, protocol: str, model: str, goldens: Any) -> None:
    service = serve(model, protocol)
    for case in goldens["targets"]:
        found = service.predict([case["text"]], PIPELINE | {"targets": case["targets"]})
        assert_equal(found, [case["pipeline"]])


def test_raw_logits(serve: Serve, protocol: str, model: str, goldens: Any) -> None:
    cases = [case for case in goldens["cases"] if "logits" in case]
    service = serve(model, protocol)
    for found, case in zip(
        service.predict([case["text"] for case in cases], {"return_raw_logits": True}), cases, strict=True
    ):
        for mask, golden in zip(found, case["logits"], strict=True):
            assert [list(entry) for entry in mask] == [[str(token)] for token in range(len(golden))]
            values = [value for entry in mask for value in entry.values()]
            assert values == pytest.approx(golden, abs=LOGIT)


def test_probabilities_have_4_decimals_as_text(serve: Serve, protocol: str, model: str, goldens: Any) -> None:
    cases = [case for case in goldens["cases"] if "probabilities" in case]
    service = serve(model, protocol, "--return_probabilities")
    for found, case in zip(service.predict([case["text"] for case in cases]), cases, strict=True):
        for mask, golden in zip(found, case["probabilities"], strict=True):
            values = [value for entry in mask for value in entry.values()]
            assert all(isinstance(value, str) and len(value) == 6 for value in values)
            assert [float(value) for value in values] == pytest.approx(golden, abs=0.5e-4 + SCORE)


def test_a_request_overrides_the_flag(serve: Serve, protocol: str, model: str, goldens: Any) -> None:
    case = goldens["cases"][0]
    service = serve(model, protocol, "--return_probabilities")
    assert service.predict([case["text"]], {"return_probabilities": False}) == [case["plain"]]
    assert_equal(service.predict([case["text"]], PIPELINE), [case["pipeline"]])


def test_texts_without_a_mask(serve: Serve, protocol: str, model: str, goldens: Any) -> None:
    service = serve(model, protocol)
    for case in goldens["without_mask"]:
        response = service.post({"instances": [case["text"]]})
        assert response.status_code == 400, case["id"]
        assert "no [MASK]" in response.json()["error"]
