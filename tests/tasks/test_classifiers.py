"""sequence_classification, zero_shot_classification and rerank with synthetic logits."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.errors import ConfigError, InvalidInput, LoadError, PredictorError, TooLarge
from hf_transformer.tasks.base import CrossEncoder, Task
from hf_transformer.tasks.rerank import Rerank, has_sigmoid
from hf_transformer.tasks.sequence_classification import SequenceClassification, default_function, read_text_or_pair
from hf_transformer.tasks.zero_shot_classification import (
    ZeroShotClassification,
    label_ids,
    read_candidate_labels,
    split_template,
)
from tests.tasks.task_settings import ENCODING, logits, named, settings

THREE = math.log(3)
TWO = named("a", "b")


def predict(task: Task[Any, Any, Any], instance: Any, rows: Sequence[Any], parameters: Any) -> Any:
    """Answers an instance; the model returns ``rows``, the outputs for each of its texts."""
    options = task.options(parameters)
    item = task.item(instance, ("instances", 0), options)
    parts = [[task.decode(item, ENCODING, row, options)] for row in rows]
    return task.answer(item, parts, options)


# sequence_classification

PIPELINE = {"output_format": "pipeline", "top_k": None}
PROBABILITIES, RAW = {"return_probabilities": True}, {"return_raw_logits": True}
MULTI = named("a", "b", problem_type="multi_label_classification")
REGRESSION = named("stars", problem_type="regression")


def classify(config: dict[str, Any], values: dict[str, Any], parameters: dict[str, Any], **flags: Any) -> Any:
    return predict(SequenceClassification(settings(config, **flags)), "text", [values], parameters)


@pytest.mark.parametrize(
    ("config", "values", "parameters", "expected"),
    [
        (TWO, (0.0, THREE), {}, 1),
        (TWO, (0.0, THREE), PROBABILITIES, {"0": 0.25, "1": 0.75}),
        (TWO, (0.0, 7.0), PROBABILITIES, {"0": 0.0009, "1": 0.9991}),
        (TWO, (0.0, THREE), RAW, {"0": 0.0, "1": float(np.float32(THREE))}),
        (MULTI, (THREE, THREE), PROBABILITIES, {"0": 0.75, "1": 0.75}),
        (named("a"), (THREE,), PROBABILITIES, {"0": 0.75}),
        (REGRESSION, (4.5,), PIPELINE, [{"label": "stars", "score": 4.5}]),
    ],
)
def test_each_form_of_a_classification(config: Any, values: Any, parameters: Any, expected: Any) -> None:
    assert classify(config, logits(*values), parameters) == expected
    if parameters == PROBABILITIES:
        assert classify(config, logits(*values), {}, return_probabilities=True) == expected


def test_the_pipeline_format_is_sorted_by_score_and_then_by_label() -> None:
    scores = [("b", pytest.approx(0.75)), ("a", pytest.approx(0.25))]
    assert classify(TWO, logits(0.0, THREE), PIPELINE) == [{"label": label, "score": score} for label, score in scores]
    answers = classify(named("a", "b", "c", "d"), logits(1.0, 2.0, 2.0, 1.0), PIPELINE | {"top_k": 3})
    assert [answer["label"] for answer in answers] == ["b", "c", "a"]


def test_a_regression_model_has_no_probabilities() -> None:
    with pytest.raises(ConfigError, match="--return_raw_logits"):
        SequenceClassification(settings(REGRESSION, return_probabilities=True))
    with pytest.raises(InvalidInput) as raised:
        classify(REGRESSION, logits(4.5), PROBABILITIES)
    assert raised.value.path == ("parameters", "return_probabilities")


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_logits_of_every_precision_are_decoded(dtype: str) -> None:
    values = logits(-1.5, 0.5, dtype=dtype)
    assert classify(TWO, values, RAW) == {"0": -1.5, "1": 0.5}
    assert classify(TWO, values, PIPELINE)[0]["score"] == pytest.approx(1 / (1 + math.exp(-2)), abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    for form in ({}, RAW, PIPELINE):
        for values in (logits(bad, 0.0), logits(0.0, bad)):
            with pytest.raises(PredictorError):
                classify(TWO, values, form)
    with pytest.raises(PredictorError):
        rank(ONE, [0.0, bad], {})
    for row in ((bad, 0.0, 0.0), (0.0, 0.0, bad)):
        with pytest.raises(PredictorError):
            zero_shot(NLI, [(0.0, 0.0, 0.0), row])


@pytest.mark.parametrize(
    ("problem", "functions"),
    [
        (None, ["sigmoid", "softmax", "softmax"]),
        ("single_label_classification", ["sigmoid", "softmax", "softmax"]),
        ("multi_label_classification", ["sigmoid"] * 3),
        ("regression", ["none"] * 3),
    ],
)
def test_the_default_function_depends_on_the_problem_and_the_labels(problem: str | None, functions: list[str]) -> None:
    assert [default_function(problem, labels) for labels in (1, 2, 3)] == functions


def test_the_size_of_an_answer_is_its_number_of_labels() -> None:
    task, form = SequenceClassification(settings(named("a", "b", "c"))), {"output_format": "pipeline"}
    sizes: Any = (({}, 1), (form, 1), (form | {"top_k": 2}, 2), (form | {"top_k": 9}, 3), (PIPELINE, 3), (RAW, 3))
    for parameters, size in sizes:
        assert task.answer_size(ENCODING, task.options(parameters)) == size


def test_only_a_null_or_empty_text_pair_means_a_single_text() -> None:
    pair: Any
    for pair in (0, False, 0.0, [], {}, 1, True, ["a"]):
        with pytest.raises(InvalidInput, match=r"instances\[0\].text_pair: expected a string, got"):
            read_text_or_pair({"text": "a", "text_pair": pair}, ("instances", 0))
    for pair in (None, ""):
        assert read_text_or_pair({"text": "a", "text_pair": pair}, ("instances", 0)) == "a"
    assert read_text_or_pair({"text": "a", "text_pair": "b"}, ("instances", 0)) == ("a", "b")


@pytest.mark.parametrize("flag", ["truncate", "error"])
def test_truncation_overrides_on_overflow(flag: Any) -> None:
    task = SequenceClassification(settings(on_overflow=flag))
    requests: Any = ({}, {"truncation": True}, {"truncation": False})
    assert [task.overflow(task.options(parameters)) for parameters in requests] == [flag, "truncate", "error"]


# zero_shot_classification

NLI = named("contradiction", "neutral", "entailment")


def zero_shot(config: dict[str, Any], values: list[tuple[float, ...]], **parameters: Any) -> Any:
    labels = [chr(ord("a") + index) for index in range(len(values))]
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
def test_scores_compare_entailment_over_labels_or_with_contradiction(
    config: Any, values: Any, parameters: Any, labels: str, scores: list[float]
) -> None:
    answer = zero_shot(config, values, **parameters)
    assert answer == {"sequence": "text", "labels": [*labels], "scores": pytest.approx(scores)}


@given(
    st.lists(st.text(st.characters(exclude_characters="{}")), min_size=2, max_size=3),
    st.text(st.sampled_from("ab{}")),
)
def test_a_template_is_filled_in_like_str_format(pieces: list[str], label: str) -> None:
    template = "{0}".join(pieces) if len(pieces) > 2 else "{}".join(pieces)
    assert label.join(split_template(template)) == template.format(label)


def test_a_template_has_the_label_and_no_other_field() -> None:
    assert split_template("{{}} is {} {{0}}") == ("{} is ", " {0}"), "doubled braces are braces"
    refused = ["", "none", "{{}}", "{} {}", "{} {0}", "{1}", "{label}", "{", "}", "{0!r}", "{:>9}", "{:{}}", "{0.a}"]
    for template in (*refused, "{0[0]}"):
        with pytest.raises(InvalidInput, match=r"parameters\.hypothesis_template"):
            split_template(template)


@pytest.mark.parametrize(
    ("config", "ids"),
    [
        pytest.param(NLI, (0, 2), id="contradiction_first"),
        pytest.param(named("neutral", "entailment", "contradiction"), (2, 1), id="neutral_first"),
        pytest.param(named("neutral", "CONTRADICTION", "Entailment"), (1, 2), id="contradiction_between"),
        pytest.param(named("entailment", "contradiction", "neutral"), (1, 0), id="entailment_first"),
        pytest.param(
            NLI | {"label2id": {"ENTAILMENT": 0, "neutral": 1, "contradiction": 2}}, (2, 0), id="label2id_of_its_own"
        ),
        pytest.param(
            named("neutral", "entailment", "contradiction") | {"label2id": {"LABEL_0": 0, "entailment": 1}},
            (2, 1),
            id="label2id_without_it",
        ),
        pytest.param(named("a", "entail"), (0, 1), id="no_contradiction"),
        pytest.param(named("entail", "a"), (1, 0), id="no_contradiction_entailment_first"),
        pytest.param(named("entailment", "x", "y"), (2, 0), id="no_name_as_in_transformers"),
    ],
)
def test_entailment_and_contradiction_are_found_by_their_names(config: dict[str, Any], ids: tuple[int, int]) -> None:
    assert label_ids(config) == ids


def test_several_labels_compare_with_contradiction_wherever_it_stands() -> None:
    """The logits of one text with the labels in each order have the same scores, those of contradiction first."""
    row = {"contradiction": -3.0, "neutral": 1.5, "entailment": 4.0}
    expected = 1 / (1 + np.exp(row["contradiction"] - row["entailment"]))
    for order in permutations(row):
        answer = zero_shot(named(*order), [tuple(row[name] for name in order)] * 2, multi_label=True)
        assert answer["scores"] == pytest.approx([expected] * 2, rel=1e-6), order
        single = zero_shot(named(*order), [tuple(row[name] for name in order)])
        assert single["scores"] == pytest.approx([expected], rel=1e-6), order


def test_a_model_without_entailment_is_refused() -> None:
    for config, message in (
        ({}, "label2id.*'entail': LABEL_0, LABEL_1"),
        (named("NEGATIVE", "POSITIVE"), "'entail': NEGATIVE, POSITIVE"),
        (named("entailment"), "another label"),
        (NLI | {"label2id": {"entailment": 3}}, "entailment as number 3"),
    ):
        with pytest.raises(LoadError, match=message):
            ZeroShotClassification(settings(config))


# rerank

ONE = named("LABEL_0")
SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
OLD_IDENTITY = {"sbert_ce_default_activation_function": "torch.nn.Identity"}


def activation(name: str) -> dict[str, Any]:
    """A config.json of sentence-transformers 4 with this activation function."""
    return {"sentence_transformers": {"version": "4", "activation_fn": name}}


def rank(config: dict[str, Any], values: list[float], parameters: dict[str, Any]) -> Any:
    texts = [f"t{index}" for index in range(len(values))]
    rows = [logits(value) for value in values]
    return predict(Rerank(settings(config)), {"query": "q", "texts": texts}, rows, parameters)


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        pytest.param(None, {}, True, id="none"),
        pytest.param(None, {"sentence_transformers": {"version": "4"}}, True, id="none in the section"),
        pytest.param(None, activation(SIGMOID), True, id="sigmoid"),
        pytest.param(None, activation(IDENTITY), False, id="identity"),
        pytest.param(None, OLD_IDENTITY, False, id="old"),
        pytest.param(None, dict.fromkeys(OLD_IDENTITY), True, id="old null"),
        pytest.param(None, activation("torch.nn.Sigmoid") | OLD_IDENTITY, True, id="the new one wins"),
        pytest.param(IDENTITY, activation("torch.nn.Sigmoid"), False, id="the file of version 6 wins"),
        pytest.param(SIGMOID, OLD_IDENTITY, True, id="also over the old one"),
    ],
)
def test_the_activation_function_is_that_of_the_newest_file(
    name: str | None, config: dict[str, Any], expected: bool
) -> None:
    assert has_sigmoid(name, config) is expected


@pytest.mark.parametrize("name", ["torch.nn.Tanh", "my.package.Sigmoid", "Sigmoid", "torchy.Identity"])
def test_an_unknown_activation_function_is_refused(name: str) -> None:
    with pytest.raises(LoadError, match=f"{name}.*torch.nn.Identity"):
        has_sigmoid(None, activation(name))


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
    item = task.item({"query": "q", "texts": ["t0", "t1"]}, ("instances", 0), options)
    assert task.texts(item, options) == [(query, "t0"), (query, "t1")]


def test_a_ranking_has_the_best_text_first() -> None:
    values = [-THREE, THREE, 0.0]
    scores = [pytest.approx(score) for score in (0.75, 0.5, 0.25)]
    assert rank(ONE, values, {}) == [{"index": i, "score": s} for i, s in zip((1, 2, 0), scores, strict=True)]
    assert rank(ONE, values, {"top_n": 1, "return_documents": True, "output_format": "pipeline"}) == [
        {"corpus_id": 1, "score": scores[0], "text": "t1"}
    ]
    raw = [{"index": 1, "score": 3.5}, {"index": 0, "score": -2.0}]
    assert rank(ONE, [-2.0, 3.5], {"raw_scores": True}) == rank(ONE | activation(IDENTITY), [-2.0, 3.5], {}) == raw
    # Sigmoids of 50 and 60 are 1 in float32: equal scores keep their order.
    assert [answer["index"] for answer in rank(ONE, [50.0, 60.0, 50.0], {})] == [0, 1, 2]


@pytest.mark.parametrize("config", [{}, TWO, named("a", "b", "c")])
def test_rerank_needs_a_model_with_one_label(config: dict[str, Any]) -> None:
    with pytest.raises(LoadError, match=r"one score per pair.*[23] labels.*--task=sequence_classification"):
        Rerank(settings(config))


def test_a_string_of_labels_is_counted_before_it_is_split() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match=r"^parameters\.candidate_labels: expected at most 1000 labels, got 200001"):
            read_candidate_labels("a," * 200_000, ("parameters",))
        assert tracemalloc.get_traced_memory()[1] < 500_000  # split, the labels took 14 MB
    finally:
        tracemalloc.stop()
    assert read_candidate_labels(" a ,, b", ("parameters",)) == ("a", "b")
