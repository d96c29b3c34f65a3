from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from hf_transformer.errors import ConfigError, InvalidInput, PredictorError
from hf_transformer.tasks.sequence_classification import SequenceClassification, default_function, read_text_or_pair
from tests.tasks.task_settings import ENCODING, logits, named, settings

PIPELINE = {"output_format": "pipeline", "top_k": None}
MULTI = {"problem_type": "multi_label_classification"}


def predict(config: dict[str, Any], values: dict[str, Any], parameters: dict[str, Any], **flags: Any) -> Any:
    task = SequenceClassification(settings(config, **flags))
    options = task.options(parameters)
    return task.answer("", [[task.decode("", ENCODING, values, options)]], options)


def test_forms_of_an_answer() -> None:
    config = named("a", "b")
    values = logits(0.0, math.log(3))
    assert predict(config, values, {}) == 1
    assert predict(config, values, {"return_probabilities": True}) == {"0": 0.25, "1": 0.75}
    assert predict(config, values, {"return_raw_logits": True}) == {"0": 0.0, "1": float(np.float32(math.log(3)))}
    assert predict(config, values, PIPELINE) == [
        {"label": "b", "score": pytest.approx(0.75)},
        {"label": "a", "score": pytest.approx(0.25)},
    ]
    # Those of independent labels are not shared out.
    alike = logits(math.log(3), math.log(3))
    assert predict(named("a", "b", **MULTI), alike, {"return_probabilities": True}) == {"0": 0.75, "1": 0.75}
    assert predict(named("a"), logits(math.log(3)), {"return_probabilities": True}) == {"0": 0.75}
    found = predict(config, logits(0.0, 7.0), {}, return_probabilities=True)
    assert found == {"0": 0.0009, "1": 0.9991}, "4 decimals"
    found = predict(named("a", "b", "c", "d"), logits(1.0, 2.0, 2.0, 1.0), PIPELINE | {"top_k": 3})
    assert [one["label"] for one in found] == ["b", "c", "a"], "equal scores come in the order of the labels"


def test_a_regression_keeps_its_values() -> None:
    config = named("stars", problem_type="regression")
    assert predict(config, logits(4.5), PIPELINE) == [{"label": "stars", "score": 4.5}]
    with pytest.raises(ConfigError, match="--return_raw_logits"):
        SequenceClassification(settings(config, return_probabilities=True))


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_datatypes(dtype: str) -> None:
    values = logits(-1.5, 0.5, dtype=dtype)
    assert predict(named("a", "b"), values, {"return_raw_logits": True}) == {"0": -1.5, "1": 0.5}
    assert predict(named("a", "b"), values, PIPELINE)[0]["score"] == pytest.approx(1 / (1 + math.exp(-2)), abs=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("form", [{}, {"return_raw_logits": True}, PIPELINE])
def test_logits_that_are_no_numbers(bad: float, form: dict[str, Any]) -> None:
    for values in (logits(bad, 0.0), logits(0.0, bad)):
        with pytest.raises(PredictorError):
            predict(named("a", "b"), values, form)


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
    assert task.answer_size(ENCODING, task.options({"return_raw_logits": True})) == 3


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
