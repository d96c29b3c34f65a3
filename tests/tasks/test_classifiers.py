"""sequence_classification, zero_shot_classification and rerank with made-up logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.errors import ConfigError, InvalidInput, LoadError, PredictorError
from hf_transformer.tasks.base import CrossEncoder, Task
from hf_transformer.tasks.rerank import Rerank, has_sigmoid
from hf_transformer.tasks.sequence_classification import SequenceClassification, default_function, read_text_or_pair
from hf_transformer.tasks.zero_shot_classification import ZeroShotClassification, entailment_id, split_template
from tests.tasks.task_settings import ENCODING, logits, named, settings

THREE = math.log(3)
TWO = named("a", "b")
BAD = (math.nan, math.inf, -math.inf)


def predict(task: Task[Any, Any, Any], instance: Any, rows: Sequence[Any], parameters: Any) -> Any:
    """The answer for an instance of whose texts the model gives these outputs."""
    options = task.options(parameters)
    item = task.item(instance, "instances[0]", options)
    parts = [[task.decode(item, ENCODING, row, options)] for row in rows]
    return task.answer(item, parts, options)


# sequence_classification

PIPELINE = {"output_format": "pipeline", "top_k": None}
PROBABILITIES, RAW = {"return_probabilities": True}, {"return_raw_logits": True}
MULTI = named("a", "b", problem_type="multi_label_classification")
REGRESSION = named("stars", problem_type="regression")


def classify(config: dict[str, Any], values: dict[str, Any], parameters: dict[str, Any], **flags: Any) -> Any:
    return predict(SequenceClassification(settings(config, **flags)), "text", [values], parameters)


def test_forms_of_a_classification() -> None:
    values = logits(0.0, THREE)
    assert classify(TWO, values, {}) == 1
    assert classify(TWO, values, PROBABILITIES) == {"0": 0.25, "1": 0.75}
    assert classify(TWO, values, RAW) == {"0": 0.0, "1": float(np.float32(THREE))}
    scores = [("b", pytest.approx(0.75)), ("a", pytest.approx(0.25))]
    assert classify(TWO, values, PIPELINE) == [{"label": label, "score": score} for label, score in scores]
    # Those of independent labels are not shared out.
    assert classify(MULTI, logits(THREE, THREE), PROBABILITIES) == {"0": 0.75, "1": 0.75}
    assert classify(named("a"), logits(THREE), PROBABILITIES) == {"0": 0.75}
    found = classify(TWO, logits(0.0, 7.0), {}, return_probabilities=True)
    assert found == {"0": 0.0009, "1": 0.9991}, "4 decimals"
    found = classify(named("a", "b", "c", "d"), logits(1.0, 2.0, 2.0, 1.0), PIPELINE | {"top_k": 3})
    assert [one["label"] for one in found] == ["b", "c", "a"], "equal scores come in the order of the labels"
    assert classify(REGRESSION, logits(4.5), PIPELINE) == [{"label": "stars", "score": 4.5}]
    with pytest.raises(ConfigError, match="--return_raw_logits"):
        SequenceClassification(settings(REGRESSION, return_probabilities=True))


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_datatypes(dtype: str) -> None:
    values = logits(-1.5, 0.5, dtype=dtype)
    assert classify(TWO, values, RAW) == {"0": -1.5, "1": 0.5}
    assert classify(TWO, values, PIPELINE)[0]["score"] == pytest.approx(1 / (1 + math.exp(-2)), abs=1e-6)


@pytest.mark.parametrize("bad", BAD)
def test_logits_that_are_no_numbers(bad: float) -> None:
    for form in ({}, RAW, PIPELINE):
        for values in (logits(bad, 0.0), logits(0.0, bad)):
            with pytest.raises(PredictorError):
                classify(TWO, values, form)
    with pytest.raises(PredictorError):
        rank(ONE, [0.0, bad], {})
    for row in ((bad, 0.0, 0.0), (0.0, 0.0, bad)):
        with pytest.raises(PredictorError):
            fitting(NLI, [(0.0, 0.0, 0.0), row])


def test_the_default_function_and_the_size_of_an_answer() -> None:
    for problem, one, several in (
        (None, "sigmoid", "softmax"),
        ("single_label_classification", "sigmoid", "softmax"),
        ("multi_label_classification", "sigmoid", "sigmoid"),
        ("regression", "none", "none"),
    ):
        assert [default_function(problem, labels) for labels in (1, 2, 3)] == [one, several, several]
    task, form = SequenceClassification(settings(named("a", "b", "c"))), {"output_format": "pipeline"}
    for parameters, size in (({}, 1), (form, 1), (form | {"top_k": 2}, 2), (form | {"top_k": 9}, 3), (PIPELINE, 3)):
        assert task.answer_size(ENCODING, task.options(parameters)) == size
    assert task.answer_size(ENCODING, task.options(RAW)) == 3


def test_only_null_and_empty_texts_are_no_pair() -> None:
    pair: Any
    for pair in (0, False, 0.0, [], {}, 1, True, ["a"]):
        with pytest.raises(InvalidInput, match=r"instances\[0\].text_pair: expected a string, got"):
            read_text_or_pair({"text": "a", "text_pair": pair}, "instances[0]")
    for pair in (None, ""):
        assert read_text_or_pair({"text": "a", "text_pair": pair}, "instances[0]") == "a"
    assert read_text_or_pair({"text": "a", "text_pair": "b"}, "instances[0]") == ("a", "b")


@pytest.mark.parametrize("flag", ["truncate", "error"])
def test_what_becomes_of_long_texts(flag: Any) -> None:
    task = SequenceClassification(settings(on_overflow=flag))
    given: Any = ({}, {"truncation": True}, {"truncation": False})
    assert [task.overflow(task.options(one)) for one in given] == [flag, "truncate", "error"]


# zero_shot_classification

NLI = named("contradiction", "neutral", "entailment")


def fitting(config: dict[str, Any], values: list[tuple[float, ...]], **parameters: Any) -> Any:
    labels = [chr(ord("a") + number) for number in range(len(values))]
    rows = [logits(*row) for row in values]
    return predict(ZeroShotClassification(settings(config)), "text", rows, {"candidate_labels": labels, **parameters})


@pytest.mark.parametrize(
    ("config", "values", "parameters", "labels", "scores"),
    [
        (NLI, [(9.0, 9.0, 0.0), (-9.0, 0.0, THREE)], {}, "ba", [0.75, 0.25]),
        (NLI, [(0.0, 9.0, THREE), (0.0, 9.0, math.log(4))], {"multi_label": True}, "ba", [0.8, 0.75]),
        (NLI, [(0.0, 9.0, THREE)], {}, "a", [0.75]),
        (named("Entailment", "neutral", "contradiction"), [(THREE, 9.0, 0.0)], {}, "a", [0.75]),
        (named("not_entailment", "entailment"), [(0.0, THREE)], {}, "a", [0.75]),
        (NLI, [(0.0, 0.0, 1.0)] * 3, {}, "cba", [1 / 3] * 3),
    ],
    ids=["shared", "several right", "one alone", "contradiction last", "two classes", "equal, as in transformers"],
)
def test_scores(config: Any, values: Any, parameters: Any, labels: str, scores: list[float]) -> None:
    found = fitting(config, values, **parameters)
    assert found == {"sequence": "text", "labels": [*labels], "scores": pytest.approx(scores)}


@given(
    st.lists(st.text(st.characters(exclude_characters="{}")), min_size=2, max_size=3),
    st.text(st.sampled_from("ab{}")),
)
def test_a_template_does_what_format_does(pieces: list[str], label: str) -> None:
    template = "{0}".join(pieces) if len(pieces) > 2 else "{}".join(pieces)
    assert label.join(split_template(template)) == template.format(label)


def test_templates_that_are_refused() -> None:
    assert split_template("{{}} is {} {{0}}") == ("{} is ", " {0}"), "doubled braces are braces"
    refused = ["", "none", "{{}}", "{} {}", "{} {0}", "{1}", "{label}", "{", "}", "{0!r}", "{:>9}", "{:{}}", "{0.a}"]
    for template in (*refused, "{0[0]}"):
        with pytest.raises(InvalidInput, match=r"parameters\.hypothesis_template"):
            split_template(template)


def test_which_label_is_entailment() -> None:
    assert entailment_id(NLI) == 2
    assert entailment_id(NLI | {"label2id": {"ENTAILMENT": 0, "neutral": 1, "contradiction": 2}}) == 0
    assert entailment_id(named("a", "entail")) == 1
    for config, says in (
        ({}, "label2id.*'entail': LABEL_0, LABEL_1"),
        (named("NEGATIVE", "POSITIVE"), "'entail': NEGATIVE, POSITIVE"),
        (named("entailment"), "another label"),
        (NLI | {"label2id": {"entailment": 3}}, "entailment as number 3"),
    ):
        with pytest.raises(LoadError, match=says):
            ZeroShotClassification(settings(config))


# rerank

ONE = named("LABEL_0")
SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
OLD_IDENTITY = {"sbert_ce_default_activation_function": "torch.nn.Identity"}


def of(name: str) -> dict[str, Any]:
    """config.json of version 4 of sentence-transformers."""
    return {"sentence_transformers": {"version": "4", "activation_fn": name}}


def rank(config: dict[str, Any], values: list[float], parameters: dict[str, Any]) -> Any:
    task, texts = Rerank(settings(config)), [f"t{number}" for number in range(len(values))]
    instance, options = {"query": "q", "texts": texts}, task.options(parameters)
    assert task.texts(task.item(instance, "instances[0]", options), options) == [("q", text) for text in texts]
    return predict(task, instance, [logits(value) for value in values], parameters)


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        pytest.param(None, {}, True, id="none"),
        pytest.param(None, {"sentence_transformers": {"version": "4"}}, True, id="none in the section"),
        pytest.param(None, of(SIGMOID), True, id="sigmoid"),
        pytest.param(None, of(IDENTITY), False, id="identity"),
        pytest.param(None, OLD_IDENTITY, False, id="old"),
        pytest.param(None, dict.fromkeys(OLD_IDENTITY), True, id="old null"),
        pytest.param(None, of("torch.nn.Sigmoid") | OLD_IDENTITY, True, id="the new one wins"),
        pytest.param(IDENTITY, of("torch.nn.Sigmoid"), False, id="the file of version 6 wins"),
        pytest.param(SIGMOID, OLD_IDENTITY, True, id="also over the old one"),
    ],
)
def test_the_activation_function(name: str | None, config: dict[str, Any], expected: bool) -> None:
    assert has_sigmoid(name, config) is expected
    for unknown in ("torch.nn.Tanh", "my.package.Sigmoid", "Sigmoid", "torchy.Identity"):
        with pytest.raises(LoadError, match=f"{unknown}.*torch.nn.Identity"):
            has_sigmoid(None, of(unknown))


@pytest.mark.parametrize(
    ("parameters", "query"),
    [
        pytest.param({}, "find: q", id="the default"),
        pytest.param({"prompt_name": "d"}, "doc: q", id="by name"),
        pytest.param({"prompt": "hm "}, "hm q", id="a text"),
        pytest.param({"prompt": ""}, "q", id="none"),
    ],
)
def test_prompts_stand_in_front_of_the_query_alone(parameters: dict[str, Any], query: str) -> None:
    prompts = CrossEncoder(None, {"q": "find: ", "d": "doc: "}, "q")
    task = Rerank(replace(settings(ONE), cross_encoder=prompts))
    options = task.options(parameters)
    item = task.item({"query": "q", "texts": ["t0", "t1"]}, "instances[0]", options)
    assert task.texts(item, options) == [(query, "t0"), (query, "t1")]


def test_forms_of_a_ranking() -> None:
    values = [-THREE, THREE, 0.0]
    scores = [pytest.approx(score) for score in (0.75, 0.5, 0.25)]
    assert rank(ONE, values, {}) == [{"index": i, "score": s} for i, s in zip((1, 2, 0), scores, strict=True)]
    assert rank(ONE, values, {"top_n": 1, "return_documents": True, "output_format": "pipeline"}) == [
        {"corpus_id": 1, "score": scores[0], "text": "t1"}
    ]
    raw = [{"index": 1, "score": 3.5}, {"index": 0, "score": -2.0}]
    assert rank(ONE, [-2.0, 3.5], {"raw_scores": True}) == rank(ONE | of(IDENTITY), [-2.0, 3.5], {}) == raw
    # Sigmoids of both are 1 in float32: equal scores keep their order.
    assert [one["index"] for one in rank(ONE, [50.0, 60.0, 50.0], {})] == [0, 1, 2]
    for config in ({}, TWO, named("a", "b", "c")):
        with pytest.raises(LoadError, match=r"one score per pair.*[23] labels.*--task=sequence_classification"):
            Rerank(settings(config))
