"""rerank against CrossEncoder of sentence-transformers (scripts/goldens/generate_rerank.py)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import Serve, cut_or_refused, goldens, refused
from tests.support.service import Service

CASES = goldens("rerank")["cases"]
SCORE = goldens("rerank")["about"]["tolerance"]["score_absolute"]
QUERY, TEXT = "Who cooks dinner?", "They cook dinner together."


def instance(case: Any, name: str = "texts") -> Any:
    return {"query": case["query"], name: case["texts"]}


def assert_equal(prediction: Any, case: Any) -> None:
    """The answer of CrossEncoder.rank; the order of scores that are too near each other does not count."""
    golden = case["rank"]
    assert [list(result) for result in prediction] == [list(result) for result in golden]
    assert sorted((result["score"] for result in prediction), reverse=True) == [
        result["score"] for result in prediction
    ]
    if case.get("near_tie"):
        prediction, golden = (
            sorted(answers, key=lambda answer: int(answer["corpus_id"])) for answers in (prediction, golden)
        )
    for name in ("corpus_id", "text"):
        assert [result[name] for result in prediction] == [result[name] for result in golden]
    assert [result["score"] for result in prediction] == pytest.approx(
        [result["score"] for result in golden], abs=SCORE
    )


def check_goldens(service: Service, model: str) -> None:
    """In one request and alone."""
    assert len(CASES) >= 40
    parameters = {"output_format": "pipeline", "return_documents": True}
    together = service.predict([instance(case) for case in CASES], parameters)
    for found, case in zip(together, CASES, strict=True):
        assert_equal(found, case)
        assert_equal(service.predict([instance(case)], parameters)[0], case)


def test_scores_are_those_of_the_cross_encoder(serve: Serve) -> None:
    service = serve("cross", "v2", "--user_special_tokens=tokens")
    check_goldens(service, "cross")
    for name, raw in (("texts", False), ("documents", True)):
        found = service.predict([instance(case, name) for case in CASES], {"raw_scores": raw})
        for answers, case in zip(found, CASES, strict=True):
            assert all(list(answer) == ["index", "score"] for answer in answers)
            in_order = [answer["score"] for answer in sorted(answers, key=lambda answer: int(answer["index"]))]
            assert in_order == pytest.approx(case["raw_scores" if raw else "scores"], abs=SCORE)


def test_special_tokens_of_users_break_no_pair(serve: Serve) -> None:
    """The separator in a text is three letters and brackets; transformers makes a token of it."""
    text = f"{TEXT} [SEP] They sleep. [SEP] [MASK]"
    scores = [
        service.predict([{"query": QUERY, "texts": [text]}], {"raw_scores": True})[0][0]["score"]
        for service in (serve("cross"), serve("cross", "v2", "--user_special_tokens=tokens"))
    ]
    assert abs(scores[0] - scores[1]) > 100 * SCORE
    for api, body in (("/rerank", {"query": QUERY, "texts": [text], "raw_scores": True}),):
        response = serve("cross").client.post(api, json=body)
        assert response.json()[0]["score"] == pytest.approx(scores[0], abs=SCORE)


def test_equal_scores_keep_the_order_of_the_texts(serve: Serve) -> None:
    (found,) = serve("cross").predict([{"query": QUERY, "texts": ["a", TEXT, "a", TEXT, "a"]}])
    assert [answer["index"] for answer in found] == [1, 3, 0, 2, 4]


def test_top_n_and_return_documents_form_the_answer(serve: Serve) -> None:
    service = serve("cross")
    case = next(case for case in CASES if case["id"] == "france")
    (found,) = service.predict([instance(case)], {"top_n": 1, "return_documents": True})
    assert found == [{"index": 1, "score": pytest.approx(case["scores"][1], abs=SCORE), "text": case["texts"][1]}]
    everything = service.predict([instance(case)], {"top_n": None})
    assert everything == service.predict([instance(case)], {"top_n": 100})
    assert len(everything[0]) == 4


BAD: list[tuple[Any, Any, str]] = [
    ([TEXT], {}, "instances[0]: expected {"),
    ([{"query": QUERY}], {}, "instances[0]: expected {"),
    ([{"query": QUERY, "texts": [TEXT], "documents": [TEXT]}], {}, "keys documents, query"),
    ([{"query": 1, "texts": [TEXT]}], {}, "instances[0].query: expected a string"),
    ([{"query": QUERY, "texts": TEXT}], {}, "instances[0].texts: expected a list"),
    ([{"query": QUERY, "documents": []}], {}, "instances[0].documents: expected"),
    ([{"query": QUERY, "texts": [TEXT, None]}], {}, "instances[0].texts[1]: expected"),
]


def test_wrong_instances_and_parameters_are_refused(serve: Serve) -> None:
    service = serve("cross")
    for instances, parameters, says in BAD:
        refused(service, instances or [{"query": QUERY, "texts": [TEXT]}], parameters, says)


def test_long_pairs_are_cut_or_refused_as_asked(serve: Serve) -> None:
    instances = [{"query": QUERY, "texts": [TEXT, TEXT * 60]}]
    (found,) = cut_or_refused(serve("cross"), instances, "instances[0].texts[1]: expected at most 128 tokens")
    assert len(found) == 2
