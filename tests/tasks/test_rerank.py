from __future__ import annotations

import math
from typing import Any

import pytest

from hf_transformer.errors import ConfigError, LoadError, PredictorError
from hf_transformer.tasks.rerank import Rerank, has_sigmoid
from tests.tasks.task_settings import ENCODING, logits, named, settings

ONE = named("LABEL_0")


def rank(config: dict[str, Any], values: list[float], parameters: dict[str, Any]) -> Any:
    task = Rerank(settings(config))
    options = task.options(parameters)
    item = task.item({"query": "q", "texts": [f"t{number}" for number in range(len(values))]}, "instances[0]", options)
    assert task.texts(item, options) == [("q", text) for text in item.texts]
    parts = [[task.decode(item, ENCODING, logits(value), options)] for value in values]
    return task.answer(item, parts, options)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param({}, True, id="none"),
        pytest.param({"sentence_transformers": {"version": "4"}}, True, id="none in the section"),
        pytest.param(
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, True, id="new"
        ),
        pytest.param(
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False, id="none"
        ),
        pytest.param({"sbert_ce_default_activation_function": "torch.nn.Identity"}, False, id="old"),
        pytest.param({"sbert_ce_default_activation_function": None}, True, id="old null"),
        pytest.param(
            {
                "sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"},
                "sbert_ce_default_activation_function": "torch.nn.Identity",
            },
            True,
            id="the new one wins",
        ),
    ],
)
def test_the_activation_function(config: dict[str, Any], expected: bool) -> None:
    assert has_sigmoid(None, config) is expected


def test_the_file_of_version_6_wins_over_config_json() -> None:
    older = {"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid"}}
    assert not has_sigmoid("torch.nn.modules.linear.Identity", older)
    assert has_sigmoid(
        "torch.nn.modules.activation.Sigmoid", {"sbert_ce_default_activation_function": "torch.nn.Identity"}
    )


@pytest.mark.parametrize("name", ["torch.nn.Tanh", "my.package.Sigmoid", "Sigmoid", "torchy.Identity"])
def test_unknown_activation_functions(name: str) -> None:
    with pytest.raises(LoadError, match=f"{name}.*torch.nn.Identity"):
        has_sigmoid(None, {"sentence_transformers": {"activation_fn": name}})


def test_forms_of_an_answer() -> None:
    values = [-math.log(3), math.log(3), 0.0]
    scores = [pytest.approx(score) for score in (0.75, 0.5, 0.25)]
    assert rank(ONE, values, {}) == [{"index": i, "score": s} for i, s in zip((1, 2, 0), scores, strict=True)]
    assert rank(ONE, values, {"top_n": 1, "return_documents": True, "output_format": "pipeline"}) == [
        {"corpus_id": 1, "score": scores[0], "text": "t1"}
    ]


def test_raw_scores() -> None:
    identity = ONE | {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
    expected = [{"index": 1, "score": 3.5}, {"index": 0, "score": -2.0}]
    assert rank(ONE, [-2.0, 3.5], {"raw_scores": True}) == expected
    assert rank(identity, [-2.0, 3.5], {}) == expected


def test_equal_scores_keep_their_order() -> None:
    # Sigmoids of both are 1 in float32.
    assert [one["index"] for one in rank(ONE, [50.0, 60.0, 50.0], {})] == [0, 1, 2]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_no_numbers(bad: float) -> None:
    with pytest.raises(PredictorError):
        rank(ONE, [0.0, bad], {})


@pytest.mark.parametrize("config", [{}, named("a", "b"), named("a", "b", "c")])
def test_models_with_more_labels(config: dict[str, Any]) -> None:
    with pytest.raises(LoadError, match=r"one score per pair.*[23] labels.*--task=sequence_classification"):
        Rerank(settings(config))


@pytest.mark.parametrize("flag", ["return_probabilities", "return_raw_logits"])
def test_flags_without_a_meaning(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"--{flag}: rerank.*raw_scores"):
        Rerank(settings(ONE, **{flag: True}))
