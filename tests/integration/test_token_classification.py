"""token_classification against transformers' pipeline (tests/goldens/generate_token_classification.py)."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.integration.conftest import ROOT, Serve
from tests.service import Service
from tests.triton_repository import task_model_folder

MODELS = ("ner", "ner_cased", "ner_roberta")
STRATEGIES = ("none", "simple", "first", "average", "max")
PIPELINE = {"output_format": "pipeline"}
SCORE = 1e-5
COUNTER = 'hf_transformer_truncated_instances_total{model_name="ner"}'
TEXT = "Anna Smith lives in Berlin."
LONG = "Anna Smith lives in Berlin. " * 40

each_model = pytest.mark.parametrize("model", MODELS)


@cache
def goldens() -> Any:
    return json.loads((ROOT / "tests" / "goldens" / "token_classification.json").read_text())


def cases(kind: str, model: str) -> list[Any]:
    found = [case for case in goldens()[kind] if case["model"] == model]
    assert found
    return found


def ner(serve: Serve, *flags: str, model: str = "ner", protocol: str = "v2") -> Service:
    return serve(model, protocol, f"--model_dir={task_model_folder(model)}", *flags)


def assert_same(found: Any, golden: Any, name: str) -> None:
    """The same entities but for the last digits of their scores."""
    without = [[entity | {"score": 0} for entity in entities] for entities in (found, golden)]
    assert without[0] == without[1], name
    assert [entity["score"] for entity in found] == pytest.approx([entity["score"] for entity in golden], abs=SCORE)


def error_of(service: Service, instance: Any = TEXT, status: int = 400, **parameters: Any) -> str:
    response = service.post({"instances": [instance], "parameters": parameters})
    assert response.status_code == status, response.text
    message: str = response.json()["error"]
    return message


@each_model
def test_texts_alone(serve: Serve, model: str) -> None:
    """Each with one strategy, in turn; the mixed requests have all of them."""
    service = ner(serve, model=model)
    for number, case in enumerate(cases("cases", model)):
        assert service.predict([case["text"]]) == [[case["classes"]]], case["id"]
        strategy = STRATEGIES[number % len(STRATEGIES)]
        (found,) = service.predict([{"text": case["text"]}], PIPELINE | {"aggregation_strategy": strategy})
        assert_same(found, case[strategy], case["id"])


@each_model
def test_one_mixed_request(serve: Serve, protocol: str, model: str) -> None:
    mine = cases("cases", model)
    assert len(mine) >= 40 or model != "ner"
    texts = [case["text"] for case in mine]
    service = ner(serve, model=model, protocol=protocol)
    assert service.predict(texts) == [[case["classes"]] for case in mine]
    for strategy in STRATEGIES:
        found = service.predict(texts, PIPELINE | {"aggregation_strategy": strategy})
        for one, case in zip(found, mine, strict=True):
            assert_same(one, case[strategy], case["id"])


def test_flags(serve: Serve) -> None:
    """They say what a request does that says nothing."""
    forms = ("--output_format=pipeline", "--aggregation_strategy=first", "--return_offsets_mapping")
    service = ner(serve, *forms, "--on_overflow=window", "--stride=16", "--task=token-classification")
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
def test_words(serve: Serve, model: str) -> None:
    service = ner(serve, model=model)
    for case in cases("split_cases", model):
        words = case["words"]
        for strategy in STRATEGIES:
            parameters = PIPELINE | {"aggregation_strategy": strategy, "delimiter": case["delimiter"]}
            for found in service.predict([words, {"tokens": words}, {"words": words}], parameters):
                assert_same(found, case[strategy], f"{words} {strategy}")


def test_words_are_joined_by_spaces(serve: Serve) -> None:
    words = ["Anna", "Smith", "lives", "in", "Berlin"]
    service = ner(serve)
    joined, plain = service.predict([words, " ".join(words)], PIPELINE)
    assert joined == plain
    assert service.predict([{"words": words}]) == service.predict([" ".join(words)])


@each_model
def test_windows(serve: Serve, model: str) -> None:
    service = ner(serve, model=model)
    for case in cases("window_cases", model):
        for strategy in STRATEGIES:
            if strategy in case:
                parameters = PIPELINE | {"aggregation_strategy": strategy, "stride": case["stride"]}
                (found,) = service.predict([case["text"]], parameters)
                assert_same(found, case[strategy], f"{case['id']} {strategy}")


@each_model
@pytest.mark.parametrize("stride", [0, 16])
def test_windows_give_every_token_once(serve: Serve, model: str, stride: int) -> None:
    """The tokens of a long text are those of its sentences, which are short enough to be read alone."""
    sentence = "Maria Garcia works at Acme Corp in New York."
    count = 20
    text = " ".join([sentence] * count)
    parameters = {"stride": stride, "return_offsets_mapping": True}
    service = ner(serve, model=model)
    one = service.post({"instances": [sentence], "parameters": parameters}).json()
    many = service.post({"instances": [text], "parameters": parameters}).json()
    inner = offsets_of(one)[0, 1:-1]
    expected = np.concatenate([inner + number * (len(sentence) + 1) for number in range(count)])
    offsets = offsets_of(many)
    # A byte-level tokenizer counts the space before the first token of a window as part of it.
    spaces = [text[start] == " " for start, _ in offsets[0, 1:-1].tolist()]
    assert (offsets[0, 1:-1, 0] + spaces).tolist() == expected[:, 0].tolist()
    assert offsets[0, 1:-1, 1].tolist() == expected[:, 1].tolist()
    assert offsets[0, [0, -1]].tolist() == [[0, 0], [0, 0]]
    ((classes,),) = many["predictions"]
    assert len(classes) == offsets.shape[1]
    everything = PIPELINE | {"stride": stride, "aggregation_strategy": "none", "ignore_labels": []}
    (entities,) = service.predict([text], everything)
    assert [entity["index"] for entity in entities] == list(range(1, len(classes) - 1))
    assert [[entity["start"], entity["end"]] for entity in entities] == offsets[0, 1:-1].tolist()
    labels = json.loads((task_model_folder(model) / "config.json").read_text())["id2label"]
    assert [entity["entity"] for entity in entities] == [labels[str(label)] for label in classes[1:-1]]


def offsets_of(body: Any) -> Any:
    (tensor,) = body["outputs"]
    assert (tensor["name"], tensor["datatype"]) == ("offset_mapping", "INT64")
    return np.array(tensor["data"]).reshape(tensor["shape"])


@each_model
def test_offsets_are_padded_to_the_longest(serve: Serve, model: str) -> None:
    mine = cases("cases", model)
    body = {"instances": [case["text"] for case in mine], "parameters": {"return_offsets_mapping": True}}
    response = ner(serve, model=model).post(body)
    offsets = offsets_of(response.json())
    assert offsets.shape == (len(mine), max(len(case["offsets"]) for case in mine), 2)
    for row, case in zip(offsets, mine, strict=True):
        length = len(case["offsets"])
        assert row[:length].tolist() == case["offsets"], case["id"]
        assert not row[length:].any()
    assert [classes for (classes,) in response.json()["predictions"]] == [case["classes"] for case in mine]


def test_offsets_by_parameter(serve: Serve) -> None:
    service = ner(serve)
    assert "outputs" not in service.post({"instances": [TEXT]}).json()
    body = {"instances": [TEXT], "parameters": PIPELINE | {"return_offsets_mapping": True}}
    offsets = offsets_of(service.post(body).json())
    assert [TEXT[start:end] for start, end in offsets[0].tolist()] == [
        "", "Anna", "Smith", "lives", "in", "Berlin", ".", "",
    ]  # fmt: skip
    in_words = {"instances": [TEXT.split()], "parameters": {"return_offsets_mapping": True}}
    assert offsets_of(service.post(in_words).json())[0].tolist()[5:7] == [[0, 6], [6, 7]], "within the word"


def test_ignored_labels(serve: Serve) -> None:
    service = ner(serve)
    for case in cases("ignore_cases", "ner"):
        for strategy in STRATEGIES:
            parameters = {"aggregation_strategy": strategy, "ignore_labels": case["ignore_labels"]}
            (found,) = service.predict([case["text"]], PIPELINE | parameters)
            assert_same(found, case[strategy], f"{case['ignore_labels']} {strategy}")


@each_model
def test_raw_logits_and_probabilities(serve: Serve, model: str) -> None:
    """They belong to the classes and to the scores of the goldens, token by token."""
    mine = cases("cases", model)
    texts = [case["text"] for case in mine]
    service = ner(serve, model=model)
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
    service = ner(serve)
    before = service.metric(COUNTER)
    ((classes,),) = service.predict([LONG])
    assert len(classes) == 128
    assert service.metric(COUNTER) == before + 1
    assert "truncation: false" in error_of(service, LONG, 413, truncation=False)
    strict = ner(serve, "--on_overflow=error")
    assert "longer than the 128 tokens" in error_of(strict, LONG, 413)
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
    ({"top_k": 3}, "parameters.top_k: unknown"),
    ({"aggregation_strategy": "first"}, "parameters.aggregation_strategy: only the pipeline format"),
    ({"ignore_labels": ["O"]}, "parameters.ignore_labels: only the pipeline format"),
    ({"delimiter": " "}, "parameters.delimiter: only the pipeline format"),
    (PIPELINE | {"aggregation_strategy": "last"}, "parameters.aggregation_strategy: 'last' is not one of"),
    (PIPELINE | {"ignore_labels": [1]}, "parameters.ignore_labels: expected"),
    (PIPELINE | {"delimiter": " "}, "parameters.delimiter"),
    (PIPELINE | {"delimiter": "-" * 21}, "parameters.delimiter: expected a string of at most 20"),
    (PIPELINE | {"return_probabilities": True}, "parameters.return_probabilities"),
    ({"return_raw_logits": True, "return_probabilities": True}, "parameters.return_raw_logits"),
    ({"return_offsets_mapping": "yes"}, "parameters.return_offsets_mapping: expected true or false"),
    ({"truncation": "longest_first"}, "parameters.truncation: expected true or false"),
    ({"stride": -1}, "parameters.stride"),
    ({"stride": 126}, "a stride of 126 tokens is too long"),
    ({"stride": 16, "truncation": True}, "parameters.stride"),
]


def test_bad_requests(serve: Serve) -> None:
    service = ner(serve)
    for instance, message in BAD_INSTANCES:
        assert message in error_of(service, instance)
    for parameters, message in BAD_PARAMETERS:
        assert message in error_of(service, **parameters)
