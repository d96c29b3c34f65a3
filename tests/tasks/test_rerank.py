from __future__ import annotations

import math
from typing import Any

import pytest

from hf_transformer.errors import LoadError, PredictorError
from hf_transformer.tasks.rerank import Rerank, has_sigmoid
from tests.tasks.task_settings import ENCODING, logits, named, settings

ONE = named("LABEL_0")
SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"


def of(name: str) -> dict[str, Any]:
    """config.json of version 4 of sentence-transformers."""
    return {"sentence_transformers": {"version": "4", "activation_fn": name}}


def of_old(name: str | None) -> dict[str, Any]:
    return {"sbert_ce_default_activation_function": name}


def rank(config: dict[str, Any], values: list[float], parameters: dict[str, Any]) -> Any:
    task = Rerank(settings(config))
    options = task.options(parameters)
    item = task.item({"query": "q", "texts": [f"t{number}" for number in range(len(values))]}, "instances[0]", options)
    assert task.texts(item, options) == [("q", text) for text in item.texts]
    parts = [[task.decode(item, ENCODING, logits(value), options)] for value in values]
    return task.answer(item, parts, options)


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        pytest.param(None, {}, True, id="none"),
        pytest.param(None, {"sentence_transformers": {"version": "4"}}, True, id="none in the section"),
        pytest.param(None, of(SIGMOID), True, id="sigmoid"),
        pytest.param(None, of(IDENTITY), False, id="identity"),
        pytest.param(None, of_old("torch.nn.Identity"), False, id="old"),
        pytest.param(None, of_old(None), True, id="old null"),
        pytest.param(None, of("torch.nn.Sigmoid") | of_old("torch.nn.Identity"), True, id="the new one wins"),
        pytest.param(IDENTITY, of("torch.nn.Sigmoid"), False, id="the file of version 6 wins"),
        pytest.param(SIGMOID, of_old("torch.nn.Identity"), True, id="also over the old one"),
    ],
)
def test_the_activation_function(name: str | None, config: dict[str, Any], expected: bool) -> None:
    assert has_sigmoid(name, config) is expected
    for unknown in ("torch.nn.Tanh", "my.package.Sigmoid", "Sigmoid", "torchy.Identity"):
        with pytest.raises(LoadError, match=f"{unknown}.*torch.nn.Identity"):
            has_sigmoid(None, of(unknown))


def test_forms_of_an_answer() -> None:
    values = [-math.log(3), math.log(3), 0.0]
    scores = [pytest.approx(score) for score in (0.75, 0.5, 0.25)]
    assert rank(ONE, values, {}) == [{"index": i, "score": s} for i, s in zip((1, 2, 0), scores, strict=True)]
    assert rank(ONE, values, {"top_n": 1, "return_documents": True, "output_format": "pipeline"}) == [
        {"corpus_id": 1, "score": scores[0], "text": "t1"}
    ]
    raw = [{"index": 1, "score": 3.5}, {"index": 0, "score": -2.0}]
    assert rank(ONE, [-2.0, 3.5], {"raw_scores": True}) == rank(ONE | of(IDENTITY), [-2.0, 3.5], {}) == raw
    # Sigmoids of both are 1 in float32: equal scores keep their order.
    assert [one["index"] for one in rank(ONE, [50.0, 60.0, 50.0], {})] == [0, 1, 2]


def test_what_is_refused() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(PredictorError):
            rank(ONE, [0.0, bad], {})
    for config in ({}, named("a", "b"), named("a", "b", "c")):
        with pytest.raises(LoadError, match=r"one score per pair.*[23] labels.*--task=sequence_classification"):
            Rerank(settings(config))
