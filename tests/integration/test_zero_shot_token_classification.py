"""zero_shot_token_classification against gliner (scripts/models/train_gliner.py), by models in Triton."""

from __future__ import annotations

import itertools
import unicodedata
from typing import Any

import pytest

from tests.integration.conftest import Serve, goldens, message_of
from tests.integration.grpc_client import request, stub

GOLDENS = goldens("zero_shot_token_classification")
ABSOLUTE = GOLDENS["about"]["score_absolute"]
ANNA = "Anna Smith lives in Berlin and works for Siemens."
LABELS = ["person", "city", "company"]
PARAMETERS = ("threshold", "flat_ner", "multi_label")


def spot(entity: Any) -> tuple[int, int, str]:
    return entity["start"], entity["end"], entity["label"]


def assert_entities(found: Any, case: Any) -> None:
    """The library's entities, and the text between their offsets."""
    expected = case["entities"]
    key = [spot(entity) for entity in found]
    assert sorted(key) == sorted((start, end, label) for start, end, label, _ in expected), case["text"]
    scores = {(start, end, label): score for start, end, label, score in expected}
    for entity, name in zip(found, key, strict=True):
        assert entity["score"] == pytest.approx(scores[name], abs=ABSOLUTE)
        assert entity["text"] == case["text"][entity["start"] : entity["end"]]
    assert [entity["start"] for entity in found] == sorted(entity["start"] for entity in found)


@pytest.mark.parametrize(
    "model", ["gliner", "gliner_token", "gliner_random", "gliner_token_random", "gliner_bi", "gliner_bi_token"]
)
def test_answers_are_those_of_the_library_together_and_alone(serve: Serve, model: str) -> None:
    """Texts of a request share batches although each has labels of its own; ten of each group are sent alone, too."""
    service, cases = serve(model, "v2", "--max_total_length=1000000"), GOLDENS[model]
    assert len(cases) == 300 and {len(case["labels"]) for case in cases} >= {1, 25}
    assert sum(len(case["entities"]) for case in cases) > 300
    groups: dict[Any, list[Any]] = {}
    for case in cases:
        groups.setdefault(tuple(case[name] for name in PARAMETERS), []).append(case)
    for values, same in groups.items():
        parameters = dict(zip(PARAMETERS, values, strict=True))
        instances = [{"text": case["text"], "labels": case["labels"]} for case in same]
        together = service.predict(instances, parameters)
        for case, found in zip(same, together, strict=True):
            assert_entities(found, case)
        for instance, found in [*zip(instances, together, strict=True)][:10]:
            [alone] = service.predict([instance], parameters)
            assert [spot(entity) for entity in alone] == [spot(entity) for entity in found]
            assert [e["score"] for e in alone] == pytest.approx([e["score"] for e in found], abs=ABSOLUTE)


def test_the_goldens_have_combining_marks_and_many_labels() -> None:
    for model in ("gliner_random", "gliner_token_random"):
        texts = [case["text"] for case in GOLDENS[model]]
        assert sum(any(map(unicodedata.combining, text)) for text in texts) > 100
        assert sum("\u0928\u092e" in text for text in texts) > 10, "Devanagari"
        assert len({tuple(case["labels"]) for case in GOLDENS[model]}) > 250


def test_long_texts_in_windows_have_each_entity_once(serve: Serve) -> None:
    text = f"{ANNA} " * 30
    service = serve("gliner", "v2", "--on_overflow=window")
    [found] = service.predict([text], {"labels": LABELS})
    spans = [(entity["start"], entity["end"]) for entity in found]
    assert len(spans) == len({*spans}) and all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    assert len(found) > 30 and max(entity["end"] for entity in found) > len(text) * 0.9
    assert all(text[entity["start"] : entity["end"]] == entity["text"] for entity in found)
    [cut] = service.predict([text], {"labels": LABELS, "truncation": True})
    assert 0 < len(cut) < len(found)
    refused = service.post({"instances": [text], "parameters": {"labels": LABELS, "truncation": False}})
    assert "must not be truncated" in message_of(refused, 413)


def test_v2_and_grpc_take_labels_as_a_tensor(serve: Serve) -> None:
    service = serve("gliner")
    [expected] = service.predict([ANNA], {"labels": LABELS})
    text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [ANNA]}
    labels = {"name": "labels", "datatype": "BYTES", "shape": [3], "data": LABELS}
    answer = service.client.post("/v2/models/gliner/infer", json={"inputs": [text, labels]}).json()
    assert len(answer["outputs"]) == 1
    with stub(service) as methods:
        reply = methods.ModelInfer(request("gliner", {"text": [ANNA], "labels": [LABELS]}))
    for entity in expected:
        assert entity["text"] in answer["outputs"][0]["data"][0]
        assert entity["text"].encode() in reply.SerializeToString()


def test_texts_without_words_have_no_entities(serve: Serve) -> None:
    service = serve("gliner")
    assert service.predict(["", " \n", "\u200b", ANNA], {"labels": ["person"]})[:3] == [[], [], []]
