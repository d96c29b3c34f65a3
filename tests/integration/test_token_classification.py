"""token_classification against transformers' pipeline (scripts/goldens/generate_token_classification.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.integration.conftest import Serve, cut_or_refused, goldens, refused
from tests.support.service import Service

STRATEGIES = ("none", "simple", "first", "average", "max")
PIPELINE = {"output_format": "pipeline"}
SCORE = 1e-5
TEXT = "Anna Smith lives in Berlin."
LONG = "Anna Smith lives in Berlin. " * 40

each_model = pytest.mark.parametrize("model", ["ner", "ner_cased", "ner_roberta"])


def cases(kind: str, model: str) -> list[Any]:
    found = [case for case in goldens("token_classification")[kind] if case["model"] == model]
    assert found
    return found


def assert_same(prediction: Any, golden: Any, name: str) -> None:
    """The same entities but for the last digits of their scores."""
    without = [[entity | {"score": 0} for entity in entities] for entities in (prediction, golden)]
    assert without[0] == without[1], name
    assert [entity["score"] for entity in prediction] == pytest.approx(
        [entity["score"] for entity in golden], abs=SCORE
    )


def check_goldens(service: Service, model: str) -> None:
    """In one request with every strategy, and alone with one of them in turn."""
    mine = cases("cases", model)
    assert len(mine) >= 40 or model != "ner"
    texts = [case["text"] for case in mine]
    assert service.predict(texts) == [[case["classes"]] for case in mine]
    for strategy in STRATEGIES:
        predictions = service.predict(texts, PIPELINE | {"aggregation_strategy": strategy})
        for one, case in zip(predictions, mine, strict=True):
            assert_same(one, case[strategy], case["id"])
    for number, case in enumerate(mine):
        assert service.predict([case["text"]]) == [[case["classes"]]], case["id"]
        strategy = STRATEGIES[number % len(STRATEGIES)]
        (predictions,) = service.predict([{"text": case["text"]}], PIPELINE | {"aggregation_strategy": strategy})
        assert_same(predictions, case[strategy], case["id"])


@each_model
def test_answers_are_those_of_the_transformers_pipeline(serve: Serve, model: str) -> None:
    check_goldens(serve(model), model)


def test_flags_are_the_defaults_of_requests(serve: Serve) -> None:
    """They say what a request does that says nothing."""
    forms = ("--output_format=pipeline", "--aggregation_strategy=first", "--return_offsets_mapping")
    service = serve("ner", "v2", *forms, "--on_overflow=window", "--stride=16", "--task=token-classification")
    for key, strategy, asked in (
        ("cases", "first", {"truncation": True}),
        ("window_cases", "max", {"aggregation_strategy": "max"}),
    ):
        mine = [case for case in cases(key, "ner") if case.get("stride", 16) == 16]
        for one, case in zip(service.predict([case["text"] for case in mine], asked), mine, strict=True):
            assert_same(one, case[strategy], case["id"])
    body = {"instances": [TEXT], "parameters": {"return_offsets_mapping": False}}
    assert "outputs" in service.post({"instances": [TEXT]}).json() and "outputs" not in service.post(body).json()
    ((cut,),) = service.predict([LONG], {"output_format": "kserve", "truncation": True})
    ((whole,),) = service.predict([LONG], {"output_format": "kserve"})
    assert (len(cut), len(whole)) == (128, 2 + 40 * 6)


@each_model
def test_words_windows_and_ignored_labels_are_as_in_the_pipeline(serve: Serve, model: str) -> None:
    """Each with every strategy that has an answer."""
    service = serve(model)
    asked: list[tuple[Any, Any, dict[str, Any]]] = []
    for case in cases("split_cases", model):
        words = case["words"]
        forms = (words, {"tokens": words}, {"words": words})
        asked += [(case, form, {"delimiter": case["delimiter"]}) for form in forms]
    asked += [(case, case["text"], {"stride": case["stride"]}) for case in cases("window_cases", model)]
    if model == "ner":
        ignored = cases("ignore_cases", model)
        asked += [(case, case["text"], {"ignore_labels": case["ignore_labels"]}) for case in ignored]
    for case, instance, parameters in asked:
        for strategy in STRATEGIES:
            if strategy in case:
                how = PIPELINE | {"aggregation_strategy": strategy, **parameters}
                assert_same(service.predict([instance], how)[0], case[strategy], f"{instance} {how}")


def test_words_are_joined_by_spaces(serve: Serve) -> None:
    words = TEXT.removesuffix(".").split()
    service = serve("ner")
    joined, plain = service.predict([words, " ".join(words)], PIPELINE)
    assert joined == plain
    assert service.predict([{"words": words}]) == service.predict([" ".join(words)])


def offsets_of(body: Any) -> Any:
    (tensor,) = body["outputs"]
    assert (tensor["name"], tensor["datatype"]) == ("offset_mapping", "INT64")
    return np.array(tensor["data"]).reshape(tensor["shape"])


@each_model
def test_offsets_are_padded_to_the_longest(serve: Serve, model: str) -> None:
    mine = cases("cases", model)
    body = {"instances": [case["text"] for case in mine], "parameters": {"return_offsets_mapping": True}}
    response = serve(model).post(body)
    offsets = offsets_of(response.json())
    assert offsets.shape == (len(mine), max(len(case["offsets"]) for case in mine), 2)
    for row, case in zip(offsets, mine, strict=True):
        length = len(case["offsets"])
        assert row[:length].tolist() == case["offsets"], case["id"]
        assert not row[length:].any()
    assert [classes for (classes,) in response.json()["predictions"]] == [case["classes"] for case in mine]


def test_offsets_are_sent_if_the_request_asks_for_them(serve: Serve) -> None:
    service = serve("ner")
    assert "outputs" not in service.post({"instances": [TEXT]}).json()
    body = {"instances": [TEXT], "parameters": PIPELINE | {"return_offsets_mapping": True}}
    offsets = offsets_of(service.post(body).json())
    assert [TEXT[start:end] for start, end in offsets[0].tolist()] == [
        "", "Anna", "Smith", "lives", "in", "Berlin", ".", "",
    ]  # fmt: skip
    in_words = {"instances": [TEXT.split()], "parameters": {"return_offsets_mapping": True}}
    assert offsets_of(service.post(in_words).json())[0].tolist()[5:7] == [[0, 6], [6, 7]], "within the word"


@each_model
def test_logits_and_probabilities_are_those_of_the_model(serve: Serve, model: str) -> None:
    """They belong to the classes and to the scores of the goldens, token by token."""
    mine = cases("cases", model)
    texts = [case["text"] for case in mine]
    service = serve(model)
    logits = service.predict(texts, {"return_raw_logits": True})
    shares = service.predict(texts, {"return_probabilities": True})
    for case, raw, rounded in zip(mine, logits, shares, strict=True):
        keys = [str(label) for label in range(7)]
        assert all(list(token) == keys for token in (*raw, *rounded))
        values = np.array([list(token.values()) for token in raw])
        assert values.argmax(axis=-1).tolist() == case["classes"]
        exact = np.exp(values) / np.exp(values).sum(axis=-1, keepdims=True)
        scores = [exact[entity["index"]].max() for entity in case["none"]]
        assert scores == pytest.approx([entity["score"] for entity in case["none"]], abs=SCORE)
        given = np.array([list(token.values()) for token in rounded])
        np.testing.assert_allclose(given, exact, atol=0.5e-4 + SCORE)
        assert (given == given.round(4)).all()


def test_a_long_text_is_cut_or_refused_as_asked(serve: Serve) -> None:
    service = serve("ner")
    ((classes,),) = cut_or_refused(service, [LONG], "truncation: false")
    assert len(classes) == 128
    strict = serve("ner", "v2", "--on_overflow=error")
    refused(strict, [LONG], {}, "expected at most 128 tokens", 413)
    assert strict.predict([LONG], {"truncation": True}) == [[classes]]
    assert strict.predict([TEXT]) == service.predict([TEXT], {"truncation": False})


BAD_INSTANCES: list[tuple[Any, str]] = [
    (7, "instances[0]: expected a string"),
    (None, "instances[0]: expected a string"),
    ({"text": 7}, "instances[0]"),
    ({"text": TEXT, "words": ["Anna"]}, "instances[0]"),
    ({"question": TEXT}, "instances[0]"),
    ([], "instances[0]: expected at least one word"),
    ({"tokens": []}, "instances[0].tokens: expected at least one word"),
    ({"words": "Anna"}, "instances[0].words: expected a list of words"),
    (["Anna", 7], "instances[0]: expected a list of words"),
]
BAD_PARAMETERS: list[tuple[Any, str]] = [
    ({"aggregation_strategy": "first"}, "parameters.aggregation_strategy: expected no value in the kserve format"),
    ({"ignore_labels": ["O"]}, "parameters.ignore_labels: expected no value in the kserve format"),
    ({"delimiter": " "}, "parameters.delimiter: expected no value in the kserve format"),
    (PIPELINE | {"ignore_labels": [1]}, "parameters.ignore_labels: expected"),
    (PIPELINE | {"delimiter": " "}, "parameters.delimiter"),
    (PIPELINE | {"delimiter": "-" * 21}, "parameters.delimiter: expected a string of at most 20"),
    (PIPELINE | {"return_probabilities": True}, "parameters.return_probabilities"),
    ({"return_raw_logits": True, "return_probabilities": True}, "parameters.return_raw_logits"),
    ({"stride": 126}, "a stride of less than ...got 126"),
    ({"stride": -1}, "parameters.stride"),
    ({"stride": 16, "truncation": True}, "parameters.stride"),
]


def test_wrong_instances_and_parameters_are_refused(serve: Serve) -> None:
    service = serve("ner")
    for instance, says in BAD_INSTANCES:
        refused(service, [instance], {}, says)
    for parameters, says in BAD_PARAMETERS:
        refused(service, [TEXT], parameters, says)
