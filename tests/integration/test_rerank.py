"""rerank against CrossEncoder of sentence-transformers (tests/goldens/generate_rerank.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.conftest import ROOT, Serve
from tests.service import Service
from tests.triton_repository import task_model_folder

GOLDENS = json.loads((ROOT / "tests" / "goldens" / "rerank.json").read_text())
CASES = GOLDENS["cases"]
SCORE = GOLDENS["about"]["tolerance"]["score_absolute"]
PIPELINE = {"output_format": "pipeline"}
QUERY, TEXT = "Who cooks dinner?", "They cook dinner together."


def start(serve: Serve, protocol: str = "v2", *flags: str) -> Service:
    return serve("cross", protocol, f"--model_dir={task_model_folder('cross')}", "--task=rerank", *flags)


def instance(case: Any, name: str = "texts") -> Any:
    return {"query": case["query"], name: case["texts"]}


def assert_equal(found: Any, case: Any) -> None:
    """The answer of CrossEncoder.rank; the order of scores that are too near each other does not count."""
    golden = case["rank"]
    assert [list(one) for one in found] == [list(one) for one in golden]
    assert sorted((one["score"] for one in found), reverse=True) == [one["score"] for one in found]
    if case.get("near_tie"):
        found, golden = (sorted(answers, key=lambda answer: int(answer["corpus_id"])) for answers in (found, golden))
    for name in ("corpus_id", "text"):
        assert [one[name] for one in found] == [one[name] for one in golden]
    assert [one["score"] for one in found] == pytest.approx([one["score"] for one in golden], abs=SCORE)


def test_alone(serve: Serve) -> None:
    assert len(CASES) >= 40
    service = start(serve)
    for case in CASES:
        (found,) = service.predict([instance(case)], PIPELINE | {"return_documents": True})
        assert_equal(found, case)


def test_one_mixed_request(serve: Serve, protocol: str) -> None:
    service = start(serve, protocol)
    found = service.predict([instance(case) for case in CASES], PIPELINE | {"return_documents": True})
    for answers, case in zip(found, CASES, strict=True):
        assert_equal(answers, case)
    for name, raw in (("texts", False), ("documents", True)):
        found = service.predict([instance(case, name) for case in CASES], {"raw_scores": raw})
        for answers, case in zip(found, CASES, strict=True):
            assert all(list(answer) == ["index", "score"] for answer in answers)
            in_order = [answer["score"] for answer in sorted(answers, key=lambda answer: int(answer["index"]))]
            assert in_order == pytest.approx(case["raw_scores" if raw else "scores"], abs=SCORE)


def test_equal_scores_keep_the_order_of_the_texts(serve: Serve) -> None:
    (found,) = start(serve).predict([{"query": QUERY, "texts": ["a", TEXT, "a", TEXT, "a"]}])
    assert [answer["index"] for answer in found] == [1, 3, 0, 2, 4]


def test_top_n_and_documents(serve: Serve) -> None:
    case = next(case for case in CASES if case["id"] == "france")
    (found,) = start(serve).predict([instance(case)], {"top_n": 1, "return_documents": True})
    assert found == [{"index": 1, "score": pytest.approx(case["scores"][1], abs=SCORE), "text": case["texts"][1]}]
    everything = start(serve).predict([instance(case)], {"top_n": None})
    assert everything == start(serve).predict([instance(case)], {"top_n": 100})
    assert len(everything[0]) == 4


BAD: list[tuple[Any, Any, str]] = [
    ([TEXT], {}, "instances[0]: expected {"),
    ([{"query": QUERY}], {}, "instances[0]: expected {"),
    ([{"query": QUERY, "texts": [TEXT], "documents": [TEXT]}], {}, "keys documents, query"),
    ([{"query": 1, "texts": [TEXT]}], {}, "instances[0].query: expected a string"),
    ([{"query": QUERY, "texts": TEXT}], {}, "instances[0].texts: expected a list"),
    ([{"query": QUERY, "documents": []}], {}, "instances[0].documents: expected"),
    ([{"query": QUERY, "texts": [TEXT, None]}], {}, "instances[0].texts[1]: expected"),
    ([], {"top_n": 0}, "parameters.top_n: 0 is too small"),
    ([], {"top_n": 1.5}, "parameters.top_n: expected a whole number"),
    ([], {"return_documents": 1}, "parameters.return_documents: expected true"),
    ([], {"raw_scores": "yes"}, "parameters.raw_scores: expected true"),
    ([], {"truncation": 0}, "parameters.truncation: expected true"),
    ([], {"output_format": "xml"}, "parameters.output_format: 'xml'"),
    ([], {"top_k": 3}, "parameters.top_k: unknown, expected one of output_format, top_n"),
]


def test_bad_requests(serve: Serve) -> None:
    service = start(serve)
    for instances, parameters, says in BAD:
        body = {"instances": instances or [{"query": QUERY, "texts": [TEXT]}], "parameters": parameters}
        response = service.post(body)
        assert response.status_code == 400, says
        assert says in response.json()["error"]


def test_pairs_that_are_too_long(serve: Serve) -> None:
    body = {"instances": [{"query": QUERY, "texts": [TEXT, TEXT * 60]}]}
    service = start(serve)
    counter = 'hf_transformer_truncated_instances_total{model_name="cross"}'
    before = service.metric(counter)
    assert service.post(body).status_code == 200
    assert service.metric(counter) == before + 1
    refused = service.post({**body, "parameters": {"truncation": False}})
    assert refused.status_code == 413
    assert "instances[0].texts[1]: the text is longer" in refused.json()["error"]
