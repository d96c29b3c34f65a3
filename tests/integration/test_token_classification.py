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

each_model = pytest.mark.parametrize("model", MODELS)


@cache
def goldens() -> Any:
    return json.loads((ROOT / "tests" / "goldens" / "token_classification.json").read_text())


def cases(kind: str, model: str) -> list[Any]:
    found = [case for case in goldens()[kind] if case["model"] == model]
    assert found
    return found


def ner(serve: Serve, protocol: str, *flags: str, model: str = "ner") -> Service:
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


def test_enough_inputs() -> None:
    assert len(cases("cases", "ner")) >= 40


@each_model
def test_classes_alone(serve: Serve, protocol: str, model: str) -> None:
    service = ner(serve, protocol, model=model)
    for case in cases("cases", model):
        assert service.predict([case["text"]]) == [[case["classes"]]], case["id"]


@each_model
def test_classes_in_one_mixed_request(serve: Serve, protocol: str, model: str) -> None:
    mine = cases("cases", model)
    found = ner(serve, protocol, model=model).predict([case["text"] for case in mine])
    assert found == [[case["classes"]] for case in mine]


@each_model
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_entities_alone(serve: Serve, protocol: str, model: str, strategy: str) -> None:
    service = ner(serve, protocol, model=model)
    for case in cases("cases", model):
        (found,) = service.predict([{"text": case["text"]}], PIPELINE | {"aggregation_strategy": strategy})
        assert_same(found, case[strategy], case["id"])


@each_model
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_entities_in_one_mixed_request(serve: Serve, protocol: str, model: str, strategy: str) -> None:
    mine = cases("cases", model)
    service = ner(serve, protocol, "--output_format=pipeline", "--aggregation_strategy=first", model=model)
    parameters = {} if strategy == "first" else {"aggregation_strategy": strategy}
    found = service.predict([case["text"] for case in mine], parameters)
    for one, case in zip(found, mine, strict=True):
        assert_same(one, case[strategy], case["id"])


@each_model
@pytest.mark.parametrize("form", ["tokens", "words", "list"])
def test_words(serve: Serve, protocol: str, model: str, form: str) -> None:
    service = ner(serve, protocol, model=model)
    for case in cases("split_cases", model):
        words = case["words"]
        instance = words if form == "list" else {form: words}
        for strategy in STRATEGIES:
            parameters = PIPELINE | {"aggregation_strategy": strategy, "delimiter": case["delimiter"]}
            (found,) = service.predict([instance], parameters)
            assert_same(found, case[strategy], f"{words} {strategy}")


def test_words_are_joined_by_spaces(serve: Serve, protocol: str) -> None:
    words = ["Anna", "Smith", "lives", "in", "Berlin"]
    service = ner(serve, protocol)
    joined, plain = service.predict([words, " ".join(words)], PIPELINE)
    assert joined == plain
    assert service.predict([{"words": words}]) == service.predict([" ".join(words)])


@each_model
def test_windows(serve: Serve, protocol: str, model: str) -> None:
    service = ner(serve, protocol, model=model)
    for case in cases("window_cases", model):
        for strategy in STRATEGIES:
            if strategy in case:
                parameters = PIPELINE | {"aggregation_strategy": strategy, "stride": case["stride"]}
                (found,) = service.predict([case["text"]], parameters)
                assert_same(found, case[strategy], f"{case['id']} {strategy}")


def test_windows_by_flag(serve: Serve, protocol: str) -> None:
    service = ner(serve, protocol, "--on_overflow=window", "--stride=16", "--output_format=pipeline")
    mine = [case for case in cases("window_cases", "ner") if case["stride"] == 16]
    found = service.predict([case["text"] for case in mine], {"aggregation_strategy": "max"})
    for one, case in zip(found, mine, strict=True):
        assert_same(one, case["max"], case["id"])


@each_model
@pytest.mark.parametrize("stride", [0, 1, 16, 33])
def test_windows_give_every_token_once(serve: Serve, protocol: str, model: str, stride: int) -> None:
    """The tokens of a long text are those of its sentences, which are short enough to be read alone."""
    sentence = "Maria Garcia works at Acme Corp in New York."
    count = 20
    text = " ".join([sentence] * count)
    parameters = {"stride": stride, "return_offsets_mapping": True}
    service = ner(serve, protocol, model=model)
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
def test_offsets_are_padded_to_the_longest(serve: Serve, protocol: str, model: str) -> None:
    mine = cases("cases", model)
    service = ner(serve, protocol, "--return_offsets_mapping", model=model)
    response = service.post({"instances": [case["text"] for case in mine]})
    offsets = offsets_of(response.json())
    assert offsets.shape == (len(mine), max(len(case["offsets"]) for case in mine), 2)
    for row, case in zip(offsets, mine, strict=True):
        length = len(case["offsets"])
        assert row[:length].tolist() == case["offsets"], case["id"]
        assert not row[length:].any()
    assert [classes for (classes,) in response.json()["predictions"]] == [case["classes"] for case in mine]


def test_offsets_by_parameter(serve: Serve, protocol: str) -> None:
    service = ner(serve, protocol)
    assert "outputs" not in service.post({"instances": [TEXT]}).json()
    body = {"instances": [TEXT], "parameters": PIPELINE | {"return_offsets_mapping": True}}
    offsets = offsets_of(service.post(body).json())
    assert [TEXT[start:end] for start, end in offsets[0].tolist()] == [
        "", "Anna", "Smith", "lives", "in", "Berlin", ".", "",
    ]  # fmt: skip
    in_words = {"instances": [TEXT.split()], "parameters": {"return_offsets_mapping": True}}
    assert offsets_of(service.post(in_words).json())[0].tolist()[5:7] == [[0, 6], [6, 7]], "within the word"


def test_offsets_flag_can_be_switched_off(serve: Serve, protocol: str) -> None:
    service = ner(serve, protocol, "--return_offsets_mapping")
    body = {"instances": [TEXT], "parameters": {"return_offsets_mapping": False}}
    assert "outputs" not in service.post(body).json()


def test_ignored_labels(serve: Serve, protocol: str) -> None:
    service = ner(serve, protocol)
    for case in cases("ignore_cases", "ner"):
        for strategy in STRATEGIES:
            parameters = {"aggregation_strategy": strategy, "ignore_labels": case["ignore_labels"]}
            (found,) = service.predict([case["text"]], PIPELINE | parameters)
            assert_same(found, case[strategy], f"{case['ignore_labels']} {strategy}")


@each_model
def test_raw_logits_and_probabilities(serve: Serve, protocol: str, model: str) -> None:
    """They belong to the classes and to the scores of the goldens, token by token."""
    mine = cases("cases", model)
    texts = [case["text"] for case in mine]
    logits = ner(serve, protocol, "--return_raw_logits", model=model).predict(texts)
    shares = ner(serve, protocol, model=model).predict(texts, {"return_probabilities": True})
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


def test_a_long_text_is_cut_or_refused_as_asked(serve: Serve, protocol: str) -> None:
    long = "Anna Smith lives in Berlin. " * 40
    service = ner(serve, protocol)
    before = service.metric(COUNTER)
    ((classes,),) = service.predict([long])
    assert len(classes) == 128
    assert service.metric(COUNTER) == before + 1
    assert "truncation: false" in error_of(service, long, 413, truncation=False)
    strict = ner(serve, protocol, "--on_overflow=error")
    assert "longer than the 128 tokens" in error_of(strict, long, 413)
    assert strict.predict([long], {"truncation": True}) == [[classes]]
    assert strict.predict([TEXT]) == service.predict([TEXT], {"truncation": False})


def test_truncation_switches_the_windows_of_the_flag_off(serve: Serve, protocol: str) -> None:
    long = "Anna Smith lives in Berlin. " * 40
    service = ner(serve, protocol, "--on_overflow=window")
    ((cut,),) = service.predict([long], {"truncation": True})
    ((whole,),) = service.predict([long])
    assert (len(cut), len(whole)) == (128, 2 + 40 * 6)


@pytest.mark.parametrize("name", ["ner", "token-classification"])
def test_the_task_by_name(serve: Serve, protocol: str, name: str) -> None:
    service = ner(serve, protocol, f"--task={name}")
    case = cases("cases", "ner")[0]
    assert service.predict([case["text"]]) == [[case["classes"]]]


@pytest.mark.parametrize(
    ("instance", "message"),
    [
        (7, "instances[0]: expected a string"),
        (None, "instances[0]: expected a string"),
        ({"text": 7}, "instances[0]"),
        ({"text": TEXT, "words": ["Anna"]}, "instances[0]"),
        ({"question": TEXT}, "instances[0]"),
        ([], "instances[0]: expected at least one word"),
        ({"tokens": []}, "instances[0].tokens: expected at least one word"),
        ({"words": "Anna"}, "instances[0].words: expected a list of words"),
        (["Anna", 7], "instances[0]: expected a list of words"),
    ],
    ids=str,
)
def test_bad_instances(serve: Serve, protocol: str, instance: Any, message: str) -> None:
    assert message in error_of(ner(serve, protocol), instance)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
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
    ],
    ids=str,
)
def test_bad_parameters(serve: Serve, protocol: str, parameters: Any, message: str) -> None:
    assert message in error_of(ner(serve, protocol), **parameters)
